//! Samples of the target's threads on the CPU.

/// Most frames of a kernel stack that is sent with a sample.
pub const MAX_KERNEL_FRAMES: usize = 64;

/// Bits of [`SampleRecord::flags`].
pub mod sample_flag {
    /// The thread was in the operation that `probe`, `operation` and `operation_start_ns` name, or,
    /// with [`IN_REQUEST`], in that request and in none of its operations.
    pub const IN_OPERATION: u8 = 1;
    /// The thread ran in the kernel.
    pub const KERNEL: u8 = 2;
    /// The thread was at a `pause` instruction: it spun.
    pub const PAUSE: u8 = 4;
    /// See [`IN_OPERATION`].
    pub const IN_REQUEST: u8 = 8;
}

/// Whether the 4 bytes of code around an interrupted thread's program counter, from 2 before it on,
/// show a `pause` (`f3 90`). It takes most of the time of a loop that spins: the thread has just
/// executed it, or is about to.
#[inline(always)]
pub const fn is_at_pause(code: u32) -> bool {
    const PAUSE: u16 = u16::from_le_bytes([0xf3, 0x90]);
    code as u16 == PAUSE || (code >> 16) as u16 == PAUSE
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that a `pause` counts before and at the program counter, and nowhere else.
    #[test]
    fn pauses() {
        for (bytes, expected) in [
            ([0xf3, 0x90, 0x8b, 0x07], true),
            ([0x8b, 0x07, 0xf3, 0x90], true),
            ([0x8b, 0xf3, 0x90, 0x07], false),
            ([0x90, 0xf3, 0x90, 0x90], false),
        ] {
            assert_eq!(is_at_pause(u32::from_le_bytes(bytes)), expected, "{bytes:x?}");
        }
    }
}
