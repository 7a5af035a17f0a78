//! `tool-accuracy`: what each tool says of the key service, beside what the service's own clock says.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{
    peer::Peer,
    service_slowdown::libcrypto,
    settings::Settings,
    spread::Spread,
    table::{Cell, Table},
    target::Target,
    tracer::Tracer,
};

/// The tools, of which each tells some of the figures.
const TOOLS: [Option<Peer>; 4] =
    [None, Some(Peer::FuncLatency), Some(Peer::Bpftrace), Some(Peer::OffCpuTime)];

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

/// Runs the service under each tool in turn.
pub fn measure(settings: &Settings) -> Result<Table> {
    let (rounds, seconds) = (settings.either(3, 1), settings.either("5", "2"));
    // By tool and figure: how far off it was in each round, in percent.
    let mut errors: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for _ in 0..rounds {
        for (index, tool) in TOOLS.iter().enumerate() {
            if tool.is_some_and(|peer| !peer.is_installed()) {
                continue;
            }
            let (truth, told) = once(settings, *tool, seconds)?;
            for (figure, told) in told {
                let truth = truth[&figure];
                errors.entry((index, figure)).or_default().push((told / truth - 1.0) * 100.0);
            }
        }
    }
    let mut table = Table::new(
        "what each tool says of the key service",
        [
            ("figure", "figure"),
            ("tool", "tool"),
            ("error_percent", "off from the service's own clock, %"),
            ("verdict", "verdict"),
        ],
    );
    let off = |index, figure| {
        let errors = errors.get(&(index, figure))?;
        Spread::of(&errors.iter().map(|error| error.abs()).collect::<Vec<_>>())
    };
    for (figure, name) in FIGURES.iter().enumerate() {
        let others = (1..TOOLS.len()).filter_map(|index| off(index, figure));
        let best = others.map(|spread| spread.median).fold(f64::INFINITY, f64::min);
        for (index, tool) in TOOLS.iter().enumerate() {
            let cell = match (errors.get(&(index, figure)), tool) {
                (Some(errors), _) => Cell::spread(errors, 2),
                (None, Some(peer)) if !peer.is_installed() => Cell::text("not installed"),
                (None, _) => Cell::text("does not tell"),
            };
            let verdict = match (tool, off(index, figure)) {
                (None, Some(ours)) if ours.median <= best + ALIKE_PERCENT => Cell::verdict(&[]),
                (None, _) => Cell::verdict(&["another is nearer"]),
                _ => Cell::Empty,
            };
            let tool = tool.map_or("latency record", Peer::name);
            table.row(vec![Cell::text(*name), Cell::text(tool), cell, verdict]);
        }
    }
    table.note(format!(
        "Key service, P-256, 4 threads, a lock held for 200 µs in each request, {seconds} s; {rounds} rounds in \
         turn: median (min – max). Aim: nearest of all tools, or off by at most {ALIKE_PERCENT} % more than the \
         nearest."
    ));
    table.note(
        "A histogram by powers of two is taken at the middle of the bucket, by proportion. Of time off the CPU, \
         the service knows its threads' lives less their CPU time; the run queue is in it. \
         The service's own figure for the lock begins before and ends after the wait in the kernel.",
    );
    Ok(table)
}

/// The service's own figures, and those of the tool.
fn once(settings: &Settings, tool: Option<Peer>, seconds: &str) -> Result<(Figures, Figures)> {
    let options =
        ["--threads", "4", "--hold-us", "200", "--seconds", seconds, "--algorithm", "ecdsa-p256"];
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

/// Nanoseconds from, below, and how many: of funclatency (`  1024 -> 2047 : 7 |**|`) and of bpftrace
/// (`[1K, 2K)  7 |@@|`).
fn buckets(text: &str) -> Vec<(f64, f64, u64)> {
    let number = |text: &str| {
        let text = text.trim();
        let (digits, factor) = match text.as_bytes().last()? {
            b'K' => (&text[..text.len() - 1], 1024.0),
            b'M' => (&text[..text.len() - 1], 1024.0 * 1024.0),
            b'G' => (&text[..text.len() - 1], 1024.0 * 1024.0 * 1024.0),
            _ => (text, 1.0),
        };
        Some(digits.parse::<f64>().ok()? * factor)
    };
    let bucket = |line: &str| {
        let line = line.split('|').next()?;
        if let Some((range, count)) = line.split_once(':') {
            let (from, to) = range.split_once("->")?;
            return Some((number(from)?, number(to)? + 1.0, count.trim().parse().ok()?));
        }
        let (range, count) = line.trim().strip_prefix('[')?.split_once(')')?;
        let (from, below) = range.split_once(',')?;
        Some((number(from)?, number(below)?, count.trim().parse().ok()?))
    };
    text.lines().filter_map(bucket).collect()
}

/// The value below which this share lies: in its bucket, by proportion.
fn percentile(buckets: &[(f64, f64, u64)], share: f64) -> f64 {
    let all: u64 = buckets.iter().map(|bucket| bucket.2).sum();
    let mut left = share * all as f64;
    for (from, below, count) in buckets {
        let count = *count as f64;
        if left <= count && count > 0.0 {
            return from + (below - from) * left / count;
        }
        left -= count;
    }
    buckets.last().map_or(0.0, |bucket| bucket.1)
}

/// The sum of what `offcputime` prints: a line with microseconds below each stack.
fn off_cpu_ns(text: &str) -> f64 {
    text.lines().filter_map(|line| line.trim().parse::<f64>().ok()).sum::<f64>() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check the lines of both tools, and that a percentile is told within its bucket.
    #[test]
    fn histograms() {
        let text = "     nsec                : count    distribution\n\
                    \x20    1024 -> 2047       : 30       |***   |\n     2048 -> 4095       : 10       |*     |\n";
        let funclatency = buckets(text);
        assert_eq!(funclatency, [(1024.0, 2048.0, 30), (2048.0, 4096.0, 10)]);
        let bpftrace = buckets("@:\n[512, 1K)   4 |@@ |\n[64K, 128K)  12 |@@@|\n[1M, 2M)  1 |@|\n");
        assert_eq!(bpftrace[1], (65_536.0, 131_072.0, 12));
        assert_eq!(bpftrace.len(), 3);
        assert_eq!(percentile(&funclatency, 0.5), 1024.0 + 1024.0 * 20.0 / 30.0);
        assert_eq!(percentile(&funclatency, 1.0), 4096.0);
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
