//! The services that lose requests while they are traced, under load.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::{
    nginx::Nginx,
    settings::Settings,
    target::{Target, cpu_ns},
};

/// What is traced.
#[derive(Clone, Copy, PartialEq)]
pub enum Service {
    /// The key service with these options, and how the table names it.
    KeyService(&'static str, &'static [&'static str]),
    /// TLS under wrk.
    Nginx,
}

/// All of them.
pub const SERVICES: [Service; 3] = [
    Service::KeyService("key service, P-256", &["--threads", "2"]),
    Service::KeyService(
        "key service, P-256, contended lock",
        &["--threads", "4", "--hold-us", "20"],
    ),
    Service::Nginx,
];

impl Service {
    /// How the table names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::KeyService(name, _) => name,
            Self::Nginx => "nginx, a TLS handshake a request",
        }
    }
}

/// A while of a service.
pub struct Run {
    /// Requests a second.
    pub rate: f64,
    /// CPU time of a request in microseconds.
    pub cpu_us: f64,
}

/// How far a service is.
struct Progress {
    requests: u64,
    time_ns: u64,
    cpu_ns: u64,
}

/// A service under load. Dropping it ends both.
pub enum Load {
    /// It makes its requests itself.
    KeyService(Target),
    /// With its load.
    Nginx {
        /// The service.
        nginx: Nginx,
        /// The base of its times.
        started: Instant,
        /// Who asks.
        _wrk: Target,
    },
}

impl Load {
    /// Starts a service, and its load.
    ///
    /// # Errors
    /// It cannot run.
    pub fn start(settings: &Settings, service: Service) -> Result<Self> {
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

    /// Of the process to trace.
    ///
    /// # Errors
    /// nginx has no worker.
    pub fn pid(&self) -> Result<u32> {
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
                let (requests, time_ns, cpu_ns) = (next()?, next()?, next()?);
                Ok(Progress { requests, time_ns, cpu_ns })
            }
            Self::Nginx { nginx, started, .. } => {
                let requests = nginx.requests()?;
                let time_ns = u64::try_from(started.elapsed().as_nanos())?;
                Ok(Progress { requests, time_ns, cpu_ns: cpu_ns(nginx.worker()?)? })
            }
        }
    }

    /// A moment for all to settle, and then a while of that length.
    ///
    /// # Errors
    /// The service tells nothing, or serves nothing.
    pub fn window(&self, length: Duration) -> Result<Run> {
        std::thread::sleep(Duration::from_millis(100));
        let begin = self.progress()?;
        std::thread::sleep(length);
        let end = self.progress()?;
        let requests = (end.requests - begin.requests) as f64;
        if requests == 0.0 {
            bail!("the service serves nothing");
        }
        Ok(Run {
            rate: requests / (end.time_ns - begin.time_ns) as f64 * 1e9,
            cpu_us: (end.cpu_ns - begin.cpu_ns) as f64 / requests / 1e3,
        })
    }
}

/// Requests without a pause, each with a connection of its own. They come from the second CPU, if there is
/// one: where the scheduler may put nginx and its load onto one CPU, untraced windows of 400 ms differ from
/// their neighbours by 6 to 8 %, and else by 1 to 2 %.
fn wrk(url: &str) -> Result<Target> {
    let has_second = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
    let mut command = Command::new(if has_second { "taskset" } else { "wrk" });
    if has_second {
        command.args(["-c", "1", "wrk"]);
    }
    command.args(["-t", "1", "-c", "8", "-d", "600s", "-H", "Connection: close", url]);
    Target::busy(&mut command)
}
