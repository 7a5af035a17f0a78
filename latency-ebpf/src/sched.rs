//! Switches and wakeups of the target's threads.
//!
//! Run queue time starts at `sched_waking`, not at `sched_wakeup`: it runs in the waker, so that
//! it tells who that is, while the latter may run in an interrupt on the CPU of the woken thread;
//! and the time between the two (the interrupt that asks the other CPU to run the thread) is time
//! in which the thread waits for a CPU. `perf sched timehist` counts likewise. A new thread's
//! first wakeup (`sched_wakeup_new`) is not traced: no operation can have begun before it.
//!
//! Both programs get the tasks' pointers from the tracepoint and read their ids at the offsets
//! that the loader found; a switch between two tasks of other processes costs two loads and two
//! comparisons. That is why they are BTF tracepoints: a raw tracepoint has to call a helper for
//! each load, and takes twice as long.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::generated::bpf_get_smp_processor_id;
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_probe_read_user};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, PerCpuArray};
use aya_ebpf::programs::BtfTracePointContext;
use latency_common::counter::Counter;
use latency_common::ledger::{OffCpu, off_cpu};
use latency_common::record::{WaitRecord, wait_flag};
use latency_common::thread::{ThreadState, WaitStart, WaitTotals, Waker};
use latency_common::unwind::CaptureContext;
use latency_common::wait::{
    self, NO_SYSCALL, futex, futex_command, is_futex_wait, task_state, waker_flag,
};

use crate::calls::RECORDS;
use crate::counters::{add, count};
use crate::task::{Entry, IDLE_TID, Task, is_interrupt_stack, register};
use crate::{globals, identity, threads, unwind};

/// `[0]`: when tracing began, in nanoseconds; 0 until the loader sets it, with everything attached.
#[map]
static TRACE_START: Array<u64> = Array::with_max_entries(1, 0);

/// Sums over all waits, the short ones too.
#[map]
static WAIT_TOTALS: PerCpuArray<WaitTotals> = PerCpuArray::with_max_entries(WaitTotals::ENTRIES, 0);

/// A switch on this CPU, from the current task to another.
#[inline(always)]
pub fn switch(ctx: &BtfTracePointContext) {
    let Some(target) = identity::target_kernel_tgid() else { return };
    let (previous, next) = (Task::new(ctx.arg(1)), Task::new(ctx.arg(2)));
    let leaves = previous.is_of(target);
    let comes = next.is_of(target);
    if !leaves && !comes {
        return;
    }
    // SAFETY: no preconditions. One reading for both: the CPU changes hands at one moment.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if leaves {
        leave(ctx, previous, now_ns);
    }
    if comes {
        come(next, now_ns);
    }
}

#[inline(always)]
fn leave(ctx: &BtfTracePointContext, task: Task, now_ns: u64) {
    let tid = task.tid();
    let preempted = ctx.arg::<u64>(0) & 0xff != 0;
    let state = if globals::switch_has_prev_state() {
        u64::from(ctx.arg::<u32>(3))
    } else {
        // Older kernels do not pass it. A waker may have changed it by now; what it changed it
        // to is neither interruptible nor uninterruptible, and becomes "other".
        u64::from(task.read(globals::task_state_offset()))
    };
    if !preempted && state & task_state::DEAD != 0 {
        threads::remove(tid);
        return;
    }
    let Some(thread) = threads::get_or_insert(tid) else { return };
    // SAFETY: a live map value; the thread itself is switching, so that no other program of its
    // own runs, and its wakers write other fields.
    let thread = unsafe { &mut *thread };
    if thread.timeline.is_off_cpu() {
        threads::recover(thread, task, now_ns);
    }
    thread.keep_bases();
    if thread.wait.tid == 0 {
        thread.wait.tid = identity::current_tid();
    }
    let reason = if preempted || state == 0 {
        thread.wait.syscall = NO_SYSCALL;
        thread.wait.futex_address = 0;
        thread.wait.flags = 0;
        if globals::has_task_pt_regs() {
            thread.wait.futex_value = register!(task.registers(), rip) as u32;
            thread.wait.flags = wait_flag::IP_READ.into();
        }
        off_cpu::PREEMPTED
    } else {
        blocks(task, state, &mut thread.wait)
    };
    thread.wait.stack_id = capture_stack();
    thread.timeline.run_delay_ns = task.run_delay_ns().unwrap_or(0);
    if thread.timeline.switch_out(now_ns, reason) {
        count(Counter::ClockBackwards);
    }
}

