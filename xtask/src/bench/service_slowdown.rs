//! `service-slowdown`: the requests that a service loses while it is traced, beside the peers.

use std::{cmp::Ordering, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    floor::Floor,
    interval::Interval,
    load::{Load, Run, SERVICES, Service},
    peer::Peer,
    settings::Settings,
    table::{Cell, Table},
    tool::{Attached, TIMING, Tool},
    turns::there_and_back,
    yardstick::Yardstick,
};

/// For so long a tool is attached, and none is before and after.
const WINDOW: Duration = Duration::from_millis(800);
/// So many comparisons tell a difference of a percent or two, beside how much a service's speed changes of
/// itself.
const ROUNDS: usize = 60;
/// More than this many percent is a miss.
const AIM_PERCENT: f64 = 3.0;

/// How many windows of a tool tell enough: most of what has a verdict.
fn rounds(tool: &Tool, settings: &Settings) -> usize {
    match tool {
        tool if tool.has_verdict() => settings.either(ROUNDS, 2),
        Tool::LatencyAlone => settings.either(6, 2),
        _ => settings.either(2, 1),
    }
}

/// Runs each service under each tool in turn.
pub fn measure(settings: &Settings) -> Result<Table> {
    let tools = Tool::all();
    let mut table = Table::new(
        "requests a service loses while it is traced",
        [
            ("service", "service"),
            ("tool", "traced by"),
            ("requests_per_second", "requests/s"),
            ("lost_percent", "lost, %"),
            ("cpu_us", "CPU time of a request, µs"),
            ("more_cpu_percent", "more, %"),
            ("verdict", "verdict"),
        ],
    );
    for service in SERVICES {
        let (untraced, runs) = in_turn(settings, service, &tools)?;
        for row in rows(&tools, &untraced, &runs) {
            table.row([Cell::text(service.name())].into_iter().chain(row).collect());
        }
    }
    notes(&mut table, settings);
    Ok(table)
}

/// The windows without a tool, and those of each tool.
fn in_turn(settings: &Settings, service: Service, tools: &[Tool]) -> Result<(Runs, Vec<Runs>)> {
    let mut runs = vec![Runs::default(); tools.len()];
    let mut called = Vec::new();
    let mut untraced = Runs::default();
    // One life for all: another one can be faster or slower by ten percent.
    let load = Load::start(settings, service)?;
    let yardstick = Yardstick::start(settings, service.cpu())?;
    let mut before = load.window(WINDOW, &yardstick)?;
    untraced.add(&before);
    let rounds = |tool: &Tool| rounds(tool, settings);
    for round in 0..tools.iter().map(rounds).max().unwrap_or(0) {
        let due = tools.iter().zip(&mut runs).filter(|(tool, _)| round < rounds(tool));
        for (tool, runs) in there_and_back(round, due) {
            let name = || format!("{}: {}", service.name(), tool.name());
            let attached = Attached::new(settings, load.pid()?, tool, &called);
            let attached = attached.with_context(name)?;
            let traced = load.window(WINDOW, &yardstick)?;
            let stopped = attached.stop(&mut called).with_context(name);
            let after = load.window(WINDOW, &yardstick)?;
            match stopped {
                Ok(()) => {
                    runs.add(&traced);
                    runs.compare([&before, &after]);
                }
                // It is killed then: a peer that hangs is no reason to measure nothing.
                Err(error) if matches!(tool, Tool::Peer(_)) => {
                    eprintln!("xtask: left out a window: {error:#}");
                }
                Err(error) => return Err(error),
            }
            untraced.add(&after);
            before = after;
        }
    }
    Ok((untraced, runs))
}

/// A service's rows, without its name.
fn rows(tools: &[Tool], untraced: &Runs, runs: &[Runs]) -> Vec<Vec<Cell>> {
    let find = |wanted: fn(&Tool) -> bool| {
        tools.iter().zip(runs).find_map(|(tool, runs)| wanted(tool).then_some(runs))
    };
    let latency = find(|tool| matches!(tool, Tool::Latency));
    let empty = find(|tool| matches!(tool, Tool::Floor(Floor::Session)));
    let timing = find(|tool| matches!(tool, Tool::Floor(Floor::Identified)));
    let chain = find(|tool| matches!(tool, Tool::Chain(_)));

    let mut rows = vec![untraced.row("nothing", Cell::Empty)];
    for (tool, runs) in tools.iter().zip(runs) {
        let verdict = match tool {
            Tool::Latency => Cell::text(verdict(runs, empty, timing)),
            _ => Cell::Empty,
        };
        rows.push(runs.row(&tool.name(), verdict));
    }
    if let (Some(latency), Some(timing)) = (latency, timing) {
        let beside = latency.beside(timing);
        rows.push(beside.row(&format!("latency record, beside the {TIMING}"), Cell::Empty));
    }
    if let (Some(latency), Some(chain)) = (latency, chain) {
        let beside = latency.beside(chain);
        let verdict = Cell::text(is_below(&beside.lost_percent));
        rows.push(beside.row("latency record, beside the tools together", verdict));
    }
    rows
}

