//! `service-slowdown`: the requests that a service loses while it is traced, beside the peers.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{
    nginx::Nginx,
    peer::{Function, Peer},
    settings::Settings,
    spread::Spread,
    table::{Cell, Table},
    target::Target,
    tracer::Tracer,
};

/// More than this many percent is a miss.
const AIM_PERCENT: f64 = 3.0;

/// What traces the service.
#[derive(Clone, Copy, PartialEq)]
enum Tool {
    Nothing,
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
    let (rounds, seconds) = (settings.either(5, 2), settings.either(3, 1));
    let mut table = Table::new(
        "requests a service loses while it is traced",
        [
            ("service", "service"),
            ("tool", "traced by"),
            ("requests_per_second", "requests/s"),
            ("lost_percent", "lost, %"),
            ("verdict", "aim: at most 3 %"),
        ],
    );
    let mut tools = vec![Tool::Nothing, Tool::Latency, Tool::LatencyAlone];
    tools.extend(Peer::ALL.into_iter().filter(|peer| peer.is_installed()).map(Tool::Peer));
    for service in SERVICES {
        let mut rates = vec![Vec::new(); tools.len()];
        for _ in 0..rounds {
            for (tool, rates) in tools.iter().zip(&mut rates) {
                let rate = once(settings, service, *tool, seconds);
                rates.push(rate.with_context(|| format!("{}: {}", service.name(), tool.name()))?);
            }
        }
        for (tool, rate) in tools.iter().zip(&rates) {
            let lost: Vec<f64> = rate
                .iter()
                .zip(&rates[0])
                .map(|(rate, nothing)| (1.0 - rate / nothing) * 100.0)
                .collect();
            let mut row =
                vec![Cell::text(service.name()), Cell::text(tool.name()), Cell::spread(rate, 0)];
            if *tool != Tool::Nothing {
                row.push(Cell::spread(&lost, 1));
                let is_missed = Spread::of(&lost).is_none_or(|lost| lost.median > AIM_PERCENT);
                row.push(Cell::verdict(if is_missed { &[""] } else { &[] }));
            }
            table.row(row);
        }
    }
    table.note(format!(
        "{rounds} rounds of {seconds} s, the tools in turn within each: median (min – max); what is \
         lost is told against the untraced run of the same round."
    ));
    for peer in Peer::ALL.into_iter().filter(|peer| !peer.is_installed()) {
        table.note(format!("{}: not installed ({}).", peer.name(), peer.package()));
    }
    Ok(table)
}

/// Requests a second.
fn once(settings: &Settings, service: Service, tool: Tool, seconds: u64) -> Result<f64> {
    match service {
        Service::KeyService(_, options) => {
            let seconds = seconds.to_string();
            let mut command = settings.key_service(options);
            command.args(["--algorithm", "ecdsa-p256", "--seconds", &seconds]);
            let mut target = Target::ready(&mut command)?;
            let traced = Attached::new(settings, target.pid(), tool)?;
            target.go()?;
            let (_, result) = target.result()?;
            traced.stop()?;
            let number =
                |pointer: &str| result.pointer(pointer).and_then(serde_json::Value::as_f64);
            let (requests, elapsed_ns) = number("/requests/count")
                .zip(number("/elapsed_ns"))
                .context("keysvc's result has no requests")?;
            Ok(requests / elapsed_ns * 1e9)
        }
        Service::Nginx => {
            let nginx = Nginx::start(&settings.folder)?;
            let traced = Attached::new(settings, nginx.worker()?, tool)?;
            let rate = wrk(nginx.url(), seconds)?;
            traced.stop()?;
            Ok(rate)
        }
    }
}

/// A tool that is attached.
struct Attached {
    tracer: Option<Tracer>,
    peer: Option<Target>,
}

impl Attached {
    fn new(settings: &Settings, pid: u32, tool: Tool) -> Result<Self> {
        let tracer = match tool {
            Tool::Latency => Some(Tracer::attach(settings, pid, &[])?),
            Tool::LatencyAlone => Some(Tracer::attach(settings, pid, &["--no-ledger"])?),
            Tool::Nothing | Tool::Peer(_) => None,
        };
        let peer = match tool {
            Tool::Peer(peer) => {
                Some(peer.attach(settings, pid, &libcrypto(pid, "EVP_DigestSign")?)?)
            }
            _ => None,
        };
        Ok(Self { tracer, peer })
    }

    fn stop(self) -> Result<()> {
        if let Some(tracer) = self.tracer {
            let traced = tracer.stop()?;
            if traced.count() == 0 {
                bail!("the tracer counted nothing");
            }
        }
        self.peer.map_or(Ok(()), |peer| peer.stop(libc::SIGINT))
    }
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

/// Requests a second that `wrk` gets through, each with a connection of its own.
fn wrk(url: &str, seconds: u64) -> Result<f64> {
    let mut command = Command::new("wrk");
    command.args([
        "-t",
        "1",
        "-c",
        "8",
        "-d",
        &format!("{seconds}s"),
        "-H",
        "Connection: close",
        url,
    ]);
    let text = crate::process::output(&mut command)?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"));
    line.and_then(|rate| rate.trim().parse().ok()).with_context(|| format!("wrk said:\n{text}"))
}
