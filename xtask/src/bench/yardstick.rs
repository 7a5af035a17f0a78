//! How fast the CPUs are, as the workload `yardstick` tells.
//!
//! A CPU of a virtual machine is faster or slower by the second, with what its neighbours do: by more than
//! a tracer costs. So what is measured is told for as much work as the CPUs could do meanwhile.

use std::process::Command;

use anyhow::{Result, bail};

use super::{settings::Settings, target::Target};

/// Does one and the same piece of work all along. Dropping it ends it.
pub struct Yardstick(Target);

impl Yardstick {
    /// Starts it, on all CPUs or on this one.
    ///
    /// # Errors
    /// It cannot run before everything else there.
    pub fn start(settings: &Settings, cpu: Option<&str>) -> Result<Self> {
        let mut command = Command::new(settings.program("yardstick"));
        command.args(cpu);
        Ok(Self(Target::ready(&mut command)?))
    }

    /// What this gives, and the CPU time of a piece of work meanwhile, in nanoseconds.
    ///
    /// # Errors
    /// This fails, or no piece was done.
    pub fn during<T>(&self, what: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
        let begin = self.0.progress()?;
        let value = what()?;
        let end = self.0.progress()?;
        if end.done == begin.done {
            bail!("the yardstick did nothing meanwhile");
        }
        Ok((value, (end.cpu_ns - begin.cpu_ns) as f64 / (end.done - begin.done) as f64))
    }
}
