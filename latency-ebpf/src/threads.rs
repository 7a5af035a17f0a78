//! The table of the target's threads.
//!
//! A thread's entry is written by the programs that the thread itself runs (uprobes), by its own
//! switches, and by its wakers. Its switches never run beside anything of the thread's, but they
//! do run *inside* its uprobe programs, which can be preempted: see [`begin_operation`] and
//! [`close_operation`]. Wakers only write the fields that are theirs (`wake_ns`, `waker`).

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::generated::bpf_get_current_task_btf;
use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use core::sync::atomic::{Ordering, compiler_fence};
use latency_common::counter::Counter;
use latency_common::ledger::Ledger;
use latency_common::operation::OpenCall;
use latency_common::thread::ThreadState;

use crate::calls::elapsed_ns;
use crate::counters::count;
use crate::{globals, sched};

/// By thread id, in the initial PID namespace.
#[map]
static THREADS: HashMap<u32, ThreadState> = HashMap::with_max_entries(16_384, 0);

/// How often a program looks again when the thread was switched out while it looked: each time
/// takes some 20 ns, so that two switches in a row within it do not happen.
const ATTEMPTS: u32 = 3;

/// A thread's entry, if there is one.
#[inline(always)]
pub fn get(tid: u32) -> Option<*mut ThreadState> {
    THREADS.get_ptr_mut(tid)
}

/// A thread's entry, new if there was none; `None` when the table is full.
#[inline(always)]
pub fn get_or_insert(tid: u32) -> Option<*mut ThreadState> {
    if let Some(thread) = THREADS.get_ptr_mut(tid) {
        return Some(thread);
    }
    // The thread's own switch may insert it first, inside of this program: then its entry counts.
    let _ = THREADS.insert(tid, ThreadState::default(), BPF_NOEXIST.into());
    let thread = THREADS.get_ptr_mut(tid);
    if thread.is_none() {
        count(Counter::ThreadTableFull);
    }
    thread
}

/// Forgets a thread.
#[inline(always)]
pub fn remove(tid: u32) {
    let _ = THREADS.remove(tid);
}

/// Begins an operation of the current thread, which was entered at `start_ns`: zeroes its ledger,
/// and sets `call.start_ns`.
///
/// # Safety
/// `thread` is the current thread's entry.
#[inline(always)]
pub unsafe fn begin_operation(thread: *mut ThreadState, start_ns: u64) {
    // SAFETY: a live map value. Its other writers are this thread's switches, which come between
    // two instructions of this program or not at all, as a signal handler would.
    let thread = unsafe { &mut *thread };
    if !globals::ledger() {
        thread.call.start_ns = start_ns;
        return;
    }
    thread.faults_at_start = faults();
    for _ in 0..ATTEMPTS {
        let sequence = sequence_of(thread);
        let came_back_ns = thread.timeline.since_ns;
        thread.timeline.begin(start_ns);
        // Switched out since the entry: a program is preempted, it never blocks. Its time before
        // that, less than a microsecond, is not worth another clock reading.
        if let Some(preempted_ns) = came_back_ns.checked_sub(start_ns) {
            thread.timeline.since_ns = came_back_ns;
            thread.timeline.ledger.preempted_ns = preempted_ns;
        }
        thread.call.start_ns = start_ns;
        // A switch meanwhile found half of this: its interval is in the ledger in part, or not
        // at all. Then begin again.
        if sequence_of(thread) == sequence {
            break;
        }
    }
}

/// The ledger of the current thread's operation, which is returning as `call`, and the
/// operation's duration until now, in nanoseconds.
///
/// # Safety
/// `thread` is the current thread's entry.
#[inline(always)]
pub unsafe fn close_operation(thread: *mut ThreadState, call: &OpenCall) -> (Ledger, u64) {
    if !globals::ledger() {
        let duration_ns = elapsed_ns(call);
        return (Ledger::untold(duration_ns), duration_ns);
    }
    // SAFETY: as in `begin_operation`.
    let thread = unsafe { &mut *thread };
    let now = faults();
    let mut closed = (Ledger::default(), call.start_ns);
    for _ in 0..ATTEMPTS {
        let sequence = sequence_of(thread);
        closed = thread.timeline.closed(call.start_ns + elapsed_ns(call));
        // A switch meanwhile changed what was copied before it.
        if sequence_of(thread) == sequence {
            break;
        }
    }
    let mut timeline = thread.timeline;
    if let Some(off) = timeline.recover(closed.1) {
        // It runs, and so came back unseen. Told here, since nothing later knows the operation.
        count(Counter::MissedSwitch);
        sched::report(thread, &off, call);
        thread.timeline.begin(closed.1);
    }
    let (minor, major) = (thread.faults_at_start[0], thread.faults_at_start[1]);
    closed.0.minor_faults = now[0].wrapping_sub(minor);
    closed.0.major_faults = now[1].wrapping_sub(major);
    (closed.0, closed.1.wrapping_sub(call.start_ns))
}

/// Reads the sequence between, not among, the other accesses.
#[inline(always)]
fn sequence_of(thread: &ThreadState) -> u32 {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: a field of a live map value; volatile, since a switch may change it at any time.
    let sequence = unsafe { core::ptr::read_volatile(&raw const thread.timeline.sequence) };
    compiler_fence(Ordering::SeqCst);
    sequence
}

/// Page faults of the current thread so far: minor and major.
#[inline(always)]
fn faults() -> [u32; 2] {
    let (minor, major) = (globals::task_min_flt_offset(), globals::task_maj_flt_offset());
    if minor == 0 || major == 0 {
        return [0; 2];
    }
    // SAFETY: the kernel gives a pointer to the running task, whose fields lie at these offsets;
    // the verifier checks them.
    unsafe {
        let task = bpf_get_current_task_btf().cast::<u8>();
        [
            core::ptr::read_volatile(task.add(minor as usize).cast::<u64>()) as u32,
            core::ptr::read_volatile(task.add(major as usize).cast::<u64>()) as u32,
        ]
    }
}
