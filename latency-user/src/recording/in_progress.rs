//! Waits that the start or the end of the trace cuts, and the sums of all waits.

use latency_common::ledger::off_cpu;
use latency_common::record::{WaitRecord, wait_flag};
use latency_common::thread::WaitTotals;
use serde::{Deserialize, Serialize};

use super::lock::{Lock, MAX_LOCKS, StackShare};
use super::off_cpu::Reason;
use super::waits::reason_of;

/// At most this many waits in progress are kept, the longest.
pub const MAX_IN_PROGRESS: usize = 4096;

/// A wait that was in progress when tracing began, or when it ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WaitInProgress {
    /// Thread, in the tracer's PID namespace.
    pub tid: u32,
    /// Its name.
    pub comm: String,
    /// Why it is off the CPU.
    pub reason: Reason,
    /// Name of the operation that the wait lies in; `None` outside of operations.
    pub operation: Option<String>,
    /// Name of the request that the wait lies in; `None` outside of requests.
    pub request: Option<String>,
    /// Address of the futex; 0 when it is no futex wait, or where it could not be told.
    pub futex_address: u64,
    /// Command of the futex call; see [`latency_common::wait::futex`].
    pub futex_command: u32,
    /// Stack of the thread; 0: none was taken.
    pub stack_id: u64,
    /// Thread that held the lock when the wait began; 0: not known, or no live thread.
    pub holder_tid: u32,
    /// When it began, in nanoseconds since tracing began; 0 where it had begun before.
    pub start_ns: u64,
    /// How long it lasted while traced, in nanoseconds.
    pub duration_ns: u64,
    /// Whether it had begun before the trace.
    pub at_start: bool,
    /// Whether it had not ended when the trace did.
    pub at_end: bool,
}

/// All times off the CPU for one reason, the short ones too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WaitTotal {
    /// Why the threads were off the CPU.
    pub reason: Reason,
    /// Whether they were in an operation or a request.
    pub in_operation: bool,
    /// How often.
    pub count: u64,
    /// Time blocked, in nanoseconds; for preempted threads, time runnable without running.
    pub total_ns: u64,
    /// Time runnable without running after that, in nanoseconds.
    pub run_queue_ns: u64,
}

/// The sums as the kernel side keeps them, by [`WaitTotals::index`].
pub type KernelTotals = [WaitTotals; WaitTotals::ENTRIES as usize];

/// The sums of which there is anything, longest first. The preemptions `moved` were found to be inside of
/// operations.
pub(super) fn totals(kernel: &KernelTotals, moved: &WaitTotals) -> Vec<WaitTotal> {
    let states = off_cpu::PREEMPTED..=off_cpu::OTHER;
    let kinds = states.flat_map(|state| [(state, false), (state, true)]);
    let mut totals: Vec<WaitTotal> = kinds
        .filter_map(|(state, in_operation)| {
            let mut sums = *kernel.get(WaitTotals::index(state, in_operation) as usize)?;
            if state == off_cpu::PREEMPTED {
                let WaitTotals { count, runnable_ns, .. } = *moved;
                let shifted = |from: u64, by: u64| {
                    if in_operation { from.saturating_add(by) } else { from.saturating_sub(by) }
                };
                sums.count = shifted(sums.count, count);
                sums.runnable_ns = shifted(sums.runnable_ns, runnable_ns);
            }
            let reason = reason_of(state as u8);
            let (total_ns, run_queue_ns) = match reason {
                Reason::Preempted => (sums.blocked_ns.saturating_add(sums.runnable_ns), 0),
                _ => (sums.blocked_ns, sums.runnable_ns),
            };
            let count = sums.count;
            Some(WaitTotal { reason, in_operation, count, total_ns, run_queue_ns })
        })
        .filter(|total| total.count > 0)
        .collect();
    totals
        .sort_by_key(|total| (std::cmp::Reverse(total.total_ns), total.reason, total.in_operation));
    totals
}

/// A wait in progress, with the names that are known of it.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) record: WaitRecord,
    pub(super) comm: String,
    pub(super) holder_tid: u32,
    pub(super) at_end: bool,
}

impl Open {
    pub(super) fn finished(
        &self,
        trace_start_ns: u64,
        name: impl Fn(u8) -> String,
    ) -> WaitInProgress {
        let record = &self.record;
        let reason = reason_of(record.reason);
        let is_lock = reason == Reason::Lock;
        WaitInProgress {
            tid: record.tid,
            comm: self.comm.clone(),
            reason,
            operation: (record.flags & wait_flag::IN_OPERATION != 0)
                .then(|| name(record.operation)),
            request: (record.flags & wait_flag::IN_REQUEST != 0).then(|| name(record.request)),
            futex_address: if is_lock { record.futex_address } else { 0 },
            futex_command: if is_lock {
                record.futex_command
            } else {
                latency_common::wait::futex::NONE
            },
            stack_id: record.stack_id,
            holder_tid: self.holder_tid,
            start_ns: record.start_ns.saturating_sub(trace_start_ns),
            duration_ns: record.duration_ns.saturating_add(record.run_queue_ns),
            at_start: record.flags & wait_flag::BEGAN_BEFORE_TRACE != 0,
            at_end: self.at_end,
        }
    }
}

