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
    turns::there_and_back,
};

/// To an empty pair.
const AIM: f64 = 1.10;
const FUNCTION: &str = "site_push";

/// What is attached to the function.
#[derive(Clone, Copy)]
enum Probe {
    Nothing,
    Floor(Floor),
    /// With everything on, and without the scheduler.
    Latency(&'static [&'static str]),
    Peer(Peer),
}

const PROBES: [Probe; 9] = [
    Probe::Nothing,
    Probe::Floor(Floor::Pair),
    Probe::Floor(Floor::Session),
    Probe::Floor(Floor::Record),
    Probe::Floor(Floor::Identified),
    Probe::Latency(&[]),
    Probe::Latency(&["--no-ledger"]),
    Probe::Peer(Peer::FuncLatency),
    Probe::Peer(Peer::Bpftrace),
];
/// Where some of them are.
const NOTHING: usize = 0;
const PAIR: usize = 1;
const IDENTIFIED: usize = 4;
const LATENCY: usize = 5;

impl Probe {
    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Floor(Floor::Pair) => "an empty uprobe and uretprobe",
            Self::Floor(Floor::Session) => "an empty program that sees both (uprobe session)",
            Self::Floor(Floor::Record) => "the same, two clock readings and a record sent",
            Self::Floor(Floor::Identified) => {
                "the same, and the kernel asked which probe and which thread"
            }
            Self::Latency([]) => "latency record",
            Self::Latency(_) => "latency record --no-ledger",
            Self::Peer(peer) => peer.name(),
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy)]
struct Extent {
    rounds: usize,
    /// In each round, beside those that are not looked at.
    batches: usize,
    /// The first ones, which bring everything into the caches.
    warming: usize,
    /// In each batch.
    calls: u64,
}

/// Calls a function that does nothing under each probe in turn, and under the empty pair before and after
/// each.
///
/// All probes are attached to one and the same process: from one process to the next, and from one second
/// to the next, the machine's speed differs by more than the probes do.
pub fn measure(settings: &Settings) -> Result<Table> {
    let extent = Extent {
        rounds: settings.either(20, 2),
        batches: settings.either(150, 9),
        warming: settings.either(20, 2),
        calls: 2_000,
    };
    let offset = floor::offset_of(settings, FUNCTION)?;
    let turns = 2 * extent.rounds * PROBES.len();
    let batches = (turns * (extent.warming + extent.batches)).to_string();
    let mut target =
        Target::ready(&mut settings.hot(FUNCTION, extent.calls, &["--batches", &batches]))?;
    // The tracers' own work is elsewhere then, for all of them alike.
    target.keep_on_second_cpu()?;
    let mut once = |probe: Probe| once(settings, probe, &mut target, extent, offset);
    let mut times = PROBES.map(|_| Vec::new());
    // Of the empty pair, just before and after each of these.
    let mut pairs = PROBES.map(|_| Vec::new());
    let mut missing = PROBES.map(|_| None);
    let mut before = once(PROBES[PAIR]).context(PROBES[PAIR].name())?;
    for round in 0..extent.rounds {
        let others = (0..PROBES.len()).filter(|index| *index != PAIR);
        for index in there_and_back(round, others) {
            let probe = PROBES[index];
            if let Probe::Peer(peer) = probe
                && !peer.is_installed()
            {
                missing[index] = Some(format!("not installed ({})", peer.package()));
                continue;
            }
            let ns = match once(probe) {
                Ok(ns) => ns,
                // The floors of newer kernels only; the rest must work.
                Err(error) if matches!(probe, Probe::Floor(_)) => {
                    missing[index] = Some(format!("{error:#}"));
                    continue;
                }
                Err(error) => return Err(error).context(probe.name()),
            };
            let after = once(PROBES[PAIR]).context(PROBES[PAIR].name())?;
            times[index].push(ns);
            times[PAIR].push(after);
            pairs[index].push(f64::midpoint(before, after));
            pairs[PAIR].push(after);
            before = after;
        }
    }
    let nothing = Spread::of(&times[NOTHING]).context("nothing was measured")?.median;
    let added: [Vec<f64>; PROBES.len()] =
        times.each_ref().map(|times| times.iter().map(|ns| ns - nothing).collect());
    let ratios: Vec<Vec<f64>> = (times.iter().zip(&pairs))
        .map(|(times, pairs)| {
            let both = times.iter().zip(pairs);
            both.map(|(ns, pair_ns)| (ns - nothing) / (pair_ns - nothing)).collect()
        })
        .collect();
    table(&times, &added, &ratios, &missing, extent)
}