/// The stack of the thread that leaves the CPU. Here it is `current`, so that its memory can be
/// read; when it comes back it is too late, since the other task still runs.
#[inline(always)]
fn capture_stack() -> u64 {
    if !globals::stacks() {
        return 0;
    }
    unwind::capture(CaptureContext::Scheduler, globals::target_tgid())
}

/// Fills in what the task, which is the current one, blocks for; returns the reason.
#[inline(always)]
fn blocks(task: Task, state: u64, wait: &mut WaitStart) -> u32 {
    let command = describe(task, wait);
    let is_futex = is_futex_wait(wait.syscall, command);
    let reason = wait::reason(false, state, is_futex);
    if reason == off_cpu::LOCK {
        read_futex(wait);
    } else {
        wait.futex_address = 0;
    }
    reason
}

/// Fills in the system call and its futex; returns the futex command.
#[inline(always)]
fn describe(task: Task, wait: &mut WaitStart) -> u32 {
    wait.flags = 0;
    wait.futex_address = 0;
    wait.futex_command = futex::NONE;
    wait.syscall = NO_SYSCALL;
    if !globals::has_task_pt_regs() {
        return futex::NONE;
    }
    let regs = task.registers();
    let Entry::Syscall(number) = Entry::of(regs) else { return futex::NONE };
    wait.syscall = number;
    wait.futex_address = register!(regs, rdi);
    if wait.syscall == wait::syscall::FUTEX {
        wait.futex_command = futex_command(register!(regs, rsi));
    }
    wait.futex_command
}

/// Reads the futex word and the word where glibc's mutexes keep their owner, from the current
/// task's memory. Whether there is an owner at all is for user space to judge.
#[inline(always)]
fn read_futex(wait: &mut WaitStart) {
    if wait.syscall == wait::syscall::FUTEX_WAITV {
        // The argument is an array of `struct futex_waitv { u64 val, uaddr; u32 flags, … }`.
        // SAFETY: the helper checks the address.
        wait.futex_address =
            unsafe { bpf_probe_read_user((wait.futex_address + 8) as *const u64) }.unwrap_or(0);
    }
    // SAFETY: the helper checks the address.
    if let Ok([value, _, owner, _]) =
        unsafe { bpf_probe_read_user(wait.futex_address as *const [u32; 4]) }
    {
        wait.futex_value = value;
        wait.futex_owner = owner;
        wait.flags |= u32::from(wait_flag::VALUE_READ | wait_flag::OWNER_READ);
        return;
    }
    // The last words of a mapping have no neighbour.
    // SAFETY: as above.
    if let Ok(value) = unsafe { bpf_probe_read_user(wait.futex_address as *const u32) } {
        wait.futex_value = value;
        wait.flags |= u32::from(wait_flag::VALUE_READ);
    }
}

#[inline(always)]
fn come(task: Task, now_ns: u64) {
    // A thread without an entry is new, or was runnable when the trace began.
    let Some(thread) = threads::get(task.tid()) else { return };
    // SAFETY: a live map value; the thread does not run yet, and is no longer to be woken.
    let thread = unsafe { &mut *thread };
    // SAFETY: no preconditions.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    thread.keep_bases();
    let off = thread.timeline.switch_in(now_ns, cpu);
    if off.clock_backwards {
        count(Counter::ClockBackwards);
    }
    match off.state {
        // The entry is one that the thread's own probe made.
        off_cpu::UNKNOWN => {}
        off_cpu::ON_CPU => count(Counter::MissedSwitch),
        _ => report(thread, &off),
    }
    thread.waker = Waker::default();
}