fn notes(table: &mut Table, settings: &Settings) {
    table.note(format!(
        "{} rounds, {} with --no-ledger and {} for each single peer, the tools in turn, there and back, attached \
         to one and the same process for {} ms. What is lost is told against the untraced times of the same \
         length just before and after.",
        rounds(&Tool::Latency, settings),
        rounds(&Tool::LatencyAlone, settings),
        rounds(&Tool::Peer(Peer::ALL[0]), settings),
        WINDOW.as_millis()
    ));
    table.note(
        "A CPU of a virtual machine is faster or slower by the second, with what its neighbours do. So a program \
         beside the service does one and the same piece of work a hundred times a second on each of its CPUs, \
         for about 2.5 % of it, and all comparisons are of requests, and of CPU time, for as much work as the \
         CPUs could do meanwhile. The two columns of requests/s and CPU time are as measured.",
    );
    table.note(
        "Medians (low – high: the true median lies between these with 95 % confidence, by the ranks of the \
         measurements); [smallest – largest] where these are too few for that. The last rows of a service \
         compare the windows of one round: what is lost of the requests under the other, below 0 what is won.",
    );
    table.note(format!(
        "Aims: at most {AIM_PERCENT} % lost, and less than by the tools that show as much when they are together: \
         the whole interval is below 0. The programs are the least that can be done. What empty ones lose, \
         probes on these functions cost whatever they do; those that time the functions, and send the time, \
         thread and probe, do what every tracer does that tells each call exactly. Where either lose more than \
         {AIM_PERCENT} %, no such tracer can meet the first aim: it is shown where their whole interval is above, \
         of the requests or of the CPU time that a request takes, which is what the requests are lost by. \
         `service-profile` tells to the tenth of a percent what of the CPU time goes where."
    ));
    table.note(
        "All CPUs are busy, so what the tool itself takes is lost to the service too. CPU time of a request is \
         the service's alone. Together, funclatency runs twice: for EVP_DigestSign and EVP_DigestVerify. nginx's \
         worker and wrk have a CPU each.",
    );
    for peer in Peer::ALL.into_iter().filter(|peer| !peer.is_installed()) {
        table.note(format!("{}: not installed ({}).", peer.name(), peer.package()));
    }
}

/// Of what the tracer loses, and what programs do that are empty or only time calls. All CPUs are busy, so
/// what a request takes more of them is lost as well, and less of it is noise.
fn verdict(runs: &Runs, empty: Option<&Runs>, timing: Option<&Runs>) -> String {
    let lost = Interval::of(&runs.lost_percent);
    if let Some(lost) = lost.filter(|lost| lost.median <= AIM_PERCENT) {
        let by = if lost.high <= AIM_PERCENT { "" } else { ", by the median alone" };
        return format!("met{by}");
    }
    let by = match lost {
        Some(lost) if lost.low <= AIM_PERCENT && lost.is_confident => ", by the median alone",
        _ => "",
    };
    let floors = [("empty programs", empty), ("programs that only time calls", timing)];
    let floors = floors.into_iter().filter_map(|(what, runs)| Some((what, runs?)));
    let intervals = |of: fn(&Runs) -> &[f64]| {
        floors.clone().filter_map(move |(what, runs)| Some((what, Interval::of(of(runs))?)))
    };
    let lost = || intervals(|runs| &runs.lost_percent);
    let more_cpu = || intervals(|runs| &runs.more_cpu_percent);
    // Of a CPU that is busy with requests, 3.1 % more for each are 3 % of the requests.
    let more_cpu_aim = AIM_PERCENT / (1.0 - AIM_PERCENT / 100.0);
    let why = if let Some((what, lost)) = lost().find(|(_, lost)| lost.low > AIM_PERCENT) {
        format!("; {what} lose {:.1} % at least", lost.low)
    } else if let Some((what, more)) = more_cpu().find(|(_, more)| more.low > more_cpu_aim) {
        format!("; {what} take {:.1} % more CPU time at least", more.low)
    } else if let Some((what, lost)) = lost().find(|(_, lost)| lost.median > AIM_PERCENT) {
        format!("; {what} lose {:.1} %, by the median", lost.median)
    } else {
        String::new()
    };
    format!("missed: {AIM_PERCENT} %{by}{why}")
}

/// Whether differences are shown to be below zero.
fn is_below(differences: &[f64]) -> &'static str {
    match Interval::of(differences).and_then(|interval| interval.side()) {
        Some(Ordering::Less) => "met",
        Some(_) => "missed: loses more",
        None => "undecided",
    }
}

/// What every round gave.
#[derive(Clone, Default)]
struct Runs {
    runs: Vec<Run>,
    lost_percent: Vec<f64>,
    more_cpu_percent: Vec<f64>,
}

impl Runs {
    fn add(&mut self, run: &Run) {
        self.runs.push(*run);
    }

    /// The last run, with the untraced ones just before and after.
    fn compare(&mut self, untraced: [&Run; 2]) {
        let Some(traced) = self.runs.last() else { return };
        let [before, after] = untraced;
        let served = f64::midpoint(before.for_a_piece(), after.for_a_piece());
        self.lost_percent.push((1.0 - traced.for_a_piece() / served) * 100.0);
        let pieces = f64::midpoint(before.cpu_pieces(), after.cpu_pieces());
        self.more_cpu_percent.push((traced.cpu_pieces() / pieces - 1.0) * 100.0);
    }

