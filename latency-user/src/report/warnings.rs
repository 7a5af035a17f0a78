//! What the reader should know before trusting the numbers of a report.

use super::{Operation, Report};
use crate::aggregate::{grouped, plural};
use crate::recording::{MAX_GROUPS, Price, Probe, Recording};

/// Below this median, in nanoseconds, a probe's own cost is a large part of what it measures: a
/// pair of probes costs about a microsecond.
const SHORT_NS: u64 = 2_000;
/// The same where an entry probe is single-stepped, which takes up to 20 µs in a virtual machine.
const SHORT_SINGLE_STEPPED_NS: u64 = 400_000;

/// The warnings that follow from a report's numbers.
pub(super) fn of(report: &Report) -> Vec<String> {
    let mut warnings = Vec::new();
    warnings.extend(nothing_called(report));
    warnings.extend(report.operations.iter().filter_map(|operation| short(operation, report)));
    lost(report, &mut warnings);
    warnings.extend(unfinished_command(report));
    warnings
}

/// The warnings about waits and ledgers.
pub(super) fn of_waits(recording: &Recording) -> Vec<String> {
    let mut warnings = Vec::new();
    let mismatches = recording.ledger_mismatches;
    if mismatches > 0 {
        warnings.push(plural(
            mismatches,
            "operation has parts that do not add up to its duration: an event of the scheduler was \
             missed.",
            "operations have parts that do not add up to their duration: events of the scheduler \
             were missed.",
        ));
    }
    let ungrouped = recording.ungrouped_waits;
    if ungrouped > 0 {
        let most = grouped(MAX_GROUPS as u64);
        warnings.push(format!(
            "{} only by reason and operation, without stack, thread or lock: there were about {most} \
             different ones already.",
            plural(ungrouped, "wait is counted", "waits are counted"),
        ));
    }
    warnings
}

fn nothing_called(report: &Report) -> Option<String> {
    let is_silent = report.operations.iter().all(|row| row.count == 0 && row.size_queries == 0)
        && report.probes.iter().all(|probe| probe.hits == 0);
    if !is_silent {
        return None;
    }
    if report.probes.is_empty() {
        return Some("No function was probed, so nothing could be measured.".to_owned());
    }
    let hits: Vec<String> =
        report.probes.iter().map(|probe| format!("{}: 0 hits", probe.symbol)).collect();
    Some(format!(
        "Attached, but nothing was called. The process may have been idle, sign in another process \
         (a child, a worker), or use other functions than those probed: {}.",
        hits.join(", ")
    ))
}

fn short(operation: &Operation, report: &Report) -> Option<String> {
    let p50_ns = operation.latency_ns.p50?;
    let title = operation.title();
    if p50_ns < SHORT_NS {
        return Some(format!(
            "{title}: half of the calls take less than 2 µs. Tracing itself adds about 1 µs to each, \
             so the untraced calls are shorter than shown."
        ));
    }
    let is_stepped = |probe: &&Probe| {
        probe.price == Price::SingleStepped
            && probe.hits > 0
            && probe.operation == operation.operation
    };
    let probe = report.probes.iter().find(is_stepped)?;
    (p50_ns < SHORT_SINGLE_STEPPED_NS).then(|| {
        format!(
            "{title}: the probe on {} is single-stepped, which adds about 1 µs to a call, and up to \
             20 µs in a virtual machine; the untraced calls are shorter than shown.",
            probe.symbol
        )
    })
}

fn lost(report: &Report, warnings: &mut Vec<String>) {
    let loss = &report.loss;
    if loss.records > 0 {
        warnings.push(format!(
            "{} of {} records were lost. Counts and percentiles have those that found the ring buffer \
             full, as the kernel counted them (within 0.8 %); the slowest operations and the intervals \
             are of the records received.",
            grouped(loss.records),
            grouped(loss.counted)
        ));
    }
    for (number, one, many) in [
        (
            loss.unaccounted,
            "record is missing without a known cause.",
            "records are missing without a known cause.",
        ),
        (
            loss.thread_table_full,
            "call was not followed: there were too many threads at once.",
            "calls were not followed: there were too many threads at once.",
        ),
        (
            loss.histogram_table_full,
            "lost record was counted under \"other\": there were too many algorithms.",
            "lost records were counted under \"other\": there were too many algorithms.",
        ),
        (
            loss.recursion_misses,
            "run of a probe was skipped by the kernel: a call may be missing or not complete.",
            "runs of a probe were skipped by the kernel: as many calls may be missing or not complete.",
        ),
        (
            loss.length_unreadable,
            "signature length could not be read: the algorithm of that call may be wrong.",
            "signature lengths could not be read: the algorithms of these calls may be wrong.",
        ),
        (
            loss.clock_backwards,
            "duration is counted as 0, because the clock ran backwards.",
            "durations are counted as 0, because the clock ran backwards.",
        ),
        (
            loss.samples,
            "sample of what runs on the CPU was lost: the ring buffer was full.",
            "samples of what runs on the CPU were lost: the ring buffer was full.",
        ),
        (
            loss.wait_records,
            "wait was not recorded, because the ring buffer was full: the times of locks are too \
             low; a larger --ring-size or --min-wait helps.",
            "waits were not recorded, because the ring buffer was full: the times of locks are too \
             low; a larger --ring-size or --min-wait helps.",
        ),
        (
            loss.missed_switches,
            "switch of a thread was not seen: time around it that the kernel did not count is under \
             \"other\".",
            "switches of threads were not seen: time around them that the kernel did not count is \
             under \"other\".",
        ),
    ] {
        if number > 0 {
            warnings.push(plural(number, one, many));
        }
    }
}

fn unfinished_command(report: &Report) -> Option<String> {
    let status = report.exit_status.filter(|&status| status != 0)?;
    Some(format!("The command that was started ended with exit status {status}."))
}
