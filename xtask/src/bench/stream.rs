//! `stream`: the tracer's own CPU time and memory under a stream of operations.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{
    settings::{Settings, openssl_speed},
    spread::Spread,
    table::{Cell, Table},
    target::Target,
    tracer::{Traced, Tracer},
};

/// Core-percent for 10,000 operations a second.
const AIM_CPU_PERCENT: f64 = 1.0;
const AIM_PEAK_MIB: f64 = 64.0;
const MIB: f64 = 1024.0 * 1024.0;

/// Where the operations come from.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    Idle,
    OpensslSpeed,
    /// Calls of a function that does nothing, by so many threads: so many a second, all together; 0: as fast
    /// as it goes.
    Calls(u64, u64),
}

const SOURCES: [Source; 7] = [
    Source::Idle,
    Source::OpensslSpeed,
    Source::Calls(1, 10_000),
    Source::Calls(1, 100_000),
    Source::Calls(2, 500_000),
    Source::Calls(1, 0),
    Source::Calls(2, 0),
];

impl Source {
    fn name(self) -> String {
        match self {
            Self::Idle => "an idle key service".into(),
            Self::OpensslSpeed => "openssl speed ecdsap256".into(),
            Self::Calls(1, 0) => "calls, as fast as one thread can".into(),
            Self::Calls(threads, 0) => format!("calls, as fast as {threads} threads can"),
            Self::Calls(threads, rate) => {
                format!(
                    "{rate} calls a second, {threads} thread{}",
                    if threads > 1 { "s" } else { "" }
                )
            }
        }
    }

    fn start(self, settings: &Settings, seconds: u64) -> Result<Target> {
        match self {
            Self::Idle => Target::ready(&mut settings.key_service(&[])),
            Self::OpensslSpeed => Target::busy(&mut openssl_speed(seconds + 60)),
            Self::Calls(threads, rate) => {
                let threads = threads.to_string();
                let rate = rate.to_string();
                let options = ["--threads", &threads, "--rate", &rate];
                Target::ready(&mut settings.hot("site_push", 1 << 40, &options))
            }
        }
    }
}

/// What the tracer had to do, in every round.
#[derive(Default)]
struct Case {
    cpu_percent: Vec<f64>,
    steady_percent: Vec<f64>,
    peak_mib: Vec<f64>,
    rate_hz: Vec<f64>,
    counted: u64,
    lost: u64,
}

impl Case {
    fn add(&mut self, traced: &Traced, steady_percent: f64) -> Result<()> {
        self.steady_percent.push(steady_percent);
        let seconds = traced.number("/duration_ns")? as f64 / 1e9;
        self.cpu_percent.push(traced.cpu.as_secs_f64() / seconds * 100.0);
        self.peak_mib.push(traced.peak_bytes as f64 / MIB);
        self.rate_hz.push(traced.count() as f64 / seconds);
        self.counted += traced.number("/loss/counted")?;
        self.lost += traced.number("/loss/records")?;
        Ok(())
    }

    /// For each 10,000 operations a second, in percent of a core.
    fn for_10k(&self) -> Vec<f64> {
        let rounds = self.steady_percent.iter().zip(&self.rate_hz);
        rounds.map(|(percent, rate)| percent / (rate / 1e4).max(1e-9)).collect()
    }
}

/// What the tracer takes while it traces and nothing else: in percent of a core. Half a second at the
/// start and at the end is left out.
fn steady_percent(tracer: &Tracer, seconds: u64) -> Result<f64> {
    let margin = Duration::from_millis(500);
    std::thread::sleep(margin);
    let (begun, before) = (Instant::now(), tracer.cpu()?);
    std::thread::sleep(Duration::from_secs(seconds) - 2 * margin);
    let spent = tracer.cpu()?.saturating_sub(before);
    Ok(spent.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0)
}

/// Traces each source in turn.
pub fn measure(settings: &Settings) -> Result<Table> {
    let (rounds, seconds) = (settings.either(3, 1), settings.either(5, 2));
    let duration = format!("{seconds}s");
    let mut cases: [Case; SOURCES.len()] = std::array::from_fn(|_| Case::default());
    for _ in 0..rounds {
        for (source, case) in SOURCES.iter().zip(&mut cases) {
            let mut target = source.start(settings, seconds)?;
            let mut options = vec!["-d", duration.as_str()];
            if matches!(source, Source::Calls(..)) {
                options.extend(["--probe", "hot:site_push"]);
            }
            let tracer = Tracer::attach(settings, target.pid(), &options)?;
            if matches!(source, Source::Calls(..)) {
                target.go()?;
            }
            let steady = steady_percent(&tracer, seconds)?;
            case.add(&tracer.end()?, steady)?;
            if case.counted == 0 && *source != Source::Idle {
                bail!("{}: the tracer counted nothing", source.name());
            }
        }
    }
    let mut table = Table::new(
        "the tracer's own CPU time and memory",
        [
            ("source", "operations"),
            ("rate_hz", "operations/s"),
            ("cpu_percent", "CPU with start and end, % of a core"),
            ("steady_percent", "between, %"),
            ("cpu_percent_for_10k", "for 10,000/s, %"),
            ("peak_memory_mib", "peak memory, MiB"),
            ("counted", "counted"),
            ("lost_records", "records lost"),
            ("verdict", "verdict"),
        ],
    );
    let median = |values: &[f64]| Spread::of(values).map_or(f64::INFINITY, |spread| spread.median);
    for (source, case) in SOURCES.iter().zip(&cases) {
        let for_10k = case.for_10k();
        let mut missed = Vec::new();
        // As fast as it goes, only what is lost counts, and that it is counted.
        let is_limit = matches!(source, Source::Calls(_, 0));
        if median(&for_10k) > AIM_CPU_PERCENT && !is_limit {
            missed.push("CPU");
        }
        if median(&case.peak_mib) > AIM_PEAK_MIB {
            missed.push("memory");
        }
        if case.lost > 0 && !is_limit {
            missed.push("loss");
        }
        let reached = |rate: u64| median(&case.rate_hz) >= rate as f64 * 0.95;
        if let Source::Calls(_, rate) = source
            && !reached(*rate)
        {
            missed.push("rate");
        }
        let is_idle = *source == Source::Idle;
        table.row(vec![
            Cell::Text(source.name()),
            Cell::spread(&case.rate_hz, 0),
            Cell::spread(&case.cpu_percent, 2),
            Cell::spread(&case.steady_percent, 2),
            if is_idle { Cell::Empty } else { Cell::spread(&for_10k, 2) },
            Cell::spread(&case.peak_mib, 1),
            Cell::Count(case.counted),
            Cell::Count(case.lost),
            if is_idle { Cell::Empty } else { Cell::verdict(&missed) },
        ]);
    }
    table.note(format!(
        "{seconds} s each in turn, number of rounds: {rounds}; median (min – max). Counted and lost are sums. \
         Aims: nothing lost at 500,000/s, at most {AIM_CPU_PERCENT} % of a core for each 10,000/s, and \
         {AIM_PEAK_MIB} MiB."
    ));
    table.note(
        "CPU is user and system time of the whole process over the length of the trace, with loading, \
         attaching, naming and reporting in it; between these, it is what following the stream takes. As fast as \
         they can, the calling threads leave the tracer no CPU of its own.",
    );
    Ok(table)
}
