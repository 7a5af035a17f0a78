//! `probe-cost`: what a traced call costs the target.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{
    floor::{self, Floor},
    peer::{Function, Peer},
    settings::Settings,
    spread::Spread,
    table::{Cell, Table},
    target::Target,
    tracer::Tracer,
};

/// To an empty pair.
const AIM: f64 = 1.10;
const FUNCTION: &str = "site_push";

/// What is attached to the function.
#[derive(Clone, Copy, PartialEq)]
enum Probe {
    Nothing,
    Floor(Floor),
    /// With everything on, and without the scheduler.
    Latency(&'static [&'static str]),
    Peer(Peer),
}

const PROBES: [Probe; 8] = [
    Probe::Nothing,
    Probe::Floor(Floor::Pair),
    Probe::Floor(Floor::Session),
    Probe::Floor(Floor::Record),
    Probe::Latency(&[]),
    Probe::Latency(&["--no-ledger"]),
    Probe::Peer(Peer::FuncLatency),
    Probe::Peer(Peer::Bpftrace),
];
/// Where the floor and the tracer are among them.
const PAIR: usize = 1;
const LATENCY: usize = 4;

impl Probe {
    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Floor(Floor::Pair) => "an empty uprobe and uretprobe",
            Self::Floor(Floor::Session) => "an empty program that sees both (uprobe session)",
            Self::Floor(Floor::Record) => "the same, two clock readings and a record sent",
            Self::Latency([]) => "latency record",
            Self::Latency(_) => "latency record --no-ledger",
            Self::Peer(peer) => peer.name(),
        }
    }
}

/// Calls a function that does nothing under each probe in turn.
pub fn measure(settings: &Settings) -> Result<Table> {
    let (rounds, calls) = (settings.either(9, 2), settings.either(150_000, 50_000));
    let offset = floor::offset_of(settings, FUNCTION)?;
    let mut times = PROBES.map(|_| Vec::new());
    let mut missing = PROBES.map(|_| None);
    for _ in 0..rounds {
        for ((probe, times), missing) in PROBES.iter().zip(&mut times).zip(&mut missing) {
            match probe {
                Probe::Peer(peer) if !peer.is_installed() => {
                    *missing = Some(format!("not installed ({})", peer.package()));
                }
                _ => match once(settings, *probe, calls, offset) {
                    Ok(ns) => times.push(ns),
                    // The floors of newer kernels only; the rest must work.
                    Err(error) if matches!(probe, Probe::Floor(_)) => {
                        *missing = Some(format!("{error:#}"));
                    }
                    Err(error) => return Err(error).context(probe.name()),
                },
            }
        }
    }

    let mut table = Table::new(
        "what probes add to a call of a function that does nothing",
        [
            ("probe", "on the function"),
            ("call_ns", "a call, ns"),
            ("added_ns", "added, ns"),
            ("to_empty_pair", "to the empty pair"),
            ("verdict", "verdict"),
        ],
    );
    let added: Vec<Vec<f64>> = times
        .iter()
        .map(|time| time.iter().zip(&times[0]).map(|(time, nothing)| time - nothing).collect())
        .collect();
    let median = |index: usize| Spread::of(&added[index]).map(|spread| spread.median);
    let floor =
        median(PAIR).filter(|floor| *floor > 0.0).context("the empty pair costs nothing")?;
    let ours = median(LATENCY).context("the tracer was not measured")?;
    for (index, probe) in PROBES.iter().enumerate() {
        if let Some(why) = &missing[index] {
            table.row(vec![Cell::Text(format!("{}: {why}", probe.name()))]);
            continue;
        }
        let mut row = vec![Cell::text(probe.name()), Cell::spread(&times[index], 0)];
        if let Some(median) = median(index).filter(|_| index > 0) {
            row.extend([Cell::spread(&added[index], 0), Cell::Number(median / floor, 2)]);
            row.push(match probe {
                Probe::Latency([]) if median / floor > AIM => Cell::text("missed: 1.10"),
                Probe::Latency([]) => Cell::verdict(&[]),
                Probe::Peer(_) if ours < median => Cell::text("dearer than latency"),
                Probe::Peer(_) => Cell::text("cheaper than latency"),
                _ => Cell::Empty,
            });
        }
        table.row(row);
    }
    table.note(format!(
        "{calls} calls in a loop, by the clock of the program itself, {rounds} rounds in turn: median (min – \
         max); what is added is told within each round. The function begins with a `push`, which the kernel \
         emulates."
    ));
    table.note(format!(
        "Aim: at most {AIM:.2} of an empty pair. A tracer that sends exact durations reads the clock twice \
         and sends a record; the fourth row is a program that does just that, without a thread's state, an \
         algorithm, a histogram or a ledger."
    ));
    Ok(table)
}

/// Nanoseconds of a call.
fn once(settings: &Settings, probe: Probe, calls: u64, offset: u64) -> Result<f64> {
    let mut target = Target::ready(&mut settings.hot(FUNCTION, calls, &[]))?;
    let pid = target.pid();
    let (mut tracer, mut other) = (None, None);
    match probe {
        Probe::Nothing => {}
        Probe::Floor(floor) => {
            other = Some(floor.attach(settings, pid, &settings.program("hot"), &[offset])?)
        }
        Probe::Latency(options) => {
            let options = [&["--probe", "hot:site_push"], options].concat();
            tracer = Some(Tracer::attach(settings, pid, &options)?);
        }
        Probe::Peer(peer) => {
            let (file, symbol) = (settings.program("hot"), FUNCTION.to_owned());
            let function = Function { file, is_library: false, symbol };
            other = Some(peer.attach(settings, pid, &function)?);
        }
    }
    let ns = call_ns(&mut target, calls)?;
    if let Some(tracer) = tracer {
        let counted = tracer.stop()?.number("/loss/counted")?;
        if counted != calls {
            bail!("the tracer counted {counted} of {calls} calls");
        }
    }
    if let Some(other) = other {
        other.stop(libc::SIGINT)?;
    }
    Ok(ns)
}

/// Lets `hot` make its calls; nanoseconds of each.
pub fn call_ns(target: &mut Target, calls: u64) -> Result<f64> {
    target.go()?;
    ns_of_call(&target.result()?.1, calls)
}

/// Nanoseconds of each call, as `hot` tells.
pub fn ns_of_call(result: &Value, calls: u64) -> Result<f64> {
    if result["calls"] != calls {
        bail!("hot did not make {calls} calls");
    }
    let elapsed_ns = result["elapsed_ns"].as_f64().context("hot told no time")?;
    Ok(elapsed_ns / calls as f64)
}