/// Adds up one time off the CPU, and sends it if it is worth it. A function of its own: the programs' stacks have no room for the record.
#[inline(never)]
pub fn report(thread: &ThreadState, off: &OffCpu) {
    let in_request = globals::requests() && thread.request.start_ns != 0;
    let is_inside = thread.call.start_ns != 0 || in_request;
    if let Some(totals) = WAIT_TOTALS.get_ptr_mut(WaitTotals::index(off.state, is_inside)) {
        // SAFETY: a map value just looked up.
        unsafe {
            add(&raw mut (*totals).count, 1);
            add(&raw mut (*totals).blocked_ns, off.blocked_ns);
            add(&raw mut (*totals).runnable_ns, off.runnable_ns);
        }
    }
    let always = is_inside && off.state != off_cpu::PREEMPTED;
    if !always && off.blocked_ns + off.runnable_ns < globals::min_wait_ns() {
        return;
    }
    let record = WaitRecord::new(thread, off, globals::target_tgid());
    match RECORDS.reserve::<WaitRecord>(0) {
        Some(mut entry) => {
            entry.write(record);
            entry.submit(BPF_RB_NO_WAKEUP.into());
        }
        None => count(Counter::LostWaitRecords),
    }
}

/// A thread is about to be made runnable, by the current task or an interrupt on top of it.
#[inline(always)]
pub fn waking(ctx: &BtfTracePointContext) {
    let Some(target) = identity::target_kernel_tgid() else { return };
    let task = Task::new(ctx.arg(0));
    if !task.is_of(target) {
        return;
    }
    // First: what this program takes is time in which the thread is runnable.
    // SAFETY: no preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let tid = task.tid();
    let thread = match threads::get(tid) {
        Some(thread) => thread,
        None => match blocked_before_trace(task, tid) {
            Some(thread) => thread,
            None => return,
        },
    };
    // SAFETY: a live map value; the kernel lets one waker at a time try, and a thread that waits
    // writes nothing. Its switch may still be running: it writes other fields.
    let thread = unsafe { &mut *thread };
    let ids = identity::Current::any();
    let current = ids.task;
    thread.waker = Waker {
        stack_id: waker_stack(&ids),
        tgid: ids.tgid,
        tid: ids.tid,
        syscall: NO_SYSCALL,
        flags: u32::from(waker_flag::SEEN),
    };
    if globals::has_task_pt_regs() {
        let regs = current.registers();
        match Entry::of(regs) {
            Entry::Syscall(number) if !is_interrupt_stack(ctx, regs) => {
                thread.waker.syscall = number;
            }
            Entry::None if current.tid() != IDLE_TID && !is_interrupt_stack(ctx, regs) => {}
            _ => thread.waker.flags |= u32::from(waker_flag::INTERRUPT),
        }
    }
    thread.timeline.wake(now_ns);
}

/// The stack of the thread that wakes another, if it is one of the target's: of other processes
/// there are no unwind rows. A context of its own: an interrupt may wake a thread while another
/// wakeup is traced on this CPU.
#[inline(always)]
fn waker_stack(waker: &identity::Current) -> u64 {
    if !globals::stacks() || waker.tgid != globals::target_tgid() {
        return 0;
    }
    unwind::capture(CaptureContext::Wakeup, waker.tgid)
}

/// An entry for a thread that blocked before the trace began, as the first sight of it shows: a
/// new or a runnable thread is not woken. Its wait counts from the start of the trace.
#[inline(always)]
fn blocked_before_trace(task: Task, tid: u32) -> Option<*mut ThreadState> {
    // The waker can be faster than the thread that is about to block: then that one still runs,
    // and its own switch is going to tell of it.
    if globals::task_on_cpu_offset() != 0 && task.read(globals::task_on_cpu_offset()) != 0 {
        return None;
    }
    let trace_start_ns = TRACE_START.get(0).copied().filter(|start_ns| *start_ns != 0)?;
    let pointer = threads::get_or_insert(tid)?;
    // SAFETY: a live map value; the thread waits, and this is its waker.
    let thread = unsafe { &mut *pointer };
    let command = describe(task, &mut thread.wait);
    let is_futex = is_futex_wait(thread.wait.syscall, command);
    let state = u64::from(task.read(globals::task_state_offset()));
    let reason = wait::reason(false, state, is_futex);
    if reason != off_cpu::LOCK || thread.wait.syscall == wait::syscall::FUTEX_WAITV {
        thread.wait.futex_address = 0;
    }
    thread.wait.flags = u32::from(wait_flag::BEGAN_BEFORE_TRACE);
    thread.wait.tid = if globals::pid_namespace_inode() == 0 { tid } else { 0 };
    thread.timeline.state = reason;
    thread.timeline.since_ns = trace_start_ns;
    thread.timeline.run_delay_ns = task.run_delay_ns().unwrap_or(0);
    Some(pointer)
}
