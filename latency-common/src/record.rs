//! The records that cross the kernel boundary through the ring buffer.
//!
//! Each record starts with its [`kind`]. Kinds are append-only and their layouts fixed; integers
//! are in the host's byte order (the kernel writes what the same machine reads).

/// Record kinds: the first 4 bytes of every record.
pub mod kind {
    /// An [`super::OperationRecord`].
    pub const OPERATION: u32 = 1;
    /// A [`super::StackHeader`] and the stack's frames.
    pub const STACK: u32 = 2;
    /// A [`super::WaitRecord`].
    pub const WAIT: u32 = 3;
    /// A [`crate::sample::SampleRecord`].
    pub const SAMPLE: u32 = 4;
    /// A [`super::RequestRecord`].
    pub const REQUEST: u32 = 5;
    /// A [`super::BriefRecord`] of an operation that was on the CPU throughout.
    pub const BRIEF: u32 = 6;
    /// A [`super::BriefRecord`] of an operation whose ledger is not kept.
    pub const BRIEF_UNTOLD: u32 = 7;
}

use crate::ledger::{Ledger, OffCpu};
use crate::probe::ProbeCookie;
use crate::thread::ThreadState;
use crate::wait::NO_SYSCALL;

/// How an operation ended.
pub mod outcome {
    /// It did what it was asked to.
    pub const SUCCESS: u8 = 0;
    /// The function answered "no": for a verify, the signature does not match.
    pub const FAILURE: u8 = 1;
    /// The function could not do its work.
    pub const ERROR: u8 = 2;
    /// Not an operation: the caller only asked for the signature's size.
    pub const SIZE_QUERY: u8 = 3;
    /// How many outcomes there are.
    pub const COUNT: u8 = 4;
}

/// One completed outermost call of a probed function.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct OperationRecord {
    /// [`kind::OPERATION`].
    pub kind: u32,
    /// Index of the outermost probe in the plan.
    pub probe: u16,
    /// Index of the operation's name in the plan.
    pub operation: u8,
    /// See [`outcome`].
    pub outcome: u8,
    /// Time of entry, `CLOCK_MONOTONIC`, in nanoseconds.
    pub start_ns: u64,
    /// Wall time from entry to return, in nanoseconds: the sum of the ledger's parts.
    pub duration_ns: u64,
    /// Process, in the tracer's PID namespace; 0: the target, of a record that came as a [`BriefRecord`].
    pub tgid: u32,
    /// Thread, in the tracer's PID namespace.
    pub tid: u32,
    /// See [`crate::algorithm::AlgorithmId`].
    pub algorithm: u32,
    /// Length of the signature in bytes; 0 when not visible.
    pub signature_bytes: u32,
    /// Where the time went.
    pub ledger: Ledger,
}

/// An [`OperationRecord`] of the target's with little to tell: of most, the ledger has one part. A third as
/// long, it costs the target, and the cache that reader and target share, as much less.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct BriefRecord {
    /// [`kind::BRIEF`] or [`kind::BRIEF_UNTOLD`].
    pub kind: u32,
    /// As in [`OperationRecord`], like all that follows.
    pub probe: u16,
    #[doc(hidden)]
    pub operation: u8,
    #[doc(hidden)]
    pub outcome: u8,
    #[doc(hidden)]
    pub start_ns: u64,
    #[doc(hidden)]
    pub duration_ns: u64,
    #[doc(hidden)]
    pub tid: u32,
    #[doc(hidden)]
    pub algorithm: u32,
    #[doc(hidden)]
    pub signature_bytes: u32,
    /// [`Ledger::minor_faults`].
    pub minor_faults: u32,
}

