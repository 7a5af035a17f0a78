//! Preemptions on the edge of an operation: on the way into the kernel for its entry probe, before
//! the program could read the clock, or on the way back from its return probe. To the caller they are
//! part of the call. On a busy machine, the kernel likes to switch just there, and so many of the
//! slowest operations are slow by them alone.
//!
//! The instruction at which a thread left the CPU tells them: right behind the breakpoint of the
//! entry probe, or in the trampoline of the return probe. A thread's records come in the order in
//! which it made them, so that an operation or a preemption is held until the next record of its thread.

use hashbrown::HashMap;
use latency_common::ledger::off_cpu;
use latency_common::record::{OperationRecord, WaitRecord, wait_flag};
use latency_common::thread::WaitTotals;

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
    /// The last preemption outside of operations, which may be on the edge of the next one.
    preempted: Option<WaitRecord>,
}

/// Records of one thread that are complete.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Released {
    /// Its operation.
    pub(super) operation: Option<OperationRecord>,
    /// What it did off the CPU, in order: inside an operation if it was on the edge of one.
    pub(super) waits: [Option<WaitRecord>; 2],
}

/// The last operation and preemption of each thread, while more may come to be known of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Edges {
    threads: HashMap<u32, Thread>,
    /// The kernel counted these outside of operations.
    moved: WaitTotals,
}

impl Edges {
    /// Holds an operation which ended at `end_ns` by the programs' clock, and whose entry probe sits
    /// at `site_offset` in its file, in bytes.
    pub(super) fn hold(
        &mut self,
        mut record: OperationRecord,
        end_ns: u64,
        site_offset: Option<u64>,
    ) -> Released {
        let thread = self.threads.entry(record.tid).or_default();
        let mut wait = thread.preempted.take();
        if let (Some(wait), Some(site)) = (&mut wait, site_offset)
            && let Some(gap_ns) = record.start_ns.checked_sub(end_of(wait))
            && gap_ns <= NEAR_NS
            // At the breakpoint, or behind it: where the kernel was in handling it decides.
            && (wait.futex_value.wrapping_sub(site as u32) & PAGE_MASK) <= 1
        {
            // The start stays: others refer to the operation by it.
            join(wait, &mut record, &mut self.moved);
        }
        let before = thread.held.replace((record, end_ns));
        Released { operation: before.map(|(record, _)| record), waits: [wait, None] }
    }

    /// Holds a time off the CPU, if it may be on the edge of an operation.
    pub(super) fn wait(&mut self, mut record: WaitRecord) -> Released {
        // Only threads with operations matter.
        let Some(thread) = self.threads.get_mut(&record.tid) else {
            return Released { operation: None, waits: [Some(record), None] };
        };
        let is_told = u32::from(record.reason) == off_cpu::PREEMPTED
            && record.flags & wait_flag::IP_READ != 0
            && record.flags & wait_flag::IN_OPERATION == 0;
        let before = thread.preempted.take();
        let mut held = thread.held.take();
        if let Some((operation, end_ns)) = &mut held
            && is_told
            && let Some(gap_ns) = record.start_ns.checked_sub(*end_ns)
        {
            let is_trampoline = record.futex_value & PAGE_MASK < TRAMPOLINE_BYTES;
            if gap_ns <= if is_trampoline { NEAR_NS } else { STILL_INSIDE_NS } {
                join(&mut record, operation, &mut self.moved);
            }
        }
        let now = if is_told && record.flags & wait_flag::IN_OPERATION == 0 {
            thread.preempted = Some(record);
            None
        } else {
            Some(record)
        };
        Released { operation: held.map(|(record, _)| record), waits: [before, now] }
    }

    /// Whether there are more threads than are to be followed.
    pub(super) fn is_full(&self) -> bool {
        self.threads.len() > MAX_THREADS
    }

