//! `accuracy`: the tracer beside the key service, which times and counts itself.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{
    settings::Settings,
    spread::Spread,
    table::{Cell, Table},
    target::Target,
    tracer::Tracer,
};

const P50_PERCENT: f64 = 5.0;
const P50_NS: f64 = 1_500.0;
const P99_PERCENT: f64 = 10.0;

/// Algorithms, with the requests a second and thread that leave the CPUs partly idle.
const ALGORITHMS: [(&str, &str); 3] =
    [("ecdsa-p256", "1000"), ("rsa-2048", "250"), ("ed25519", "1000")];

/// How hard the service works.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    Full,
    Paced,
}

/// One operation of one round, by both clocks.
#[derive(Clone)]
struct Pair {
    count: [u64; 2],
    p50_ns: [u64; 2],
    p99_ns: [u64; 2],
}

impl Pair {
    /// The service's row first, then the tracer's; no row is a count of nothing.
    fn of(service: &Value, tracer: Option<&Value>) -> Result<Self> {
        let number = |key: &str| service[key].as_u64().with_context(|| format!("keysvc's {key}"));
        let latency = |key: &str| tracer.and_then(|row| row["latency_ns"][key].as_u64());
        Ok(Self {
            count: [number("count")?, tracer.and_then(|row| row["count"].as_u64()).unwrap_or(0)],
            p50_ns: [number("p50_ns")?, latency("p50").unwrap_or(0)],
            p99_ns: [number("p99_ns")?, latency("p99").unwrap_or(0)],
        })
    }
}

/// The tracer's value less the service's: in nanoseconds, and in percent of the service's.
fn difference([service, tracer]: [u64; 2]) -> (f64, f64) {
    let difference = tracer as f64 - service as f64;
    (difference, if service == 0 { 0.0 } else { difference / service as f64 * 100.0 })
}

/// The aims that these differences miss.
fn missed(counts_equal: bool, p50: (f64, f64), p99: (f64, f64)) -> Vec<&'static str> {
    let mut missed = Vec::new();
    if !counts_equal {
        missed.push("count");
    }
    if p50.1.abs() > P50_PERCENT && p50.0.abs() > P50_NS {
        missed.push("P50");
    }
    if p99.1.abs() > P99_PERCENT {
        missed.push("P99");
    }
    missed
}

/// An operation of an algorithm under a load, and what every round gave.
struct Case {
    load: Load,
    algorithm: &'static str,
    operation: &'static str,
    rounds: Vec<Pair>,
}

/// Records whole lives of the service, of each algorithm in turn.
pub fn measure(settings: &Settings) -> Result<Table> {
    let (rounds, seconds) = (3, settings.either("5", "1"));
    let mut cases = Vec::new();
    for load in [Load::Full, Load::Paced] {
        for (algorithm, _) in ALGORITHMS {
            for operation in ["sign", "verify"] {
                cases.push(Case { load, algorithm, operation, rounds: Vec::new() });
            }
        }
    }
    for _ in 0..rounds {
        for load in [Load::Full, Load::Paced] {
            for (algorithm, rate) in ALGORITHMS {
                let (service, tracer) = once(settings, algorithm, rate, load, seconds)?;
                let alike = |case: &&mut Case| case.load == load && case.algorithm == algorithm;
                for case in cases.iter_mut().filter(alike) {
                    let find = |rows: &[Value]| {
                        let same = |row: &&Value| {
                            row["operation"] == case.operation && row["algorithm"] == algorithm
                        };
                        rows.iter().find(same).cloned()
                    };
                    let service = find(&service).context("keysvc did no such operation")?;
                    case.rounds.push(Pair::of(&service, find(&tracer).as_ref())?);
                }
            }
        }
    }

    let mut table = Table::new(
        "counts and percentiles beside the key service's own clock",
        [
            ("load", "load"),
            ("operation", "operation"),
            ("round", "round"),
            ("count_service", "count: service"),
            ("count_tracer", "tracer"),
            ("p50_service_ns", "P50, ns: service"),
            ("p50_tracer_ns", "tracer"),
            ("p50_difference_ns", "differs"),
            ("p50_difference_percent", "%"),
            ("p99_service_ns", "P99, ns: service"),
            ("p99_tracer_ns", "tracer"),
            ("p99_difference_ns", "differs"),
            ("p99_difference_percent", "%"),
            ("verdict", "verdict"),
        ],
    );
    cases.iter().for_each(|case| rows(&mut table, case));
    table.note(format!(
        "Key service with 4 threads for {seconds} s, traced from before its first request to after its \
         last; full: without a pause, paced: {} requests a second and thread.",
        ALGORITHMS.map(|(algorithm, rate)| format!("{rate} ({algorithm})")).join(", ")
    ));
    table.note(format!(
        "Aims: counts equal; P50 within {P50_PERCENT} % or {P50_NS} ns; P99 within {P99_PERCENT} %. The \
         median row has the medians of the rounds' differences; its counts are sums.",
    ));
    Ok(table)
}

