//! `tool-accuracy`: what each tool says of the key service, beside what the service's own clock says.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{
    histogram::{buckets, percentile},
    peer::Peer,
    settings::Settings,
    spread::Spread,
    table::{Cell, Table},
    target::Target,
    tool::libcrypto,
    tracer::Tracer,
};

/// The tools, of which each tells some of the figures.
const TOOLS: [Option<Peer>; 4] =
    [None, Some(Peer::FuncLatency), Some(Peer::Bpftrace), Some(Peer::OffCpuTime)];

/// What the service signs with, in turn: where one percentile lies in its bucket decides nothing.
const ALGORITHMS: [&str; 3] = ["ecdsa-p256", "rsa-2048", "ed25519"];

/// Errors that differ by less than this are alike: a round differs from the next by as much.
const ALIKE_PERCENT: f64 = 0.5;

/// What is told of.
const FIGURES: [&str; 6] = [
    "signatures",
    "P50 of sign",
    "P99 of sign",
    "P99.9 of sign",
    "time waited for the lock",
    "time off the CPU",
];

/// A figure by its place in [`FIGURES`].
type Figures = BTreeMap<usize, f64>;

/// Errors in percent, of every algorithm in every round, by the places of the tool and of the figure.
type Errors = BTreeMap<(usize, usize), Vec<f64>>;

/// Runs the service under each tool in turn.
pub fn measure(settings: &Settings) -> Result<Table> {
    let (rounds, seconds) = (settings.either(7, 1), settings.either("3", "1"));
    let mut errors = Errors::new();
    let mut signatures = ALGORITHMS.map(|_| Vec::new());
    for _ in 0..rounds {
        for (algorithm, signatures) in ALGORITHMS.iter().zip(&mut signatures) {
            for (index, tool) in TOOLS.iter().enumerate() {
                if tool.is_some_and(|peer| !peer.is_installed()) {
                    continue;
                }
                let (truth, told) = once(settings, *tool, algorithm, seconds)?;
                signatures.push(truth[&0]);
                for (figure, told) in told {
                    let error = (told / truth[&figure] - 1.0) * 100.0;
                    errors.entry((index, figure)).or_default().push(error);
                }
            }
        }
    }
    let mut table = Table::new(
        "what each tool says of the key service",
        [
            ("figure", "figure"),
            ("tool", "tool"),
            ("off_percent", "off by, %"),
            ("largest_percent", "at most, %"),
            ("error_percent", "less or more, %"),
            ("verdict", "verdict"),
        ],
    );
    for (figure, name) in FIGURES.iter().enumerate() {
        for (index, tool) in TOOLS.iter().enumerate() {
            let told = errors.get(&(index, figure));
            let tool_name = tool.map_or("latency record", Peer::name);
            let mut row = vec![Cell::text(*name), Cell::text(tool_name)];
            row.extend(match (told, tool) {
                (Some(errors), _) => error_cells(errors),
                (None, Some(peer)) if !peer.is_installed() => vec![Cell::text("not installed")],
                (None, _) => vec![Cell::text("does not tell")],
            });
            row.resize_with(5, || Cell::Empty);
            if tool.is_none() {
                row.push(Cell::verdict(if is_nearest(&errors, figure) {
                    &[]
                } else {
                    &["another is nearer"]
                }));
            }
            table.row(row);
        }
    }
    table.note(format!(
        "Key service, 4 threads, a lock held for 200 µs in each request, {seconds} s; {rounds} rounds, in each \
         {} under each tool in turn. Off by: median of all errors without their signs, and the largest of them; \
         then with their signs, median (min – max). Aim: nearest of all tools by the first, or off by at most \
         {ALIKE_PERCENT} % more than the nearest.",
        ALGORITHMS.join(", ")
    ));
    table.note(signatures_note(&signatures));
    table.note(
        "A histogram by powers of two is taken at the middle of the bucket, by proportion. Of time off the CPU, \
         the service knows its threads' lives less their CPU time; the run queue is in it. \
         The service's own figure for the lock begins before and ends after the wait in the kernel.",
    );
    Ok(table)
}

