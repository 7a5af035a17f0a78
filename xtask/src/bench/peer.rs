//! The tools that people use today, attached to the same process.

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::Result;

use super::{installed, settings::Settings, target::Target};

/// A function that a tool is to time.
#[derive(Clone, Debug)]
pub struct Function {
    /// The file it is in.
    pub file: PathBuf,
    /// Whether that is a library of the process, and not its program.
    pub is_library: bool,
    /// Its name.
    pub symbol: String,
}

impl Function {
    /// As bpftrace names it.
    fn path(&self) -> String {
        format!("{}:{}", self.file.display(), self.symbol)
    }

    /// As funclatency does: `libNAME.so` by NAME, and the process's own program by nothing.
    fn short(&self) -> String {
        if !self.is_library {
            return format!(":{}", self.symbol);
        }
        let file = self.file.file_name().unwrap_or_default().to_string_lossy();
        let name = file.strip_prefix("lib").unwrap_or(&file);
        format!("{}:{}", name.split(".so").next().unwrap_or(name), self.symbol)
    }
}

/// A tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Latency of one function, as a histogram: a pair of probes and a hash map.
    FuncLatency,
    /// The same by a script.
    Bpftrace,
    /// Off-CPU stacks by frame pointers.
    OffCpuTime,
    /// The same with the stacks of wakers.
    WakeupTime,
    /// Samples with frame pointers.
    PerfRecord,
    /// Samples with copies of the stack.
    PerfDwarf,
    /// System calls.
    PerfTrace,
    /// System calls, by ptrace.
    Strace,
}

impl Peer {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::FuncLatency,
        Self::Bpftrace,
        Self::OffCpuTime,
        Self::WakeupTime,
        Self::PerfRecord,
        Self::PerfDwarf,
        Self::PerfTrace,
        Self::Strace,
    ];

    /// How the table names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FuncLatency => "funclatency, of one function",
            Self::Bpftrace => "bpftrace, histogram of one function",
            Self::OffCpuTime => "offcputime",
            Self::WakeupTime => "wakeuptime",
            Self::PerfRecord => "perf record -F 99 -g",
            Self::PerfDwarf => "perf record -F 99 --call-graph dwarf",
            Self::PerfTrace => "perf trace -s",
            Self::Strace => "strace -f -c",
        }
    }

    const fn program(self) -> &'static str {
        match self {
            Self::FuncLatency => "funclatency",
            Self::Bpftrace => "bpftrace",
            Self::OffCpuTime => "offcputime",
            Self::WakeupTime => "wakeuptime",
            Self::PerfRecord | Self::PerfDwarf | Self::PerfTrace => "perf",
            Self::Strace => "strace",
        }
    }

    /// Debian's package.
    pub const fn package(self) -> &'static str {
        match self {
            Self::FuncLatency | Self::OffCpuTime | Self::WakeupTime => "libbpf-tools",
            Self::Bpftrace => "bpftrace",
            Self::PerfRecord | Self::PerfDwarf | Self::PerfTrace => "linux-perf",
            Self::Strace => "strace",
        }
    }

    /// Whether it can be started.
    pub fn is_installed(self) -> bool {
        installed(self.program())
    }

    /// Attaches it to a process, of which `function` is what it times. It has two seconds to get
    /// ready, since most say nothing when they are.
    ///
    /// # Errors
    /// It ended at once.
    pub fn attach(self, settings: &Settings, pid: u32, function: &Function) -> Result<Target> {
        let pid = pid.to_string();
        let data = settings.folder.join("perf.data");
        let mut command = Command::new(self.program());
        match self {
            Self::FuncLatency => command.args(["-p", &pid, &function.short()]),
            Self::Bpftrace => {
                let path = function.path();
                let script = format!(
                    "uprobe:{path} {{ @start[tid] = nsecs; }} uretprobe:{path} \
                     /@start[tid]/ {{ @ = hist(nsecs - @start[tid]); delete(@start[tid]); }}"
                );
                command.args(["-p", &pid, "-e", &script])
            }
            Self::OffCpuTime | Self::WakeupTime => command.args(["-p", &pid]),
            Self::PerfRecord => {
                command.args(["record", "-q", "-F", "99", "-g", "-p", &pid, "-o"]).arg(data)
            }
            Self::PerfDwarf => command
                .args(["record", "-q", "-F", "99", "--call-graph", "dwarf", "-p", &pid, "-o"])
                .arg(data),
            Self::PerfTrace => command.args(["trace", "-s", "-p", &pid]),
            Self::Strace => command.args(["-f", "-c", "-p", &pid]),
        };
        let mut peer = Target::busy(&mut command)?;
        std::thread::sleep(Duration::from_millis(1_500));
        peer.still_runs()?;
        Ok(peer)
    }
}
