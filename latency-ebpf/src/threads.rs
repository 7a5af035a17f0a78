//! The table of the target's threads.
//!
//! A thread's entry is written by the programs that the thread itself runs (uprobes), by its own
//! switches, and by its wakers. Its switches never run beside anything of the thread's, but they
//! do run *inside* its uprobe programs, which can be preempted: see [`open`] and [`close`]. Wakers only write the fields that are theirs (`wake_ns`, `waker`).

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, Stack};
use core::sync::atomic::{Ordering, compiler_fence};
use latency_common::counter::Counter;
use latency_common::ledger::{Base, Ledger};
use latency_common::operation::OpenCall;
use latency_common::thread::{ThreadState, Waker};

use crate::calls::elapsed_since;
use crate::counters::count;
use crate::task::Task;
use crate::{globals, sched, slots};

/// By slot. The loader sets the size, of this and the two maps after it.
#[map]
static THREADS: Array<ThreadState> = Array::with_max_entries(16_384, 0);

/// The slot of each thread, by its id in the initial PID namespace.
#[map]
static THREAD_SLOTS: HashMap<u32, u32> = HashMap::with_max_entries(16_384, 0);

/// Slots whose thread has ended.
#[map]
static FREE_SLOTS: Stack<u32> = Stack::with_max_entries(16_384, 0);

/// `[0]`: how many slots were ever in use, and how many there are; the loader sets both. Slot 0
/// ([`slots::NONE`]) is no thread's.
#[map]
static USED_SLOTS: Array<[u32; 2]> = Array::with_max_entries(1, 0);

/// The slots found last, by the low bits of the thread id. Only a hint, which [`ThreadState::owner`]
/// confirms: a look into an array costs next to nothing, one into a hash table some 60 ns, and an
/// operation takes two. Not a map of its own: an address known to the compiler is cheaper still.
static mut RECENT_THREADS: [u32; RECENT as usize] = [slots::NONE; RECENT as usize];
const RECENT: u32 = 4096;

/// `[0]`: what a new entry holds, zeros. The programs' stacks have no room for so many.
#[map]
static NEW_THREAD: Array<ThreadState> = Array::with_max_entries(1, 0);

/// How often a program looks again when the thread was switched out while it looked: each time
/// takes some 20 ns, so that two switches in a row within it do not happen.
const ATTEMPTS: u32 = 3;

/// A thread's entry, if there is one.
#[inline(always)]
pub fn get(tid: u32) -> Option<*mut ThreadState> {
    // SAFETY: inside the table.
    let recent = unsafe { (&raw mut RECENT_THREADS).cast::<u32>().add((tid % RECENT) as usize) };
    // SAFETY: one load, and a map value just looked up.
    if let Some(thread) = THREADS.get_ptr_mut(unsafe { *recent })
        && unsafe { (*thread).owner } == tid
        && tid != 0
    {
        return Some(thread);
    }
    // SAFETY: plain integers.
    let slot = *unsafe { THREAD_SLOTS.get(tid) }?;
    // SAFETY: as above.
    unsafe { *recent = slot };
    THREADS.get_ptr_mut(slot)
}

/// A thread's entry, new if there was none; `None` when the table is full.
#[inline(always)]
pub fn get_or_insert(tid: u32) -> Option<*mut ThreadState> {
    if let Some(thread) = get(tid) {
        return Some(thread);
    }
    let thread = match insert(tid) {
        slots::NONE => None,
        slot => THREADS.get_ptr_mut(slot),
    };
    if thread.is_none() {
        count(Counter::ThreadTableFull);
    }
    thread
}

/// Gives a thread a slot; [`slots::NONE`] when the table is full. A function of its own: it is run once
/// a thread, and the programs that might have to are large.
#[inline(never)]
fn insert(tid: u32) -> u32 {
    let slot = match FREE_SLOTS.pop() {
        Ok(Some(slot)) => slot,
        _ => slots::next(&USED_SLOTS),
    };
    let (Some(thread), Some(new)) = (THREADS.get_ptr_mut(slot), NEW_THREAD.get(0)) else {
        return slots::NONE;
    };
    if slot == slots::NONE {
        return slots::NONE;
    }
    let _ = THREADS.set(slot, new, 0);
    // SAFETY: a map value just looked up; the slot is nobody else's yet.
    unsafe { (*thread).owner = tid };
    if THREAD_SLOTS.insert(tid, slot, BPF_NOEXIST.into()).is_ok() {
        return slot;
    }
    // The thread's own switch inserted it first, inside of this program: then that entry counts.
    free(slot);
    // SAFETY: plain integers.
    unsafe { THREAD_SLOTS.get(tid) }.copied().unwrap_or(slots::NONE)
}

/// Forgets a thread.
#[inline(always)]
pub fn remove(tid: u32) {
    // SAFETY: plain integers.
    let Some(slot) = (unsafe { THREAD_SLOTS.get(tid) }).copied() else { return };
    // Who deletes it owns the slot: the end of a thread is seen twice.
    if THREAD_SLOTS.remove(tid).is_ok() {
        free(slot);
    }
}

#[inline(always)]
fn free(slot: u32) {
    if let Some(thread) = THREADS.get_ptr_mut(slot) {
        // SAFETY: a map value just looked up.
        unsafe { (*thread).owner = 0 };
    }
    // There is room for every slot.
    let _ = FREE_SLOTS.push(slot, 0);
}

