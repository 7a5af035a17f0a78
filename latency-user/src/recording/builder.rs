//! Puts a recording together, one record at a time.

mod finish;

pub use finish::Finish;

use latency_common::algorithm::AlgorithmId;
use latency_common::record::{OperationRecord, RequestRecord, SlotKey, WaitRecord, kind, outcome};
use latency_common::sample::SampleRecord;

use crate::attach::TrapCost;

use super::as_called;
use super::edges::{Edges, Released};
use super::histogram::SparseHistogram;
use super::live::{Live, LiveRow};
use super::model::{Host, Library, MAX_ALGORITHMS, MAX_INTERVALS, Probe, Skipped, Target, rate_hz};
use super::profile::SampleClock;
use super::row::RowBuilder;
use super::samples::Samples;
use super::waits::Waits;

const FIRST_INTERVAL_NS: u64 = 1_000_000_000;
/// Intervals are merged when their histograms have more buckets than this (64 MiB) in all.
const MAX_KEPT_BUCKETS: usize = 4 << 20;

/// What is known when tracing begins.
#[derive(Clone, Default, Debug)]
pub struct Header {
    /// Version of the tracer.
    pub tool_version: String,
    /// The tracer's own command line, program name first.
    pub command_line: Vec<String>,
    /// When tracing began, in nanoseconds since 1970-01-01 UTC.
    pub started_unix_ns: u64,
    /// When tracing began, `CLOCK_MONOTONIC`, in nanoseconds: the clock of the records.
    pub start_ns: u64,
    /// The traced process.
    pub target: Target,
    /// The machine.
    pub host: Host,
    /// The OpenSSL copies found in the process.
    pub libraries: Vec<Library>,
    /// Names of the operations; [`OperationRecord::operation`] is an index into it.
    pub operations: Vec<String>,
    /// The functions probed; [`OperationRecord::probe`] is an index into it.
    pub probes: Vec<Probe>,
    /// The functions that could have been probed and were not.
    pub skipped: Vec<Skipped>,
    /// What the probes of an operation cost its caller outside of the programs' clock.
    pub trap_cost: TrapCost,
    /// Whether the scheduler is traced, so that [`OperationRecord::ledger`] tells something.
    pub has_ledger: bool,
}

/// Takes records and gives a [`Recording`]. Its memory is bounded, however long the run.
#[derive(Clone, Debug)]
pub struct RecordingBuilder {
    header: Header,
    rows: Vec<RowBuilder>,
    /// For each operation, its algorithms and their rows: few enough to search one by one.
    algorithms: Vec<Vec<(u32, usize)>>,
    /// Operation and algorithm of the record before, and its row: mostly the same again.
    last: Option<(u8, u32, usize)>,
    received: u64,
    interval_ns: u64,
    open: usize,
    /// Where the open interval begins and ends, since `start_ns`.
    open_from_ns: u64,
    open_to_ns: u64,
    max_kept_buckets: usize,
    looked_ns: u64,
    looked_operations: u64,
    ledger_mismatches: u64,
    waits: Waits,
    edges: Edges,
    samples: Samples,
}

impl RecordingBuilder {
    /// Begins a recording.
    pub fn new(header: Header) -> Self {
        Self {
            looked_ns: header.start_ns,
            header,
            rows: Vec::new(),
            algorithms: vec![Vec::new(); 256],
            last: None,
            received: 0,
            interval_ns: FIRST_INTERVAL_NS,
            open: 0,
            open_from_ns: 0,
            open_to_ns: FIRST_INTERVAL_NS,
            max_kept_buckets: MAX_KEPT_BUCKETS,
            looked_operations: 0,
            ledger_mismatches: 0,
            waits: Waits::default(),
            edges: Edges::default(),
            samples: Samples::default(),
        }
    }

    /// Adds operations found later; indices go on from the ones before.
    pub fn extend_operations(&mut self, names: impl IntoIterator<Item = String>) {
        self.header.operations.extend(names);
    }

    /// Adds probes attached later; indices go on from the ones before.
    pub fn extend_probes(&mut self, probes: impl IntoIterator<Item = Probe>) {
        self.header.probes.extend(probes);
    }

    /// Adds libraries found later.
    pub fn extend_libraries(&mut self, libraries: impl IntoIterator<Item = Library>) {
        self.header.libraries.extend(libraries);
    }

    /// Replaces the functions that were not probed: what is mapped later can change them.
    pub fn set_skipped(&mut self, skipped: Vec<Skipped>) {
        self.header.skipped = skipped;
    }

