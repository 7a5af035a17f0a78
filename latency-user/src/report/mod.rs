//! Everything a page shows, worked out from a recording alone. This is the JSON report as well;
//! docs/report-schema.md describes every key.

mod in_progress;
mod ledger;
mod on_cpu;
mod request;
mod verdict;
mod waits;
mod warnings;

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::aggregate::{Latency, RowStatistics, Source, statistics};
use crate::recording::{
    EndedBy, Host, IncompleteCalls, Library, Loss, OwnCost, Probe, Recording, Row, Skipped,
    SlowOperation, SparseHistogram, Target, WaitTotal,
};

pub use in_progress::InProgress;
pub use ledger::{LedgerNs, LedgerTotals, Tail};
pub use on_cpu::{CategoryFunction, CategoryShares, MIN_SAMPLES, OnCpuCategories, Sampling};
pub use request::{Parts, RequestParts};
pub use verdict::{Basis, Cause, Verdict};
pub use waits::{LockSummary, OffCpu, StackSummary, WakerKind, WakerSummary};

/// Name and version of the JSON report's schema.
pub const SCHEMA: &str = "latency.report/1";

/// With fewer values than this, a 99th percentile is hardly more than the maximum.
pub const P99_SAMPLES: u64 = 100;
/// With fewer values than this, a 99.9th percentile is hardly more than the maximum.
pub const P999_SAMPLES: u64 = 1000;

/// Everything a page shows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the tracer that made the recording.
    pub tool_version: String,
    /// The tracer's command line, program name first.
    pub command_line: Vec<String>,
    /// The traced process.
    pub target: Target,
    /// The machine.
    pub host: Host,
    /// When tracing began, in nanoseconds since 1970-01-01 UTC.
    pub started_unix_ns: u64,
    /// How long tracing lasted, in nanoseconds.
    pub duration_ns: u64,
    /// What ended it.
    pub ended_by: EndedBy,
    /// Exit status of a command that the tracer had started, once it ended.
    pub exit_status: Option<i32>,
    /// Why the slow operations are slow; null where none are, or where the scheduler was not traced.
    pub verdict: Option<Verdict>,
    /// One for each request, then for each operation and algorithm, the most frequent first in
    /// each operation.
    pub operations: Vec<Operation>,
    /// The locks waited for: the contended ones before the idle ones, longest wait first.
    pub locks: Vec<LockSummary>,
    /// Time off the CPU by reason and operation, longest first.
    pub off_cpu: Vec<OffCpu>,
    /// All time off the CPU by reason, inside operations and requests or outside, with the waits
    /// that were too short to be recorded one by one; longest first.
    pub off_cpu_totals: Vec<WaitTotal>,
    /// Waits in progress when tracing began or ended, at most 256, longest first.
    pub in_progress: Vec<InProgress>,
    /// Operations whose ledger does not add up to their duration: an event was missed.
    pub ledger_mismatches: u64,
    /// Width of an interval, in nanoseconds.
    pub interval_ns: u64,
    /// How the CPUs were sampled; null where they were not.
    pub sampling: Option<Sampling>,
    /// What was lost, by cause.
    pub loss: Loss,
    /// Calls whose duration is not known.
    pub incomplete_calls: IncompleteCalls,
    /// Calls of probed functions inside an operation, which are no operations of their own.
    pub nested_calls: u64,
    /// The functions probed.
    pub probes: Vec<Probe>,
    /// The functions that could have been probed and were not.
    pub skipped: Vec<Skipped>,
    /// The OpenSSL copies found in the process.
    pub libraries: Vec<Library>,
    /// What the tracing itself cost.
    pub own_cost: OwnCost,
    /// What the reader should know before trusting the numbers.
    pub warnings: Vec<String>,
}

