//! `stream`: the tracer's own CPU time and memory under a stream of operations.

use anyhow::{Result, bail};

use super::{
    settings::{Settings, openssl_speed},
    spread::Spread,
    table::{Cell, Table},
    target::Target,
    tracer::{Traced, Tracer},
};

/// What the aims are for; how fast `openssl speed` signs is the machine's matter.
const AIM_RATE_HZ: f64 = 30_000.0;
const AIM_CPU_PERCENT: f64 = 10.0;
const AIM_PEAK_MIB: f64 = 64.0;
const MIB: f64 = 1024.0 * 1024.0;

/// What the tracer had to do, in every round.
#[derive(Default)]
struct Case {
    cpu_percent: Vec<f64>,
    peak_mib: Vec<f64>,
    rate_hz: Vec<f64>,
    counted: u64,
    lost: u64,
}

impl Case {
    fn add(&mut self, traced: &Traced) -> Result<()> {
        let seconds = traced.number("/duration_ns")? as f64 / 1e9;
        self.cpu_percent.push(traced.cpu.as_secs_f64() / seconds * 100.0);
        self.peak_mib.push(traced.peak_bytes as f64 / MIB);
        self.rate_hz.push(traced.count() as f64 / seconds);
        self.counted += traced.number("/loss/counted")?;
        self.lost += traced.number("/loss/records")?;
        Ok(())
    }

    /// What each round took more than that round's run of `idle`.
    fn beyond(&self, idle: &Self) -> Vec<f64> {
        self.cpu_percent.iter().zip(&idle.cpu_percent).map(|(busy, idle)| busy - idle).collect()
    }
}

/// Traces an idle service, `openssl speed` and `tiny` in turn.
pub fn measure(settings: &Settings) -> Result<Table> {
    let (rounds, seconds) = (settings.either(3, 1), settings.either(10, 2));
    let duration = format!("{seconds}s");
    let duration = ["-d", duration.as_str()];
    let (mut idle, mut speed, mut tiny) = (Case::default(), Case::default(), Case::default());
    for _ in 0..rounds {
        let target = Target::ready(&mut settings.key_service(&[]))?;
        idle.add(&Tracer::attach(settings, target.pid(), &duration)?.end()?)?;
        drop(target);

        let target = Target::busy(&mut openssl_speed(seconds + 60))?;
        speed.add(&Tracer::attach(settings, target.pid(), &duration)?.end()?)?;
        drop(target);

        let mut target = Target::ready(&mut settings.tiny(1_000_000_000))?;
        let options = ["--probe", "tiny:work", duration[0], duration[1]];
        let tracer = Tracer::attach(settings, target.pid(), &options)?;
        target.go()?;
        tiny.add(&tracer.end()?)?;
    }
    if speed.counted == 0 || tiny.counted == 0 {
        bail!("the tracer counted no operation of a busy target");
    }

    let mut table = Table::new(
        "the tracer's own CPU time and memory",
        [
            ("target", "target"),
            ("rate_hz", "operations/s"),
            ("cpu_percent", "CPU, % of a core"),
            ("cpu_beyond_idle_percent", "the same less idle"),
            ("peak_memory_mib", "peak memory, MiB"),
            ("counted", "counted"),
            ("lost_records", "records lost"),
            ("verdict", "verdict"),
        ],
    );
    let row = |name: &str, case: &Case, verdict: Cell| {
        let beyond = case.beyond(&idle);
        vec![
            Cell::text(name),
            Cell::spread(&case.rate_hz, 0),
            Cell::spread(&case.cpu_percent, 2),
            if name.starts_with("idle") { Cell::Empty } else { Cell::spread(&beyond, 2) },
            Cell::spread(&case.peak_mib, 1),
            Cell::Count(case.counted),
            Cell::Count(case.lost),
            verdict,
        ]
    };
    // With the start, which a longer trace would spread out: the stricter reading.
    let median = |values: &[f64]| Spread::of(values).map_or(f64::INFINITY, |spread| spread.median);
    let mut missed = Vec::new();
    if median(&speed.cpu_percent) >= AIM_CPU_PERCENT {
        missed.push("CPU");
    }
    if median(&speed.peak_mib) >= AIM_PEAK_MIB {
        missed.push("memory");
    }
    table.row(row("idle key service", &idle, Cell::text("–")));
    let slow = median(&speed.rate_hz) < AIM_RATE_HZ * 0.9;
    let verdict = match (slow, missed.as_slice()) {
        (true, []) => Cell::text("met, at a lower rate"),
        (_, missed) => Cell::verdict(missed),
    };
    table.row(row("openssl speed ecdsap256", &speed, verdict));
    table.row(row("tiny work, as fast as it goes", &tiny, Cell::text("–")));
    table.note(format!(
        "{seconds} s each in turn, number of rounds: {rounds}; median (min – max). Counted and lost are sums. \
         Aim, for openssl speed: < {AIM_CPU_PERCENT} % with the start included, and < {AIM_PEAK_MIB} \
         MiB, at about 30,000 operations/s."
    ));
    table.note(
        "CPU is user and system time of the whole process over the length of the trace; idle is what \
         starting, attaching and reporting take.",
    );
    Ok(table)
}
