//! The least that a tracer can do, as the workload `floor` does it.

use std::{path::Path, process::Command};

use anyhow::Result;

use super::{
    settings::Settings,
    target::{Target, bound},
};
use crate::process;

/// What it attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// An empty program at a function's entry and one at its return.
    Pair,
    /// One empty program that sees both.
    Session,
    /// The same, with two readings of the clock and a record of 40 bytes, as of an operation without a ledger.
    Record,
    /// The same, which asks the kernel for the probe as well, and at both ends for the thread.
    Identified,
}

impl Floor {
    const fn word(self) -> &'static str {
        match self {
            Self::Pair => "pair",
            Self::Session => "session",
            Self::Record => "record",
            Self::Identified => "identified",
        }
    }

    /// Attaches it to the functions at these offsets of a file; [`Self::Pair`] and [`Self::Record`] take one.
    ///
    /// # Errors
    /// The kernel cannot.
    pub fn attach(
        self,
        settings: &Settings,
        pid: u32,
        file: &Path,
        offsets: &[u64],
    ) -> Result<Target> {
        let mut command = Command::new(settings.program("floor"));
        command.args([self.word(), &pid.to_string()]).arg(file);
        command.args(offsets.iter().map(u64::to_string));
        start(&mut command)
    }
}

/// Attaches empty programs to context switches and wakeups.
///
/// # Errors
/// The kernel cannot.
pub fn switches(settings: &Settings) -> Result<Target> {
    start(Command::new(settings.program("floor")).arg("switches"))
}

fn start(command: &mut Command) -> Result<Target> {
    let floor = Target::start(command)?;
    floor.says("on")?;
    Ok(floor)
}

/// Where a function of `hot` is in its file, in bytes.
pub fn offset_of(settings: &Settings, function: &str) -> Result<u64> {
    let mut command = Command::new(settings.program("hot"));
    let text = process::output(bound(command.args([function, "0"])))?;
    let result: serde_json::Value = serde_json::from_str(&text)?;
    result["offset"].as_u64().ok_or_else(|| anyhow::anyhow!("hot told no offset"))
}
