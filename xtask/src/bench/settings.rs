//! What every bench is told: where the programs are, and how long to measure.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

/// The programs that are traced, and the floor to measure against.
pub const WORKLOADS: [&str; 6] = ["keysvc", "depth", "hot", "paths", "floor", "yardstick"];

/// Programs, the folder for recordings, and whether to be quick.
pub struct Settings {
    /// The tracer.
    pub latency: PathBuf,
    /// The workloads and, while they are needed, the recordings.
    pub folder: PathBuf,
    /// Fewer and shorter rounds.
    pub quick: bool,
}

impl Settings {
    /// The workloads are in `folder`, a folder of cargo's target folder, beside `release`.
    pub fn new(folder: &Path, quick: bool) -> Result<Self> {
        let target = folder.parent().context("the folder of the workloads")?;
        let settings =
            Self { latency: target.join("release/latency"), folder: folder.to_owned(), quick };
        let workloads = WORKLOADS.map(|name| settings.program(name));
        for program in workloads.iter().chain([&settings.latency]) {
            if !program.is_file() {
                bail!("{} is not there", program.display());
            }
        }
        Ok(settings)
    }

    /// A workload's program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The key service with these options, waiting for the word to start.
    pub fn key_service(&self, options: &[&str]) -> Command {
        let mut command = Command::new(self.program("keysvc"));
        command.args(options).args(["--wait-start", "--wait-end"]);
        command
    }

    /// `hot FUNCTION CALLS`, waiting for the word to start.
    pub fn hot(&self, function: &str, calls: u64, options: &[&str]) -> Command {
        let mut command = Command::new(self.program("hot"));
        command.args([function, &calls.to_string(), "--wait", "--wait-end"]).args(options);
        command
    }

    /// `paths STACKS CALLS`, waiting for the word to start.
    pub fn paths(&self, stacks: u64, calls: u64) -> Command {
        let mut command = Command::new(self.program("paths"));
        command.args([&stacks.to_string(), &calls.to_string(), "--wait", "--wait-end"]);
        command
    }

    /// One of two values: for figures to keep, or to be quick.
    pub fn either<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// P-256 signatures without a pause, for this long.
pub fn openssl_speed(seconds: u64) -> Command {
    let mut command = Command::new("openssl");
    command.args(["speed", "-seconds", &seconds.to_string(), "ecdsap256"]);
    command
}
