//! `cargo xtask test`: every test, the privileged ones as root.

use std::{
    collections::BTreeSet,
    fmt,
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{debian, process, workspace};

/// What the end-to-end tests run and compile.
const PACKAGES: [&str; 6] =
    ["gcc", "libc6-dev", "libssl-dev", "libxml2-utils", "openssl", "python3"];

/// What some compare with, and are skipped without.
const PEERS: [&str; 2] = ["gdb", "linux-perf"];

/// Run every test: the crates' own, then the end-to-end ones on this machine's kernel.
///
/// The end-to-end tests load eBPF programs, so they run as root: directly, or through sudo. A test
/// that cannot run here prints why and is counted as skipped.
#[derive(Args)]
pub struct Test {
    /// Run the end-to-end tests only; stands before ARGS
    #[arg(long)]
    privileged_only: bool,

    /// Options and test names for both `cargo test` commands
    #[arg(value_name = "ARGS", allow_hyphen_values = true)]
    arguments: Vec<String>,

    /// Options for the test programs themselves, after `--`
    #[arg(value_name = "TEST_ARGS", last = true)]
    harness: Vec<String>,
}

impl Test {
    /// The words for cargo, and those for the test programs. Once clap has begun to take words that
    /// may start with a hyphen, it takes `--` for one of them.
    fn words(&self) -> (&[String], Vec<&String>) {
        let mut parts = self.arguments.splitn(2, |word| word == "--");
        let cargo = parts.next().unwrap_or_default();
        (cargo, parts.next().unwrap_or_default().iter().chain(&self.harness).collect())
    }

    /// Runs the tests and sums them up.
    pub fn run(&self) -> Result<()> {
        let mut total = Summary::default();
        let mut failed = Vec::new();
        if !self.privileged_only {
            let mut tests = cargo()?;
            tests.args(["test", "--workspace", "--exclude", "latency-tests", "--no-fail-fast"]);
            let (cargo, harness) = self.words();
            tests.args(cargo).arg("--").args(harness);
            if !run(tests, &mut total)? {
                failed.push("the crates' own tests");
            }
        }
        if !self.run_privileged(&mut total)? {
            failed.push("the end-to-end tests");
        }

        println!("\n{total}");
        if total.failed > 0 {
            bail!("{} tests failed", total.failed);
        }
        if !failed.is_empty() {
            bail!("{} could not be run to their end", failed.join(" and "));
        }
        Ok(())
    }

    fn run_privileged(&self, total: &mut Summary) -> Result<bool> {
        let probes = [
            debian::C_PROBES[0],
            debian::C_PROBES[1],
            ("command -v openssl", "openssl"),
            ("command -v python3", "python3"),
            ("command -v xmllint", "xmllint"),
        ];
        debian::require(&PACKAGES, &probes, "the end-to-end tests")?;
        if debian::is_debian() {
            let peers: Vec<_> =
                PEERS.into_iter().filter(|peer| debian::available(&[peer])).collect();
            debian::require(&peers, &[], "the tests that compare with others")?;
        }
        process::run(cargo()?.args(["build", "--release", "--package", "latency-user"]))?;

        let mut tests = cargo()?;
        let runner = process::as_root()?;
        if !runner.is_empty() {
            // A list, unlike the environment variable, may hold words with spaces.
            let list = serde_json::to_string(&runner)?;
            tests.arg("--config").arg(format!("target.{}.runner={list}", host()?));
        }
        tests.args(["test", "--package", "latency-tests", "--no-fail-fast"]);
        let (cargo, harness) = self.words();
        tests.args(cargo);
        // One at a time: each attaches probes to libcrypto, and some measure time.
        tests.args(["--", "--test-threads=1", "--show-output"]).args(harness);
        tests.env("LATENCY_BIN", workspace::target()?.join("release/latency"));
        run(tests, total)
    }
}

/// Cargo, with the object that it shall embed named so that every build script finds it.
fn cargo() -> Result<Command> {
    let mut cargo = workspace::cargo();
    if let Some(object) = std::env::var_os("LATENCY_EBPF_OBJECT").filter(|name| !name.is_empty()) {
        let object = PathBuf::from(object);
        let absolute = object
            .canonicalize()
            .with_context(|| format!("LATENCY_EBPF_OBJECT names {}", object.display()))?;
        cargo.env("LATENCY_EBPF_OBJECT", absolute);
    }
    Ok(cargo)
}

/// The host's target triple, as rustc says it.
fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let text = process::output(Command::new(rustc).current_dir(workspace::root()).arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}

/// Runs tests, passing on what they print and adding it up; whether cargo was content.
///
/// A test says on stderr, past libtest's capture, that it cannot run here. Both streams go through
/// one pipe, so that the line stays in the run of its own test program.
fn run(mut tests: Command, total: &mut Summary) -> Result<bool> {
    let (reader, writer) = std::io::pipe().context("a pipe for the tests' output")?;
    tests.stdout(writer.try_clone()?).stderr(writer);
    let mut child = tests.spawn().context("cargo test cannot run")?;
    // It holds the pipe's other end, which must close for the output to end.
    drop(tests);
    let mut reader = BufReader::new(reader);
    let mut output = Output::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if output.take(String::from_utf8_lossy(&line).trim_end()) {
            // A closed pipe (`| head`) must not keep the tests from being waited for.
            let _ = std::io::stdout().write_all(&line);
        }
    }
    let status = child.wait()?;
    total.add(&output.summary);
    Ok(status.success())
}

