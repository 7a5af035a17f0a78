//! The programs that are traced while something is measured.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::process;

/// How long a program may take to say something.
const PATIENCE: Duration = Duration::from_secs(60);

/// A line, and when it was there.
pub type Line = (Instant, String);

/// Reads lines as they come.
pub fn lines(stream: impl Read + Send + 'static) -> Receiver<Line> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            // Nobody listens any more: what is said is still read, lest the pipe fill up.
            let _ = sender.send((Instant::now(), String::from_utf8_lossy(&line).into_owned()));
        }
    });
    receiver
}

/// Waits for a line that begins so; those before it go to `others`.
pub fn wait_for(lines: &Receiver<Line>, start: &str, others: &mut Vec<String>) -> Result<Line> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) if line.1.starts_with(start) => return Ok(line),
            Ok(line) => others.push(line.1),
            Err(err) => {
                let said = others.join("\n");
                let what = match err {
                    RecvTimeoutError::Timeout => format!("said nothing for {PATIENCE:?}"),
                    RecvTimeoutError::Disconnected => "ended".to_owned(),
                };
                bail!("{what} before it said \"{start}\"; it had said:\n{said}");
            }
        }
    }
}

/// Makes a command end with this program, whatever way that goes, and not by Ctrl-C before; and by SIGINT
/// alone, which a shell has its background jobs ignore, and so all that these start.
pub fn bound(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt as _;

    command.process_group(0);
    // SAFETY: between fork and exec only signal and prctl are called, which are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            let is_heard = libc::signal(libc::SIGINT, libc::SIG_DFL) != libc::SIG_ERR;
            if is_heard && libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        })
    }
}

/// How far a workload is, as it tells from time to time.
pub struct Progress {
    /// Requests, or whatever it does, so far.
    pub done: u64,
    /// The clock, from any beginning.
    pub time_ns: u64,
    /// CPU time that they took.
    pub cpu_ns: u64,
}

/// A running program. Dropping it ends it.
pub struct Target {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Receiver<Line>,
    stderr: Receiver<Line>,
}

impl Target {
    /// Starts a program.
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = bound(streams).spawn().with_context(|| format!("`{name}` cannot run"))?;
        let stdout = lines(child.stdout.take().context("stdout")?);
        let stderr = lines(child.stderr.take().context("stderr")?);
        Ok(Self { name, stdin: child.stdin.take(), child, stdout, stderr })
    }

    /// Starts a workload, and waits until it is ready for the word.
    pub fn ready(command: &mut Command) -> Result<Self> {
        let target = Self::start(command)?;
        let ready = format!("{}: ready", target.short_name());
        wait_for(&target.stderr, &ready, &mut Vec::new()).with_context(|| target.name.clone())?;
        Ok(target)
    }

    /// Starts a program that works from the beginning, and lets it come so far.
    pub fn busy(command: &mut Command) -> Result<Self> {
        let mut target = Self::start(command)?;
        std::thread::sleep(Duration::from_millis(500));
        target.still_runs()?;
        Ok(target)
    }

    /// Keeps all its threads on the second CPU, if there is one.
    pub fn keep_on_second_cpu(&self) -> Result<()> {
        if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
            let mut command = Command::new("taskset");
            process::output(command.args(["-a", "-p", "-c", "1", &self.pid().to_string()]))?;
        }
        Ok(())
    }

    /// Makes sure that it has not ended by itself.
    pub fn still_runs(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let said: Vec<String> = self.stderr.try_iter().map(|(_, line)| line).collect();
        bail!("`{}` ended at once: {status}\n{}", self.name, said.join("\n"))
    }

    /// Waits for a line on stdout.
    pub fn says(&self, start: &str) -> Result<()> {
        wait_for(&self.stdout, start, &mut Vec::new()).with_context(|| self.name.clone())?;
        Ok(())
    }

    /// The next line on stderr that begins so; what was said before is passed over.
    pub fn says_next(&self, start: &str) -> Result<String> {
        while self.stderr.try_recv().is_ok() {}
        let line = wait_for(&self.stderr, start, &mut Vec::new());
        Ok(line.with_context(|| self.name.clone())?.1)
    }

    /// How far it is, as it tells next.
    pub fn progress(&self) -> Result<Progress> {
        let line = self.says_next("progress: ")?;
        let mut numbers = line.split(' ').skip(1).map(str::parse);
        let mut next = || {
            let number = numbers.next().and_then(Result::ok);
            number.with_context(|| format!("{} told \"{line}\"", self.name))
        };
        Ok(Progress { done: next()?, time_ns: next()?, cpu_ns: next()? })
    }

    fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or_default()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives a workload the word to start; when.
    pub fn go(&mut self) -> Result<Instant> {
        let stdin = self.stdin.as_mut().context("stdin")?;
        let now = Instant::now();
        stdin.write_all(b"\n").with_context(|| format!("the word for {}", self.name))?;
        Ok(now)
    }

    /// Waits for a workload's result; when it was there. The workload stays.
    pub fn result(&self) -> Result<(Instant, Value)> {
        let (when, line) =
            wait_for(&self.stdout, "{", &mut Vec::new()).with_context(|| self.name.clone())?;
        let value =
            serde_json::from_str(&line).with_context(|| format!("{}'s result", self.name))?;
        Ok((when, value))
    }

    /// CPU time of its first thread so far, once it waits for a word: the kernel brings the count up
    /// to date when the thread gives the CPU away, so that gets a moment.
    pub fn cpu_ns(&self) -> Result<u64> {
        std::thread::sleep(Duration::from_millis(10));
        cpu_ns(self.pid())
    }

    /// Asks it to end; what it printed.
    pub fn stop_printed(self, signal: libc::c_int) -> Result<String> {
        send(self.pid(), signal);
        // The lines end when it has ended, and closed its output.
        let deadline = Instant::now() + PATIENCE;
        let mut printed = String::new();
        loop {
            match self.stdout.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((_, line)) => printed.push_str(&(line + "\n")),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => bail!("{} did not end", self.name),
            }
        }
        self.stop(signal)?;
        Ok(printed)
    }

    /// Asks it to end, and waits for that.
    pub fn stop(self, signal: libc::c_int) -> Result<()> {
        send(self.pid(), signal);
        self.end()
    }

    /// Waits for the end of a program that was asked to.
    pub fn end(mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!("{} did not end when it was asked to", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// CPU time of a process's first thread so far. While it runs, the kernel brings the count up to date
/// with its ticks.
pub fn cpu_ns(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/schedstat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    first.with_context(|| format!("{path} has no number"))
}

/// Sends a signal to a child that is not waited for yet.
pub fn send(pid: u32, signal: libc::c_int) {
    if let Ok(pid) = libc::pid_t::try_from(pid) {
        // SAFETY: kill has no preconditions; the child is not reaped yet, so the id is its own.
        unsafe { libc::kill(pid, signal) };
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Both fail harmlessly once it has ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