impl BriefRecord {
    /// What it stands for, with this ledger, of a thread of the process `tgid`.
    #[inline(always)]
    pub const fn with(&self, tgid: u32, duration_ns: u64, ledger: Ledger) -> OperationRecord {
        OperationRecord {
            kind: kind::OPERATION,
            probe: self.probe,
            operation: self.operation,
            outcome: self.outcome,
            start_ns: self.start_ns,
            duration_ns,
            tgid,
            tid: self.tid,
            algorithm: self.algorithm,
            signature_bytes: self.signature_bytes,
            ledger,
        }
    }
}

/// One completed outermost call of a request function: what an operation's record has, and what the
/// operations inside it took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct RequestRecord {
    /// As an operation's. `kind` is [`kind::REQUEST`], there is no algorithm and no signature, and
    /// the ledger is of all its time, operations included.
    pub call: OperationRecord,
    /// What the operations inside it took.
    pub inside: Inside,
}

/// The completed operations inside one request, added up.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Inside {
    /// By [`Inside::slot`].
    pub parts: [InnerCalls; Inside::SLOTS],
    /// Their ledgers, added up: together as long as `parts`.
    pub ledger: Ledger,
}

/// Operations of one kind inside a request.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct InnerCalls {
    /// How many.
    pub count: u64,
    /// Their wall time, in nanoseconds.
    pub duration_ns: u64,
}

impl Inside {
    /// Signing, verifying, three of the user's, and all others together.
    pub const SLOTS: usize = 6;

    /// Where operations of this index in the plan are counted.
    #[inline(always)]
    pub const fn slot(operation: u8) -> usize {
        if (operation as usize) < Self::SLOTS { operation as usize } else { Self::SLOTS - 1 }
    }

    /// Adds one operation.
    #[inline(always)]
    pub fn add(&mut self, operation: u8, duration_ns: u64, ledger: &Ledger) {
        let calls = &mut self.parts[Self::slot(operation)];
        calls.count = calls.count.wrapping_add(1);
        calls.duration_ns = calls.duration_ns.wrapping_add(duration_ns);
        self.ledger = self.ledger.plus(ledger);
    }
}

impl WaitRecord {
    /// What `thread` did off the CPU, inside the calls that it has open.
    #[inline(always)]
    pub fn new(thread: &ThreadState, off: &OffCpu, tgid: u32) -> Self {
        let (wait, waker) = (&thread.wait, &thread.waker);
        let mut record = Self {
            kind: kind::WAIT,
            reason: off.state as u8,
            flags: wait.flags as u8,
            waker_flags: waker.flags as u8,
            start_ns: off.start_ns,
            duration_ns: off.blocked_ns,
            run_queue_ns: off.runnable_ns,
            tgid,
            tid: wait.tid,
            waker_tgid: waker.tgid,
            waker_tid: waker.tid,
            waker_syscall: if waker.flags == 0 { NO_SYSCALL } else { waker.syscall },
            syscall: wait.syscall,
            futex_address: wait.futex_address,
            stack_id: wait.stack_id,
            waker_stack_id: waker.stack_id,
            ..Self::default()
        };
        if wait.futex_address != 0 {
            record.futex_command = wait.futex_command;
            record.futex_value = wait.futex_value;
            record.futex_owner = wait.futex_owner;
        } else if record.flags & wait_flag::IP_READ != 0 {
            record.futex_value = wait.futex_value;
        }
        if thread.call.start_ns != 0 {
            let described = ProbeCookie::unpack(thread.call.cookie);
            record.flags |= wait_flag::IN_OPERATION;
            record.operation = described.operation;
            record.probe = described.probe;
            record.operation_start_ns = thread.call.start_ns;
        }
        if thread.request.start_ns != 0 {
            record.flags |= wait_flag::IN_REQUEST;
            record.request = ProbeCookie::unpack(thread.request.cookie).operation;
        }
        record
    }
}