fn table(
    times: &[Vec<f64>],
    added: &[Vec<f64>],
    ratios: &[Vec<f64>],
    missing: &[Option<String>],
    extent: Extent,
) -> Result<Table> {
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
    let ratio = |index: usize| Spread::of(&ratios[index]).map(|spread| spread.median);
    let ours = ratio(LATENCY).context("the tracer was not measured")?;
    for (index, probe) in PROBES.iter().enumerate() {
        if let Some(why) = &missing[index] {
            table.row(vec![Cell::Text(format!("{}: {why}", probe.name()))]);
            continue;
        }
        let mut row = vec![Cell::text(probe.name()), Cell::interval(&times[index], 0)];
        if let Some(ratio_here) = ratio(index).filter(|_| index != NOTHING) {
            row.extend([Cell::interval(&added[index], 0), Cell::interval(&ratios[index], 2)]);
            row.push(match probe {
                Probe::Latency([]) if ours > AIM => match ratio(IDENTIFIED) {
                    Some(floor) => {
                        Cell::Text(format!("missed: {AIM:.2}; the row above {floor:.2}"))
                    }
                    None => Cell::Text(format!("missed: {AIM:.2}")),
                },
                Probe::Latency([]) => Cell::verdict(&[]),
                Probe::Peer(_) if ours < ratio_here => Cell::text("dearer than latency"),
                Probe::Peer(_) => Cell::text("cheaper than latency"),
                _ => Cell::Empty,
            });
        }
        table.row(row);
    }
    let Extent { rounds, batches, calls, .. } = extent;
    table.note(format!(
        "{calls} calls in a loop, by the clock of the program itself, {batches} times after another, \
         of which the median counts; {rounds} rounds in turn, all in one process on one CPU: median \
         (low – high: the true median lies between these with 95 % confidence). The empty pair is \
         measured again between all others: the speed of the CPU changes by the second, so each ratio is \
         to the mean of the two just before and after. The function begins with a `push`, which the \
         kernel emulates."
    ));
    table.note(format!(
        "Aim: at most {AIM:.2} of an empty pair. The rows before the tracer are programs that do \
         that much and nothing else. A tracer that tells each call's exact duration, thread and \
         probe can do no less than the last of them, which keeps no state of a thread, no algorithm \
         and no ledger."
    ));
    Ok(table)
}

/// Nanoseconds of a call.
fn once(
    settings: &Settings,
    probe: Probe,
    target: &mut Target,
    extent: Extent,
    offset: u64,
) -> Result<f64> {
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
    let mut run = |batches: usize| {
        (0..batches).map(|_| call_ns(target, extent.calls)).collect::<Result<Vec<f64>>>()
    };
    run(extent.warming)?;
    let batches = run(extent.batches)?;
    if let Some(tracer) = tracer {
        let counted = tracer.stop()?.number("/loss/counted")?;
        let made = extent.calls * (extent.warming + extent.batches) as u64;
        if counted != made {
            bail!("the tracer counted {counted} of {made} calls");
        }
    }
    if let Some(other) = other {
        other.stop(libc::SIGINT)?;
    }
    Ok(Spread::of(&batches).context("no batch")?.median)
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