/// One life of the service: its rows, and the tracer's.
fn once(
    settings: &Settings,
    algorithm: &str,
    rate: &str,
    load: Load,
    seconds: &str,
) -> Result<(Vec<Value>, Vec<Value>)> {
    let mut options = vec!["--threads", "4", "--seconds", seconds, "--algorithm", algorithm];
    if load == Load::Paced {
        options.extend(["--rate", rate]);
    }
    let mut service = Target::ready(&mut settings.key_service(&options))?;
    let tracer = Tracer::attach(settings, service.pid(), &[])?;
    service.go()?;
    let (_, truth) = service.result()?;
    let traced = tracer.stop()?;
    let truth = truth["operations"].as_array().context("keysvc's result has no operations")?;
    Ok((truth.clone(), traced.operations().to_vec()))
}

/// A row of each round, and one of all.
fn rows(table: &mut Table, case: &Case) {
    let load = match case.load {
        Load::Full => "full",
        Load::Paced => "paced",
    };
    let mut row =
        |round: String, count: [u64; 2], p50: [Cell; 4], p99: [Cell; 4], verdict: Cell| {
            let name = format!("{} {}", case.operation, case.algorithm);
            let mut cells = vec![Cell::text(load), Cell::text(name), Cell::text(round)];
            cells.extend(count.map(Cell::Count));
            cells.extend(p50);
            cells.extend(p99);
            cells.push(verdict);
            table.row(cells);
        };
    let (mut p50s, mut p99s) = (Vec::new(), Vec::new());
    for (index, pair) in case.rounds.iter().enumerate() {
        let (p50, p99) = (difference(pair.p50_ns), difference(pair.p99_ns));
        let cells = |[service, tracer]: [u64; 2], (ns, percent): (f64, f64)| {
            [
                Cell::Count(service),
                Cell::Count(tracer),
                Cell::Difference(ns, 0),
                Cell::Difference(percent, 1),
            ]
        };
        let verdict = Cell::verdict(&missed(pair.count[0] == pair.count[1], p50, p99));
        let round = (index + 1).to_string();
        row(round, pair.count, cells(pair.p50_ns, p50), cells(pair.p99_ns, p99), verdict);
        p50s.push(p50);
        p99s.push(p99);
    }
    let median = |values: Vec<f64>| Spread::of(&values).map_or(0.0, |spread| spread.median);
    let both = |pairs: &[(f64, f64)]| {
        let (ns, percent): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
        (median(ns), median(percent))
    };
    let (p50, p99) = (both(&p50s), both(&p99s));
    let cells = |(ns, percent): (f64, f64)| {
        [Cell::Empty, Cell::Empty, Cell::Difference(ns, 0), Cell::Difference(percent, 1)]
    };
    let sum = |index: usize| case.rounds.iter().map(|pair| pair.count[index]).sum();
    let equal = case.rounds.iter().all(|pair| pair.count[0] == pair.count[1]);
    let verdict = Cell::verdict(&missed(equal, p50, p99));
    row("median".to_owned(), [sum(0), sum(1)], cells(p50), cells(p99), verdict);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that a P50 may be off by either measure, a P99 by percent only, a count not at all.
    #[test]
    fn aims() {
        let fine = (0.0, 0.0);
        assert!(missed(true, (-1400.0, -20.0), fine).is_empty());
        assert!(missed(true, (9000.0, 4.0), (9000.0, 9.9)).is_empty());
        assert_eq!(missed(true, (-1600.0, -20.0), (900.0, 10.1)), ["P50", "P99"]);
        assert_eq!(missed(false, fine, fine), ["count"]);
        assert_eq!(difference([200, 190]), (-10.0, -5.0));
    }

    /// Check that an operation that the tracer does not know is a count of 0, not an error.
    #[test]
    fn unknown_to_the_tracer() {
        let service = serde_json::json!({ "count": 3, "p50_ns": 5, "p99_ns": 6 });
        assert_eq!(Pair::of(&service, None).unwrap().count, [3, 0]);
    }
}
