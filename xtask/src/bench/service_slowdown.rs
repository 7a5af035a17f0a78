//! `service-slowdown`: the requests that a service loses while it is traced, beside the peers.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{
    floor::Floor,
    nginx::Nginx,
    peer::{Function, Peer},
    settings::Settings,
    spread::Spread,
    table::{Cell, Table},
    target::Target,
    tracer::Tracer,
};

/// For so long a tool is attached, and none is before and after.
const WINDOW_MS: u64 = 1_000;
/// More than this many percent is a miss.
const AIM_PERCENT: f64 = 3.0;

/// What traces the service.
#[derive(Clone, Copy, PartialEq)]
enum Tool {
    Nothing,
    /// Empty programs on the functions that the tracer saw calls of, in its last run.
    Floor,
    /// With everything on.
    Latency,
    /// Without the scheduler and stacks.
    LatencyAlone,
    Peer(Peer),
}

impl Tool {
    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Floor => "empty programs on the functions called",
            Self::Latency => "latency record",
            Self::LatencyAlone => "latency record --no-ledger",
            Self::Peer(peer) => peer.name(),
        }
    }
}

/// What is traced.
#[derive(Clone, Copy, PartialEq)]
enum Service {
    KeyService(&'static str, &'static [&'static str]),
    Nginx,
}

const SERVICES: [Service; 3] = [
    Service::KeyService("key service, P-256", &["--threads", "2"]),
    Service::KeyService(
        "key service, P-256, contended lock",
        &["--threads", "4", "--hold-us", "20"],
    ),
    Service::Nginx,
];

impl Service {
    const fn name(self) -> &'static str {
        match self {
            Self::KeyService(name, _) => name,
            Self::Nginx => "nginx, a TLS handshake a request",
        }
    }
}

/// Runs each service under each tool in turn.
pub fn measure(settings: &Settings) -> Result<Table> {
    let rounds = settings.either(8, 2);
    let peer_rounds = settings.either(2, 1);
    let mut table = Table::new(
        "requests a service loses while it is traced",
        [
            ("service", "service"),
            ("tool", "traced by"),
            ("requests_per_second", "requests/s"),
            ("lost_percent", "lost, %"),
            ("cpu_us", "CPU time of a request, µs"),
            ("more_cpu_percent", "more, %"),
            ("verdict", "aim: at most 3 % lost"),
        ],
    );
    let mut tools = vec![Tool::Latency, Tool::LatencyAlone, Tool::Floor];
    tools.extend(Peer::ALL.into_iter().filter(|peer| peer.is_installed()).map(Tool::Peer));
    for service in SERVICES {
        let mut runs = vec![Runs::default(); tools.len()];
        let mut called = Vec::new();
        let mut untraced = Runs::default();
        // One life for all: another one can be faster or slower by ten percent.
        let load = Load::start(settings, service)?;
        for round in 0..rounds {
            let mut before = load.window()?;
            untraced.add(&before);
            for (tool, runs) in tools.iter().zip(&mut runs) {
                if matches!(tool, Tool::Peer(_)) && round >= peer_rounds {
                    continue;
                }
                let name = || format!("{}: {}", service.name(), tool.name());
                let attached = Attached::new(settings, load.pid()?, *tool, &called);
                let attached = attached.with_context(name)?;
                let traced = load.window()?;
                attached.stop(&mut called).with_context(name)?;
                let after = load.window()?;
                runs.add(&traced);
                runs.compare(&traced, [&before, &after]);
                untraced.add(&after);
                before = after;
            }
        }
        let mut row = vec![Cell::text(service.name()), Cell::text(Tool::Nothing.name())];
        row.extend([
            Cell::spread(&untraced.rate, 0),
            Cell::Empty,
            Cell::spread(&untraced.cpu_us, 1),
        ]);
        table.row(row);
        for (tool, run) in tools.iter().zip(&runs) {
            let mut row = vec![Cell::text(service.name()), Cell::text(tool.name())];
            row.extend([Cell::spread(&run.rate, 0), Cell::spread(&run.lost_percent, 1)]);
            row.extend([Cell::spread(&run.cpu_us, 1), Cell::spread(&run.more_cpu_percent, 1)]);
            let lost = Spread::of(&run.lost_percent).map_or(f64::MAX, |lost| lost.median);
            row.push(Cell::verdict(if lost > AIM_PERCENT { &[""] } else { &[] }));
            table.row(row);
        }
    }
    table.note(format!(
        "{rounds} rounds, {peer_rounds} for the peers, the tools in turn within each, attached to one and the same \
         process for {WINDOW_MS} ms: median (min – max); what is lost is told against the untraced times of the same length \
         just before and after."
    ));
    table.note(
        "All CPUs are busy, so what the tool itself takes is lost to the service too. CPU time of a request is \
         the service's alone. The empty programs are what probes on these functions cost whatever they do.",
    );
    for peer in Peer::ALL.into_iter().filter(|peer| !peer.is_installed()) {
        table.note(format!("{}: not installed ({}).", peer.name(), peer.package()));
    }
    Ok(table)
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
        self.cpu_us.extend(run.cpu_us);
    }

