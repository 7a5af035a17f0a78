//! `switch-cost`: what following the scheduler costs tasks that have nothing to do with the target.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{
    floor, installed,
    settings::Settings,
    spread::Spread,
    statistics::{Statistics, scheduler_programs},
    table::{Cell, Table},
    target::Target,
    tracer::Tracer,
};
use crate::process;

/// To empty programs on the same tracepoints.
const AIM: f64 = 1.2;

/// What follows the scheduler meanwhile.
#[derive(Clone, Copy, PartialEq)]
enum Tool {
    Nothing,
    Empty,
    Latency,
    OffCpuTime,
    Bpftrace,
}

const TOOLS: [Tool; 5] =
    [Tool::Nothing, Tool::Empty, Tool::Latency, Tool::OffCpuTime, Tool::Bpftrace];
/// Where the floor and the tracer are among them.
const EMPTY: usize = 1;
const LATENCY: usize = 2;

impl Tool {
    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Empty => "empty programs on sched_switch and sched_waking (tp_btf)",
            Self::Latency => "latency record of an idle process",
            Self::OffCpuTime => "offcputime of an idle process",
            Self::Bpftrace => "empty programs of bpftrace's (classic tracepoints)",
        }
    }

    fn is_installed(self) -> bool {
        let program = match self {
            Self::Nothing | Self::Empty | Self::Latency => return true,
            Self::OffCpuTime => "offcputime",
            Self::Bpftrace => "bpftrace",
        };
        installed(program)
    }
}

/// Two threads on one CPU that pass a byte to and fro: two switches and two wakeups a turn.
pub fn measure(settings: &Settings) -> Result<Table> {
    let (rounds, turns) = (settings.either(11, 3), settings.either(100_000_u64, 20_000));
    if !installed("perf") {
        bail!("perf is not installed (linux-perf)");
    }
    let mut times = TOOLS.map(|_| Vec::new());
    for _ in 0..rounds {
        for (tool, times) in TOOLS.iter().zip(&mut times) {
            if tool.is_installed() {
                times.push(once(settings, *tool, turns)?.switch_ns);
            }
        }
    }
    let mut inside = TOOLS.map(|_| Vec::new());
    {
        let _statistics = Statistics::turn_on()?;
        for _ in 0..settings.either(5, 2) {
            for index in [EMPTY, LATENCY] {
                let measured = once(settings, TOOLS[index], turns)?;
                inside[index].push(measured.program_ns.context("no statistics")?);
            }
        }
    }
    let mut table = Table::new(
        "what following the scheduler adds to a context switch of others",
        [
            ("tool", "attached"),
            ("switch_ns", "a switch with its wakeup, ns"),
            ("added_ns", "added, ns"),
            ("to_empty", "the switch to the empty programs'"),
            ("program_ns", "a run of the programs, ns"),
            ("verdict", "verdict"),
        ],
    );
    let median = |values: &[f64]| Spread::of(values).map_or(0.0, |spread| spread.median);
    for (index, tool) in TOOLS.iter().enumerate() {
        let time = &times[index];
        if time.is_empty() {
            table.row(vec![Cell::Text(format!("{}: not installed", tool.name()))]);
            continue;
        }
        let added: Vec<f64> =
            time.iter().zip(&times[0]).map(|(time, nothing)| time - nothing).collect();
        let mut row = vec![Cell::text(tool.name()), Cell::spread(time, 0)];
        if *tool != Tool::Nothing {
            let ratio = median(time) / median(&times[EMPTY]).max(1.0);
            row.extend([Cell::spread(&added, 0), Cell::Number(ratio, 3)]);
            row.push(Cell::spread(&inside[index], 1));
            row.push(match tool {
                Tool::Latency => Cell::verdict(if ratio > AIM { &["1.2"] } else { &[] }),
                _ => Cell::Empty,
            });
        }
        table.row(row);
    }
    table.note(format!(
        "`perf bench sched pipe -T`, {turns} turns pinned to one CPU, {rounds} rounds in turn: half a turn \
         is a switch with its wakeup; median (min – max), what is added is told within each round. Aim: a switch \
         at most {AIM} of one under empty programs."
    ));
    table.note(
        "A run of the programs: `kernel.bpf_stats_enabled`, which takes two readings of the clock of its own, \
         the larger part of what an empty program shows.",
    );
    Ok(table)
}

struct Measured {
    switch_ns: f64,
    /// Where statistics are on.
    program_ns: Option<f64>,
}

fn once(settings: &Settings, tool: Tool, turns: u64) -> Result<Measured> {
    let idle = Target::ready(&mut settings.key_service(&["--threads", "1", "--count", "1"]))?;
    let (mut tracer, mut peer) = (None, None);
    match tool {
        Tool::Nothing => {}
        Tool::Latency => tracer = Some(Tracer::attach(settings, idle.pid(), &[])?),
        Tool::Empty => peer = Some(floor::switches(settings)?),
        Tool::Bpftrace => {
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
    let pid = tracer.as_ref().map(Tracer::pid).or(peer.as_ref().map(Target::pid));
    let runs = || pid.and_then(|pid| scheduler_programs(pid).ok()).unwrap_or_default();
    let before = runs();
    let mut command = Command::new("taskset");
    command.args(["-c", "1", "perf", "bench", "sched", "pipe", "-T", "-l", &turns.to_string()]);
    let text = process::output(&mut command)?;
    let spent = runs().since(before);
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
    Ok(Measured {
        switch_ns: micros * 1e3 / 2.0,
        program_ns: (spent.count > 0).then(|| spent.mean_ns()),
    })
}
