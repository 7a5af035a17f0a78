//! Makes the recording of what the builder took.

use latency_common::counter::Counter;
use latency_common::record::Inside;

use super::{Header, RecordingBuilder, algorithm_name};
use crate::recording::in_progress::{self, KernelTotals};
use crate::recording::ledger::Ledgers;
use crate::recording::model::{
    EndedBy, IncompleteCalls, Interval, IntervalRow, Loss, OwnCost, Recording, Row, SlowOperation,
};
use crate::recording::row::{RowBuilder, Slow};
use crate::recording::waits::Folded;

/// What is known when tracing ends.
#[derive(Clone, Debug)]
pub struct Finish {
    /// When tracing ended, `CLOCK_MONOTONIC`, in nanoseconds.
    pub end_ns: u64,
    /// What ended it.
    pub ended_by: EndedBy,
    /// Exit status of a command that the tracer had started, once it ended.
    pub exit_status: Option<i32>,
    /// The kernel side's counters, by [`Counter`], summed over CPUs; read after the last record.
    pub counters: [u64; Counter::COUNT as usize],
    /// Program runs that the kernel's recursion guard skipped.
    pub recursion_misses: u64,
    /// Calls still open when tracing ended.
    pub in_progress: u64,
    /// Sums over all times off the CPU.
    pub wait_totals: KernelTotals,
    /// How often each probe was hit, in the order of the probes; missing ones stay as they are.
    pub probe_hits: Vec<u64>,
    /// What the tracing cost.
    pub own_cost: OwnCost,
    /// Warnings given while tracing.
    pub warnings: Vec<String>,
}

impl RecordingBuilder {
    /// The recording as it stands. The builder can go on: that is an interim result.
    pub fn finish(&self, finish: Finish) -> Recording {
        let mut builder = self.clone();
        builder.take_held();
        let duration_ns = finish.end_ns.saturating_sub(builder.header.start_ns);
        // Silence at the end is part of the picture: there are intervals up to the end.
        builder.turn_to(duration_ns.saturating_sub(1));
        builder.close();
        let names = |row: &RowBuilder| (row.operation, algorithm_name(row.algorithm));
        builder.rows.sort_by_cached_key(names);

        let mut intervals: Vec<Interval> = (0..=builder.open)
            .map(|index| Interval {
                start_ns: builder.interval_ns.saturating_mul(index as u64),
                rows: Vec::new(),
            })
            .collect();
        let mut rows = Vec::with_capacity(builder.rows.len());
        for (index, row) in builder.rows.iter().enumerate() {
            let total = row.total();
            let all = row.with_lost(&total);
            for (interval, durations) in &row.closed {
                intervals[*interval].rows.push(IntervalRow {
                    row: index,
                    success: durations.success.clone(),
                    failed: durations.failed.clone(),
                });
            }
            rows.push(Row {
                operation: builder.operation_name(row.operation),
                algorithm: algorithm_name(row.algorithm),
                counted: row.received.plus(&row.lost),
                received: row.received,
                success: total.success,
                failed: total.failed,
                kernel_success: all.success,
                kernel_failed: all.failed,
                slowest: row.slowest().into_iter().map(|slow| builder.slow(slow)).collect(),
                ledger: row.ledgers.as_ref().map(Ledgers::sums),
                request: (row.requests.as_ref())
                    .map(|requests| requests.sums(|slot| builder.slot_name(slot))),
            });
        }

        let Folded { groups, locks, ungrouped, in_progress: waits_in_progress } =
            builder.waits.folded(self.header.start_ns, |operation| self.operation_name(operation));
        let profile =
            builder.samples.folded(|operation| self.operation_name(operation), algorithm_name);
        let Header { mut probes, command_line, target, host, libraries, skipped, .. } =
            builder.header;
        for (probe, hits) in probes.iter_mut().zip(&finish.probe_hits) {
            probe.hits = *hits;
        }
        let counter = |counter: Counter| finish.counters[counter as usize];
        Recording {
            tool_version: builder.header.tool_version,
            command_line,
            started_unix_ns: builder.header.started_unix_ns,
            duration_ns,
            ended_by: finish.ended_by,
            exit_status: finish.exit_status,
            target,
            host,
            libraries,
            probes,
            skipped,
            rows,
            interval_ns: builder.interval_ns,
            intervals,
            loss: Loss::new(builder.received, &finish.counters, finish.recursion_misses),
            incomplete_calls: IncompleteCalls {
                abandoned: counter(Counter::Abandoned),
                thread_exited: counter(Counter::ThreadExited),
                in_progress: finish.in_progress,
                unmatched_returns: counter(Counter::UnmatchedReturn),
            },
            nested_calls: counter(Counter::Nested),
            waits: groups,
            profile,
            stacks: Vec::new(),
            locks,
            ungrouped_waits: ungrouped,
            waits_in_progress,
            wait_totals: in_progress::totals(&finish.wait_totals, &builder.edges.moved()),
            ledger_mismatches: builder.ledger_mismatches,
            own_cost: finish.own_cost,
            warnings: finish.warnings,
        }
    }

    /// The name of the operations that a request counts in this slot.
    fn slot_name(&self, slot: usize) -> String {
        let is_request = |name: &String| {
            let mut probes = self.header.probes.iter();
            probes.any(|probe| probe.is_request && probe.operation == *name)
        };
        let mut names = self.header.operations.iter().skip(slot).filter(|name| !is_request(name));
        match (names.next(), names.next()) {
            (Some(_), Some(_)) if slot == Inside::SLOTS - 1 => "other operations".to_owned(),
            (Some(name), _) => name.clone(),
            (None, _) => format!("operation-{slot}"),
        }
    }

    fn slow(&self, slow: Slow) -> SlowOperation {
        let probe = self.header.probes.get(usize::from(slow.probe));
        SlowOperation {
            start_ns: slow.start_ns.saturating_sub(self.header.start_ns),
            duration_ns: slow.duration_ns,
            tid: slow.tid,
            outcome: slow.outcome,
            signature_bytes: slow.signature_bytes,
            symbol: probe
                .map_or_else(|| format!("probe-{}", slow.probe), |probe| probe.symbol.clone()),
        }
    }
}
