//! `scale`: how the tracer's costs grow with the size of what it traces.

use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{
    probe_cost::ns_of_call,
    settings::Settings,
    spread::Spread,
    stack_cost::{Switch, program_ns},
    statistics::Statistics,
    table::{Cell, Table},
    target::Target,
    tracer::{Traced, Tracer},
};

const MIB: f64 = 1024.0 * 1024.0;
/// What is linear, with what a measurement may be off.
const LINEAR: f64 = 1.1;

/// Something that grows with `size`, in every round.
struct Point {
    size: u64,
    values: Vec<f64>,
}

/// One size after another.
struct Series {
    of: &'static str,
    what: &'static str,
    unit: &'static str,
    digits: usize,
    points: Vec<Point>,
}

impl Series {
    const fn new(of: &'static str, what: &'static str, unit: &'static str, digits: usize) -> Self {
        Self { of, what, unit, digits, points: Vec::new() }
    }

    fn add(&mut self, size: u64, value: f64) {
        match self.points.iter_mut().find(|point| point.size == size) {
            Some(point) => point.values.push(value),
            None => self.points.push(Point { size, values: vec![value] }),
        }
    }

    /// The exponent of the growth from the smallest to the largest size: 0 is none, 1 is linear.
    fn exponent(&self) -> Option<f64> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        let median =
            |point: &Point| Spread::of(&point.values).map(|spread| spread.median.max(1e-9));
        let growth =
            (median(last)? / median(first)?).ln() / (last.size as f64 / first.size as f64).ln();
        growth.is_finite().then_some(growth)
    }

    fn rows(&self, table: &mut Table) {
        let exponent = self.exponent();
        for (index, point) in self.points.iter().enumerate() {
            let is_last = index + 1 == self.points.len();
            let mut row = vec![
                Cell::text(self.of),
                Cell::Count(point.size),
                Cell::text(self.what),
                Cell::spread(&point.values, self.digits),
                Cell::text(self.unit),
            ];
            if let Some(exponent) = exponent.filter(|_| is_last) {
                row.push(Cell::Number(exponent.max(0.0), 2));
                row.push(Cell::verdict(if exponent > LINEAR {
                    &["worse than linear"]
                } else {
                    &[]
                }));
            }
            table.row(row);
        }
    }
}

/// Measures one series after another.
pub fn measure(settings: &Settings) -> Result<Table> {
    let mut table = Table::new(
        "how the costs grow",
        [
            ("of", "with the number of"),
            ("size", "number"),
            ("what", "what"),
            ("value", "value"),
            ("unit", "unit"),
            ("exponent", "exponent of the growth"),
            ("verdict", "verdict"),
        ],
    );
    let rounds = settings.either(3, 1);
    let mut all = Vec::new();
    all.extend(threads(settings, rounds).context("threads")?);
    all.extend(mappings(settings, rounds).context("mappings")?);
    all.extend(probes(settings, rounds).context("probes")?);
    all.push(depth(settings, rounds).context("depth of stacks")?);
    all.extend(stacks(settings, rounds).context("distinct stacks")?);
    all.iter().for_each(|series| series.rows(&mut table));
    table.note(format!(
        "{rounds} rounds: median (min – max). The exponent is that of the growth from the smallest to the \
         largest: 0 is none, 1 is linear, and more than {LINEAR} is a miss."
    ));
    Ok(table)
}

/// Traces a workload from its word to start to its result.
fn traced(settings: &Settings, command: &mut Command, options: &[&str]) -> Result<(Value, Traced)> {
    let mut target = Target::ready(command)?;
    let tracer = Tracer::attach(settings, target.pid(), options)?;
    target.go()?;
    let (_, result) = target.result()?;
    Ok((result, tracer.stop()?))
}

fn threads(settings: &Settings, rounds: usize) -> Result<[Series; 3]> {
    const OF: &str = "threads";
    let mut start = Series::new(OF, "exec → \"attached\"", "ms", 1);
    let mut call = Series::new(OF, "CPU time of a traced call", "ns", 0);
    let mut memory = Series::new(OF, "peak memory of the tracer", "MiB", 1);
    let calls = settings.either(400_000, 40_000);
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    for _ in 0..rounds {
        for threads in [1, 10, 100, 500, 2_000] {
            let text = threads.to_string();
            let each = calls / threads;
            let mut command = settings.hot("site_push", each, &["--threads", &text]);
            let (result, traced) = traced(settings, &mut command, &["--probe", "hot:site_push"])?;
            // Each CPU works at its own share.
            let ns = ns_of_call(&result, each * threads)? * threads.min(cores) as f64;
            start.add(threads, traced.attached.as_secs_f64() * 1e3);
            call.add(threads, ns);
            memory.add(threads, traced.peak_bytes as f64 / MIB);
        }
    }
    Ok([start, call, memory])
}

