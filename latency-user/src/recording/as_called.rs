//! Records as the caller's clock shows them: the programs' clock misses a part of what the probes
//! cost, and that part was spent on the CPU.

use latency_common::record::{OperationRecord, RequestRecord};

use crate::attach::TrapCost;

/// An operation with the caller's duration.
#[inline]
pub(super) fn operation(cost: &TrapCost, record: &OperationRecord) -> OperationRecord {
    let mut record = *record;
    let duration_ns = cost.as_called_ns(record.duration_ns);
    let outside_ns = duration_ns - record.duration_ns;
    record.ledger.on_cpu_ns = record.ledger.on_cpu_ns.saturating_add(outside_ns);
    record.duration_ns = duration_ns;
    record
}

/// A request with the caller's durations, its own and those of the operations in it: of several of
/// one kind, each gets what the mean one does.
pub(super) fn request(cost: &TrapCost, record: &RequestRecord) -> RequestRecord {
    let mut record = RequestRecord { call: operation(cost, &record.call), ..*record };
    let inside = &mut record.inside;
    for part in &mut inside.parts {
        let Some(mean_ns) = part.duration_ns.checked_div(part.count) else { continue };
        let each_ns = cost.as_called_ns(mean_ns) - mean_ns;
        let outside_ns = each_ns.saturating_mul(part.count);
        part.duration_ns = part.duration_ns.saturating_add(outside_ns);
        inside.ledger.on_cpu_ns = inside.ledger.on_cpu_ns.saturating_add(outside_ns);
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use latency_common::ledger::Ledger;
    use latency_common::record::{InnerCalls, Inside};

    const COST: TrapCost =
        TrapCost { hot_outside_ns: 500, cold_outside_ns: 2_000, hot_pair_ns: 0, cold_pair_ns: 0 };

    fn call(duration_ns: u64) -> OperationRecord {
        let ledger = Ledger { on_cpu_ns: duration_ns, ..Ledger::default() };
        OperationRecord { duration_ns, ledger, ..OperationRecord::default() }
    }

    /// Check that ledgers still add up to the duration, of a request and of what is in it.
    #[test]
    fn ledgers_add_up() {
        let one = operation(&COST, &call(30_000));
        assert_eq!((one.duration_ns, one.ledger.total_ns()), (32_000, 32_000));
        let mut inside = Inside::default();
        inside.add(0, 30_000, &call(30_000).ledger);
        inside.add(0, 50_000, &call(50_000).ledger);
        inside.add(1, 0, &Ledger::default());
        let whole = request(&COST, &RequestRecord { call: call(100_000), inside });
        assert_eq!((whole.call.duration_ns, whole.call.ledger.total_ns()), (102_000, 102_000));
        assert_eq!(whole.inside.parts[0], InnerCalls { count: 2, duration_ns: 84_000 });
        assert_eq!(whole.inside.parts[1], InnerCalls { count: 1, duration_ns: 500 });
        assert_eq!(whole.inside.ledger.total_ns(), 84_500);
    }
}