/// Bits of [`WaitRecord::flags`].
pub mod wait_flag {
    /// The wait lies inside the operation that `probe`, `operation` and `operation_start_ns` name.
    pub const IN_OPERATION: u8 = 1;
    /// The wait began before the trace; `start_ns` is the start of the trace.
    pub const BEGAN_BEFORE_TRACE: u8 = 2;
    /// `futex_value` was read.
    pub const VALUE_READ: u8 = 4;
    /// `futex_owner` was read.
    pub const OWNER_READ: u8 = 8;
    /// The wait lies inside the request that `request` names.
    pub const IN_REQUEST: u8 = 16;
    /// Of a preempted thread, `futex_value` has the low half of its user instruction pointer.
    pub const IP_READ: u8 = 32;
}

/// One time that a thread of the target was off the CPU.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct WaitRecord {
    /// [`kind::WAIT`].
    pub kind: u32,
    /// See [`crate::ledger::off_cpu`].
    pub reason: u8,
    /// See [`wait_flag`].
    pub flags: u8,
    /// See [`crate::wait::waker_flag`].
    pub waker_flags: u8,
    /// Index of the surrounding operation's name in the plan.
    pub operation: u8,
    /// When the thread left the CPU, `CLOCK_MONOTONIC`, in nanoseconds.
    pub start_ns: u64,
    /// How long it was blocked, in nanoseconds; 0 when it was preempted.
    pub duration_ns: u64,
    /// How long it was runnable without running after that, in nanoseconds; for a preempted
    /// thread, all the time.
    pub run_queue_ns: u64,
    /// Start of the surrounding operation, as its own record has it; 0 outside of operations.
    pub operation_start_ns: u64,
    /// The waiting thread's process, in the tracer's PID namespace.
    pub tgid: u32,
    /// The waiting thread, in the tracer's PID namespace.
    pub tid: u32,
    /// The process of the thread that ended the wait, likewise; 0 when none was seen, it is in
    /// another PID namespace, or an interrupt of an idle CPU ended it.
    pub waker_tgid: u32,
    /// The thread that ended the wait, or that the interrupt which ended it interrupted; 0
    /// likewise.
    pub waker_tid: u32,
    /// The system call that the waker was in, or [`crate::wait::NO_SYSCALL`].
    pub waker_syscall: i32,
    /// The system call that the thread waited in, or [`crate::wait::NO_SYSCALL`].
    pub syscall: i32,
    /// Address of the futex; 0 when it was no futex wait. Of `futex_waitv`'s futexes, the first.
    pub futex_address: u64,
    /// See [`crate::wait::futex`].
    pub futex_command: u32,
    /// The futex word when the wait began: for the PI commands, the owner's tid in its low 30 bits.
    /// See also [`wait_flag::IP_READ`].
    pub futex_value: u32,
    /// The 32 bits at `futex_address + 8` when the wait began: in glibc's `pthread_mutex_t`, the
    /// owner's tid (sysdeps/nptl/bits/struct_mutex.h).
    pub futex_owner: u32,
    /// Index of the surrounding operation's probe in the plan.
    pub probe: u16,
    /// Index of the surrounding request's name in the plan.
    pub request: u8,
    #[doc(hidden)]
    pub _pad: u8,
    /// The waiting thread's stack when it left the CPU; 0: none was taken.
    pub stack_id: u64,
    /// The waker's stack at the wakeup; 0: none was taken.
    pub waker_stack_id: u64,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<OperationRecord>() == 120);
    assert!(offset_of!(OperationRecord, probe) == 4);
    assert!(offset_of!(OperationRecord, operation) == 6);
    assert!(offset_of!(OperationRecord, outcome) == 7);
    assert!(offset_of!(OperationRecord, start_ns) == 8);
    assert!(offset_of!(OperationRecord, duration_ns) == 16);
    assert!(offset_of!(OperationRecord, tgid) == 24);
    assert!(offset_of!(OperationRecord, tid) == 28);
    assert!(offset_of!(OperationRecord, algorithm) == 32);
    assert!(offset_of!(OperationRecord, signature_bytes) == 36);
    assert!(offset_of!(OperationRecord, ledger) == 40);
};

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<BriefRecord>() == 40);
    assert!(offset_of!(BriefRecord, probe) == 4);
    assert!(offset_of!(BriefRecord, operation) == 6);
    assert!(offset_of!(BriefRecord, outcome) == 7);
    assert!(offset_of!(BriefRecord, start_ns) == 8);
    assert!(offset_of!(BriefRecord, duration_ns) == 16);
    assert!(offset_of!(BriefRecord, tid) == 24);
    assert!(offset_of!(BriefRecord, algorithm) == 28);
    assert!(offset_of!(BriefRecord, signature_bytes) == 32);
    assert!(offset_of!(BriefRecord, minor_faults) == 36);
};

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<WaitRecord>() == 104);
    assert!(offset_of!(WaitRecord, reason) == 4);
    assert!(offset_of!(WaitRecord, start_ns) == 8);
    assert!(offset_of!(WaitRecord, tgid) == 40);
    assert!(offset_of!(WaitRecord, syscall) == 60);
    assert!(offset_of!(WaitRecord, futex_address) == 64);
    assert!(offset_of!(WaitRecord, probe) == 84);
    assert!(offset_of!(WaitRecord, request) == 86);
    assert!(offset_of!(WaitRecord, stack_id) == 88);
};

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<RequestRecord>() == 296);
    assert!(offset_of!(RequestRecord, inside) == 120);
    assert!(offset_of!(Inside, ledger) == 96);
};

