//! Unwinding user stacks without frame pointers: what the loader compiles from `.eh_frame`, and
//! how the kernel side walks it.
//!
//! A file's call frame information is a list of [`Row`]s sorted by program counter; a row holds
//! from its own counter to the next row's. Rows of all files lie one after another in the chunks of
//! the `UNWIND_ROWS` map. The target has a [`SegmentTable`]: its executable mappings, sorted, each
//! with the rows that are for it. Memory: 8 bytes a row, 2 bytes for each
//! 256 bytes of code, 64 KiB a table, and the scratch buffers.
//!
//! Terms are those of DWARF 5, section 6.4: the canonical frame address (CFA) is the stack
//! pointer's value before the call instruction pushed the return address.

mod row;
mod step;

pub use row::{Row, Rule, SavedRbp};
pub use step::{Registers, step, step_frame_pointer};

/// Most frames of one stack.
pub const MAX_FRAMES: usize = 128;

/// log2 of the words of 8 bytes in a chunk. The block index has 16 bits for a row.
pub const CHUNK_BITS: u32 = 15;

/// Words in one chunk: a value of the `UNWIND_ROWS` map, 256 KiB.
pub const CHUNK_WORDS: usize = 1 << CHUNK_BITS;

/// Most segments of one process: two for each executable mapping of a file, one for each other, and
/// one for each chunk boundary that a file's rows cross. There is room for 500 mappings and more.
pub const MAX_SEGMENTS: usize = 2048;

/// log2 of the bytes of code that one entry of the block index stands for.
pub const BLOCK_BITS: u32 = 8;

/// Rows of one or several files, as they lie in the `UNWIND_ROWS` map.
///
/// The rows of a piece of a file are preceded by its block index: 4 entries of 16 bits a word, of
/// which entry `n` is the index, from the piece's first row on, of the last row at or before the
/// start of block `n`. There is one more entry than blocks. The rows of a block are few (7 on
/// average in libcrypto), so that a search touches 2 or 3 cache lines instead of 12.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Chunk {
    /// Packed [`Row`]s and index words.
    pub words: [u64; CHUNK_WORDS],
}

/// A piece of an executable mapping whose rows lie in one chunk.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Segment {
    /// Length in bytes.
    pub length: u32,
    /// The program counter, as the rows count it, of the segment's first byte.
    pub pc: u32,
    /// The program counter of the first block.
    pub block_pc: u32,
    /// Word in which the block index starts, counted over all chunks.
    pub index: u32,
    /// Word of the piece's first row, likewise.
    pub first_row: u32,
    /// Number of rows; 0: nothing is known of this memory but that it is executable.
    pub rows: u32,
}

/// The executable memory of one process.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SegmentTable {
    /// Number of segments in use.
    pub count: u32,
    /// Tells this table from every other, of this process and of others: what the kernel side found
    /// in one is not looked for in another. Only the low 16 bits are used; never 0.
    pub generation: u32,
    /// Start addresses, ascending.
    pub starts: [u64; MAX_SEGMENTS],
    /// The segments, in the same order; they do not overlap.
    pub segments: [Segment; MAX_SEGMENTS],
}

const _: () = {
    assert!(size_of::<Segment>() == 24);
    assert!(size_of::<SegmentTable>() == 8 + 32 * MAX_SEGMENTS);
    assert!(size_of::<Chunk>() == 8 * CHUNK_WORDS);
};

/// How a stack ended. Ids are append-only; they are also the first indices of the
/// `UNWIND_COUNTERS` map.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum StackEnd {
    /// The outermost frame was reached: the row there says that it has no return address.
    Complete = 0,
    /// There are more frames than [`MAX_FRAMES`].
    FrameLimit = 1,
    /// The thread has no user registers: a kernel thread, or one that never was in user mode.
    NoUserRegisters = 2,
    /// The target has no segment table yet.
    UnknownProcess = 3,
    /// An address outside every executable mapping that is known.
    UnknownMapping = 4,
    /// No row, and the frame pointer does not point to a frame.
    NoRow = 5,
    /// A row whose rule the kernel side cannot follow, and no frame pointer.
    UnsupportedRule = 6,
    /// The stack's memory could not be read.
    StackUnreadable = 7,
    /// The next frame would not lie above this one.
    NoProgress = 8,
    /// The scratch memory was in use by a program that this one interrupted.
    ScratchBusy = 9,
    /// The return address is 0, though no row says that this is the outermost frame: so it is in
    /// some fibres, and where unwind information is wrong.
    NoReturnAddress = 10,
}

impl StackEnd {
    /// How many there are.
    pub const COUNT: u32 = 11;

    /// Every end, in the order of its id.
    pub const ALL: [Self; Self::COUNT as usize] = [
        Self::Complete,
        Self::FrameLimit,
        Self::NoUserRegisters,
        Self::UnknownProcess,
        Self::UnknownMapping,
        Self::NoRow,
        Self::UnsupportedRule,
        Self::StackUnreadable,
        Self::NoProgress,
        Self::ScratchBusy,
        Self::NoReturnAddress,
    ];

