//! Processes that a test starts, reads and ends.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long a program may take for something it does at once on an idle machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A started process. On drop it is killed, by its own id, and reaped.
pub struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Output,
    stderr: Output,
    started: Instant,
}

/// What a process left behind.
#[derive(Clone, Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// All it wrote on stdout.
    pub stdout: String,
    /// All it wrote on stderr.
    pub stderr: String,
    /// From its start to the moment its end was seen.
    pub took: Duration,
}

/// A pipe that a thread reads.
struct Output(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// What the pipe has brought so far, and whether it was closed.
#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    closed: bool,
}

impl Output {
    /// Reads the pipe in a thread: a full pipe must never stop the process that writes to it.
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let ours = Arc::clone(&shared);
        std::thread::spawn(move || {
            let mut buffer = [0; 16 << 10];
            loop {
                let read = pipe.read(&mut buffer).unwrap_or(0);
                let mut state = shared.state.lock().unwrap();
                state.bytes.extend_from_slice(&buffer[..read]);
                state.closed = read == 0;
                shared.changed.notify_all();
                if read == 0 {
                    return;
                }
            }
        });
        Self(ours)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.state.lock().unwrap().bytes).into_owned()
    }

    /// Waits until the text so far has what `find` looks for, or the pipe is closed, or the time
    /// is over.
    fn wait<T>(&self, patience: Duration, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + patience;
        let mut state = self.0.state.lock().unwrap();
        loop {
            if let Some(found) = find(&String::from_utf8_lossy(&state.bytes)) {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.closed || left.is_zero() {
                return None;
            }
            state = self.0.changed.wait_timeout(state, left).unwrap().0;
        }
    }
}

impl Process {
    /// Starts the command, with pipes on all three streams.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let name = format!("{command:?}");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = command.spawn().unwrap_or_else(|err| panic!("cannot start {name}: {err}"));
        Self {
            stdin: child.stdin.take(),
            stdout: Output::of(child.stdout.take().expect("piped")),
            stderr: Output::of(child.stderr.take().expect("piped")),
            name,
            child,
            started,
        }
    }

    /// Runs the command to its end, which must come within `patience`. Its stdin is empty.
    #[track_caller]
    pub fn run(command: &mut Command, patience: Duration) -> Finished {
        let mut process = Self::start(command);
        process.stdin = None;
        process.wait(patience)
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("waiting for a child").is_none()
    }

    /// Sends it a signal.
    #[track_caller]
    pub fn signal(&mut self, signal: i32) {
        assert!(self.is_running(), "{} has ended already:\n{}", self.name, self.stderr.text());
        // SAFETY: kill has no memory effects. The child is not reaped, so its id is still its own.
        let result = unsafe { libc::kill(self.pid() as i32, signal) };
        assert_eq!(result, 0, "kill: {}", std::io::Error::last_os_error());
    }

    /// Writes an empty line to its stdin: the word that workloads wait for.
    #[track_caller]
    pub fn send_line(&mut self) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        stdin.write_all(b"\n").unwrap_or_else(|err| panic!("{}: stdin: {err}", self.name));
    }

    /// Waits for a whole line on stdout that starts with `start`, and returns it.
    #[track_caller]
    pub fn wait_stdout(&self, start: &str) -> String {
        self.wait_line(&self.stdout, "stdout", start)
    }

    /// Waits for a whole line on stderr that starts with `start`, and returns it.
    #[track_caller]
    pub fn wait_stderr(&self, start: &str) -> String {
        self.wait_line(&self.stderr, "stderr", start)
    }

    #[track_caller]
    fn wait_line(&self, output: &Output, stream: &str, start: &str) -> String {
        let whole = |text: &str| {
            let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            lines.find(|line| line.starts_with(start)).map(|line| line.trim_end().to_owned())
        };
        output.wait(PATIENCE, whole).unwrap_or_else(|| {
            panic!(
                "{}: no line on {stream} starts with {start:?}\nstdout: {}\nstderr: {}",
                self.name,
                self.stdout.text(),
                self.stderr.text()
            )
        })
    }

    /// Waits for its end, which must come within `patience`.
    #[track_caller]
    pub fn wait(mut self, patience: Duration) -> Finished {
        let deadline = Instant::now() + patience;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("waiting for a child") {
                break status;
            }
            assert!(
                Instant::now() < deadline,
                "{} has not ended within {patience:?}\nstdout: {}\nstderr: {}",
                self.name,
                self.stdout.text(),
                self.stderr.text()
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        let took = self.started.elapsed();
        // A child of the process may hold the pipe open for longer.
        for output in [&self.stdout, &self.stderr] {
            output.wait(Duration::from_secs(1), |_| None::<()>);
        }
        Finished { status, stdout: self.stdout.text(), stderr: self.stderr.text(), took }
    }

    /// Waits for its end with the usual patience.
    #[track_caller]
    pub fn finish(self) -> Finished {
        self.wait(PATIENCE)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended, which is fine; there is nothing to do about any other failure.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