/// Adds the waits that did not end to their locks. They are in none of a lock's other numbers, since
/// nobody knows how long they are going to be.
pub(super) fn add_to_locks(locks: &mut Vec<Lock>, waits: &[WaitInProgress]) {
    for wait in waits.iter().filter(|wait| wait.at_end && wait.futex_address != 0) {
        let at = match locks.iter().position(|lock| lock.address == wait.futex_address) {
            Some(at) => at,
            None if locks.len() < MAX_LOCKS => {
                locks.push(Lock {
                    address: wait.futex_address,
                    command: wait.futex_command,
                    ..Lock::default()
                });
                locks.len() - 1
            }
            None => continue,
        };
        let lock = &mut locks[at];
        lock.in_progress += 1;
        lock.in_progress_ns = lock.in_progress_ns.saturating_add(wait.duration_ns);
        // So that the class can be judged from it.
        let is_known = lock.stacks.iter().any(|share| share.stack_id == wait.stack_id);
        if wait.stack_id != 0 && !is_known && lock.stacks.len() < super::lock::MAX_SHARES {
            lock.stacks.push(StackShare { stack_id: wait.stack_id, ..StackShare::default() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that all reasons have their sums, and that preemption has no run queue of its own.
    #[test]
    fn sums() {
        let mut kernel = KernelTotals::default();
        let sums = WaitTotals { count: 2, blocked_ns: 5, runnable_ns: 7 };
        kernel[WaitTotals::index(off_cpu::PREEMPTED, true) as usize] =
            WaitTotals { blocked_ns: 0, ..sums };
        kernel[WaitTotals::index(off_cpu::SLEEP, false) as usize] = sums;
        let [preempted, sleep] = totals(&kernel, &WaitTotals::default())[..] else { panic!() };
        assert_eq!((preempted.reason, preempted.in_operation), (Reason::Preempted, true));
        assert_eq!((preempted.total_ns, preempted.run_queue_ns), (7, 0));
        assert_eq!((sleep.reason, sleep.total_ns, sleep.run_queue_ns), (Reason::Sleep, 5, 7));
        assert_eq!((sleep.in_operation, sleep.count), (false, 2));
    }

    /// Check that preemptions found to be inside of operations change sides, and none is left of nothing.
    #[test]
    fn moved_inside() {
        let mut kernel = KernelTotals::default();
        let outside = WaitTotals { count: 3, blocked_ns: 0, runnable_ns: 9 };
        kernel[WaitTotals::index(off_cpu::PREEMPTED, false) as usize] = outside;
        let told = |moved: WaitTotals| {
            let totals = totals(&kernel, &moved);
            totals.iter().map(|it| (it.in_operation, it.count, it.total_ns)).collect::<Vec<_>>()
        };
        assert_eq!(told(WaitTotals::default()), [(false, 3, 9)]);
        let one = WaitTotals { count: 1, blocked_ns: 0, runnable_ns: 4 };
        assert_eq!(told(one), [(false, 2, 5), (true, 1, 4)]);
        assert_eq!(told(outside), [(true, 3, 9)]);
    }

    fn wait(futex_address: u64, stack_id: u64, at_end: bool) -> WaitInProgress {
        let record = WaitRecord {
            reason: off_cpu::LOCK as u8,
            flags: wait_flag::BEGAN_BEFORE_TRACE | wait_flag::IN_REQUEST,
            request: 3,
            tid: 11,
            start_ns: 100,
            duration_ns: 40,
            run_queue_ns: 2,
            futex_address,
            stack_id,
            ..WaitRecord::default()
        };
        let open = Open { record, comm: "worker".into(), holder_tid: 0, at_end };
        open.finished(90, |name| format!("request {name}"))
    }

    /// Check that a wait has its names and times, and that those that did not end show in their
    /// locks, known or not, without changing what ended.
    #[test]
    fn locks() {
        let one = wait(8, 5, true);
        assert_eq!((one.request.as_deref(), one.operation.as_deref()), (Some("request 3"), None));
        assert_eq!((one.start_ns, one.duration_ns, one.at_start), (10, 42, true));
        let mut locks = vec![Lock { address: 8, waits: 7, total_ns: 70, ..Lock::default() }];
        add_to_locks(&mut locks, &[one, wait(16, 0, true), wait(24, 0, false)]);
        let [known, new] = &locks[..] else { panic!("{locks:?}") };
        assert_eq!((known.waits, known.total_ns), (7, 70));
        assert_eq!((known.in_progress, known.in_progress_ns), (1, 42));
        assert_eq!(known.stacks[0].stack_id, 5);
        assert_eq!((new.address, new.waits, new.in_progress), (16, 0, 1));
    }
}