    /// Against another tool's windows of the same rounds: what the tools do alike cancels, and that of the
    /// untraced windows does not add to the noise.
    fn beside(&self, other: &Self) -> Self {
        let percent = |of: fn(&Run) -> f64| {
            let both = self.runs.iter().zip(&other.runs);
            both.map(|(own, other)| (of(own) / of(other) - 1.0) * 100.0).collect::<Vec<f64>>()
        };
        // Lost is what the rate is lower by.
        let lost_percent = percent(Run::for_a_piece).iter().map(|more| -more).collect();
        Self { runs: Vec::new(), lost_percent, more_cpu_percent: percent(Run::cpu_pieces) }
    }

    fn row(&self, name: &str, verdict: Cell) -> Vec<Cell> {
        // The machine's speed drifts, so these have no interval that would tell anything.
        let median = |of: fn(&Run) -> f64, digits| {
            let values: Vec<f64> = self.runs.iter().map(of).collect();
            Interval::of(&values)
                .map_or(Cell::Empty, |interval| Cell::Number(interval.median, digits))
        };
        vec![
            Cell::text(name),
            median(|run| run.rate, 0),
            Cell::interval(&self.lost_percent, 1),
            median(|run| run.cpu_us, 1),
            Cell::interval(&self.more_cpu_percent, 1),
            verdict,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that a miss is told, and a floor's only where that cannot meet the aim either.
    #[test]
    fn verdicts() {
        let of = |lost: &[f64], more_cpu: &[f64]| Runs {
            lost_percent: lost.to_vec(),
            more_cpu_percent: more_cpu.to_vec(),
            ..Runs::default()
        };
        let told = |lost: &[f64], empty: &[f64], timing: &[f64]| {
            verdict(&of(lost, &[]), Some(&of(empty, &[])), Some(&of(timing, &[])))
        };
        assert_eq!(told(&[2.0, 3.0, 2.5], &[4.0], &[5.0]), "met");
        assert_eq!(told(&[2.0, 3.0, 3.5], &[4.0], &[5.0]), "met, by the median alone");
        assert_eq!(told(&[3.1], &[3.0], &[]), "missed: 3 %");
        let either = [2.0, 3.1, 3.2, 3.3, 4.0, 5.0];
        assert_eq!(told(&either, &[3.0], &[]), "missed: 3 %, by the median alone");
        let missed = |rest: &str| format!("missed: 3 %; {rest}");
        let (sure, unsure) = ([5.52, 4.46], [5.52, 4.4, 2.9]);
        let empty = "empty programs lose 4.5 % at least";
        assert_eq!(told(&[7.0], &sure, &sure), missed(empty));
        let timing = "programs that only time calls lose 4.5 % at least";
        assert_eq!(told(&[7.0], &unsure, &sure), missed(timing));
        let median = "empty programs lose 4.4 %, by the median";
        assert_eq!(told(&[7.0], &unsure, &unsure), missed(median));
        assert_eq!(told(&[], &[], &[]), "missed: 3 %");
        let by_cpu = |more: f64| verdict(&of(&[7.0], &[]), Some(&of(&unsure, &[more])), None);
        assert_eq!(by_cpu(3.12), missed("empty programs take 3.1 % more CPU time at least"));
        assert_eq!(by_cpu(3.08), missed(median), "less than 3 % of the requests");
    }

    /// Check that a difference counts only where its whole interval is on one side.
    #[test]
    fn differences() {
        assert_eq!(is_below(&[-1.0, -2.0, -3.0]), "met");
        assert_eq!(is_below(&[1.0, 2.0, 3.0]), "missed: loses more");
        assert_eq!(is_below(&[-1.0, -2.0, 3.0]), "undecided");
        assert_eq!(is_below(&[]), "undecided");
    }

    /// Check that a window is compared with the mean of its neighbours, tools are round by round, and
    /// that a CPU which was slower meanwhile makes no difference.
    #[test]
    fn comparisons() {
        let run = |rate: f64, cpu_us: f64, slower: f64| Run {
            rate: rate / slower,
            cpu_us: cpu_us * slower,
            piece_ns: 1000.0 * slower,
        };
        let near = |values: &[f64], wanted: f64| {
            assert!(values.len() == 1 && (values[0] - wanted).abs() < 1e-9, "{values:?}");
        };
        let (mut tool, mut other) = (Runs::default(), Runs::default());
        tool.add(&run(90.0, 11.0, 1.5));
        tool.compare([&run(80.0, 9.0, 1.0), &run(120.0, 11.0, 2.0)]);
        other.add(&run(60.0, 22.0, 3.0));
        near(&tool.lost_percent, 10.0);
        near(&tool.more_cpu_percent, 10.0);
        near(&tool.beside(&other).lost_percent, -50.0);
        near(&tool.beside(&other).more_cpu_percent, -50.0);
    }
}
