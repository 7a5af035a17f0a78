//! What requests are made of: the operations inside them, and the time around those.

use latency_common::ledger::Ledger;
use latency_common::record::{Inside, RequestRecord};
use serde::{Deserialize, Serialize};

use super::buckets::Buckets;
use super::ledger::{LedgerSums, Summed, between};

/// Operations of one name inside some requests.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InnerOperation {
    /// Name of the operation; "other operations" for those that had no place of their own.
    pub operation: String,
    /// How many.
    pub count: u64,
    /// Their wall time, in nanoseconds.
    pub total_ns: u64,
}

/// What some requests are made of. The operations and the time around them add up to the requests'
/// own wall time.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RequestSums {
    /// The operations inside them, in the order of the plan.
    #[serde(deserialize_with = "super::capped::vec::<{ Inside::SLOTS }, _, _>")]
    pub operations: Vec<InnerOperation>,
    /// Where the time around the operations went. `count` is the number of requests.
    pub around: LedgerSums,
}

/// What the requests of a row are made of, selected by the requests' duration as
/// [`super::RowLedger`] is.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RowRequest {
    /// All of them.
    pub total: RequestSums,
    /// The middle half.
    pub typical: RequestSums,
    /// The slowest 1 %, and at least one.
    pub tail_p99: RequestSums,
    /// The slowest 0.1 %, and at least one.
    pub tail_p999: RequestSums,
}

#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    counts: [u64; Inside::SLOTS],
    durations_ns: [u64; Inside::SLOTS],
    around: LedgerSums,
}

impl Summed for Slot {
    fn count(&self) -> u64 {
        self.around.count
    }

    fn merge(&mut self, other: &Self) {
        for (sum, value) in self.counts.iter_mut().zip(other.counts) {
            *sum = sum.saturating_add(value);
        }
        for (sum, value) in self.durations_ns.iter_mut().zip(other.durations_ns) {
            *sum = sum.saturating_add(value);
        }
        self.around.merge(&other.around);
    }

    fn portion(&self, taken: u64) -> Self {
        let scaled = |value: u64| {
            let value = u128::from(value) * u128::from(taken) / u128::from(self.count().max(1));
            u64::try_from(value).unwrap_or(u64::MAX)
        };
        Self {
            counts: self.counts.map(scaled),
            durations_ns: self.durations_ns.map(scaled),
            around: self.around.portion(taken),
        }
    }
}

/// Sums of a row's requests by their duration.
#[derive(Clone, Default, Debug)]
pub(super) struct Requests {
    buckets: Buckets<Slot>,
}

impl Requests {
    pub(super) fn add(&mut self, record: &RequestRecord) {
        let inside_ns = record.inside.ledger.total_ns();
        let duration_ns = record.call.duration_ns.saturating_sub(inside_ns);
        let slot = self.buckets.at(record.call.duration_ns);
        for (at, part) in record.inside.parts.iter().enumerate() {
            slot.counts[at] = slot.counts[at].saturating_add(part.count);
            slot.durations_ns[at] = slot.durations_ns[at].saturating_add(part.duration_ns);
        }
        slot.around.add_ledger(&around(&record.call.ledger, &record.inside.ledger), duration_ns);
    }

    /// The sums so far; `name` names the operations by their slot.
    pub(super) fn sums(&self, name: impl Fn(usize) -> String) -> RowRequest {
        let mut total = Slot::default();
        self.buckets.iter().for_each(|(_, slot)| total.merge(slot));
        let count = total.count();
        let select = |from, to| named(&between(&self.buckets, from, to), &name);
        RowRequest {
            total: named(&total, &name),
            typical: select(count / 4, count - count / 4),
            tail_p99: select(count - count.div_ceil(100), count),
            tail_p999: select(count - count.div_ceil(1000), count),
        }
    }
}

fn named(slot: &Slot, name: impl Fn(usize) -> String) -> RequestSums {
    let parts = slot.counts.into_iter().zip(slot.durations_ns).enumerate();
    let operations = parts
        .filter(|(_, (count, total_ns))| *count > 0 || *total_ns > 0)
        .map(|(at, (count, total_ns))| InnerOperation { operation: name(at), count, total_ns })
        .collect();
    RequestSums { operations, around: slot.around }
}

/// The request's ledger without what its operations have. An operation that was preempted at its
/// very entry has as preempted what the request, which looks at switches alone, has as time on the
/// CPU: so much less of that is left then.
fn around(whole: &Ledger, inside: &Ledger) -> Ledger {
    let mut around = whole.since(inside);
    let mut excess_ns = 0u64;
    for (part, whole_ns, inside_ns) in [
        (&mut around.run_queue_ns, whole.run_queue_ns, inside.run_queue_ns),
        (&mut around.preempted_ns, whole.preempted_ns, inside.preempted_ns),
        (&mut around.lock_ns, whole.lock_ns, inside.lock_ns),
        (&mut around.io_ns, whole.io_ns, inside.io_ns),
        (&mut around.sleep_ns, whole.sleep_ns, inside.sleep_ns),
        (&mut around.other_ns, whole.other_ns, inside.other_ns),
    ] {
        if let Some(missing_ns) = inside_ns.checked_sub(whole_ns) {
            *part = 0;
            excess_ns = excess_ns.saturating_add(missing_ns);
        }
    }
    let inside_ns = inside.on_cpu_ns.saturating_add(excess_ns);
    around.on_cpu_ns = whole.on_cpu_ns.saturating_sub(inside_ns);
    around
}

#[cfg(test)]
#[path = "request/tests.rs"]
mod tests;