    /// How many records were taken so far, size queries included.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Takes one record. Records may come out of order. Its duration is the programs'; what is
    /// kept is the caller's, and the difference was spent on the CPU.
    #[inline]
    pub fn operation(&mut self, record: &OperationRecord) {
        let end_ns = record.start_ns.saturating_add(record.duration_ns);
        let called = as_called::operation(&self.header.trap_cost, record);
        self.join_samples(&called);
        if !self.header.has_ledger {
            self.take(&called);
            return;
        }
        let site = self.header.probes.get(usize::from(record.probe)).map(|it| it.site_offset);
        let released = self.edges.hold(called, end_ns, site);
        self.take_noted(&released);
        if self.edges.is_full() {
            self.take_held();
        }
    }

    /// Takes what was held back in case more comes to be known of it.
    fn take_held(&mut self) {
        for released in self.edges.drain() {
            self.take_noted(&released);
        }
    }

    /// Takes what was held: a wait of it is a preemption, for no lock, of a thread whose name was noted.
    #[inline]
    fn take_noted(&mut self, released: &Released) {
        self.take_released(released, &mut |_| String::new(), &|_| false);
    }

    #[inline]
    fn take_released(
        &mut self,
        released: &Released,
        comm_of: &mut dyn FnMut(u32) -> String,
        live: &dyn Fn(u32) -> bool,
    ) {
        if let Some(operation) = &released.operation {
            self.take(operation);
        }
        for wait in released.waits.iter().flatten() {
            self.waits.add(wait, comm_of, live);
        }
    }

    #[inline]
    fn take(&mut self, record: &OperationRecord) {
        self.received += 1;
        if self.header.has_ledger
            && record.outcome != outcome::SIZE_QUERY
            && record.ledger.total_ns() != record.duration_ns
        {
            self.ledger_mismatches += 1;
        }
        let row = self.row(record.operation, record.algorithm);
        self.place(row, record);
    }

    /// Takes one record of a request. Records may come out of order.
    pub fn request(&mut self, record: &RequestRecord) {
        let record = as_called::request(&self.header.trap_cost, record);
        self.join_samples(&record.call);
        self.take(&record.call);
        let row = self.row(record.call.operation, record.call.algorithm);
        self.rows[row].request(&record);
    }

    #[inline]
    fn place(&mut self, row: usize, record: &OperationRecord) {
        let end_ns = record.start_ns.saturating_add(record.duration_ns);
        let offset_ns = end_ns.saturating_sub(self.header.start_ns);
        let late = if offset_ns >= self.open_from_ns && offset_ns < self.open_to_ns {
            None
        } else {
            self.turn_to(offset_ns)
        };
        self.rows[row].record(record, late);
    }

    /// Tells the samples of a call that it completed, before there are any of its thread's next one.
    #[inline]
    fn join_samples(&mut self, record: &OperationRecord) {
        if !self.samples.has_pending() {
            return;
        }
        let row = self.row(record.operation, record.algorithm);
        let is_operation = record.outcome != outcome::SIZE_QUERY;
        let algorithm = is_operation.then_some(self.rows[row].algorithm);
        let scope = (record.tid, record.kind == kind::REQUEST);
        self.samples.completed(scope, record.start_ns, record.duration_ns, algorithm);
    }

    /// Says that threads are sampled, how often each CPU is looked at, by what, and since when
    /// (`CLOCK_MONOTONIC`, in nanoseconds).
    pub fn set_sampled(&mut self, frequency_hz: u32, clock: SampleClock, since_ns: u64) {
        let start_ns = since_ns.saturating_sub(self.header.start_ns);
        self.samples.clock = Some((frequency_hz, clock, start_ns));
    }

    /// Takes one sample; `comm_of` as for [`Self::wait`].
    pub fn sample(&mut self, record: &SampleRecord, comm_of: &mut dyn FnMut(u32) -> String) {
        self.samples.add(record, comm_of);
    }

    /// Takes one record of a time off the CPU. `comm_of` reads the name of a thread (empty if it
    /// is gone), and is asked at most once a second for each; `live` tells whether a number is the
    /// tid of a thread that the target has: only such a one can hold a lock.
    pub fn wait(
        &mut self,
        record: &WaitRecord,
        comm_of: &mut dyn FnMut(u32) -> String,
        live: &dyn Fn(u32) -> bool,
    ) {
        self.waits.note(record, comm_of);
        let released = self.edges.wait(*record);
        self.take_released(&released, comm_of, live);
    }

    /// Takes one wait that has not ended, as far as it lasted; else as [`RecordingBuilder::wait`].
    pub fn wait_in_progress(
        &mut self,
        record: &WaitRecord,
        comm_of: &mut dyn FnMut(u32) -> String,
        live: &dyn Fn(u32) -> bool,
    ) {
        self.waits.add_open(record, comm_of, live);
    }

    /// When tracing began, `CLOCK_MONOTONIC`, in nanoseconds.
    pub const fn start_ns(&self) -> u64 {
        self.header.start_ns
    }

