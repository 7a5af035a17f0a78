//! `latency record`, watched from outside.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::Receiver,
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{
    settings::Settings,
    target::{Line, bound, lines, send, wait_for},
};
use crate::process;

/// How long it may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running tracer, attached. Dropping it ends it.
pub struct Tracer {
    child: Child,
    reaped: bool,
    started_unix: Duration,
    attached: Duration,
    stderr: Receiver<Line>,
    said: Vec<String>,
    last_output: Option<JoinHandle<Option<Instant>>>,
    latency: PathBuf,
    recording: PathBuf,
}

/// A tracer that has ended.
pub struct Traced {
    /// When it was started, since 1970.
    pub started_unix: Duration,
    /// From its start to the line that says it is attached.
    pub attached: Duration,
    /// From the last byte of the report to the end of the process.
    pub detach: Duration,
    /// From the call to end it, or to wait for its end, to the end of the process.
    pub end: Duration,
    /// User and system time of the whole run.
    pub cpu: Duration,
    /// Largest resident memory.
    pub peak_bytes: u64,
    /// The report of the recording.
    pub report: Value,
}

impl Tracer {
    /// Attaches to a process, and waits until it says so.
    pub fn attach(settings: &Settings, pid: u32, options: &[&str]) -> Result<Self> {
        let recording = settings.folder.join(format!("{pid}.latency"));
        let mut command = Command::new(&settings.latency);
        command.args(["record", "-p", &pid.to_string(), "-o"]).arg(&recording).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LATENCY_") {
                command.env_remove(name);
            }
        }
        bound(command.env("NO_COLOR", "1"));
        // Before the fork: what that takes is counted as well.
        let started_unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let started = Instant::now();
        let mut child = command.spawn().context("`latency record` cannot run")?;

        let mut stdout = child.stdout.take().context("stdout")?;
        let last_output = std::thread::spawn(move || {
            let (mut buffer, mut last) = ([0; 1 << 16], None);
            while stdout.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {
                last = Some(Instant::now());
            }
            last
        });
        let stderr = lines(child.stderr.take().context("stderr")?);
        let mut tracer = Self {
            child,
            reaped: false,
            started_unix,
            attached: Duration::ZERO,
            stderr,
            said: Vec::new(),
            last_output: Some(last_output),
            latency: settings.latency.clone(),
            recording,
        };
        let (when, _) =
            wait_for(&tracer.stderr, "attached", &mut tracer.said).context("latency record")?;
        tracer.attached = when.duration_since(started);
        Ok(tracer)
    }

    /// The tracer's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time of its threads so far. Those that have ended are not in it.
    pub fn cpu(&self) -> Result<Duration> {
        let folder = format!("/proc/{}/task", self.pid());
        let mut total_ns = 0;
        for entry in std::fs::read_dir(&folder).with_context(|| folder.clone())? {
            let text = std::fs::read_to_string(entry?.path().join("schedstat"));
            let text = text.unwrap_or_default();
            total_ns += text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(total_ns))
    }

    /// Ends the trace as Ctrl-C does.
    pub fn stop(self) -> Result<Traced> {
        send(self.child.id(), libc::SIGINT);
        self.end()
    }

    /// Ends the trace likewise; all times off the CPU, as folded stacks.
    pub fn stop_folded(self) -> Result<String> {
        send(self.child.id(), libc::SIGINT);
        Ok(self.end_and(Self::folded)?.1)
    }

    /// Ends the trace likewise, and reads more of the recording's file while it is there.
    pub fn stop_and<T>(self, read: impl FnOnce(&Path) -> Result<T>) -> Result<(Traced, T)> {
        send(self.child.id(), libc::SIGINT);
        self.end_and(|tracer| read(&tracer.recording))
    }

    /// Waits for the end of the trace.
    pub fn end(self) -> Result<Traced> {
        Ok(self.end_and(|_| Ok(()))?.0)
    }

    /// The same, and reads more of the recording while it is there.
    fn end_and<T>(mut self, read: impl FnOnce(&Self) -> Result<T>) -> Result<(Traced, T)> {
        let begun = Instant::now();
        // The tracer's end closes the pipe: until then there is nothing to do but to wait.
        while let Ok((_, line)) = self.stderr.recv() {
            self.said.push(line);
        }
        let (status, usage) = self.wait()?;
        let ended = Instant::now();
        if !status.success() {
            bail!("`latency record`: {status}\n{}", self.said.join("\n"));
        }
        let thread = self.last_output.take().context("the reader of its report")?;
        let last = thread.join().ok().flatten().context("`latency record` printed no report")?;
        let json = process::output(
            Command::new(&self.latency).args(["report", "--format", "json"]).arg(&self.recording),
        )?;
        let extra = read(&self)?;
        let traced = Traced {
            started_unix: self.started_unix,
            attached: self.attached,
            detach: ended.saturating_duration_since(last),
            end: ended.saturating_duration_since(begun),
            cpu: time(usage.ru_utime) + time(usage.ru_stime),
            peak_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
            report: serde_json::from_str(&json).context("the JSON report")?,
        };
        Ok((traced, extra))
    }

    fn folded(&self) -> Result<String> {
        process::output(
            Command::new(&self.latency).args(["flame", "--folded"]).arg(&self.recording),
        )
    }

    /// Reaps it, with what it used.
    ///
    /// Linux counts into the peak memory what this program had at the fork, a few MiB: less than
    /// any tracer.
    fn wait(&mut self) -> Result<(ExitStatus, libc::rusage)> {
        use std::os::unix::process::ExitStatusExt as _;

        let pid = libc::pid_t::try_from(self.child.id())?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut status = 0;
            // SAFETY: rusage is plain numbers, for which zero is a value.
            let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
            // SAFETY: both pointers are to values that live during the call.
            match unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) } {
                0 if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                0 => bail!("`latency record` did not end within {PATIENCE:?}"),
                reaped if reaped == pid => {
                    self.reaped = true;
                    return Ok((ExitStatus::from_raw(status), usage));
                }
                _ => return Err(std::io::Error::last_os_error()).context("wait4"),
            }
        }
    }
}

fn time(time: libc::timeval) -> Duration {
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if !self.reaped {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = std::fs::remove_file(&self.recording);
    }
}

impl Traced {
    /// A number of the report, by its JSON pointer.
    pub fn number(&self, pointer: &str) -> Result<u64> {
        let value = self.report.pointer(pointer).and_then(Value::as_u64);
        value.with_context(|| format!("the report has no number {pointer}"))
    }

    /// The rows of the report.
    pub fn operations(&self) -> &[Value] {
        self.report["operations"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Operations completed, of all kinds.
    pub fn count(&self) -> u64 {
        self.operations().iter().filter_map(|row| row["count"].as_u64()).sum()
    }
}
