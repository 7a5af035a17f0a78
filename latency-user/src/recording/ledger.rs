//! Ledgers of one row summed up: of all its operations, of the typical ones, and of the slow tail.

use latency_common::ledger::Ledger;
use latency_common::record::OperationRecord;
use serde::{Deserialize, Serialize};

use super::buckets::Buckets;

/// The ledgers of some operations, added up.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LedgerSums {
    /// How many operations.
    pub count: u64,
    /// Their wall time, in nanoseconds: the sum of the parts below.
    pub duration_ns: u64,
    /// They ran, in nanoseconds.
    pub on_cpu_ns: u64,
    /// Woken, but not running yet, in nanoseconds.
    pub run_queue_ns: u64,
    /// Runnable, but pushed off the CPU, in nanoseconds.
    pub preempted_ns: u64,
    /// Blocked in a futex wait, in nanoseconds.
    pub lock_ns: u64,
    /// Blocked uninterruptibly, in nanoseconds.
    pub io_ns: u64,
    /// Blocked interruptibly in anything but a futex wait, in nanoseconds.
    pub sleep_ns: u64,
    /// What cannot be told, in nanoseconds.
    pub other_ns: u64,
    /// How often their threads left the CPU.
    pub switches: u64,
}

/// The ledgers of a row's successful operations, from the records received.
///
/// The typical operations and the slowest are told apart by duration, to the bucket of the kernel's
/// histogram (0.8 %): of a bucket that is only partly among them, that part of its sums is taken.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RowLedger {
    /// All of them.
    pub total: LedgerSums,
    /// The middle half by duration: neither among the fastest quarter nor the slowest.
    pub typical: LedgerSums,
    /// The slowest 1 %, and at least one.
    pub tail_p99: LedgerSums,
    /// The slowest 0.1 %, and at least one.
    pub tail_p999: LedgerSums,
}

impl LedgerSums {
    #[inline]
    fn add(&mut self, record: &OperationRecord) {
        self.add_ledger(&record.ledger, record.duration_ns);
    }

    #[inline]
    pub(super) fn add_ledger(&mut self, ledger: &Ledger, duration_ns: u64) {
        let switches =
            u64::from(ledger.voluntary_switches) + u64::from(ledger.involuntary_switches);
        for (sum, value) in self.fields_mut().into_iter().zip([
            1,
            duration_ns,
            ledger.on_cpu_ns,
            ledger.run_queue_ns,
            ledger.preempted_ns,
            ledger.lock_ns,
            ledger.io_ns,
            ledger.sleep_ns,
            ledger.other_ns,
            switches,
        ]) {
            *sum = sum.saturating_add(value);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        let mut other = *other;
        for (sum, value) in self.fields_mut().into_iter().zip(other.fields_mut()) {
            *sum = sum.saturating_add(*value);
        }
    }

    /// What `taken` of these operations have in the mean. Rounding moves no time: the parts still
    /// add up to the duration if they did.
    pub(super) fn portion(&self, taken: u64) -> Self {
        let scaled = |value: u128| {
            let value = value * u128::from(taken) / u128::from(self.count.max(1));
            u64::try_from(value).unwrap_or(u64::MAX)
        };
        let mut portion = *self;
        let mut before = 0u128;
        for part in portion.parts_mut() {
            let after = before + u128::from(*part);
            *part = scaled(after).saturating_sub(scaled(before));
            before = after;
        }
        portion.count = taken;
        portion.duration_ns = scaled(self.duration_ns.into());
        portion.switches = scaled(self.switches.into());
        portion
    }

    const fn parts_mut(&mut self) -> [&mut u64; 7] {
        [
            &mut self.on_cpu_ns,
            &mut self.run_queue_ns,
            &mut self.preempted_ns,
            &mut self.lock_ns,
            &mut self.io_ns,
            &mut self.sleep_ns,
            &mut self.other_ns,
        ]
    }

    const fn fields_mut(&mut self) -> [&mut u64; 10] {
        [
            &mut self.count,
            &mut self.duration_ns,
            &mut self.on_cpu_ns,
            &mut self.run_queue_ns,
            &mut self.preempted_ns,
            &mut self.lock_ns,
            &mut self.io_ns,
            &mut self.sleep_ns,
            &mut self.other_ns,
            &mut self.switches,
        ]
    }
}

/// The ledgers of a row in the making.
#[derive(Clone, Default, Debug)]
pub(super) struct Ledgers {
    buckets: Buckets<LedgerSums>,
}

impl Ledgers {
    /// Adds an operation's ledger.
    #[inline]
    pub(super) fn add(&mut self, record: &OperationRecord) {
        self.buckets.at(record.duration_ns).add(record);
    }

