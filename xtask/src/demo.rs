//! `cargo xtask demo`: the tool at work on a sample key service.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::{process, workload, workspace};

/// How long the key service has to end after SIGTERM: it sorts every sample that it took.
const PATIENCE: Duration = Duration::from_secs(20);

/// Build the tool, start a sample key service and record it: the quickest way to see a report.
#[derive(Args)]
pub struct Demo {
    /// How long to record
    #[arg(short, long, value_name = "SECONDS", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    duration: u32,

    /// Fail unless the report has all operations that the key service says it did, and no others
    #[arg(long)]
    sanity: bool,
}

impl Demo {
    /// Builds, records and compares.
    pub fn run(&self) -> Result<()> {
        let target = workspace::target()?;
        let folder = target.join("demo");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        process::run(workspace::cargo().args(["build", "--release", "--package", "latency-user"]))?;
        let latency = target.join("release/latency");
        let keysvc = workload::compile("keysvc", &folder)?;

        // Ctrl-C is for `latency`, which then ends with a report; this program waits for it.
        ignore_interrupt();
        let service = Service::start(&keysvc, &folder)?;
        let recording = folder.join("keysvc.latency");
        let request = "keysvc:handle_request";
        println!(
            "$ sudo latency record -p {} -d {}s --request {request}",
            service.pid(),
            self.duration
        );
        let recorded = process::run(
            process::root_command(&latency)?
                .arg("record")
                .args(["-p", &service.pid().to_string(), "-d", &format!("{}s", self.duration)])
                .args(["--request", request])
                .arg("-o")
                .arg(&recording),
        );
        // First of all: whatever became of the recording, the service is not left behind.
        let result = service.end();
        recorded?;
        let truth = Truth::read(&result?)?;

        println!("\nThe key service's own clock, over its whole run (while untraced, too):");
        print!("{truth}");
        if self.sanity {
            let json = process::output(
                Command::new(&latency).args(["report", "--format", "json"]).arg(&recording),
            )?;
            check(&truth, &serde_json::from_str(&json).context("the JSON report")?)?;
            println!(
                "\nThe report has every kind of operation, and no more of each than there were."
            );
        }

        for view in ["off-cpu", "on-cpu", "locks", "wakers"] {
            process::run(Command::new(&latency).args(["flame", "--view", view]).arg(&recording))?;
        }
        let (latency, recording) = (workspace::shown(&latency), workspace::shown(&recording));
        println!("\nThe recording is {recording}. Next, try:");
        println!("    {latency} report {recording} --format json");
        println!("    sudo {latency} record -p PID -d 30s");
        Ok(())
    }
}

/// A signal that is ignored stays so in the programs started; one with a handler does not.
fn ignore_interrupt() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler does nothing, so it may run at any point.
    unsafe { libc::signal(libc::SIGINT, handler) };
}

/// The running key service. It ends with this program, whatever way that goes.
struct Service {
    child: Child,
    result: PathBuf,
}

impl Service {
    /// Starts it, and waits until its keys are made.
    fn start(program: &Path, folder: &Path) -> Result<Self> {
        use std::os::unix::process::CommandExt as _;

        let result = folder.join("keysvc.json");
        let stdout = File::create(&result).with_context(|| result.display().to_string())?;
        let mut command = Command::new(program);
        command.args(["--threads", "4", "--algorithm", "all", "--audit-ms", "20"]);
        // Its own process group, so that Ctrl-C does not end it before the recording.
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).process_group(0);
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let child = command.spawn().with_context(|| program.display().to_string())?;
        let mut service = Self { child, result };
        service.wait_until_ready()?;
        Ok(service)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let stderr = self.child.stderr.take().context("keysvc has no stderr")?;
        let mut lines = BufReader::new(stderr).lines();
        for line in lines.by_ref() {
            let line = line?;
            if line.starts_with("keysvc: ready") {
                // What else it says must not fill the pipe.
                std::thread::spawn(move || {
                    lines.map_while(Result::ok).for_each(|l| eprintln!("{l}"))
                });
                return Ok(());
            }
            eprintln!("{line}");
        }
        bail!("keysvc ended before its keys were made");
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, and gives the result that it printed.
    fn end(mut self) -> Result<String> {
        self.signal(libc::SIGTERM);
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                bail!("keysvc did not end within {} s of SIGTERM", PATIENCE.as_secs());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        if !status.success() {
            bail!("the traced key service came to harm: {status}");
        }
        fs::read_to_string(&self.result).with_context(|| self.result.display().to_string())
    }