fn mappings(settings: &Settings, rounds: usize) -> Result<[Series; 2]> {
    const OF: &str = "mappings";
    let mut start = Series::new(OF, "exec → \"attached\"", "ms", 1);
    let mut memory = Series::new(OF, "peak memory of the tracer", "MiB", 1);
    for _ in 0..rounds {
        for mappings in [10, 100, 1_000, 10_000] {
            let text = mappings.to_string();
            let mut command = settings.hot("site_push", 1_000, &["--mappings", &text]);
            let (_, traced) = traced(settings, &mut command, &["--probe", "hot:site_push"])?;
            start.add(mappings, traced.attached.as_secs_f64() * 1e3);
            memory.add(mappings, traced.peak_bytes as f64 / MIB);
        }
    }
    Ok([start, memory])
}

fn probes(settings: &Settings, rounds: usize) -> Result<[Series; 2]> {
    const OF: &str = "probes";
    let mut start = Series::new(OF, "exec → \"attached\"", "ms", 1);
    let mut detach = Series::new(OF, "report → exit", "ms", 1);
    for _ in 0..rounds {
        for probes in [1, 8, 60] {
            // The workload numbers its functions in octal.
            let names: Vec<String> =
                (1..=probes).map(|level| format!("depth:level_{level:03o}")).collect();
            let options: Vec<&str> = names.iter().flat_map(|name| ["--probe", name]).collect();
            let mut command = Command::new(settings.program("depth"));
            let (_, traced) = traced(settings, command.args(["63", "10"]), &options)?;
            start.add(probes, traced.attached.as_secs_f64() * 1e3);
            detach.add(probes, traced.detach.as_secs_f64() * 1e3);
        }
    }
    Ok([start, detach])
}

fn depth(settings: &Settings, rounds: usize) -> Result<Series> {
    let mut series = Series::new("frames of a stack", "time in the scheduler's programs", "ns", 0);
    let _statistics = Statistics::turn_on()?;
    let count = settings.either(40_000, 10_000);
    let mut measured = [1, 15, 31, 61].map(|levels| (levels, Vec::new()));
    for _ in 0..rounds {
        for (levels, runs) in &mut measured {
            runs.push(program_ns(settings, Switch::Yield, *levels, count, &[])?);
        }
    }
    for (_, runs) in measured {
        // A mean over all stacks, so it differs a little from run to run.
        let frames: Vec<f64> = runs.iter().map(|(_, frames)| *frames).collect();
        let Some(frames) = Spread::of(&frames) else { continue };
        for (ns, _) in runs {
            series.add(frames.median.round() as u64, ns);
        }
    }
    Ok(series)
}

fn stacks(settings: &Settings, rounds: usize) -> Result<[Series; 3]> {
    const OF: &str = "distinct stacks";
    let mut cpu = Series::new(OF, "CPU time of the tracer", "ms", 0);
    let mut memory = Series::new(OF, "peak memory of the tracer", "MiB", 1);
    let mut end = Series::new(OF, "Ctrl-C → exit", "ms", 0);
    for _ in 0..rounds {
        for stacks in [1_000, 10_000, settings.either(100_000, 30_000)] {
            let mut command = settings.paths(stacks, 1);
            let (_, traced) = traced(settings, &mut command, &["--probe", "paths:empty"])?;
            cpu.add(stacks, traced.cpu.as_secs_f64() * 1e3);
            memory.add(stacks, traced.peak_bytes as f64 / MIB);
            end.add(stacks, traced.end.as_secs_f64() * 1e3);
        }
    }
    Ok([cpu, memory, end])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that what doubles when the size does is linear, and what stays is not growth.
    #[test]
    fn exponents() {
        let series = |values: [f64; 2]| {
            let mut series = Series::new("", "", "", 0);
            series.add(10, values[0]);
            series.add(1_000, values[1]);
            series.exponent().unwrap()
        };
        assert!((series([1.0, 100.0]) - 1.0).abs() < 1e-9);
        assert!((series([1.0, 10_000.0]) - 2.0).abs() < 1e-9);
        assert_eq!(series([5.0, 5.0]), 0.0);
    }
}