    /// The sums so far.
    pub(super) fn sums(&self) -> RowLedger {
        let mut total = LedgerSums::default();
        self.buckets.iter().for_each(|(_, sums)| total.merge(sums));
        let count = total.count;
        RowLedger {
            total,
            typical: between(&self.buckets, count / 4, count - count / 4),
            tail_p99: between(&self.buckets, count - count.div_ceil(100), count),
            tail_p999: between(&self.buckets, count - count.div_ceil(1000), count),
        }
    }
}

/// Sums that can be added up, and cut to a part.
pub(super) trait Summed: Copy + Default {
    /// Of how many calls.
    fn count(&self) -> u64;
    /// Adds others.
    fn merge(&mut self, other: &Self);
    /// What `taken` of these calls have in the mean.
    fn portion(&self, taken: u64) -> Self;
}

impl Summed for LedgerSums {
    fn count(&self) -> u64 {
        self.count
    }

    fn merge(&mut self, other: &Self) {
        Self::merge(self, other);
    }

    fn portion(&self, taken: u64) -> Self {
        Self::portion(self, taken)
    }
}

/// The calls from rank `from` up to `to`, exclusive; the fastest has rank 0.
pub(super) fn between<T: Summed>(buckets: &Buckets<T>, from: u64, to: u64) -> T {
    let mut sums = T::default();
    let mut rank = 0u64;
    for (_, bucket) in buckets.iter() {
        let next = rank.saturating_add(bucket.count());
        let taken = next.min(to).saturating_sub(rank.max(from));
        if taken == bucket.count() {
            sums.merge(bucket);
        } else if taken > 0 {
            sums.merge(&bucket.portion(taken));
        }
        rank = next;
    }
    sums
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};

    use super::*;

    fn record(on_cpu_ns: u64, lock_ns: u64) -> OperationRecord {
        OperationRecord {
            kind: latency_common::record::kind::OPERATION,
            probe: 0,
            operation: 0,
            outcome: 0,
            start_ns: 0,
            duration_ns: on_cpu_ns.saturating_add(lock_ns),
            tgid: 1,
            tid: 2,
            algorithm: 0,
            signature_bytes: 0,
            ledger: Ledger { on_cpu_ns, lock_ns, voluntary_switches: 1, ..Ledger::default() },
        }
    }

    /// Check that the slow tail and the middle half get the ledgers of their own operations.
    #[test]
    fn tail_and_typical() {
        let mut ledgers = Ledgers::default();
        (0..990).for_each(|_| ledgers.add(&record(30_000, 0)));
        (0..10).for_each(|_| ledgers.add(&record(30_000, 4_000_000)));
        let sums = ledgers.sums();
        assert_eq!((sums.total.count, sums.total.lock_ns), (1000, 40_000_000));
        assert_eq!(sums.total.switches, 1000);
        assert_eq!((sums.typical.count, sums.typical.duration_ns), (500, 15_000_000));
        assert_eq!(sums.typical.lock_ns, 0);
        assert_eq!((sums.tail_p99.count, sums.tail_p99.lock_ns), (10, 40_000_000));
        assert_eq!((sums.tail_p999.count, sums.tail_p999.lock_ns), (1, 4_000_000));
    }

    /// Check that few operations, and none, give what there is.
    #[test]
    fn few() {
        assert_eq!(Ledgers::default().sums(), RowLedger::default());
        let mut ledgers = Ledgers::default();
        ledgers.add(&record(5, 6));
        let sums = ledgers.sums();
        assert_eq!((sums.total.count, sums.total.duration_ns), (1, 11));
        assert_eq!(sums.typical, sums.total);
        assert_eq!((sums.tail_p99, sums.tail_p999), (sums.total, sums.total));
    }

    proptest! {
        /// Check that in any selection the parts add up to the duration, and that the right number
        /// of operations is in it.
        #[test]
        fn sums_are_exact(parts: Vec<(u32, u32)>) {
            let mut ledgers = Ledgers::default();
            for &(on_cpu_ns, lock_ns) in &parts {
                ledgers.add(&record(on_cpu_ns.into(), lock_ns.into()));
            }
            let count = parts.len() as u64;
            let sums = ledgers.sums();
            assert_eq!(sums.total.count, count);
            assert_eq!(sums.typical.count, count - 2 * (count / 4));
            assert_eq!(sums.tail_p99.count, count.div_ceil(100));
            for sums in [sums.total, sums.typical, sums.tail_p99, sums.tail_p999] {
                assert_eq!(sums.on_cpu_ns + sums.lock_ns, sums.duration_ns);
            }
        }

        /// Check that absurd values do no harm.
        #[test]
        fn any_values(values: Vec<(u64, u64)>, from in any::<u64>(), to in any::<u64>()) {
            let mut ledgers = Ledgers::default();
            values.iter().for_each(|&(on_cpu, lock)| ledgers.add(&record(on_cpu, lock)));
            ledgers.sums();
            between(&ledgers.buckets, from, to);
        }
    }
}