/// One operation with one algorithm.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// Name of the operation, such as "sign", or of the request.
    pub operation: String,
    /// Whether these are requests: the scope around operations.
    pub is_request: bool,
    /// Name of the algorithm, such as "ecdsa-p256"; "-" for functions that have none.
    pub algorithm: String,
    /// Completed operations: successes, failures and errors.
    pub count: u64,
    /// Operations that did what they were asked to.
    pub successes: u64,
    /// Operations that answered "no": for a verify, the signature does not match.
    pub failures: u64,
    /// Operations that could not do their work.
    pub errors: u64,
    /// Calls that only asked for the signature's size: no operations.
    pub size_queries: u64,
    /// Completed operations per second.
    pub rate_hz: f64,
    /// Latency of the successes, in nanoseconds; each value null when there were none.
    pub latency_ns: Latency,
    /// Latency of failures and errors, in nanoseconds; null when there were none.
    pub failed_latency_ns: Option<Latency>,
    /// Where the time of the successes went, in all; null where the scheduler was not traced.
    pub ledger_ns: Option<LedgerNs>,
    /// How often their threads left the CPU; null likewise.
    pub switches: Option<u64>,
    /// What the time on the CPU went into, by the samples in these operations; null where the CPUs
    /// were not sampled.
    pub on_cpu_categories: Option<OnCpuCategories>,
    /// The middle half of the successes by duration; null where the scheduler was not traced.
    pub typical: Option<LedgerTotals>,
    /// The slowest of the successes; null likewise.
    pub tail: Option<Tail>,
    /// What requests are made of; null for operations.
    pub parts: Option<Parts>,
    /// The percentiles in `latency_ns` that rest on too few successes: "p99" below
    /// [`P99_SAMPLES`], "p999" below [`P999_SAMPLES`].
    pub low_confidence: Vec<String>,
    /// Where the numbers come from.
    pub source: Source,
    /// The slowest operations whose record arrived, slowest first.
    pub slowest: Vec<SlowOperation>,
    /// The course over time, from the records received; every interval up to the end.
    pub intervals: Vec<IntervalSummary>,
}

/// One interval of one operation and algorithm.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IntervalSummary {
    /// Start since tracing began, in nanoseconds.
    pub start_ns: u64,
    /// Operations completed in it, however they ended.
    pub count: u64,
    /// Median of its successes in nanoseconds; null when there were none.
    pub p50: Option<u64>,
    /// 99th percentile of its successes in nanoseconds; null when there were none.
    pub p99: Option<u64>,
    /// Largest of its successes in nanoseconds; null when there were none.
    pub max: Option<u64>,
}

impl Operation {
    /// Operations that failed or ended in an error.
    pub fn failed(&self) -> u64 {
        self.failures.saturating_add(self.errors)
    }

    /// Operation and algorithm as a reader would say them: "sign ecdsa-p256".
    pub fn title(&self) -> String {
        if self.algorithm == "-" {
            self.operation.clone()
        } else {
            format!("{} {}", self.operation, self.algorithm)
        }
    }
}