    /// The end with this id; `None` for one of a later version.
    pub const fn from_id(id: u8) -> Option<Self> {
        if (id as u32) < Self::COUNT { Some(Self::ALL[id as usize]) } else { None }
    }

    /// What stands in the place of the missing frames: `[truncated: …]`.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::FrameLimit => "more frames than the limit",
            Self::NoUserRegisters => "no user registers",
            Self::UnknownProcess => "process not known",
            Self::UnknownMapping => "address outside every known mapping",
            Self::NoRow => "no unwind information",
            Self::UnsupportedRule => "unwind rule not supported",
            Self::StackUnreadable => "stack memory not readable",
            Self::NoProgress => "frames do not ascend",
            Self::ScratchBusy => "unwinder busy",
            Self::NoReturnAddress => "no return address",
        }
    }
}

/// Further indices into the `UNWIND_COUNTERS` map. Ids are append-only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u32)]
pub enum UnwindCounter {
    /// Stacks walked.
    Stacks = 32,
    /// Frames of all stacks.
    Frames = 33,
    /// Stacks with at least one frame found by the frame pointer.
    FramePointerStacks = 34,
    /// Distinct stacks sent.
    StacksSent = 35,
    /// Stacks not sent because the ring buffer was full; each is tried again at its next sight.
    LostRingFull = 36,
    /// Stacks sent again at each sight: the table of those already sent was full.
    SeenTableFull = 37,
    /// Return addresses restored from the kernel's list of return probes.
    ReturnProbeFrames = 38,
}

/// Size of the `UNWIND_COUNTERS` map.
pub const UNWIND_COUNTERS: u32 = 64;

/// The kinds of program that capture stacks. Each has scratch memory of its own on each CPU: a
/// program of one kind may interrupt one of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum CaptureContext {
    /// Scheduler tracepoints, which run with interrupts disabled.
    Scheduler = 0,
    /// Samples: a timer's interrupt.
    Sample = 1,
    /// Syscall tracepoints, and others that run in the task's context.
    Task = 2,
    /// Uprobes, which can be preempted by each other.
    Uprobe = 3,
    /// Wakeups: in the waker's context, or in an interrupt of it.
    Wakeup = 4,
}

/// How many [`CaptureContext`]s there are.
pub const CAPTURE_CONTEXTS: u32 = 5;

/// The hash of a stack, frame by frame: the id under which it is sent and referred to. 64 bits, so
/// that 100,000 distinct stacks share an id with a probability below 1e-9.
#[inline(always)]
pub const fn hash_frame(hash: u64, address: u64) -> u64 {
    // The mixing step of splitmix64: each input bit reaches every output bit after two frames.
    let mixed = (hash ^ address).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 29)).wrapping_add(0x9e37_79b9_7f4a_7c15)
}

/// The last step of the id: what tells apart equal addresses in different processes, or with
/// different ends. Never 0, which means "no stack".
#[inline(always)]
pub const fn hash_end(hash: u64, tgid: u32, end: u8, flags: u8) -> u64 {
    let tail = (tgid as u64) << 16 | (end as u64) << 8 | flags as u64;
    let hash = hash_frame(hash_frame(hash, tail), 0);
    if hash == 0 { 1 } else { hash }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that `ALL` lists each end at its own id, and that counters do not share indices.
    #[test]
    fn ids_are_in_order() {
        for (index, end) in StackEnd::ALL.into_iter().enumerate() {
            assert_eq!(end as usize, index);
            assert_eq!(StackEnd::from_id(index as u8), Some(end));
        }
        assert_eq!(StackEnd::from_id(StackEnd::COUNT as u8), None);
        assert!(StackEnd::COUNT <= UnwindCounter::Stacks as u32);
        assert!((UnwindCounter::ReturnProbeFrames as u32) < UNWIND_COUNTERS);
    }

    /// Check that stacks that differ in one bit, in order, in process or in their end get
    /// different ids.
    #[test]
    fn ids_differ() {
        let id = |frames: &[u64], tgid, end| {
            hash_end(frames.iter().fold(0, |hash, frame| hash_frame(hash, *frame)), tgid, end, 0)
        };
        let mut ids = std::collections::HashSet::new();
        for bit in 0..48 {
            assert!(ids.insert(id(&[0x7f00_0000_1000 ^ (1 << bit), 2], 1, 0)));
            assert!(ids.insert(id(&[2, 0x7f00_0000_1000 ^ (1 << bit)], 1, 0)));
        }
        assert!(ids.insert(id(&[2, 3], 1, 0)));
        assert!(ids.insert(id(&[2, 3], 2, 0)));
        assert!(ids.insert(id(&[2, 3], 1, 5)));
        assert!(ids.insert(id(&[2], 1, 0)));
    }
}
