//! Where the time of an operation went, as a report has it.

use serde::{Deserialize, Serialize};

use crate::recording::{LedgerSums, RowLedger};

/// The parts of a ledger, in nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LedgerNs {
    /// On the CPU.
    pub on_cpu: u64,
    /// Woken, but not running yet.
    pub run_queue: u64,
    /// Runnable, but pushed off the CPU.
    pub preempted: u64,
    /// Blocked in a futex wait.
    pub lock: u64,
    /// Blocked uninterruptibly.
    pub io: u64,
    /// Blocked interruptibly in anything but a futex wait.
    pub sleep: u64,
    /// What cannot be told.
    pub other: u64,
}

/// The ledgers of some operations, added up.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LedgerTotals {
    /// How many operations.
    pub count: u64,
    /// Their wall time, in nanoseconds.
    pub duration_ns: u64,
    /// Where it went.
    pub ledger_ns: LedgerNs,
    /// How often their threads left the CPU.
    pub switches: u64,
}

/// The ledgers of the slow operations.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tail {
    /// The slowest 1 %.
    pub p99: LedgerTotals,
    /// The slowest 0.1 %.
    pub p999: LedgerTotals,
}

impl From<&LedgerSums> for LedgerTotals {
    fn from(sums: &LedgerSums) -> Self {
        Self {
            count: sums.count,
            duration_ns: sums.duration_ns,
            ledger_ns: LedgerNs {
                on_cpu: sums.on_cpu_ns,
                run_queue: sums.run_queue_ns,
                preempted: sums.preempted_ns,
                lock: sums.lock_ns,
                io: sums.io_ns,
                sleep: sums.sleep_ns,
                other: sums.other_ns,
            },
            switches: sums.switches,
        }
    }
}

impl From<&RowLedger> for Tail {
    fn from(ledger: &RowLedger) -> Self {
        Self { p99: (&ledger.tail_p99).into(), p999: (&ledger.tail_p999).into() }
    }
}
