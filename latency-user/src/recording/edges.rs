//! Preemptions on the edge of an operation: on the way into the kernel for its entry probe, before
//! the program could read the clock, or on the way back from its return probe. To the caller they are
//! part of the call. On a busy machine, the kernel likes to switch just there, and so many of the
//! slowest operations are slow by them alone.
//!
//! The instruction at which a thread left the CPU tells them: right behind the breakpoint of the
//! entry probe, or in the trampoline of the return probe. A thread's records come in the order in
//! which it made them, so that an operation is held until the next record of its thread.

use std::collections::HashMap;

use latency_common::ledger::off_cpu;
use latency_common::record::{OperationRecord, WaitRecord, wait_flag};

/// Page offsets below this are in the trampoline, which fills the start of a page of its own:
/// <https://github.com/torvalds/linux/blob/v6.18/arch/x86/kernel/uprobes.c>.
const TRAMPOLINE_BYTES: u32 = 48;
/// From the switch to the program's clock, or from that to the switch, it never takes longer.
const NEAR_NS: u64 = 20_000;
/// So soon after the program's clock, a thread is still on its way back, wherever its user registers
/// say that it is: while the return probe is handled, they are the caller's already.
const STILL_INSIDE_NS: u64 = 300;
const PAGE_MASK: u32 = 0xfff;
/// So many threads are followed; a service may start one for each request.
const MAX_THREADS: usize = 16 << 10;

/// An operation, and when it ended by the programs' clock, in nanoseconds of `CLOCK_MONOTONIC`.
type Held = (OperationRecord, u64);

#[derive(Clone, Debug, Default)]
struct Thread {
    held: Option<Held>,
    /// The last preemption: start, end, and the page offset of the instruction.
    preempted: Option<(u64, u64, u32)>,
}

/// The last operation of each thread, while it may still get longer.
#[derive(Clone, Debug, Default)]
pub(super) struct Edges {
    threads: HashMap<u32, Thread>,
}

impl Edges {
    /// Holds an operation which ended at `end_ns` by the programs' clock, and whose entry probe sits
    /// at `site_offset` in its file, in bytes. Gives back the thread's operation before it.
    pub(super) fn hold(
        &mut self,
        mut record: OperationRecord,
        end_ns: u64,
        site_offset: Option<u64>,
    ) -> Option<OperationRecord> {
        let thread = self.threads.entry(record.tid).or_default();
        if let (Some((from_ns, to_ns, at)), Some(site)) = (thread.preempted.take(), site_offset)
            && let Some(gap_ns) = record.start_ns.checked_sub(to_ns)
            && gap_ns <= NEAR_NS
            // At the breakpoint, or behind it: where the kernel was in handling it decides.
            && (at.wrapping_sub(site as u32) & PAGE_MASK) <= 1
        {
            // The start stays: others refer to the operation by it.
            lengthen(&mut record, to_ns.saturating_sub(from_ns));
        }
        thread.held.replace((record, end_ns)).map(|(record, _)| record)
    }

    /// Looks at a time off the CPU. Gives back the thread's operation, if it now is complete.
    pub(super) fn wait(&mut self, record: &WaitRecord) -> Option<OperationRecord> {
        // Only threads with operations matter.
        let thread = self.threads.get_mut(&record.tid)?;
        let is_told = u32::from(record.reason) == off_cpu::PREEMPTED
            && record.flags & wait_flag::IP_READ != 0
            && record.flags & wait_flag::IN_OPERATION == 0;
        let at = record.futex_value & PAGE_MASK;
        let to_ns = record.start_ns.saturating_add(record.run_queue_ns);
        thread.preempted = is_told.then_some((record.start_ns, to_ns, at));
        let (mut held, end_ns) = thread.held.take()?;
        let gap_ns = record.start_ns.checked_sub(end_ns);
        let near_ns = if at < TRAMPOLINE_BYTES { NEAR_NS } else { STILL_INSIDE_NS };
        if is_told && gap_ns.is_some_and(|gap_ns| gap_ns <= near_ns) {
            lengthen(&mut held, record.run_queue_ns);
        }
        Some(held)
    }

    /// Whether there are more threads than are to be followed.
    pub(super) fn is_full(&self) -> bool {
        self.threads.len() > MAX_THREADS
    }

    /// Gives back everything that is held, in the order of the threads' ids, and forgets it.
    pub(super) fn drain(&mut self) -> Vec<OperationRecord> {
        let held = std::mem::take(&mut self.threads).into_values();
        let mut records: Vec<_> =
            held.filter_map(|thread| thread.held).map(|(record, _)| record).collect();
        records.sort_unstable_by_key(|record| record.tid);
        records
    }
}

