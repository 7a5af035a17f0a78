//! `switch-cost`: what following the scheduler costs tasks that have nothing to do with the target.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{
    settings::Settings,
    table::{Cell, Table},
    target::Target,
    tracer::Tracer,
};
use crate::process;

/// What follows the scheduler meanwhile.
#[derive(Clone, Copy, PartialEq)]
enum Tool {
    Nothing,
    Empty,
    Latency,
    OffCpuTime,
}

impl Tool {
    const ALL: [Self; 4] = [Self::Nothing, Self::Empty, Self::Latency, Self::OffCpuTime];

    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Empty => "two empty programs on sched_switch and sched_waking (bpftrace)",
            Self::Latency => "latency record of an idle process",
            Self::OffCpuTime => "offcputime of an idle process",
        }
    }

    const fn program(self) -> Option<&'static str> {
        match self {
            Self::Nothing | Self::Latency => None,
            Self::Empty => Some("bpftrace"),
            Self::OffCpuTime => Some("offcputime"),
        }
    }

    fn is_installed(self) -> bool {
        self.program().is_none_or(|program| {
            let look = format!("command -v {program}");
            process::probe(Command::new("sh").args(["-c", &look])).is_some()
        })
    }
}

/// Two threads on one CPU that pass a byte to and fro: two switches and two wakeups a turn.
pub fn measure(settings: &Settings) -> Result<Table> {
    let (rounds, turns) = (settings.either(9, 3), settings.either(100_000_u64, 20_000));
    if process::probe(Command::new("sh").args(["-c", "command -v perf"])).is_none() {
        bail!("perf is not installed (linux-perf)");
    }
    let mut times = Tool::ALL.map(|_| Vec::new());
    for _ in 0..rounds {
        for (tool, times) in Tool::ALL.iter().zip(&mut times) {
            if tool.is_installed() {
                times.push(once(settings, *tool, turns)?);
            }
        }
    }
    let mut table = Table::new(
        "what following the scheduler adds to a context switch of others",
        [("tool", "attached"), ("switch_ns", "a switch, ns"), ("added_ns", "added, ns")],
    );
    for (tool, time) in Tool::ALL.iter().zip(&times) {
        if time.is_empty() {
            table.row(vec![Cell::Text(format!("{}: not installed", tool.name()))]);
            continue;
        }
        let added: Vec<f64> =
            time.iter().zip(&times[0]).map(|(time, nothing)| time - nothing).collect();
        let mut row = vec![Cell::text(tool.name()), Cell::spread(time, 0)];
        if *tool != Tool::Nothing {
            row.push(Cell::spread(&added, 0));
        }
        table.row(row);
    }
    table.note(format!(
        "`perf bench sched pipe -T`, {turns} turns pinned to one CPU, {rounds} rounds in turn: half a turn \
         is a switch with its wakeup; median (min – max), what is added is told within each round."
    ));
    table.note(
        "bpftrace attaches classic tracepoints, which are dearer than the BTF ones that the tracer has.",
    );
    Ok(table)
}

/// Nanoseconds of a switch.
fn once(settings: &Settings, tool: Tool, turns: u64) -> Result<f64> {
    let idle = Target::ready(&mut settings.key_service(&["--threads", "1", "--count", "1"]))?;
    let (mut tracer, mut peer) = (None, None);
    match tool {
        Tool::Nothing => {}
        Tool::Latency => tracer = Some(Tracer::attach(settings, idle.pid(), &[])?),
        Tool::Empty => {
            let script = "tracepoint:sched:sched_switch { } tracepoint:sched:sched_waking { } \
                          interval:ms:100 { printf(\"on\\n\"); }";
            let started =
                Target::start(Command::new("bpftrace").args(["-B", "line", "-e", script]))?;
            started.says("on")?;
            peer = Some(started);
        }
        Tool::OffCpuTime => {
            let pid = idle.pid().to_string();
            peer = Some(Target::busy(Command::new("offcputime").args(["-p", &pid]))?);
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    }
    let mut command = Command::new("taskset");
    command.args(["-c", "1", "perf", "bench", "sched", "pipe", "-T", "-l", &turns.to_string()]);
    let text = process::output(&mut command)?;
    let line = text.lines().find_map(|line| line.trim().strip_suffix("usecs/op"));
    let micros: f64 = line
        .and_then(|number| number.trim().parse().ok())
        .with_context(|| format!("perf bench said:\n{text}"))?;
    if let Some(tracer) = tracer {
        tracer.stop()?;
    }
    if let Some(peer) = peer {
        peer.stop(libc::SIGINT)?;
    }
    Ok(micros * 1e3 / 2.0)
}
