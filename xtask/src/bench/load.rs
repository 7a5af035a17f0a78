//! The services that lose requests while they are traced, under load.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use super::{
    nginx::Nginx,
    settings::Settings,
    target::{Progress, Target, cpu_ns},
    yardstick::Yardstick,
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
            Self::Nginx => "nginx, a TLS handshake (RSA-2048) a request",
        }
    }

    /// The only CPU that it runs on.
    pub const fn cpu(self) -> Option<&'static str> {
        match self {
            Self::KeyService(..) => None,
            Self::Nginx => Some(Nginx::CPU),
        }
    }
}

/// A while of a service.
#[derive(Clone, Copy)]
pub struct Run {
    /// Requests a second.
    pub rate: f64,
    /// CPU time of a request in microseconds.
    pub cpu_us: f64,
    /// CPU time of a piece of the yardstick's work meanwhile in nanoseconds.
    pub piece_ns: f64,
}

impl Run {
    /// Between two moments of the service.
    fn between(service: [&Progress; 2], piece_ns: f64) -> Result<Self> {
        let requests = (service[1].done - service[0].done) as f64;
        if requests == 0.0 {
            bail!("the service serves nothing");
        }
        let ns = |[begin, end]: [u64; 2]| (end - begin) as f64;
        Ok(Self {
            rate: requests / ns(service.map(|at| at.time_ns)) * 1e9,
            cpu_us: ns(service.map(|at| at.cpu_ns)) / requests / 1e3,
            piece_ns,
        })
    }

    /// Requests served while a CPU could do a piece of the yardstick's work.
    pub fn for_a_piece(&self) -> f64 {
        self.rate * self.piece_ns / 1e9
    }

    /// CPU time of a request, in pieces of the yardstick's work.
    pub fn cpu_pieces(&self) -> f64 {
        self.cpu_us * 1e3 / self.piece_ns
    }
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
            Self::KeyService(target) => target.progress(),
            Self::Nginx { nginx, started, .. } => {
                let done = nginx.requests()?;
                let time_ns = u64::try_from(started.elapsed().as_nanos())?;
                Ok(Progress { done, time_ns, cpu_ns: cpu_ns(nginx.worker()?)? })
            }
        }
    }

    /// A moment for all to settle, and then a while of that length.
    ///
    /// # Errors
    /// The service tells nothing, or serves nothing.
    pub fn window(&self, length: Duration, yardstick: &Yardstick) -> Result<Run> {
        std::thread::sleep(Duration::from_millis(100));
        let ((begin, end), piece_ns) = yardstick.during(|| {
            let begin = self.progress()?;
            std::thread::sleep(length);
            Ok((begin, self.progress()?))
        })?;
        Run::between([&begin, &end], piece_ns)
    }
}

/// Requests without a pause, each with a connection of its own, from the second CPU, if there is one: where
/// the scheduler may put nginx and its load onto one, their turns make more difference than a tracer does.
/// wrk keeps its CPU busy whatever comes of it. With 32 connections and an RSA key nginx has no time left
/// either (98 % of its CPU; of 8 connections with a P-256 key, 52 %): what delays it loses requests.
fn wrk(url: &str) -> Result<Target> {
    let mut command = Command::new("wrk");
    command.args(["-t", "1", "-c", "32", "-d", "1800s", "-H", "Connection: close", url]);
    let wrk = Target::busy(&mut command)?;
    wrk.keep_on_second_cpu()?;
    Ok(wrk)
}