/// What became of tests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Summary {
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl Summary {
    fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Reads what libtest prints, line by line.
#[derive(Debug, Default)]
struct Output {
    summary: Summary,
    /// Tests of the present test program that said they cannot run here. To libtest they passed.
    skipped: BTreeSet<String>,
    /// Whether the lines are those of passing tests, which `--show-output` prints.
    in_successes: bool,
}

impl Output {
    /// Takes one line; whether people should see it.
    fn take(&mut self, line: &str) -> bool {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.end_program(result);
            return true;
        }
        // Printed past libtest's capture, it stands on the line that libtest has begun.
        let begun = || line.strip_prefix("test ")?.split_once(" ... SKIPPED ");
        let skipped = line.strip_prefix("SKIPPED ").or_else(|| begun().map(|(_, rest)| rest));
        if let Some(rest) = skipped {
            let test = rest.split_once(':').map_or(rest, |(test, _)| test);
            return self.skipped.insert(test.trim().to_owned());
        }
        match line {
            "successes:" => self.in_successes = true,
            "failures:" => self.in_successes = false,
            _ => {}
        }
        !self.in_successes
    }

    fn end_program(&mut self, result: &str) {
        let count = |what: &str| {
            result
                .split([';', '.'])
                .find_map(|part| part.trim().strip_suffix(what)?.trim().parse::<u32>().ok())
                .unwrap_or(0)
        };
        let skipped = u32::try_from(self.skipped.len()).unwrap_or(u32::MAX);
        self.summary.add(&Summary {
            passed: count("passed").saturating_sub(skipped),
            failed: count("failed"),
            skipped: count("ignored") + skipped,
        });
        self.skipped.clear();
        self.in_successes = false;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn read(text: &str) -> (Summary, Vec<&str>) {
        let mut output = Output::default();
        let shown = text.lines().filter(|line| output.take(line)).collect();
        (output.summary, shown)
    }

    /// Check which words are this command's own, cargo's and the test programs'.
    #[test]
    fn arguments() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            test: Test,
        }
        let parse = |line: &str| {
            let test = Line::parse_from(line.split(' ')).test;
            let (cargo, harness) = test.words();
            let harness: Vec<_> = harness.into_iter().map(String::as_str).collect();
            (test.privileged_only, cargo.join(" "), harness.join(" "))
        };
        let words =
            |own, arguments: &str, harness: &str| (own, arguments.to_owned(), harness.to_owned());
        assert_eq!(parse("test"), words(false, "", ""));
        assert_eq!(parse("test sign --locked"), words(false, "sign --locked", ""));
        assert_eq!(parse("test --locked sign"), words(false, "--locked sign", ""));
        assert_eq!(parse("test -- --nocapture"), words(false, "", "--nocapture"));
        assert_eq!(parse("test a -- --exact b"), words(false, "a", "--exact b"));
        assert_eq!(parse("test --privileged-only a"), words(true, "a", ""));
    }

    /// Check that a test that printed SKIPPED is no longer counted as passed, and its line is shown
    /// although the output of passing tests is not.
    #[test]
    fn skipped_is_not_passed() {
        let (summary, shown) = read(
            "running 3 tests\n\
             test a ... ok\ntest b ... ok\ntest c ... FAILED\n\n\
             successes:\n\n---- a stdout ----\nchatter\n\n---- b stdout ----\n\
             SKIPPED b: no tracefs\n\nsuccesses:\n    a\n    b\n\n\
             failures:\n\n---- c stdout ----\nreason\n\nfailures:\n    c\n\n\
             test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 4 filtered out; \
             finished in 0.00s\n",
        );
        assert_eq!(summary, Summary { passed: 1, failed: 1, skipped: 1 });
        assert!(shown.contains(&"SKIPPED b: no tracefs") && shown.contains(&"reason"));
        assert!(!shown.contains(&"chatter"));
    }

    /// Check that the line is found where a test wrote it itself, past libtest.
    #[test]
    fn skipped_past_capture() {
        let (summary, shown) = read(
            "test a ... SKIPPED a: no root\nok\ntest b ... ok\n\
             test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; f\n",
        );
        assert_eq!(summary, Summary { passed: 1, failed: 0, skipped: 1 });
        assert_eq!(shown[0], "test a ... SKIPPED a: no root");
    }

    /// Check that programs add up, and a test that says it twice is skipped once.
    #[test]
    fn programs_add_up() {
        let (summary, _) = read(
            "SKIPPED a: x\nSKIPPED a: y\n\
             test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; f\n\
             SKIPPED a: x\n\
             test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; f\n",
        );
        assert_eq!(summary.to_string(), "1 passed, 0 failed, 3 skipped");
    }
}