    /// Against the untraced runs just before and after: the machine's speed drifts.
    fn compare(&mut self, traced: &Run, untraced: [&Run; 2]) {
        let rate = f64::midpoint(untraced[0].rate, untraced[1].rate);
        self.lost_percent.push((1.0 - traced.rate / rate) * 100.0);
        if let (Some(cpu), Some(before), Some(after)) =
            (traced.cpu_us, untraced[0].cpu_us, untraced[1].cpu_us)
        {
            self.more_cpu_percent.push((cpu / f64::midpoint(before, after) - 1.0) * 100.0);
        }
    }
}

/// A while of a service.
struct Run {
    /// Requests a second.
    rate: f64,
    /// CPU time of a request in microseconds, where the service tells.
    cpu_us: Option<f64>,
}

/// How far a service is.
struct Progress {
    requests: u64,
    time_ns: u64,
    cpu_ns: Option<u64>,
}

/// A service under load.
enum Load {
    KeyService(Target),
    Nginx { nginx: Nginx, started: Instant, _wrk: Target },
}

impl Load {
    fn start(settings: &Settings, service: Service) -> Result<Self> {
        match service {
            Service::KeyService(_, options) => {
                let mut command = settings.key_service(options);
                command.args(["--algorithm", "ecdsa-p256", "--progress", "20"]);
                let mut target = Target::ready(&mut command)?;
                target.go()?;
                Ok(Self::KeyService(target))
            }
            Service::Nginx => {
                let nginx = Nginx::start(&settings.folder)?;
                let wrk = wrk(nginx.url())?;
                Ok(Self::Nginx { nginx, started: Instant::now(), _wrk: wrk })
            }
        }
    }

    fn pid(&self) -> Result<u32> {
        match self {
            Self::KeyService(target) => Ok(target.pid()),
            Self::Nginx { nginx, .. } => nginx.worker(),
        }
    }

    fn progress(&self) -> Result<Progress> {
        match self {
            Self::KeyService(target) => {
                let line = target.says_next("progress: ")?;
                let mut numbers = line.split(' ').skip(1).map(str::parse::<u64>);
                let mut next = || numbers.next().and_then(Result::ok).context("keysvc's progress");
                let (requests, time_ns, cpu_ns) = (next()?, next()?, Some(next()?));
                Ok(Progress { requests, time_ns, cpu_ns })
            }
            Self::Nginx { nginx, started, .. } => {
                let requests = nginx.requests()?;
                let time_ns = u64::try_from(started.elapsed().as_nanos())?;
                Ok(Progress { requests, time_ns, cpu_ns: None })
            }
        }
    }

    /// A moment for all to settle, and then the window.
    fn window(&self) -> Result<Run> {
        std::thread::sleep(Duration::from_millis(100));
        let begin = self.progress()?;
        std::thread::sleep(Duration::from_millis(WINDOW_MS));
        let end = self.progress()?;
        let requests = (end.requests - begin.requests) as f64;
        if requests == 0.0 {
            bail!("the service serves nothing");
        }
        let cpu_us = |(end, begin)| (end - begin) as f64 / requests / 1e3;
        Ok(Run {
            rate: requests / (end.time_ns - begin.time_ns) as f64 * 1e9,
            cpu_us: end.cpu_ns.zip(begin.cpu_ns).map(cpu_us),
        })
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
    fn new(settings: &Settings, pid: u32, tool: Tool, called: &[Called]) -> Result<Self> {
        let mut attached = Self::default();
        match tool {
            Tool::Nothing => {}
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
            Tool::Peer(peer) => {
                let function = libcrypto(pid, "EVP_DigestSign")?;
                attached.others.push(peer.attach(settings, pid, &function)?);
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
        self.others.into_iter().try_for_each(|other| other.stop(libc::SIGINT))
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

/// Requests without a pause, each with a connection of its own.
fn wrk(url: &str) -> Result<Target> {
    let mut command = Command::new("wrk");
    command.args(["-t", "1", "-c", "8", "-d", "600s", "-H", "Connection: close", url]);
    Target::busy(&mut command)
}
