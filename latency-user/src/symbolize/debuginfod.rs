//! Debug information from debuginfod servers, through the program `debuginfod-find`: it knows the
//! protocol, TLS and the cache that other tools share.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::separate::hex;

const PROGRAM: &str = "debuginfod-find";
/// All that is fetched for one recording takes no longer.
const BUDGET: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// A path.
const OUTPUT_CAP_BYTES: u64 = 8 << 10;

/// Why no server can be asked.
#[derive(Debug, Error)]
pub enum DebuginfodError {
    /// The program is not installed.
    #[error(
        "--debuginfod needs the program debuginfod-find; install the package debuginfod (Debian, \
         Ubuntu) or elfutils-debuginfod-client (Fedora, RHEL)"
    )]
    NoProgram,
    /// No server is named.
    #[error(
        "--debuginfod needs servers in DEBUGINFOD_URLS, which sudo takes away: \
         sudo DEBUGINFOD_URLS=\"$DEBUGINFOD_URLS\" latency record --debuginfod ..."
    )]
    NoServers,
}

/// Asks debuginfod servers, for a bounded time.
#[derive(Debug)]
pub struct Debuginfod {
    program: PathBuf,
    left: Duration,
}

impl Debuginfod {
    /// Looks whether servers can be asked; asks nothing yet.
    ///
    /// # Errors
    /// The program or the servers are missing.
    pub fn prepare() -> Result<Self, DebuginfodError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = std::env::split_paths(&path)
            .map(|folder| folder.join(PROGRAM))
            .find(|program| program.is_file())
            .ok_or(DebuginfodError::NoProgram)?;
        let servers = std::env::var_os("DEBUGINFOD_URLS").unwrap_or_default();
        if servers.as_encoded_bytes().trim_ascii().is_empty() {
            return Err(DebuginfodError::NoServers);
        }
        Ok(Self { program, left: BUDGET })
    }

    /// Fetches the debug information of a build. `Ok(None)`: no server has it.
    ///
    /// # Errors
    /// The servers could not be asked within the time that is left, in words.
    pub(super) fn fetch(&mut self, build_id: &[u8]) -> Result<Option<File>, String> {
        if self.left.is_zero() {
            return Err(format!("not asked for: the {} s for that are over", BUDGET.as_secs()));
        }
        let started = Instant::now();
        let result = self.run(build_id, started + self.left);
        self.left = self.left.saturating_sub(started.elapsed());
        let Some(path) = result? else { return Ok(None) };
        File::open(&path).map(Some).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn run(&self, build_id: &[u8], deadline: Instant) -> Result<Option<PathBuf>, String> {
        let mut child = Command::new(&self.program)
            .args(["debuginfo", &hex(build_id)])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{PROGRAM}: {error}"))?;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
                _ => {
                    // It may have ended just now.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("no answer within {} s", BUDGET.as_secs()));
                }
            }
        };
        if !status.success() {
            return Ok(None);
        }
        let mut path = Vec::new();
        let output = child.stdout.take().into_iter();
        for output in output {
            let read = output.take(OUTPUT_CAP_BYTES).read_to_end(&mut path);
            read.map_err(|error| format!("{PROGRAM}: {error}"))?;
        }
        let path = path.trim_ascii_end().to_vec();
        Ok((!path.is_empty()).then(|| std::ffi::OsString::from_vec(path).into()))
    }
}