    fn signal(&self, signal: libc::c_int) {
        if let Ok(pid) = libc::pid_t::try_from(self.child.id()) {
            // SAFETY: kill has no preconditions; the child is not reaped yet, so the id is its own.
            unsafe { libc::kill(pid, signal) };
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Both fail harmlessly once it has ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An operation and an algorithm, such as `sign` and `ed25519`.
type Kind = (String, String);

/// What the key service measured itself.
struct Truth {
    rows: Vec<(Kind, Measured)>,
}

struct Measured {
    count: u64,
    p50_ns: u64,
    p99_ns: u64,
}

impl Truth {
    fn read(text: &str) -> Result<Self> {
        let json: Value = serde_json::from_str(text).context("keysvc's result")?;
        let rows = json["operations"].as_array().context("keysvc's result has no operations")?;
        let row = |row: &Value| {
            let number = |key: &str| row[key].as_u64().with_context(|| format!("keysvc's {key}"));
            let measured = Measured {
                count: number("count")?,
                p50_ns: number("p50_ns")?,
                p99_ns: number("p99_ns")?,
            };
            Ok((kind(row).context("keysvc's operation")?, measured))
        };
        Ok(Self { rows: rows.iter().map(row).collect::<Result<_>>()? })
    }
}

/// One line for each operation.
impl std::fmt::Display for Truth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut lines: BTreeMap<&str, String> = BTreeMap::new();
        for ((operation, algorithm), row) in &self.rows {
            let line = lines.entry(operation).or_default();
            let separator = if line.is_empty() { "" } else { ", " };
            let (p50, p99) = (micros(row.p50_ns), micros(row.p99_ns));
            write!(line, "{separator}{algorithm} P50 {p50} P99 {p99}")?;
        }
        lines.iter().try_for_each(|(operation, line)| writeln!(f, "    {operation:<6} {line}"))
    }
}

fn micros(ns: u64) -> String {
    format!("{}.{} µs", ns / 1000, ns % 1000 / 100)
}

fn kind(row: &Value) -> Option<Kind> {
    Some((row["operation"].as_str()?.to_owned(), row["algorithm"].as_str()?.to_owned()))
}

/// Holds the report against what really happened while it was made.
fn check(truth: &Truth, report: &Value) -> Result<()> {
    let rows = report["operations"].as_array().context("the JSON report has no operations")?;
    let mut reported: BTreeMap<Kind, u64> = BTreeMap::new();
    // The key service counts its requests without a name.
    for row in rows.iter().filter(|row| row["is_request"] != true) {
        let kind = kind(row).context("a row of the JSON report has no operation or algorithm")?;
        *reported.entry(kind).or_default() +=
            row["count"].as_u64().context("a row of the JSON report has no count")?;
    }
    for ((operation, algorithm), measured) in &truth.rows {
        match reported.remove(&(operation.clone(), algorithm.clone())) {
            None | Some(0) => bail!("the report has no {operation} of {algorithm}"),
            Some(count) if count > measured.count => {
                let most = measured.count;
                bail!("the report has {count} {operation}s of {algorithm}; there were {most}");
            }
            Some(_) => {}
        }
    }
    if let Some(((operation, algorithm), _)) = reported.first_key_value() {
        bail!("the report has a {operation} of {algorithm}; the key service did none");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn truth() -> Truth {
        let row = |operation, p50| {
            json!({ "operation": operation, "algorithm": "ed25519", "count": 10, "p50_ns": p50,
                    "p99_ns": 99_949 })
        };
        let text = json!({ "operations": [row("sign", 1_250), row("verify", 7)] }).to_string();
        Truth::read(&text).unwrap()
    }

    fn row(operation: &str, count: u64) -> Value {
        json!({ "operation": operation, "algorithm": "ed25519", "count": count })
    }

    /// Check that the key service's result is two lines to people.
    #[test]
    fn two_lines() {
        assert_eq!(
            truth().to_string(),
            "    sign   ed25519 P50 1.2 µs P99 99.9 µs\n    verify ed25519 P50 0.0 µs P99 99.9 µs\n"
        );
    }

    /// Check that the report may have fewer operations than there were, not more, none or others.
    #[test]
    fn held_against_the_truth() {
        let result = |rows: Vec<Value>| {
            check(&truth(), &json!({ "operations": rows })).map_err(|err| err.to_string())
        };
        assert_eq!(result(vec![row("sign", 10), row("verify", 1)]), Ok(()));
        for (rows, message) in [
            (vec![row("sign", 1)], "no verify of ed25519"),
            (vec![row("sign", 0), row("verify", 1)], "no sign of ed25519"),
            (vec![row("sign", 11), row("verify", 1)], "has 11 signs"),
            (vec![row("sign", 1), row("verify", 1), row("other", 1)], "did none"),
        ] {
            let error = result(rows).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