fn lengthen(record: &mut OperationRecord, preempted_ns: u64) {
    record.duration_ns = record.duration_ns.saturating_add(preempted_ns);
    let ledger = &mut record.ledger;
    ledger.preempted_ns = ledger.preempted_ns.saturating_add(preempted_ns);
    ledger.involuntary_switches = ledger.involuntary_switches.saturating_add(1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use latency_common::ledger::Ledger;

    const SITE: u64 = 0x21_87b0;

    fn operation(start_ns: u64, duration_ns: u64) -> (OperationRecord, u64, Option<u64>) {
        let ledger = Ledger { on_cpu_ns: duration_ns, ..Ledger::default() };
        let record =
            OperationRecord { tid: 7, start_ns, duration_ns, ledger, ..Default::default() };
        (record, start_ns + duration_ns, Some(SITE))
    }

    fn preempted(start_ns: u64, run_queue_ns: u64, ip: u32) -> WaitRecord {
        WaitRecord {
            tid: 7,
            reason: off_cpu::PREEMPTED as u8,
            flags: wait_flag::IP_READ,
            start_ns,
            run_queue_ns,
            futex_value: ip,
            ..WaitRecord::default()
        }
    }

    fn durations(records: impl IntoIterator<Item = OperationRecord>) -> Vec<u64> {
        let check = |record: OperationRecord| {
            assert_eq!(record.ledger.total_ns(), record.duration_ns);
            record.duration_ns
        };
        records.into_iter().map(check).collect()
    }

    /// Check that a switch right behind the breakpoint, just before the entry, is part of the call.
    ///
    /// ```text
    ///      trap ── switched out ── back ── entry ───── return
    ///  100_000 ────────────────── 4_100_000 4_102_000   4_132_000
    /// ```
    #[test]
    fn before_the_entry() {
        let hold = |wait: WaitRecord| {
            let mut edges = Edges::default();
            let (first, end_ns, site) = operation(10_000, 20_000);
            assert!(edges.hold(first, end_ns, site).is_none());
            assert_eq!(durations(edges.wait(&wait)), [20_000]);
            let (second, end_ns, site) = operation(4_102_000, 30_000);
            assert!(edges.hold(second, end_ns, site).is_none());
            durations(edges.drain())
        };
        assert_eq!(hold(preempted(100_000, 4_000_000, 0x7f12_37b1)), [4_030_000]);
        assert_eq!(hold(preempted(100_000, 4_000_000, 0x7f12_37b0)), [4_030_000]);
        assert_eq!(hold(preempted(100_000, 4_000_000, 0x7f12_37b2)), [30_000], "elsewhere");
        assert_eq!(hold(preempted(100_000, 4_000_000, 0x7f12_37af)), [30_000], "elsewhere");
        assert_eq!(hold(preempted(100_000, 3_000_000, 0x7f12_37b1)), [30_000], "long before");
        let inside = WaitRecord {
            flags: wait_flag::IP_READ | wait_flag::IN_OPERATION,
            ..preempted(100_000, 4_000_000, 0x7f12_37b1)
        };
        assert_eq!(hold(inside), [30_000], "in the ledger already");
    }

    /// Check that a switch in the trampoline, just after the return, is part of the call.
    #[test]
    fn after_the_return() {
        let hold = |wait: WaitRecord| {
            let mut edges = Edges::default();
            let (record, end_ns, site) = operation(10_000, 20_000);
            assert!(edges.hold(record, end_ns, site).is_none());
            durations(edges.wait(&wait))
        };
        assert_eq!(hold(preempted(31_000, 4_000_000, 0x7fff_f00d)), [4_020_000]);
        assert_eq!(hold(preempted(31_000, 4_000_000, 0x7fff_f40d)), [20_000], "elsewhere");
        assert_eq!(hold(preempted(30_200, 4_000_000, 0x7fff_f40d)), [4_020_000], "at once");
        assert_eq!(hold(preempted(61_000, 4_000_000, 0x7fff_f00d)), [20_000], "later");
        let sleep = WaitRecord {
            reason: off_cpu::SLEEP as u8,
            ..preempted(31_000, 4_000_000, 0x7fff_f00d)
        };
        assert_eq!(hold(sleep), [20_000]);
    }

    /// Check that threads do not mix, and that nothing is lost.
    #[test]
    fn several_threads() {
        let mut edges = Edges::default();
        let (record, end_ns, site) = operation(10_000, 20_000);
        assert!(edges.hold(record, end_ns, site).is_none());
        assert!(edges.hold(OperationRecord { tid: 8, ..record }, end_ns, site).is_none());
        assert!(edges.wait(&WaitRecord { tid: 9, ..preempted(31_000, 1, 0xd) }).is_none());
        let (next, end_ns, site) = operation(40_000, 1_000);
        assert_eq!(durations(edges.hold(next, end_ns, site)), [20_000]);
        assert_eq!(durations(edges.drain()), [1_000, 20_000]);
        assert!(edges.drain().is_empty() && !edges.is_full());
    }
}