/// Each without its sign.
fn magnitudes(errors: &[f64]) -> Option<Spread> {
    Spread::of(&errors.iter().map(|error| error.abs()).collect::<Vec<_>>())
}

/// The median magnitude, the largest, and the errors with their signs.
fn error_cells(errors: &[f64]) -> Vec<Cell> {
    let number = |of: fn(Spread) -> f64| {
        magnitudes(errors).map_or(Cell::Empty, |spread| Cell::Number(of(spread), 2))
    };
    vec![number(|spread| spread.median), number(|spread| spread.max), Cell::spread(errors, 2)]
}

/// Whether the tracer's median magnitude is the smallest, or like it.
fn is_nearest(errors: &Errors, figure: usize) -> bool {
    let off = |index| Some(magnitudes(errors.get(&(index, figure))?)?.median);
    let nearest = (1..TOOLS.len()).filter_map(off).fold(f64::INFINITY, f64::min);
    off(0).is_some_and(|ours| ours <= nearest + ALIKE_PERCENT)
}

/// How many operations a percentile is of.
fn signatures_note(signatures: &[Vec<f64>]) -> String {
    let of = |(algorithm, counts): (&&str, &Vec<f64>)| {
        let median = Spread::of(counts).map_or(0.0, |spread| spread.median);
        // The largest thousandth, by nearest rank.
        let beyond = (median / 1e3).floor();
        format!("{median:.0} with {algorithm}, {beyond:.0} of them beyond the P99.9")
    };
    let counts: Vec<_> = ALGORITHMS.iter().zip(signatures).map(of).collect();
    format!("Signatures of a run, median: {}.", counts.join("; "))
}

/// The service's own figures, and those of the tool.
fn once(
    settings: &Settings,
    tool: Option<Peer>,
    algorithm: &str,
    seconds: &str,
) -> Result<(Figures, Figures)> {
    let options =
        ["--threads", "4", "--hold-us", "200", "--seconds", seconds, "--algorithm", algorithm];
    let mut service = Target::ready(&mut settings.key_service(&options))?;
    let Some(peer) = tool else {
        let tracer = Tracer::attach(settings, service.pid(), &[])?;
        service.go()?;
        let truth = truth(&service.result()?.1)?;
        let traced = tracer.stop()?;
        return Ok((truth, by_latency(&traced.report)?));
    };
    let function = libcrypto(service.pid(), "EVP_DigestSign")?;
    let peer_target = peer.attach(settings, service.pid(), &function)?;
    service.go()?;
    let truth = truth(&service.result()?.1)?;
    let text = peer_target.stop_printed(libc::SIGINT)?;
    let told = match peer {
        Peer::OffCpuTime => BTreeMap::from([(5, off_cpu_ns(&text))]),
        _ => {
            let buckets = buckets(&text);
            let count: u64 = buckets.iter().map(|bucket| bucket.2).sum();
            if count == 0 {
                bail!("{} told no histogram:\n{text}", peer.name());
            }
            let at = |share| percentile(&buckets, share);
            BTreeMap::from([(0, count as f64), (1, at(0.5)), (2, at(0.99)), (3, at(0.999))])
        }
    };
    Ok((truth, told))
}

/// What the service says of itself.
fn truth(result: &Value) -> Result<Figures> {
    let number = |pointer: &str| {
        result
            .pointer(pointer)
            .and_then(Value::as_f64)
            .with_context(|| format!("keysvc's {pointer}"))
    };
    if result["operations"][0]["operation"] != "sign" {
        bail!("keysvc's first operation is no sign");
    }
    // The workers and the thread that waits for them.
    let threads = number("/threads")? + 1.0;
    Ok(BTreeMap::from([
        (0, number("/operations/0/count")?),
        (1, number("/operations/0/p50_ns")?),
        (2, number("/operations/0/p99_ns")?),
        (3, number("/operations/0/p999_ns")?),
        (4, number("/lock/wait_total_ns")?),
        (5, threads * number("/elapsed_ns")? - number("/cpu_ns")?),
    ]))
}