/// A stack, sent once and referred to by its id: this header, then `frames` addresses of 8 bytes
/// each, the innermost first. A record that refers to a stack may come before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct StackHeader {
    /// [`kind::STACK`].
    pub kind: u32,
    /// Number of frames: at most [`crate::unwind::MAX_FRAMES`].
    pub frames: u16,
    /// How it ended: the id of a [`crate::unwind::StackEnd`].
    pub end: u8,
    /// See [`stack_flags`].
    pub flags: u8,
    /// The stack's id; never 0.
    pub id: u64,
    /// Process, in the tracer's PID namespace.
    pub tgid: u32,
    #[doc(hidden)]
    pub _pad: u32,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<StackHeader>() == 24);
    assert!(offset_of!(StackHeader, frames) == 4);
    assert!(offset_of!(StackHeader, end) == 6);
    assert!(offset_of!(StackHeader, flags) == 7);
    assert!(offset_of!(StackHeader, id) == 8);
    assert!(offset_of!(StackHeader, tgid) == 16);
};

/// Bits of [`StackHeader::flags`].
pub mod stack_flags {
    /// At least one frame was found by the frame pointer, where no row was known: it may be wrong.
    pub const FRAME_POINTER: u8 = 1;
    /// The frames are the kernel's, at most [`crate::sample::MAX_KERNEL_FRAMES`]: the part of a
    /// stack above a user stack of its own.
    pub const KERNEL: u8 = 2;
}

/// Which kernel histogram counts an operation whose record is lost: a key of the `HISTOGRAM_SLOTS` map.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotKey {
    /// Index of the operation's name in the plan.
    pub operation: u8,
    /// See [`outcome`].
    pub outcome: u8,
    /// See [`crate::algorithm::AlgorithmId`].
    pub algorithm: u32,
}

impl SlotKey {
    /// Packs the key into 64 bits.
    #[inline(always)]
    pub const fn pack(self) -> u64 {
        (self.algorithm as u64) << 32 | (self.outcome as u64) << 8 | self.operation as u64
    }

    /// Unpacks a key; any bits give one.
    pub const fn unpack(bits: u64) -> Self {
        Self { operation: bits as u8, outcome: (bits >> 8) as u8, algorithm: (bits >> 32) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// Check that a key survives packing.
        #[test]
        fn slot_key_round_trip(operation: u8, outcome: u8, algorithm: u32) {
            let key = SlotKey { operation, outcome, algorithm };
            assert_eq!(SlotKey::unpack(key.pack()), key);
        }
    }
}
