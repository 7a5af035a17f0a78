//! Running `latency` itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::process::{Finished, Process};
use crate::report::Report;

/// How long the end of a recording may take; detaching many probes can take seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// The tracer's binary: `LATENCY_BIN`, or the later built of `target/release/latency` and
/// `target/debug/latency` (an old one would pass or fail for code that is no more).
#[track_caller]
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("LATENCY_BIN") {
        let path = PathBuf::from(path);
        assert!(path.is_file(), "LATENCY_BIN={} is no file", path.display());
        return path;
    }
    let folder = crate::target_folder();
    let built = |profile: &str| {
        let path = folder.join(profile).join("latency");
        let time = path.metadata().and_then(|data| data.modified()).ok()?;
        Some((time, path))
    };
    let latest = [built("release"), built("debug")].into_iter().flatten().max();
    let Some((_, path)) = latest else {
        panic!(
            "no latency binary under {}: run `cargo build --release -p latency-user`, or name \
             one in LATENCY_BIN",
            folder.display()
        );
    };
    path
}

/// `latency ARGUMENTS`, for callers that see to the rest themselves. The tests' own `sudo` and
/// settings do not reach it.
#[track_caller]
pub fn latency(arguments: &[&str]) -> Command {
    clean(Command::new(binary()), arguments)
}

fn clean(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments).env("NO_COLOR", "1");
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("SUDO_") || name.starts_with("LATENCY_") {
            command.env_remove(&*name);
        }
    }
    command
}

/// A running `latency record -p PID`.
pub struct Tracer {
    process: Process,
    folder: TempDir,
}

impl Tracer {
    /// Attaches to a process and waits until the tracer says that it is attached.
    #[track_caller]
    pub fn attach(pid: u32, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = latency(&["record", "-p", &pid.to_string(), "-o"]);
        command.arg(recording_in(&folder)).args(options);
        let process = Process::start(&mut command);
        process.wait_stderr("attached");
        Self { process, folder }
    }

    /// The tracer's process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Ends the recording as Ctrl-C does.
    #[track_caller]
    pub fn stop(self) -> Recorded {
        self.stop_by(libc::SIGINT)
    }

    /// Ends the recording by this signal; it must end in success.
    #[track_caller]
    pub fn stop_by(mut self, signal: i32) -> Recorded {
        self.process.signal(signal);
        self.end()
    }

    /// Waits for the end of the recording, which must be a success.
    #[track_caller]
    pub fn end(self) -> Recorded {
        let finished = self.process.wait(PATIENCE);
        let recorded = Recorded { finished, folder: self.folder };
        let Finished { status, stderr, .. } = &recorded.finished;
        assert!(status.success(), "latency record: {status}\n{stderr}");
        recorded
    }
}

/// A finished recording.
pub struct Recorded {
    /// How `latency record` ended, and what it printed.
    pub finished: Finished,
    folder: TempDir,
}

impl Recorded {
    /// Runs `latency record OPTIONS -- COMMAND` to its end, whatever its exit status. The command
    /// must end by itself within half a minute.
    #[track_caller]
    pub fn of(options: &[&str], command: &[&str]) -> Self {
        Self::with(options, command, &[])
    }

    /// As [`Recorded::of`], with more environment variables for `latency`.
    #[track_caller]
    pub fn with(options: &[&str], command: &[&str], vars: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut record = latency(&["record", "-o"]);
        record.arg(recording_in(&folder)).args(options).arg("--").args(command);
        record.envs(vars.iter().copied());
        Self { finished: Process::run(&mut record, PATIENCE), folder }
    }

    /// The recording's file.
    pub fn path(&self) -> PathBuf {
        recording_in(&self.folder)
    }

    /// The report, from the recording alone.
    #[track_caller]
    pub fn report(&self) -> Report {
        Report::parse(&self.rendered("json"))
    }

    /// The report in another format, as text.
    #[track_caller]
    pub fn rendered(&self, format: &str) -> String {
        let mut command = latency(&["report"]);
        command.arg(self.path()).args(["--format", format]);
        let finished = Process::run(&mut command, PATIENCE);
        assert!(
            finished.status.success(),
            "latency report --format {format}: {}\n{}\nafter\n{}",
            finished.status,
            finished.stderr,
            self.finished.stderr
        );
        finished.stdout
    }
}

fn recording_in(folder: &TempDir) -> PathBuf {
    folder.path().join("recording")
}

/// `latency ARGUMENTS`, run by a user without any right. The binary is copied to `folder`, since
/// that user may not be able to reach the target folder.
#[track_caller]
pub fn latency_as_nobody(folder: &Path, arguments: &[&str]) -> Command {
    let copy = folder.join("latency");
    std::fs::copy(binary(), &copy).expect("copying latency");
    open_to_all(folder);
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(copy);
    clean(command, arguments)
}

/// Lets every user read a temporary folder, which is private at first.
#[track_caller]
pub fn open_to_all(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("chmod");
}

/// Waits until `done` says so, at most `patience`; returns whether it did.
pub fn eventually(patience: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !done() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}
