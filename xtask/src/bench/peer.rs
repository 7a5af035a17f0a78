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

    /// Attaches it to a process, of which `function` is what it times.
    ///
    /// # Errors
    /// It ended at once.
    pub fn attach(self, settings: &Settings, pid: u32, function: &Function) -> Result<Target> {
        let mut peer = self.start(settings, pid, function)?;
        get_ready(self.ready_after(), [&mut peer])?;
        Ok(peer)
    }

    /// Twice what it takes on two CPUs that are busy, and more.
    const fn ready_after(self) -> Duration {
        match self {
            Self::Bpftrace => Duration::from_secs(2),
            _ => Duration::from_millis(1_200),
        }
    }

    fn start(self, settings: &Settings, pid: u32, function: &Function) -> Result<Target> {
        let pid = pid.to_string();
        let data = settings.folder.join("perf.data");
        let mut command = Command::new(self.program());
        // Build ids (`-B`: none) are collected after the end of a record, for a second.
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
                command.args(["record", "-q", "-B", "-F", "99", "-g", "-p", &pid, "-o"]).arg(data)
            }
            Self::PerfDwarf => command
                .args(["record", "-q", "-B", "-F", "99", "--call-graph", "dwarf", "-p", &pid, "-o"])
                .arg(data),
            Self::PerfTrace => command.args(["trace", "-s", "-p", &pid]),
            Self::Strace => command.args(["-f", "-c", "-p", &pid]),
        };
        Target::start(&mut command)
    }
}

/// Gives tools time to get ready, since most say nothing when they are.
fn get_ready<'a>(time: Duration, peers: impl IntoIterator<Item = &'a mut Target>) -> Result<()> {
    std::thread::sleep(time);
    peers.into_iter().try_for_each(Target::still_runs)
}

/// The tools which, all at once, show what the tracer does: latencies of functions, waits and wakers with
/// stacks, samples.
pub struct Chain(Vec<Peer>);

impl Chain {
    /// Those that are installed.
    pub fn installed() -> Self {
        let all = [Peer::FuncLatency, Peer::OffCpuTime, Peer::WakeupTime, Peer::PerfRecord];
        Self(all.into_iter().filter(|peer| peer.is_installed()).collect())
    }

    /// Whether no tool is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How the table names it.
    pub fn name(&self) -> String {
        let name = |peer: &Peer| match peer {
            // Not of one function here.
            Peer::FuncLatency => Peer::program(*peer),
            other => other.name(),
        };
        let names: Vec<_> = self.0.iter().map(name).collect();
        match &names[..] {
            [names @ .., last] if !names.is_empty() => {
                format!("{} and {last} together", names.join(", "))
            }
            _ => names.concat(),
        }
    }

    /// Attaches them all to a process. A tool that times one function runs once for each.
    ///
    /// # Errors
    /// One of them ended at once.
    pub fn attach(
        &self,
        settings: &Settings,
        pid: u32,
        functions: &[Function; 2],
    ) -> Result<Vec<Target>> {
        let mut targets = Vec::new();
        for peer in &self.0 {
            let functions = match peer {
                Peer::FuncLatency => &functions[..],
                _ => &functions[..1],
            };
            for function in functions {
                targets.push(peer.start(settings, pid, function)?);
            }
        }
        get_ready(Peer::ready_after(Peer::PerfRecord), &mut targets)?;
        Ok(targets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check the name of several tools, of two and of one.
    #[test]
    fn chains() {
        let name = |peers: &[Peer]| Chain(peers.to_vec()).name();
        let all = [Peer::FuncLatency, Peer::OffCpuTime, Peer::PerfRecord];
        assert_eq!(name(&all), "funclatency, offcputime and perf record -F 99 -g together");
        assert_eq!(name(&all[..2]), "funclatency and offcputime together");
        assert_eq!(name(&all[..1]), "funclatency");
    }
}
