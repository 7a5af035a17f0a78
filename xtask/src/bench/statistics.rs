//! The kernel's own statistics of eBPF programs.

use std::fs;

use anyhow::{Context as _, Result};

/// Holds them on.
pub struct Statistics {
    before: String,
}

impl Statistics {
    const PATH: &str = "/proc/sys/kernel/bpf_stats_enabled";

    /// Turns them on.
    pub fn turn_on() -> Result<Self> {
        let before = fs::read_to_string(Self::PATH).context(Self::PATH)?;
        fs::write(Self::PATH, "1").context(Self::PATH)?;
        Ok(Self { before })
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        // Should it fail, statistics stay on: some nanoseconds for each run of a program.
        let _ = fs::write(Self::PATH, &self.before);
    }
}

/// Runs of programs, and the time in them.
#[derive(Clone, Copy, Default)]
pub struct Runs {
    /// In nanoseconds.
    pub time_ns: u64,
    /// How many.
    pub count: u64,
}

impl Runs {
    /// Those since `before`.
    pub fn since(self, before: Self) -> Self {
        Self { time_ns: self.time_ns - before.time_ns, count: self.count - before.count }
    }

    /// Nanoseconds a run.
    pub fn mean_ns(self) -> f64 {
        self.time_ns as f64 / self.count.max(1) as f64
    }
}

/// A process's programs on the scheduler's tracepoints (`BPF_PROG_TYPE_TRACING`).
pub fn scheduler_programs(pid: u32) -> Result<Runs> {
    const TRACING: &str = "26";
    let runs = programs(pid, |kind| kind == TRACING)?;
    runs.context("no program follows the scheduler, or the kernel tells no run times")
}

/// A process's programs that are on no functions (all but `BPF_PROG_TYPE_KPROBE`).
pub fn programs_not_on_functions(pid: u32) -> Result<Runs> {
    const KPROBE: &str = "2";
    Ok(programs(pid, |kind| kind != KPROBE)?.unwrap_or_default())
}

/// A process's programs of these types, should it have any.
fn programs(pid: u32, is_wanted: impl Fn(&str) -> bool) -> Result<Option<Runs>> {
    let folder = format!("/proc/{pid}/fdinfo");
    let mut total = None;
    for entry in fs::read_dir(&folder).with_context(|| folder.clone())? {
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key))?;
            line.strip_prefix(':').map(str::trim)
        };
        if value("prog_type").is_some_and(&is_wanted) {
            let number = |key| value(key).and_then(|text| text.parse::<u64>().ok());
            let (Some(time_ns), Some(count)) = (number("run_time_ns"), number("run_cnt")) else {
                continue;
            };
            let total: &mut Runs = total.get_or_insert_default();
            total.time_ns += time_ns;
            total.count += count;
        }
    }
    Ok(total)
}
