//! `probe-cost`: what a traced call costs the target.

use std::{process::Command, time::Duration};

use anyhow::{Result, bail};

use super::{
    installed,
    settings::Settings,
    spread::Spread,
    table::{Cell, Table},
    target::Target,
    tracer::Tracer,
};

/// What is attached to the function.
#[derive(Clone, Copy, PartialEq)]
enum Probe {
    Nothing,
    EmptyPair,
    Latency,
}

impl Probe {
    const ALL: [Self; 3] = [Self::Nothing, Self::EmptyPair, Self::Latency];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::EmptyPair => "empty uprobe and uretprobe (bpftrace)",
            Self::Latency => "latency record",
        }
    }

    /// The program it needs, should that be missing.
    fn missing(self) -> Option<&'static str> {
        (self == Self::EmptyPair && !installed("bpftrace")).then_some("bpftrace")
    }
}

/// Wall and CPU time of a call, in nanoseconds, in every round.
#[derive(Default)]
struct Times {
    wall: Vec<f64>,
    cpu: Vec<f64>,
}

/// Calls `work` of `tiny` under each probe in turn.
pub fn measure(settings: &Settings) -> Result<Table> {
    let (rounds, calls) = (settings.either(9, 3), settings.either(50_000, 10_000));
    let probes = Probe::ALL.map(|probe| (probe, probe.missing()));
    let mut times = probes.map(|_| Times::default());
    for _ in 0..rounds {
        for ((probe, missing), times) in probes.iter().zip(&mut times) {
            if missing.is_none() {
                let (wall, cpu) = once(settings, *probe, calls)?;
                times.wall.push(wall);
                times.cpu.push(cpu);
            }
        }
    }

    let mut table = Table::new(
        "what probes add to a call",
        [
            ("probe", "on the function"),
            ("call_cpu_ns", "CPU time of a call, ns"),
            ("added_cpu_ns", "added, ns"),
            ("to_empty_pair", "to the empty pair"),
            ("call_wall_ns", "wall time of a call, ns"),
            ("added_wall_ns", "added, ns"),
        ],
    );
    let added = |values: &[f64], nothing: &[f64]| -> Vec<f64> {
        values.iter().zip(nothing).map(|(value, nothing)| value - nothing).collect()
    };
    let median = |values: &[f64]| Spread::of(values).map(|spread| spread.median);
    let floor = median(&added(&times[1].cpu, &times[0].cpu));
    for ((probe, missing), time) in probes.iter().zip(&times) {
        if let Some(program) = missing {
            table.row(vec![Cell::Text(format!("{}: {program} is not installed", probe.name()))]);
            continue;
        }
        let (cpu, wall) = (added(&time.cpu, &times[0].cpu), added(&time.wall, &times[0].wall));
        let mut cells = vec![Cell::text(probe.name()), Cell::spread(&time.cpu, 0)];
        if *probe == Probe::Nothing {
            cells.extend([Cell::Empty, Cell::Empty, Cell::spread(&time.wall, 0)]);
        } else {
            let ratio = floor.zip(median(&cpu)).filter(|(floor, _)| *floor > 0.0);
            cells.extend([
                Cell::spread(&cpu, 0),
                ratio.map_or(Cell::Empty, |(floor, cpu)| Cell::Number(cpu / floor, 2)),
                Cell::spread(&time.wall, 0),
                Cell::spread(&wall, 0),
            ]);
        }
        table.row(cells);
    }
    table.note(format!(
        "{calls} calls of a function that works for 20 µs by the clock, {rounds} rounds in turn: median \
         (min – max); what is added is told within each round."
    ));
    table.note(
        "CPU time is the kernel's count for the thread; wall time, from the word to start to the result, \
         also has what other programs take from it.",
    );
    Ok(table)
}

/// Wall and CPU time of a call in nanoseconds.
fn once(settings: &Settings, probe: Probe, calls: u64) -> Result<(f64, f64)> {
    let mut target = Target::ready(&mut settings.tiny(calls))?;
    let (mut tracer, mut peer) = (None, None);
    match probe {
        Probe::Nothing => {}
        Probe::EmptyPair => peer = Some(empty_pair(settings, target.pid())?),
        Probe::Latency => {
            let options = ["--probe", "tiny:work"];
            tracer = Some(Tracer::attach(settings, target.pid(), &options)?);
        }
    }
    let before = target.cpu_ns()?;
    let begun = target.go()?;
    let (ended, result) = target.result()?;
    let cpu = target.cpu_ns()? - before;
    if result["work"] != calls {
        bail!("tiny did not make {calls} calls");
    }
    if let Some(tracer) = tracer {
        let counted = tracer.stop()?.number("/loss/counted")?;
        if counted != calls {
            bail!("the tracer counted {counted} of {calls} calls");
        }
    }
    if let Some(peer) = peer {
        peer.stop(libc::SIGINT)?;
    }
    let per_call = |ns: f64| ns / calls as f64;
    Ok((per_call(ended.duration_since(begun).as_nanos() as f64), per_call(cpu as f64)))
}

/// The least that a probe on entry and return can cost.
fn empty_pair(settings: &Settings, pid: u32) -> Result<Target> {
    let program = settings.program("tiny");
    let function = format!("{}:work", program.display());
    let script = format!(
        "uprobe:{function} {{ }} uretprobe:{function} {{ }} interval:ms:100 {{ printf(\"on\\n\"); }}"
    );
    let pid = pid.to_string();
    let mut command = Command::new("bpftrace");
    let peer = Target::start(command.args(["-B", "line", "-p", &pid, "-e", &script]))?;
    peer.says("on")?;
    // It attaches its probes one after another, in an order of its own.
    std::thread::sleep(Duration::from_millis(300));
    Ok(peer)
}
