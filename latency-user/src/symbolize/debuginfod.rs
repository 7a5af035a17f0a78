//! Debug information from debuginfod servers, through the program `debuginfod-find`: it knows the
//! protocol, TLS and the cache that other tools share.

use std::ffi::OsString;
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
    /// Environment variables for the program, besides the tracer's own.
    variables: Vec<(&'static str, OsString)>,
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
        Ok(Self { program, left: BUDGET, variables: Vec::new() })
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
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
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
        if let Some(output) = child.stdout.take() {
            let read = output.take(OUTPUT_CAP_BYTES).read_to_end(&mut path);
            read.map_err(|error| format!("{PROGRAM}: {error}"))?;
        }
        let path = path.trim_ascii_end().to_vec();
        Ok((!path.is_empty()).then(|| OsString::from_vec(path).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::TcpListener;

    /// A server on the loopback that answers each request with what `answer` makes of its path;
    /// `None`: never.
    fn serve(answer: fn(&str) -> Option<Vec<u8>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for mut connection in listener.incoming().flatten() {
                let mut request = [0; 4096];
                let length = connection.read(&mut request).unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                let Some(body) = answer(request.split(' ').nth(1).unwrap_or_default()) else {
                    silent.push(connection);
                    continue;
                };
                let status = if body.is_empty() { "404 Not Found" } else { "200 OK" };
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
                let _ = connection.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes());
                let _ = connection.write_all(&body);
            }
        });
        url
    }

    /// What asks this server, and keeps what it gets in a folder of the test.
    fn asking(url: &str, cache: &std::path::Path) -> Option<Debuginfod> {
        let path = std::env::var_os("PATH")?;
        let program = std::env::split_paths(&path).map(|folder| folder.join(PROGRAM));
        let variables = vec![
            ("DEBUGINFOD_URLS", url.into()),
            ("DEBUGINFOD_CACHE_PATH", cache.as_os_str().to_owned()),
        ];
        let program = program.into_iter().find(|program| program.is_file())?;
        Some(Debuginfod { program, left: BUDGET, variables })
    }

    /// Check that a file is fetched by its build id, and that one that the server does not have is
    /// none.
    #[test]
    fn fetches() {
        let cache = tempfile::tempdir().unwrap();
        let url = serve(|path| {
            Some(match path {
                "/buildid/abcdef0123/debuginfo" => b"debug information".to_vec(),
                _ => Vec::new(),
            })
        });
        let Some(mut debuginfod) = asking(&url, cache.path()) else {
            println!("SKIPPED fetches: no debuginfod-find");
            return;
        };
        let file = debuginfod.fetch(&[0xab, 0xcd, 0xef, 0x01, 0x23]).unwrap().unwrap();
        assert_eq!(std::io::read_to_string(file).unwrap(), "debug information");
        assert!(debuginfod.fetch(&[0xab, 0xcd, 0xef, 0x01, 0x24]).unwrap().is_none());
        assert!(debuginfod.left < BUDGET);
    }

    /// Check that a server that does not answer is given up when the time is over, and none is asked
    /// after that.
    #[test]
    fn gives_up() {
        let cache = tempfile::tempdir().unwrap();
        let url = serve(|_| None);
        let Some(mut debuginfod) = asking(&url, cache.path()) else {
            println!("SKIPPED gives_up: no debuginfod-find");
            return;
        };
        debuginfod.left = Duration::from_millis(300);
        let error = debuginfod.fetch(&[1, 2, 3, 4]).unwrap_err();
        assert!(error.contains("no answer"), "{error}");
        let error = debuginfod.fetch(&[1, 2, 3, 4]).unwrap_err();
        assert!(error.contains("not asked for"), "{error}");
    }
}
