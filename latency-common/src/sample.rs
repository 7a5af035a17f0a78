//! Samples of the target's threads on the CPU.

/// Most frames of a kernel stack that is sent with a sample.
pub const MAX_KERNEL_FRAMES: usize = 64;

/// Bits of [`SampleRecord::flags`].
pub mod sample_flag {
    /// The thread was in the operation that `probe`, `operation` and `operation_start_ns` name.
    pub const IN_OPERATION: u8 = 1;
    /// The thread ran in the kernel.
    pub const KERNEL: u8 = 2;
}

/// A look at one thread of the target that ran: every so often, on each CPU.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct SampleRecord {
    /// [`crate::record::kind::SAMPLE`].
    pub kind: u32,
    /// See [`sample_flag`].
    pub flags: u8,
    /// Index of the surrounding operation's name in the plan.
    pub operation: u8,
    /// Index of the surrounding operation's probe in the plan.
    pub probe: u16,
    /// When, `CLOCK_MONOTONIC`, in nanoseconds.
    pub time_ns: u64,
    /// Start of the surrounding operation, as its own record has it; 0 outside of operations.
    pub operation_start_ns: u64,
    /// Process, in the tracer's PID namespace.
    pub tgid: u32,
    /// Thread, in the tracer's PID namespace.
    pub tid: u32,
    /// The user stack; 0: none was taken.
    pub stack_id: u64,
    /// The kernel stack, where the thread ran in the kernel; 0: none was taken.
    pub kernel_stack_id: u64,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<SampleRecord>() == 48);
    assert!(offset_of!(SampleRecord, flags) == 4);
    assert!(offset_of!(SampleRecord, probe) == 6);
    assert!(offset_of!(SampleRecord, time_ns) == 8);
    assert!(offset_of!(SampleRecord, tgid) == 24);
    assert!(offset_of!(SampleRecord, stack_id) == 32);
    assert!(offset_of!(SampleRecord, kernel_stack_id) == 40);
};
