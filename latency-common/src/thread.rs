//! What the kernel side keeps of each thread of the target, and sums up over all of them.

use crate::ledger::{Base, Timeline};
use crate::operation::OpenCall;
use crate::record::Inside;

/// One thread: a value of the `THREADS` array. All zeros: nothing is known of it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct ThreadState {
    /// Where the open call's ledger begins. What every operation looks at lies side by side from the end of
    /// this to the begin of `timeline`: each further cache line costs it some 10 ns.
    pub call_base: Base,
    /// Its id in the initial PID namespace; 0: this entry is no thread's.
    pub owner: u32,
    #[doc(hidden)]
    pub _pad: u32,
    /// Its open outermost call.
    pub call: OpenCall,
    /// Its scheduler state.
    pub timeline: Timeline,
    /// What it waits for, or waited for last.
    pub wait: WaitStart,
    /// Who woke it last.
    pub waker: Waker,
    /// Its open outermost request.
    pub request: OpenCall,
    /// Where the open request's ledger begins.
    pub request_base: Base,
    /// What the operations inside the open request took so far.
    pub inside: Inside,
}

const _: () = assert!(size_of::<ThreadState>() == 96 + 8 + 40 + 120 + 40 + 24 + 40 + 96 + 176);

impl ThreadState {
    /// The timeline is about to move on: for a switch, comes before all that [`Timeline`] is told.
    #[inline(always)]
    pub fn keep_bases(&mut self) {
        if self.call.start_ns != 0 {
            self.call_base.keep(&self.timeline, self.call.start_ns);
        }
        if self.request.start_ns != 0 {
            self.request_base.keep(&self.timeline, self.request.start_ns);
        }
    }
}

/// What is known of a wait when it begins.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct WaitStart {
    /// See [`crate::record::WaitRecord::futex_address`].
    pub futex_address: u64,
    /// See [`crate::record::WaitRecord::stack_id`].
    pub stack_id: u64,
    /// The thread, in the tracer's PID namespace.
    pub tid: u32,
    /// The system call, or [`crate::wait::NO_SYSCALL`].
    pub syscall: i32,
    /// See [`crate::wait::futex`].
    pub futex_command: u32,
    /// See [`crate::record::WaitRecord::futex_value`].
    pub futex_value: u32,
    /// See [`crate::record::WaitRecord::futex_owner`].
    pub futex_owner: u32,
    /// See [`crate::record::wait_flag`].
    pub flags: u32,
}

const _: () = assert!(size_of::<WaitStart>() == 40);

/// Who made a thread runnable.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Waker {
    /// See [`crate::record::WaitRecord::waker_stack_id`].
    pub stack_id: u64,
    /// Its process, in the tracer's PID namespace.
    pub tgid: u32,
    /// The thread, likewise.
    pub tid: u32,
    /// See [`crate::record::WaitRecord::waker_syscall`].
    pub syscall: i32,
    /// See [`crate::wait::waker_flag`].
    pub flags: u32,
}

const _: () = assert!(size_of::<Waker>() == 24);

/// Sums of all waits with one reason, inside operations or outside, on one CPU: a value of the
/// `WAIT_TOTALS` map, whose index [`WaitTotals::index`] tells.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct WaitTotals {
    /// Number of waits.
    pub count: u64,
    /// Time blocked, in nanoseconds.
    pub blocked_ns: u64,
    /// Time runnable without running, in nanoseconds.
    pub runnable_ns: u64,
}

impl WaitTotals {
    /// Size of the map.
    pub const ENTRIES: u32 = crate::ledger::off_cpu::COUNT * 2;

    /// Index of the sums for this reason (see [`crate::ledger::off_cpu`]).
    #[inline(always)]
    pub const fn index(reason: u32, in_operation: bool) -> u32 {
        reason * 2 + in_operation as u32
    }
}