/// Looks whether the current thread's switch in was missed, and reports the wait before it: so
/// comes before its calls are looked at.
///
/// # Safety
/// `thread` is the current thread's entry, and `task` its task.
#[inline(always)]
pub unsafe fn notice_missed_switch(thread: *mut ThreadState, task: Task) {
    if !globals::ledger() {
        return;
    }
    // SAFETY: a live map value. Its other writers are this thread's switches, which come between
    // two instructions of this program or not at all, as a signal handler would.
    let thread = unsafe { &mut *thread };
    if thread.timeline.is_off_cpu() {
        // SAFETY: no preconditions.
        recover(thread, task, unsafe { bpf_ktime_get_ns() });
    }
}

/// Makes up for a switch in of this thread, whose task it is, that was missed before `now_ns`. A function
/// of its own: it is seldom called, and inside of the programs it tripled what the verifier has to look
/// at.
#[inline(never)]
pub fn recover(thread: &mut ThreadState, task: Task, now_ns: u64) {
    thread.keep_bases();
    if let Some(off) = thread.timeline.recover(now_ns, task.run_delay_ns()) {
        count(Counter::MissedSwitch);
        sched::report(thread, &off);
        thread.waker = Waker::default();
    }
}

/// Opens a call of the current thread's whose entry was seen at `start_ns`, all of which but its time is
/// written already.
///
/// # Safety
/// `call` and `base` are parts of `thread`, the current thread's entry, and `task` is its task.
#[inline(always)]
pub unsafe fn open(
    thread: *mut ThreadState,
    call: *mut OpenCall,
    base: *mut Base,
    task: Task,
    start_ns: u64,
) {
    // SAFETY: as in `notice_missed_switch`. Volatile: a switch that comes between looks at it.
    let mark_open = |start_ns| unsafe { (&raw mut (*call).start_ns).write_volatile(start_ns) };
    if !globals::ledger() {
        mark_open(start_ns);
        return;
    }
    // SAFETY: as in `notice_missed_switch`.
    unsafe { (*thread).timeline.runs(start_ns) };
    let faults = task.faults();
    let mut sequence = sequence_of(thread);
    for _ in 0..ATTEMPTS {
        // SAFETY: the caller's.
        let begin_ns = unsafe {
            (*base).mark(sequence, faults);
            (*thread).timeline.begin_ns(start_ns)
        };
        compiler_fence(Ordering::SeqCst);
        mark_open(begin_ns);
        let now = sequence_of(thread);
        if now == sequence {
            break;
        }
        sequence = now;
    }
}

/// The minor page faults of the current thread's call that began with `base`, if that is all that its
/// ledger would tell beside its duration; 0 if no ledger is kept.
///
/// # Safety
/// As for [`close`].
#[inline(always)]
pub unsafe fn undisturbed(
    thread: *const ThreadState,
    base: *const Base,
    task: Task,
) -> Option<u32> {
    if !globals::ledger() {
        return Some(0);
    }
    // SAFETY: the caller's; as in `notice_missed_switch`.
    unsafe { (*base).undisturbed(&(*thread).timeline, task.faults()) }
}

/// Closes the current thread's call if it is undisturbed still; its duration in nanoseconds.
///
/// # Safety
/// As for [`close`].
#[inline(always)]
pub unsafe fn close_undisturbed(
    thread: *const ThreadState,
    call: *mut OpenCall,
    base: *const Base,
    start_ns: u64,
) -> Option<u64> {
    let duration_ns = elapsed_since(start_ns);
    // SAFETY: the caller's.
    if globals::ledger() && sequence_of(thread) != unsafe { (*base).sequence } {
        return None;
    }
    // SAFETY: the caller's.
    unsafe { (*call).close() };
    Some(duration_ns)
}

/// Closes the current thread's call that began at `start_ns` with `base`; its ledger, and its duration in
/// nanoseconds.
///
/// It is closed after its ledger is: a switch between has to keep the ledger of the begin, and its
/// wait is in both the call and its ledger.
///
/// # Safety
/// `call` and `base` are parts of `thread`, the current thread's entry, and `task` is its task.
#[inline(always)]
pub unsafe fn close(
    thread: *mut ThreadState,
    call: *mut OpenCall,
    base: *const Base,
    task: Task,
    start_ns: u64,
) -> (Ledger, u64) {
    if !globals::ledger() {
        let duration_ns = elapsed_since(start_ns);
        // SAFETY: the caller's.
        unsafe { (*call).close() };
        return (Ledger::untold(duration_ns), duration_ns);
    }
    let faults = task.faults();
    let mut closed = (Ledger::default(), start_ns);
    for _ in 0..ATTEMPTS {
        let sequence = sequence_of(thread);
        let end_ns = start_ns + elapsed_since(start_ns);
        // SAFETY: the caller's; as in `notice_missed_switch`.
        closed = unsafe { (*base).closed(&(*thread).timeline, start_ns, end_ns, faults) };
        // A switch meanwhile changed what was read before it.
        if sequence_of(thread) == sequence {
            break;
        }
    }
    // SAFETY: the caller's.
    unsafe { (*call).close() };
    (closed.0, closed.1.wrapping_sub(start_ns))
}

/// Reads the sequence between, not among, the other accesses.
#[inline(always)]
fn sequence_of(thread: *const ThreadState) -> u32 {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: a field of a live map value; volatile, since a switch may change it at any time.
    let sequence = unsafe { core::ptr::read_volatile(&raw const (*thread).timeline.sequence) };
    compiler_fence(Ordering::SeqCst);
    sequence
}