    /// Gives back everything that is held, in the order of the threads' ids, and forgets it.
    pub(super) fn drain(&mut self) -> Vec<Released> {
        let mut threads: Vec<_> = std::mem::take(&mut self.threads).into_iter().collect();
        threads.sort_unstable_by_key(|&(tid, _)| tid);
        let released = threads.into_iter().map(|(_, thread)| Released {
            operation: thread.held.map(|(record, _)| record),
            waits: [thread.preempted, None],
        });
        released.collect()
    }

    /// What the kernel counted outside of operations and requests and was on the edge of an operation.
    pub(super) const fn moved(&self) -> WaitTotals {
        self.moved
    }
}

/// When a preemption ended, in nanoseconds.
const fn end_of(wait: &WaitRecord) -> u64 {
    wait.start_ns.saturating_add(wait.run_queue_ns)
}

/// Takes a preemption on the edge of an operation into it.
fn join(wait: &mut WaitRecord, operation: &mut OperationRecord, moved: &mut WaitTotals) {
    let preempted_ns = wait.run_queue_ns;
    operation.duration_ns = operation.duration_ns.saturating_add(preempted_ns);
    let ledger = &mut operation.ledger;
    ledger.preempted_ns = ledger.preempted_ns.saturating_add(preempted_ns);
    ledger.involuntary_switches = ledger.involuntary_switches.saturating_add(1);
    wait.operation = operation.operation;
    wait.probe = operation.probe;
    wait.operation_start_ns = operation.start_ns;
    wait.flags |= wait_flag::IN_OPERATION;
    // A request counts as inside.
    if wait.flags & wait_flag::IN_REQUEST == 0 {
        moved.count = moved.count.saturating_add(1);
        moved.runnable_ns = moved.runnable_ns.saturating_add(preempted_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latency_common::ledger::Ledger;

    const SITE: u64 = 0x21_87b0;

    fn operation(start_ns: u64, duration_ns: u64) -> (OperationRecord, u64, Option<u64>) {
        let ledger = Ledger { on_cpu_ns: duration_ns, ..Ledger::default() };
        let record = OperationRecord {
            operation: 3,
            tid: 7,
            start_ns,
            duration_ns,
            ledger,
            ..Default::default()
        };
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

    /// The operations' durations, and their starts by their waits; 0 of a wait outside of all.
    fn told(released: impl IntoIterator<Item = Released>) -> (Vec<u64>, Vec<u64>) {
        let (mut durations, mut starts) = (Vec::new(), Vec::new());
        for Released { operation, waits } in released {
            if let Some(record) = operation {
                assert_eq!(record.ledger.total_ns(), record.duration_ns);
                durations.push(record.duration_ns);
            }
            for wait in waits.into_iter().flatten() {
                let is_inside = wait.flags & wait_flag::IN_OPERATION != 0;
                assert_eq!(is_inside, wait.operation_start_ns != 0);
                assert_eq!(wait.operation, if is_inside { 3 } else { 0 });
                starts.push(wait.operation_start_ns);
            }
        }
        (durations, starts)
    }

    /// As `told`, with everything that is held.
    fn told_in_all(mut edges: Edges, released: Released) -> (Vec<u64>, Vec<u64>, u64) {
        let rest = edges.drain();
        let (durations, starts) = told(std::iter::once(released).chain(rest));
        (durations, starts, edges.moved().count)
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
            assert_eq!(edges.hold(first, end_ns, site), Released::default());
            assert_eq!(told([edges.wait(wait)]), (vec![20_000], vec![]), "the wait is held");
            let (second, end_ns, site) = operation(4_102_000, 30_000);
            let released = edges.hold(second, end_ns, site);
            told_in_all(edges, released)
        };
        let at = |ip| hold(preempted(100_000, 4_000_000, ip));
        let outside = (vec![30_000], vec![0], 0);
        assert_eq!(at(0x7f12_37b1), (vec![4_030_000], vec![4_102_000], 1));
        assert_eq!(at(0x7f12_37b0), (vec![4_030_000], vec![4_102_000], 1));
        assert_eq!(at(0x7f12_37b2), outside, "elsewhere");
        assert_eq!(at(0x7f12_37af), outside, "elsewhere");
        assert_eq!(hold(preempted(100_000, 3_000_000, 0x7f12_37b1)), outside, "long before");
        let in_request = WaitRecord {
            flags: wait_flag::IP_READ | wait_flag::IN_REQUEST,
            ..preempted(100_000, 4_000_000, 0x7f12_37b1)
        };
        assert_eq!(hold(in_request), (vec![4_030_000], vec![4_102_000], 0), "inside already");
    }

    /// Check that what is in the ledger already is not held, nor taken twice.
    #[test]
    fn inside_already() {
        let mut edges = Edges::default();
        let (first, end_ns, site) = operation(10_000, 20_000);
        edges.hold(first, end_ns, site);
        let inside = WaitRecord {
            flags: wait_flag::IP_READ | wait_flag::IN_OPERATION,
            operation: 3,
            operation_start_ns: 4_102_000,
            ..preempted(100_000, 4_000_000, 0x7f12_37b1)
        };
        assert_eq!(told([edges.wait(inside)]), (vec![20_000], vec![4_102_000]));
        let (second, end_ns, site) = operation(4_102_000, 30_000);
        let released = edges.hold(second, end_ns, site);
        assert_eq!(told_in_all(edges, released), (vec![30_000], vec![], 0));
    }

    /// Check that a switch in the trampoline, just after the return, is part of the call.
    #[test]
    fn after_the_return() {
        let hold = |wait: WaitRecord| {
            let mut edges = Edges::default();
            let (record, end_ns, site) = operation(10_000, 20_000);
            assert_eq!(edges.hold(record, end_ns, site), Released::default());
            let released = edges.wait(wait);
            told_in_all(edges, released)
        };
        let at = |start_ns, ip| hold(preempted(start_ns, 4_000_000, ip));
        let outside = (vec![20_000], vec![0], 0);
        assert_eq!(at(31_000, 0x7fff_f00d), (vec![4_020_000], vec![10_000], 1));
        assert_eq!(at(31_000, 0x7fff_f40d), outside, "elsewhere");
        assert_eq!(at(30_200, 0x7fff_f40d), (vec![4_020_000], vec![10_000], 1), "at once");
        assert_eq!(at(61_000, 0x7fff_f00d), outside, "later");
        let sleep = WaitRecord {
            reason: off_cpu::SLEEP as u8,
            ..preempted(31_000, 4_000_000, 0x7fff_f00d)
        };
        assert_eq!(hold(sleep), outside);
    }

    /// Check that threads do not mix, that nothing is lost, and that a thread's waits stay in order.
    #[test]
    fn several_threads() {
        let mut edges = Edges::default();
        let (record, end_ns, site) = operation(10_000, 20_000);
        edges.hold(record, end_ns, site);
        edges.hold(OperationRecord { tid: 8, ..record }, end_ns, site);
        let stranger = WaitRecord { tid: 9, ..preempted(31_000, 1, 0xd) };
        let at_once = Released { operation: None, waits: [Some(stranger), None] };
        assert_eq!(edges.wait(stranger), at_once, "a thread without operations");
        let (next, end_ns, site) = operation(40_000, 1_000);
        assert_eq!(told([edges.hold(next, end_ns, site)]), (vec![20_000], vec![]));
        let [first, second, third] =
            [100_000, 200_000, 300_000].map(|start_ns| preempted(start_ns, 1, 0x400));
        assert_eq!(told([edges.wait(first)]), (vec![1_000], vec![]));
        assert_eq!(edges.wait(second).waits, [Some(first), None]);
        let sleep = WaitRecord { reason: off_cpu::SLEEP as u8, ..third };
        assert_eq!(edges.wait(sleep).waits, [Some(second), Some(sleep)]);
        edges.wait(third);
        let rest = edges.drain();
        assert_eq!(rest.iter().map(|one| one.waits[0]).collect::<Vec<_>>(), [Some(third), None]);
        assert_eq!(told(rest), (vec![20_000], vec![0]));
        assert!(edges.drain().is_empty() && !edges.is_full());
    }
}