    /// Adds a histogram of the kernel, of operations whose records were lost, on one CPU or on all: the
    /// sum and the largest value in nanoseconds, and a count per bucket of
    /// [`latency_common::histogram`].
    pub fn lost_histogram(&mut self, key: SlotKey, sum_ns: u64, max_ns: u64, counts: &[u64]) {
        let mut histogram = SparseHistogram::from_kernel(sum_ns, max_ns, counts);
        histogram.map_values(|duration_ns| self.header.trap_cost.as_called_ns(duration_ns));
        let row = self.row(key.operation, key.algorithm);
        self.rows[row].lost_histogram(key, &histogram);
    }

    /// Forgets the histograms of the kernel and the waits in progress, so that they can be added
    /// anew: for an interim result, which [`RecordingBuilder::finish`] gives without ending the
    /// run.
    pub fn clear_kernel_state(&mut self) {
        self.waits.clear_open();
        for row in &mut self.rows {
            (row.lost, row.lost_durations) = Default::default();
        }
    }

    /// A look at the run so far. `now_ns` is `CLOCK_MONOTONIC`.
    pub fn live(&mut self, now_ns: u64) -> Live {
        let operations = self.rows.iter().map(|row| row.received.operations()).sum();
        let elapsed_ns = now_ns.saturating_sub(self.looked_ns);
        let rate_hz = rate_hz(operations - self.looked_operations, elapsed_ns);
        (self.looked_ns, self.looked_operations) = (now_ns, operations);
        let busiest = self.rows.iter().max_by_key(|row| row.received.operations());
        let busiest = busiest.filter(|row| row.received.operations() > 0).map(|row| {
            let mut recent = row.open().success;
            if let Some((_, before)) = row.closed.last() {
                recent.merge(&before.success);
            }
            LiveRow {
                operation: self.operation_name(row.operation),
                algorithm: algorithm_name(row.algorithm),
                p50_ns: recent.value_at(500),
                p99_ns: recent.value_at(990),
            }
        });
        Live { received: self.received, operations, rate_hz, busiest }
    }

    /// The row of an operation and algorithm.
    #[inline]
    fn row(&mut self, operation: u8, algorithm: u32) -> usize {
        if let Some((last_operation, last_algorithm, row)) = self.last
            && (last_operation, last_algorithm) == (operation, algorithm)
        {
            return row;
        }
        let known = &self.algorithms[usize::from(operation)];
        let row = match known.iter().find(|known| known.0 == algorithm) {
            Some(&(_, row)) => row,
            None => self.new_row(operation, algorithm),
        };
        self.last = Some((operation, algorithm, row));
        row
    }

    #[cold]
    fn new_row(&mut self, operation: u8, algorithm: u32) -> usize {
        let known = &mut self.algorithms[usize::from(operation)];
        let mut algorithm = algorithm;
        if known.len() >= MAX_ALGORITHMS {
            algorithm = AlgorithmId::OTHER.0;
            if let Some(&(_, row)) = known.iter().find(|known| known.0 == algorithm) {
                return row;
            }
        }
        let row = self.rows.len();
        known.push((algorithm, row));
        self.rows.push(RowBuilder::new(operation, algorithm, self.header.has_ledger));
        row
    }

    /// Turns to the interval of an offset since the start. Gives its number if it is closed.
    #[cold]
    fn turn_to(&mut self, offset_ns: u64) -> Option<usize> {
        while offset_ns / self.interval_ns >= MAX_INTERVALS as u64 {
            self.close();
            self.halve();
        }
        let index = (offset_ns / self.interval_ns) as usize;
        if index < self.open {
            return Some(index);
        }
        if index > self.open {
            self.close();
            self.open_at(index);
            // The open interval is empty here, so it may become the second half of a wider one.
            if self.rows.iter().map(RowBuilder::kept_buckets).sum::<usize>() > self.max_kept_buckets
            {
                self.halve();
            }
        }
        None
    }

    /// Merges each pair of neighbouring intervals into one.
    fn halve(&mut self) {
        self.rows.iter_mut().for_each(RowBuilder::halve);
        self.interval_ns = self.interval_ns.saturating_mul(2);
        self.open_at(self.open / 2);
    }

    fn close(&mut self) {
        self.rows.iter_mut().for_each(|row| row.close(self.open));
    }

    fn open_at(&mut self, index: usize) {
        self.open = index;
        self.open_from_ns = self.interval_ns.saturating_mul(index as u64);
        self.open_to_ns = self.open_from_ns.saturating_add(self.interval_ns);
    }

    fn operation_name(&self, operation: u8) -> String {
        match self.header.operations.get(usize::from(operation)) {
            Some(name) => name.clone(),
            None => format!("operation-{operation}"),
        }
    }
}

fn algorithm_name(algorithm: u32) -> String {
    AlgorithmId(algorithm).algorithm().to_string()
}

#[cfg(test)]
mod tests;
