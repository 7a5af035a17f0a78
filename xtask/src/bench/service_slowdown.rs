//! `service-slowdown`: the requests that a service loses while it is traced, beside the peers.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{
    floor::Floor,
    interval::Interval,
    load::{Load, Run, SERVICES, Service},
    peer::{Chain, Function, Peer},
    settings::Settings,
    table::{Cell, Table},
    target::{Target, send},
    tracer::Tracer,
};

/// For so long a tool is attached, and none is before and after.
const WINDOW: Duration = Duration::from_millis(400);
/// More than this many percent is a miss.
const AIM_PERCENT: f64 = 3.0;

/// What traces the service.
enum Tool {
    /// With everything on.
    Latency,
    /// Empty programs on the functions that the tracer saw calls of, in its last run.
    Floor,
    /// Several peers at once, which show what the tracer does.
    Chain(Chain),
    /// The tracer without the scheduler and stacks.
    LatencyAlone,
    Peer(Peer),
}

impl Tool {
    /// The tracer, the floor right beside it, and what it is compared with.
    fn all() -> Vec<Self> {
        let chain = Chain::installed();
        let mut tools = vec![Self::Latency, Self::Floor];
        if !chain.is_empty() {
            tools.push(Self::Chain(chain));
        }
        tools.push(Self::LatencyAlone);
        tools.extend(Peer::ALL.into_iter().filter(|peer| peer.is_installed()).map(Self::Peer));
        tools
    }

    fn name(&self) -> String {
        match self {
            Self::Latency => "latency record".to_owned(),
            Self::Floor => "empty programs on the functions called".to_owned(),
            Self::Chain(chain) => chain.name(),
            Self::LatencyAlone => "latency record --no-ledger".to_owned(),
            Self::Peer(peer) => peer.name().to_owned(),
        }
    }

    /// Whether a few windows tell enough of it.
    const fn is_single_peer(&self) -> bool {
        matches!(self, Self::Peer(_))
    }
}

/// Runs each service under each tool in turn.
pub fn measure(settings: &Settings) -> Result<Table> {
    let (rounds, peer_rounds) = (settings.either(20, 2), settings.either(2, 1));
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
        let (untraced, runs) = in_turn(settings, service, &tools, rounds, peer_rounds)?;
        for row in rows(&tools, &untraced, &runs) {
            table.row([Cell::text(service.name())].into_iter().chain(row).collect());
        }
    }
    notes(&mut table, rounds, peer_rounds);
    Ok(table)
}

