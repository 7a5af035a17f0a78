//! What the slow tail of an operation has more than its typical ones.

use crate::recording::{LedgerSums, RowLedger};

/// Fewer operations have no tail to speak of.
const MIN_OPERATIONS: u64 = 100;
/// The 99th percentile must be so many times the typical duration.
const MIN_RATIO: u64 = 2;

/// A part of the ledger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Part {
    OnCpu,
    RunQueue,
    Preempted,
    Lock,
    Io,
    Sleep,
    Other,
}

impl Part {
    pub(crate) const ALL: [Self; 7] = [
        Self::OnCpu,
        Self::RunQueue,
        Self::Preempted,
        Self::Lock,
        Self::Io,
        Self::Sleep,
        Self::Other,
    ];

    /// What these operations spent on it, in nanoseconds.
    pub(crate) const fn of(self, sums: &LedgerSums) -> u64 {
        match self {
            Self::OnCpu => sums.on_cpu_ns,
            Self::RunQueue => sums.run_queue_ns,
            Self::Preempted => sums.preempted_ns,
            Self::Lock => sums.lock_ns,
            Self::Io => sums.io_ns,
            Self::Sleep => sums.sleep_ns,
            Self::Other => sums.other_ns,
        }
    }
}

/// What the slowest 1 % of one row's operations have more than the middle half.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Excess {
    /// The mean duration of the middle half, in nanoseconds.
    pub(crate) typical_ns: u64,
    /// What all of the slowest together have more, in nanoseconds.
    pub(crate) total_ns: f64,
    /// The share of each part in what the slowest have more, by [`Part`]; 0 where they have less.
    shares: [f64; 7],
}

impl Excess {
    /// `None` where there is no tail to explain: too few operations, or all about as slow.
    pub(crate) fn of(ledger: &RowLedger, p99_ns: u64) -> Option<Self> {
        let (typical, tail) = (&ledger.typical, &ledger.tail_p99);
        let typical_ns = typical.duration_ns.checked_div(typical.count)?;
        let is_slow = p99_ns >= typical_ns.saturating_mul(MIN_RATIO);
        if ledger.total.count < MIN_OPERATIONS || tail.count == 0 || !is_slow {
            return None;
        }
        let mean = |ns: u64, sums: &LedgerSums| ns as f64 / sums.count as f64;
        let more = Part::ALL
            .map(|part| (mean(part.of(tail), tail) - mean(part.of(typical), typical)).max(0.0));
        let sum: f64 = more.iter().sum();
        (sum > 0.0).then(|| Self {
            typical_ns,
            total_ns: sum * tail.count as f64,
            shares: more.map(|ns| ns / sum),
        })
    }

    /// The share of a part, between 0 and 1.
    pub(crate) const fn share(&self, part: Part) -> f64 {
        self.shares[part as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(count: u64, on_cpu_ns: u64, lock_ns: u64) -> LedgerSums {
        let duration_ns = on_cpu_ns + lock_ns;
        LedgerSums { count, duration_ns, on_cpu_ns, lock_ns, ..LedgerSums::default() }
    }

    fn ledger(count: u64, tail_p99: LedgerSums) -> RowLedger {
        let total = LedgerSums { count, ..LedgerSums::default() };
        RowLedger { total, typical: sums(500, 500_000, 500), tail_p99, ..RowLedger::default() }
    }

    /// Check the shares of a worked example, and that a part which shrank has none.
    #[test]
    fn shares() {
        let excess = Excess::of(&ledger(1000, sums(10, 20_000, 90_010)), 2002).unwrap();
        assert_eq!((excess.typical_ns, excess.total_ns), (1001, 100_000.0));
        assert_eq!((excess.share(Part::OnCpu), excess.share(Part::Lock)), (0.1, 0.9));
        let excess = Excess::of(&ledger(1000, sums(10, 10, 90_010)), 5000).unwrap();
        assert_eq!((excess.share(Part::OnCpu), excess.share(Part::Lock)), (0.0, 1.0));
    }

    /// Check that there is no excess without enough operations, a tail, or a difference.
    #[test]
    fn none() {
        let tail = sums(10, 20_000, 90_010);
        assert_eq!(Excess::of(&ledger(99, tail), 9000), None);
        assert_eq!(Excess::of(&ledger(1000, tail), 2001), None, "under twice the typical");
        assert_eq!(Excess::of(&ledger(1000, LedgerSums::default()), 9000), None);
        assert_eq!(Excess::of(&ledger(1000, sums(10, 10, 0)), 9000), None);
        assert_eq!(Excess::of(&RowLedger::default(), 9000), None);
    }
}
