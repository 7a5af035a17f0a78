//! What traces a service under load: the tracer, floors, peers.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{
    floor::Floor,
    peer::{Chain, Function, Peer},
    settings::Settings,
    target::{Target, send},
    tracer::Tracer,
};

/// What tells the exact duration, thread and probe of each call, and nothing else.
pub const TIMING: &str = "programs that time the functions called, and send that";

/// What traces the service.
pub enum Tool {
    /// With everything on.
    Latency,
    /// What does so much and no more, on the functions that the tracer saw calls of, in its last run.
    Floor(Floor),
    /// Several peers at once, which show what the tracer does.
    Chain(Chain),
    /// The tracer without the scheduler and stacks.
    LatencyAlone,
    /// One of them.
    Peer(Peer),
}

impl Tool {
    /// The tracer, the floor right beside it, and what it is compared with.
    pub fn all() -> Vec<Self> {
        let chain = Chain::installed();
        let mut tools =
            vec![Self::Latency, Self::Floor(Floor::Session), Self::Floor(Floor::Identified)];
        if !chain.is_empty() {
            tools.push(Self::Chain(chain));
        }
        tools.push(Self::LatencyAlone);
        tools.extend(Peer::ALL.into_iter().filter(|peer| peer.is_installed()).map(Self::Peer));
        tools
    }

    /// Whether it is the tracer, or what that is judged by.
    pub const fn has_verdict(&self) -> bool {
        matches!(self, Self::Latency | Self::Floor(_) | Self::Chain(_))
    }

    /// How the tables name it.
    pub fn name(&self) -> String {
        match self {
            Self::Latency => "latency record".to_owned(),
            Self::Floor(Floor::Identified) => TIMING.to_owned(),
            Self::Floor(_) => "empty programs on the functions called".to_owned(),
            Self::Chain(chain) => chain.name(),
            Self::LatencyAlone => "latency record --no-ledger".to_owned(),
            Self::Peer(peer) => peer.name().to_owned(),
        }
    }
}

/// The functions of one file that were called.
pub struct Called {
    file: PathBuf,
    offsets: Vec<u64>,
}

/// A tool that is attached.
#[derive(Default)]
pub struct Attached {
    tracer: Option<Tracer>,
    others: Vec<Target>,
}

impl Attached {
    /// Attaches a tool to a process; floors to the functions that the tracer saw calls of in its last run.
    ///
    /// # Errors
    /// It cannot be attached, or ended at once.
    pub fn new(settings: &Settings, pid: u32, tool: &Tool, called: &[Called]) -> Result<Self> {
        let mut attached = Self::default();
        let function = |name| libcrypto(pid, name);
        match tool {
            Tool::Latency => attached.tracer = Some(Tracer::attach(settings, pid, &[])?),
            Tool::LatencyAlone => {
                attached.tracer = Some(Tracer::attach(settings, pid, &["--no-ledger"])?);
            }
            Tool::Floor(floor) => {
                for Called { file, offsets } in called {
                    attached.others.push(floor.attach(settings, pid, file, offsets)?);
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

    /// Of its processes.
    pub fn pids(&self) -> Vec<u32> {
        let tracer = self.tracer.iter().map(Tracer::pid);
        tracer.chain(self.others.iter().map(Target::pid)).collect()
    }

    /// Ends it, as Ctrl-C does. What the tracer saw calls of is `called` then.
    ///
    /// # Errors
    /// It does not end, or the tracer counted nothing.
    pub fn stop(self, called: &mut Vec<Called>) -> Result<()> {
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
