//! One row of a recording in the making: what is counted of one operation and algorithm.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use latency_common::record::{OperationRecord, RequestRecord, SlotKey, outcome};

use super::histogram::{DenseHistogram, SparseHistogram};
use super::ledger::Ledgers;
use super::model::{Counts, MAX_SLOWEST, Outcome};
use super::request::Requests;

/// A slow operation, ordered by duration first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Slow {
    pub(super) duration_ns: u64,
    pub(super) start_ns: u64,
    pub(super) tid: u32,
    pub(super) outcome: Outcome,
    pub(super) signature_bytes: u32,
    pub(super) probe: u16,
}

/// Durations of successes and of the rest.
#[derive(Clone, Default, Debug)]
pub(super) struct Durations {
    pub(super) success: SparseHistogram,
    pub(super) failed: SparseHistogram,
}

impl Durations {
    fn merge(&mut self, other: &Self) {
        self.success.merge(&other.success);
        self.failed.merge(&other.failed);
    }
}

/// A row in the making.
#[derive(Clone, Debug)]
pub(super) struct RowBuilder {
    pub(super) operation: u8,
    pub(super) algorithm: u32,
    pub(super) received: Counts,
    /// Those whose records were lost, as the kernel counted them.
    pub(super) lost: Counts,
    pub(super) lost_durations: Durations,
    open_success: DenseHistogram,
    open_failed: DenseHistogram,
    /// Closed intervals in which something completed, ascending.
    pub(super) closed: Vec<(usize, Durations)>,
    slowest: BinaryHeap<Reverse<Slow>>,
    /// What an operation must exceed to be among the slowest; 0 until there are enough.
    slow_ns: u64,
    /// Ledgers of the successful operations; `None` when the operations have none.
    pub(super) ledgers: Option<Ledgers>,
    /// What the requests are made of; `None` for operations.
    pub(super) requests: Option<Requests>,
}

impl RowBuilder {
    pub(super) fn new(operation: u8, algorithm: u32, has_ledger: bool) -> Self {
        Self {
            operation,
            algorithm,
            received: Counts::default(),
            lost: Counts::default(),
            lost_durations: Durations::default(),
            open_success: DenseHistogram::default(),
            open_failed: DenseHistogram::default(),
            closed: Vec::new(),
            slowest: BinaryHeap::with_capacity(MAX_SLOWEST + 1),
            slow_ns: 0,
            ledgers: has_ledger.then(Ledgers::default),
            requests: None,
        }
    }

    /// Counts a record into the open interval, or into the closed one numbered `late`.
    #[inline]
    pub(super) fn record(&mut self, record: &OperationRecord, late: Option<usize>) {
        let counts = &mut self.received;
        let outcome = match record.outcome {
            outcome::SUCCESS => {
                counts.successes += 1;
                Outcome::Success
            }
            outcome::FAILURE => {
                counts.failures += 1;
                Outcome::Failure
            }
            outcome::SIZE_QUERY => {
                counts.size_queries += 1;
                return;
            }
            // An outcome of a later version is not known to have succeeded.
            _ => {
                counts.errors += 1;
                Outcome::Error
            }
        };
        let is_success = outcome == Outcome::Success;
        if let Some(ledgers) = self.ledgers.as_mut().filter(|_| is_success) {
            ledgers.add(record);
        }
        match late {
            None if is_success => self.open_success.record(record.duration_ns),
            None => self.open_failed.record(record.duration_ns),
            Some(index) => {
                let durations = self.interval(index);
                let histogram =
                    if is_success { &mut durations.success } else { &mut durations.failed };
                histogram.record(record.duration_ns);
            }
        }
        if record.duration_ns > self.slow_ns || self.slowest.len() < MAX_SLOWEST {
            self.keep_slow(record, outcome);
        }
    }

    /// Takes what a request has besides an operation.
    pub(super) fn request(&mut self, record: &RequestRecord) {
        self.requests.get_or_insert_default().add(record);
    }

    #[cold]
    fn keep_slow(&mut self, record: &OperationRecord, outcome: Outcome) {
        self.slowest.push(Reverse(Slow {
            duration_ns: record.duration_ns,
            start_ns: record.start_ns,
            tid: record.tid,
            outcome,
            signature_bytes: record.signature_bytes,
            probe: record.probe,
        }));
        if self.slowest.len() > MAX_SLOWEST {
            self.slowest.pop();
            self.slow_ns = self.slowest.peek().map_or(0, |slow| slow.0.duration_ns);
        }
    }

    /// The slowest operations, slowest first.
    pub(super) fn slowest(&self) -> Vec<Slow> {
        let mut slowest: Vec<Slow> = self.slowest.iter().map(|slow| slow.0.clone()).collect();
        slowest.sort_by_key(|slow| (Reverse(slow.duration_ns), slow.start_ns, slow.tid));
        slowest
    }

    /// Adds one histogram of operations whose records were lost.
    pub(super) fn lost_histogram(&mut self, key: SlotKey, histogram: &SparseHistogram) {
        let (counts, durations) = (&mut self.lost, &mut self.lost_durations);
        let (count, durations) = match key.outcome {
            outcome::SUCCESS => (&mut counts.successes, Some(&mut durations.success)),
            outcome::FAILURE => (&mut counts.failures, Some(&mut durations.failed)),
            outcome::SIZE_QUERY => (&mut counts.size_queries, None),
            _ => (&mut counts.errors, Some(&mut durations.failed)),
        };
        *count = count.saturating_add(histogram.count);
        if let Some(durations) = durations {
            durations.merge(histogram);
        }
    }

    /// The closed interval numbered `index`, made if need be.
    fn interval(&mut self, index: usize) -> &mut Durations {
        let at = match self.closed.binary_search_by_key(&index, |interval| interval.0) {
            Ok(at) => at,
            Err(at) => {
                self.closed.insert(at, (index, Durations::default()));
                at
            }
        };
        &mut self.closed[at].1
    }

    /// What the open interval holds so far.
    pub(super) fn open(&self) -> Durations {
        Durations { success: self.open_success.to_sparse(), failed: self.open_failed.to_sparse() }
    }

    /// Closes the open interval, numbered `index`.
    pub(super) fn close(&mut self, index: usize) {
        if self.open_success.count() == 0 && self.open_failed.count() == 0 {
            return;
        }
        let durations =
            Durations { success: self.open_success.take(), failed: self.open_failed.take() };
        self.interval(index).merge(&durations);
    }

    /// Merges each pair of neighbouring closed intervals into one of twice the width.
    pub(super) fn halve(&mut self) {
        for (index, durations) in std::mem::take(&mut self.closed) {
            self.interval(index / 2).merge(&durations);
        }
    }

    /// How many buckets the histograms of the closed intervals have.
    pub(super) fn kept_buckets(&self) -> usize {
        let buckets = |durations: &Durations| {
            durations.success.buckets.len() + durations.failed.buckets.len()
        };
        self.closed.iter().map(|(_, durations)| buckets(durations)).sum()
    }

    /// What was received, `total`, and what was lost together; empty when nothing was lost.
    pub(super) fn with_lost(&self, total: &Durations) -> Durations {
        if self.lost == Counts::default() {
            return Durations::default();
        }
        let mut all = total.clone();
        all.merge(&self.lost_durations);
        all
    }

    /// Everything received, over all closed intervals.
    pub(super) fn total(&self) -> Durations {
        let mut total = Durations::default();
        self.closed.iter().for_each(|(_, durations)| total.merge(durations));
        total
    }
}