fn by_latency(report: &Value) -> Result<Figures> {
    let rows = report["operations"].as_array().context("the report has no operations")?;
    let sign = rows.iter().find(|row| row["operation"] == "sign").context("no sign was traced")?;
    let number = |value: &Value, pointer: &str| {
        value
            .pointer(pointer)
            .and_then(Value::as_f64)
            .with_context(|| format!("the report's {pointer}"))
    };
    let list = |key: &str| report[key].as_array().cloned().unwrap_or_default();
    let sum = |rows: &[Value], key: &str| -> f64 {
        rows.iter().filter_map(|row| row[key].as_f64()).sum()
    };
    let totals = list("off_cpu_totals");
    // Before the word to start, the service waited for it.
    let waited: Vec<Value> =
        list("in_progress").into_iter().filter(|wait| wait["at_start"] == true).collect();
    let off_cpu =
        sum(&totals, "total_ns") + sum(&totals, "run_queue_ns") - sum(&waited, "duration_ns");
    let locks = list("locks");
    let lock = locks
        .iter()
        .find(|lock| lock["name"].as_str().is_some_and(|name| name.ends_with("g_keystore_lock")))
        .context("the report does not name the lock")?;
    let run_queue: f64 = list("off_cpu")
        .iter()
        .filter(|group| group["reason"] == "lock")
        .filter_map(|group| group["run_queue_ns"].as_f64())
        .sum();
    Ok(BTreeMap::from([
        (0, number(sign, "/count")?),
        (1, number(sign, "/latency_ns/p50")?),
        (2, number(sign, "/latency_ns/p99")?),
        (3, number(sign, "/latency_ns/p999")?),
        // The service's clock also has the time from the wakeup to the CPU.
        (4, number(lock, "/total_ns")? + run_queue),
        (5, off_cpu),
    ]))
}

/// The sum of what `offcputime` prints: a line with microseconds below each stack.
fn off_cpu_ns(text: &str) -> f64 {
    text.lines().filter_map(|line| line.trim().parse::<f64>().ok()).sum::<f64>() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that errors to both sides do not cancel, and that the largest is told without its sign.
    #[test]
    fn magnitudes_of_errors() {
        let spread = magnitudes(&[-40.0, 30.0, 0.5]).unwrap();
        assert_eq!((spread.median, spread.max), (30.0, 40.0));
        let [Cell::Number(median, _), Cell::Number(largest, _), Cell::Spread(Some(signed), _)] =
            error_cells(&[-40.0, 30.0, 0.5])[..]
        else {
            panic!("other cells");
        };
        assert_eq!((median, largest, signed.median), (30.0, 40.0, 0.5));
    }

    /// Check that the nearest is told by magnitudes: an error of nothing in the median with its sign is
    /// not the nearest; and that a figure which nobody else tells is.
    #[test]
    fn nearest() {
        let others = [-40.0, 0.0, 40.0].to_vec();
        let errors = |ours: f64| {
            Errors::from([((0, 1), vec![ours; 3]), ((1, 1), others.clone()), ((0, 4), vec![9.0])])
        };
        assert!(is_nearest(&errors(-3.0), 1));
        assert!(is_nearest(&errors(40.4), 1));
        assert!(!is_nearest(&errors(-40.6), 1));
        assert!(is_nearest(&errors(1.0), 4));
        assert!(!is_nearest(&errors(1.0), 5));
    }

    /// Check what is said of the number of operations behind a percentile.
    #[test]
    fn signatures() {
        let note = signatures_note(&[vec![12_900.0], vec![4_999.0, 5_001.0], vec![]]);
        assert_eq!(
            note,
            "Signatures of a run, median: 12900 with ecdsa-p256, 12 of them beyond the P99.9; 5000 with \
             rsa-2048, 5 of them beyond the P99.9; 0 with ed25519, 0 of them beyond the P99.9."
        );
    }

    /// Check that only the numbers below stacks count, not the frames.
    #[test]
    fn off_cpu_times() {
        assert_eq!(
            off_cpu_ns(
                "    finish_task\n    -  keysvc (12)\n        34\n\n    [unknown]\n        6\n"
            ),
            40e3
        );
    }
}