impl From<&Recording> for Report {
    fn from(recording: &Recording) -> Self {
        let statistics = statistics(recording);
        let summaries = interval_summaries(recording);
        let judge = on_cpu::Judge::of(recording);
        let mut operations: Vec<Operation> = statistics
            .rows
            .iter()
            .zip(&recording.rows)
            .zip(summaries)
            .map(|((statistics, row), intervals)| operation(statistics, row, intervals, &judge))
            .collect();
        // The recording has the operations in the order of the plan: keep that, which needs the
        // place where each first appears.
        let first = |name: &str| recording.rows.iter().position(|row| row.operation == name);
        operations.sort_by_cached_key(|operation| {
            let kind = (!operation.is_request, first(&operation.operation));
            (kind, Reverse(operation.count), operation.algorithm.clone())
        });
        let stacks = waits::Stacks::of(recording);
        let locks = waits::locks(recording, &stacks);
        let mut report = Self {
            schema: SCHEMA.to_owned(),
            tool_version: recording.tool_version.clone(),
            command_line: recording.command_line.clone(),
            target: recording.target.clone(),
            host: recording.host.clone(),
            started_unix_ns: recording.started_unix_ns,
            duration_ns: recording.duration_ns,
            ended_by: recording.ended_by,
            exit_status: recording.exit_status,
            verdict: verdict::verdict(recording, &operations, &locks, &stacks),
            operations,
            locks,
            off_cpu: waits::off_cpu(recording, &stacks),
            off_cpu_totals: recording.wait_totals.clone(),
            in_progress: in_progress::in_progress(recording, &stacks),
            ledger_mismatches: recording.ledger_mismatches,
            interval_ns: recording.interval_ns,
            sampling: recording.profile.as_ref().map(Sampling::from),
            loss: recording.loss,
            incomplete_calls: recording.incomplete_calls,
            nested_calls: recording.nested_calls,
            probes: recording.probes.clone(),
            skipped: recording.skipped.clone(),
            libraries: recording.libraries.clone(),
            own_cost: recording.own_cost,
            warnings: recording.warnings.clone(),
        };
        report.warnings.extend(statistics.warnings);
        report.warnings.extend(warnings::of(&report));
        report.warnings.extend(warnings::of_waits(recording));
        report
    }
}

fn operation(
    statistics: &RowStatistics,
    row: &Row,
    intervals: Vec<IntervalSummary>,
    judge: &on_cpu::Judge<'_>,
) -> Operation {
    let counts = statistics.counts;
    let mut low_confidence = Vec::new();
    for (name, samples) in [("p99", P99_SAMPLES), ("p999", P999_SAMPLES)] {
        if (1..samples).contains(&counts.successes) {
            low_confidence.push(name.to_owned());
        }
    }
    let total: Option<LedgerTotals> = row.ledger.as_ref().map(|ledger| (&ledger.total).into());
    Operation {
        operation: row.operation.clone(),
        is_request: row.request.is_some(),
        algorithm: row.algorithm.clone(),
        count: counts.operations(),
        successes: counts.successes,
        failures: counts.failures,
        errors: counts.errors,
        size_queries: counts.size_queries,
        rate_hz: statistics.rate_hz,
        latency_ns: statistics.success,
        failed_latency_ns: (counts.failed() > 0).then_some(statistics.failed),
        ledger_ns: total.map(|total| total.ledger_ns),
        switches: total.map(|total| total.switches),
        on_cpu_categories: judge.categories(&row.operation, &row.algorithm, statistics.success.p99),
        typical: row.ledger.as_ref().map(|ledger| (&ledger.typical).into()),
        tail: row.ledger.as_ref().map(Tail::from),
        parts: row.request.as_ref().map(Parts::from),
        low_confidence,
        source: statistics.source,
        slowest: row.slowest.clone(),
        intervals,
    }
}

/// For each row of the recording, a summary of each interval.
fn interval_summaries(recording: &Recording) -> Vec<Vec<IntervalSummary>> {
    let empty: Vec<IntervalSummary> = recording
        .intervals
        .iter()
        .map(|interval| IntervalSummary { start_ns: interval.start_ns, ..Default::default() })
        .collect();
    let mut summaries = vec![empty; recording.rows.len()];
    for (at, interval) in recording.intervals.iter().enumerate() {
        for row in &interval.rows {
            // The reader of recordings has checked the index; a recording made by hand may not.
            if let Some(summary) = summaries.get_mut(row.row).and_then(|row| row.get_mut(at)) {
                *summary = summarize(interval.start_ns, &row.success, &row.failed);
            }
        }
    }
    summaries
}

fn summarize(
    start_ns: u64,
    success: &SparseHistogram,
    failed: &SparseHistogram,
) -> IntervalSummary {
    IntervalSummary {
        start_ns,
        count: success.count.saturating_add(failed.count),
        p50: success.value_at(500),
        p99: success.value_at(990),
        max: success.max(),
    }
}

#[cfg(test)]
mod tests;