/// The windows without a tool, and those of each tool.
fn in_turn(
    settings: &Settings,
    service: Service,
    tools: &[Tool],
    rounds: usize,
    peer_rounds: usize,
) -> Result<(Runs, Vec<Runs>)> {
    let mut runs = vec![Runs::default(); tools.len()];
    let mut called = Vec::new();
    let mut untraced = Runs::default();
    // One life for all: another one can be faster or slower by ten percent.
    let load = Load::start(settings, service)?;
    let mut before = load.window(WINDOW)?;
    untraced.add(&before);
    for round in 0..rounds {
        let mut order: Vec<_> = tools.iter().zip(&mut runs).collect();
        order.retain(|(tool, _)| round < peer_rounds || !tool.is_single_peer());
        if round % 2 == 1 {
            // There and back: who comes first is not always the same.
            order.reverse();
        }
        for (tool, runs) in order {
            let name = || format!("{}: {}", service.name(), tool.name());
            let attached = Attached::new(settings, load.pid()?, tool, &called);
            let attached = attached.with_context(name)?;
            let traced = load.window(WINDOW)?;
            attached.stop(&mut called).with_context(name)?;
            let after = load.window(WINDOW)?;
            runs.add(&traced);
            runs.compare(&traced, [&before, &after]);
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
    let floor = find(|tool| matches!(tool, Tool::Floor));
    let chain = find(|tool| matches!(tool, Tool::Chain(_)));

    let mut rows = vec![untraced.row("nothing", Cell::Empty)];
    for (tool, runs) in tools.iter().zip(runs) {
        let verdict = match (tool, floor) {
            (Tool::Latency, Some(floor)) => {
                Cell::text(verdict(&runs.lost_percent, &floor.lost_percent))
            }
            _ => Cell::Empty,
        };
        rows.push(runs.row(&tool.name(), verdict));
    }
    if let (Some(latency), Some(floor)) = (latency, floor) {
        let beside = latency.beside(floor);
        rows.push(beside.row("latency record, beside the empty programs", Cell::Empty));
    }
    if let (Some(latency), Some(chain)) = (latency, chain) {
        let beside = latency.beside(chain);
        let verdict = Cell::text(is_below(&beside.lost_percent));
        rows.push(beside.row("latency record, beside the tools together", verdict));
    }
    rows
}

fn notes(table: &mut Table, rounds: usize, peer_rounds: usize) {
    table.note(format!(
        "{rounds} rounds, {peer_rounds} for each single peer, the tools in turn, there and back, attached to one \
         and the same process for {} ms. What is lost is told against the untraced times of the same length \
         just before and after.",
        WINDOW.as_millis()
    ));
    table.note(
        "Medians (low – high: the true median lies between these with 95 % confidence, by the ranks of the \
         measurements); [smallest – largest] where these are too few for that. The last rows of a service \
         compare the windows of one round: what is lost of the requests under the other, below 0 what is won.",
    );
    table.note(format!(
        "Aims: at most {AIM_PERCENT} % lost, and less than by the tools that show as much when they are together: \
         the whole interval is below 0. Where probes that do nothing lose more than {AIM_PERCENT} %, no tracer \
         of these functions can meet the first."
    ));
    table.note(
        "All CPUs are busy, so what the tool itself takes is lost to the service too. CPU time of a request is \
         the service's alone. The empty programs are what probes on these functions cost whatever they do. \
         Together, funclatency runs twice: for EVP_DigestSign and EVP_DigestVerify. nginx's worker and wrk have \
         a CPU each.",
    );
    for peer in Peer::ALL.into_iter().filter(|peer| !peer.is_installed()) {
        table.note(format!("{}: not installed ({}).", peer.name(), peer.package()));
    }
}

/// Of what the tracer loses, and what empty programs do, in percent.
fn verdict(lost: &[f64], by_floor: &[f64]) -> String {
    let floor = Interval::of(by_floor).map(|interval| interval.median);
    match (Interval::of(lost), floor) {
        (Some(lost), _) if lost.high <= AIM_PERCENT => "met".to_owned(),
        (Some(lost), _) if lost.median <= AIM_PERCENT => "met, by the median alone".to_owned(),
        (_, Some(floor)) if floor > AIM_PERCENT => {
            format!("missed: {AIM_PERCENT} %; the empty programs alone lose {floor:.1} %")
        }
        _ => format!("missed: {AIM_PERCENT} %"),
    }
}

/// Whether differences are shown to be below zero, by their interval.
fn is_below(differences: &[f64]) -> &'static str {
    match Interval::of(differences) {
        Some(interval) if interval.high < 0.0 => "met",
        Some(interval) if interval.low > 0.0 => "missed: loses more",
        _ => "undecided",
    }
}

/// What every round gave.
#[derive(Clone, Default)]
struct Runs {
    rate: Vec<f64>,
    cpu_us: Vec<f64>,
    lost_percent: Vec<f64>,
    more_cpu_percent: Vec<f64>,
}

impl Runs {
    fn add(&mut self, run: &Run) {
        self.rate.push(run.rate);
        self.cpu_us.push(run.cpu_us);
    }

    /// Against the untraced runs just before and after: the machine's speed drifts.
    fn compare(&mut self, traced: &Run, untraced: [&Run; 2]) {
        let [before, after] = untraced;
        let rate = f64::midpoint(before.rate, after.rate);
        self.lost_percent.push((1.0 - traced.rate / rate) * 100.0);
        let cpu_us = f64::midpoint(before.cpu_us, after.cpu_us);
        self.more_cpu_percent.push((traced.cpu_us / cpu_us - 1.0) * 100.0);
    }

    /// Against another tool's windows of the same rounds: what the tools do alike cancels, and that of the
    /// untraced windows does not add to the noise.
    fn beside(&self, other: &Self) -> Self {
        let percent = |own: &[f64], other: &[f64]| {
            own.iter()
                .zip(other)
                .map(|(own, other)| (own / other - 1.0) * 100.0)
                .collect::<Vec<f64>>()
        };
        // Lost is what the rate is lower by.
        let lost_percent = percent(&self.rate, &other.rate).iter().map(|more| -more).collect();
        let more_cpu_percent = percent(&self.cpu_us, &other.cpu_us);
        Self { lost_percent, more_cpu_percent, ..Self::default() }
    }

    fn row(&self, name: &str, verdict: Cell) -> Vec<Cell> {
        // The machine's speed drifts, so these have no interval that would tell anything.
        let median = |values: &[f64], digits| match Interval::of(values) {
            Some(interval) => Cell::Number(interval.median, digits),
            None => Cell::Empty,
        };
        vec![
            Cell::text(name),
            median(&self.rate, 0),
            Cell::interval(&self.lost_percent, 1),
            median(&self.cpu_us, 1),
            Cell::interval(&self.more_cpu_percent, 1),
            verdict,
        ]
    }
}

/// The functions of one file that were called.
struct Called {
    file: PathBuf,
    offsets: Vec<u64>,
}

/// A tool that is attached.
#[derive(Default)]
struct Attached {
    tracer: Option<Tracer>,
    others: Vec<Target>,
}

impl Attached {
    fn new(settings: &Settings, pid: u32, tool: &Tool, called: &[Called]) -> Result<Self> {
        let mut attached = Self::default();
        let function = |name| libcrypto(pid, name);
        match tool {
            Tool::Latency => attached.tracer = Some(Tracer::attach(settings, pid, &[])?),
            Tool::LatencyAlone => {
                attached.tracer = Some(Tracer::attach(settings, pid, &["--no-ledger"])?);
            }
            Tool::Floor => {
                for Called { file, offsets } in called {
                    let floor = Floor::Session.attach(settings, pid, file, offsets)?;
                    attached.others.push(floor);
                }
            }
            Tool::Chain(chain) => {
                let functions = [function("EVP_DigestSign")?, function("EVP_DigestVerify")?];
                attached.others = chain.attach(settings, pid, &functions)?;
            }
            Tool::Peer(peer) => {
                attached.others.push(peer.attach(settings, pid, &function("EVP_DigestSign")?)?);
            }
        }
        Ok(attached)
    }

    fn stop(self, called: &mut Vec<Called>) -> Result<()> {
        if let Some(tracer) = self.tracer {
            let traced = tracer.stop()?;
            if traced.count() == 0 {
                bail!("the tracer counted nothing");
            }
            *called = functions_called(&traced.report);
        }
        for other in &self.others {
            send(other.pid(), libc::SIGINT);
        }
        self.others.into_iter().try_for_each(Target::end)
    }
}

/// The places of the probes that were hit, by file.
fn functions_called(report: &Value) -> Vec<Called> {
    let mut by_file: BTreeMap<PathBuf, Vec<u64>> = BTreeMap::new();
    let probes = report["probes"].as_array().map_or(&[][..], Vec::as_slice);
    for probe in probes.iter().filter(|probe| probe["hits"].as_u64() > Some(0)) {
        if let (Some(file), Some(offset)) = (probe["file"].as_str(), probe["site_offset"].as_u64())
        {
            by_file.entry(file.into()).or_default().push(offset);
        }
    }
    by_file.into_iter().map(|(file, offsets)| Called { file, offsets }).collect()
}

/// A function that the peers time, in the libcrypto of a process.
pub fn libcrypto(pid: u32, symbol: &str) -> Result<Function> {
    let path = format!("/proc/{pid}/maps");
    let maps = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let library = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let library = library.into_iter().find(|path| path.contains("libcrypto.so"));
    let file = library.context("no libcrypto is mapped")?.into();
    Ok(Function { file, is_library: true, symbol: symbol.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that a miss is told, and the floor's only where that cannot meet the aim either.
    #[test]
    fn verdicts() {
        assert_eq!(verdict(&[2.0, 3.0, 2.5], &[4.0]), "met");
        assert_eq!(verdict(&[2.0, 3.0, 3.5], &[4.0]), "met, by the median alone");
        assert_eq!(verdict(&[3.1], &[3.0]), "missed: 3 %");
        assert_eq!(verdict(&[7.0], &[5.52]), "missed: 3 %; the empty programs alone lose 5.5 %");
        assert_eq!(verdict(&[], &[]), "missed: 3 %");
    }

    /// Check that a difference counts only where its whole interval is on one side.
    #[test]
    fn differences() {
        assert_eq!(is_below(&[-1.0, -2.0, -3.0]), "met");
        assert_eq!(is_below(&[1.0, 2.0, 3.0]), "missed: loses more");
        assert_eq!(is_below(&[-1.0, -2.0, 3.0]), "undecided");
        assert_eq!(is_below(&[]), "undecided");
    }

    /// Check that a window is compared with the mean of its neighbours, and tools round by round.
    #[test]
    fn comparisons() {
        let run = |rate, cpu_us| Run { rate, cpu_us };
        let near = |values: &[f64], wanted: f64| {
            assert!(values.len() == 1 && (values[0] - wanted).abs() < 1e-9, "{values:?}");
        };
        let (mut tool, mut other) = (Runs::default(), Runs::default());
        tool.add(&run(90.0, 11.0));
        tool.compare(&run(90.0, 11.0), [&run(80.0, 9.0), &run(120.0, 11.0)]);
        other.add(&run(60.0, 22.0));
        near(&tool.lost_percent, 10.0);
        near(&tool.more_cpu_percent, 10.0);
        near(&tool.beside(&other).lost_percent, -50.0);
        near(&tool.beside(&other).more_cpu_percent, -50.0);
    }
}
