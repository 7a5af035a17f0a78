//! The table of the target's threads.
//!
//! A thread's entry is written by the programs that the thread itself runs (uprobes), by its own
//! switches, and by its wakers. Its switches never run beside anything of the thread's, but they
//! do run *inside* its uprobe programs, which can be preempted: see [`begin`] and [`close`]. Wakers only write the fields that are theirs (`wake_ns`, `waker`).

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::helpers::generated::bpf_get_current_task_btf;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap};
use core::sync::atomic::{Ordering, compiler_fence};
use latency_common::counter::Counter;
use latency_common::ledger::{Ledger, off_cpu};
use latency_common::thread::ThreadState;

use crate::calls::elapsed_since;
use crate::counters::count;
use crate::{globals, sched};

/// By thread id, in the initial PID namespace.
#[map]
static THREADS: HashMap<u32, ThreadState> = HashMap::with_max_entries(16_384, 0);

/// `[0]`: what a new entry holds, zeros. The programs' stacks have no room for so many.
#[map]
static NEW_THREAD: Array<ThreadState> = Array::with_max_entries(1, 0);

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
    if let Some(new) = NEW_THREAD.get(0) {
        let _ = THREADS.insert(tid, new, BPF_NOEXIST.into());
    }
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

/// Looks whether the current thread's switch in was missed, and reports the wait before it: so
/// comes before its calls are looked at.
///
/// # Safety
/// `thread` is the current thread's entry.
#[inline(always)]
pub unsafe fn notice_missed_switch(thread: *mut ThreadState) {
    if !globals::ledger() {
        return;
    }
    // SAFETY: a live map value. Its other writers are this thread's switches, which come between
    // two instructions of this program or not at all, as a signal handler would.
    let thread = unsafe { &mut *thread };
    if matches!(thread.timeline.state, off_cpu::UNKNOWN | off_cpu::ON_CPU) {
        return;
    }
    // SAFETY: no preconditions.
    if let Some(off) = thread.timeline.recover(unsafe { bpf_ktime_get_ns() }) {
        count(Counter::MissedSwitch);
        sched::report(thread, &off);
    }
}

/// The current thread's running ledger at `start_ns`, when it entered a function; with its page
/// faults.
///
/// # Safety
/// `thread` is the current thread's entry.
#[inline(always)]
pub unsafe fn begin(thread: *mut ThreadState, start_ns: u64) -> Ledger {
    if !globals::ledger() {
        return Ledger::default();
    }
    // SAFETY: as in `notice_missed_switch`.
    let thread = unsafe { &mut *thread };
    let mut base = Ledger::default();
    for _ in 0..ATTEMPTS {
        let sequence = sequence_of(thread);
        base = thread.timeline.begin(start_ns);
        // A switch meanwhile changed what was copied before it.
        if sequence_of(thread) == sequence {
            break;
        }
    }
    [base.minor_faults, base.major_faults] = faults();
    base
}

/// The ledger of the current thread's call that began at `start_ns` with `base`, and its duration
/// until now, in nanoseconds.
///
/// # Safety
/// `thread` is the current thread's entry.
#[inline(always)]
pub unsafe fn close(thread: *mut ThreadState, start_ns: u64, base: &Ledger) -> (Ledger, u64) {
    if !globals::ledger() {
        let duration_ns = elapsed_since(start_ns);
        return (Ledger::untold(duration_ns), duration_ns);
    }
    // SAFETY: as in `notice_missed_switch`.
    let thread = unsafe { &mut *thread };
    let [minor_faults, major_faults] = faults();
    let mut closed = (Ledger::default(), start_ns);
    for _ in 0..ATTEMPTS {
        let sequence = sequence_of(thread);
        closed = thread.timeline.closed(start_ns + elapsed_since(start_ns));
        if sequence_of(thread) == sequence {
            break;
        }
    }
    let (now, end_ns) = (Ledger { minor_faults, major_faults, ..closed.0 }, closed.1);
    (now.since(base), end_ns.wrapping_sub(start_ns))
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
