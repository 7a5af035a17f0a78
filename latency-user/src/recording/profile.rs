//! What ran on the CPU: samples of the target's threads.

use serde::{Deserialize, Serialize};

/// At most this many groups of samples are in a recording.
pub const MAX_SAMPLE_GROUPS: usize = 64 << 10;

/// What the samples were taken by.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleClock {
    /// The CPUs' counters of cycles.
    Cycles,
    /// A timer of the kernel's, which does not see where the kernel has interrupts off.
    CpuClock,
    /// Something that this version does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Samples of the target's threads on the CPU.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Profile {
    /// How often each CPU was looked at, per second: of the time that the target's threads run, a
    /// sample stands for one part in so many of a second.
    pub frequency_hz: u32,
    /// By what.
    pub clock: SampleClock,
    /// When the sampling began, in nanoseconds since tracing began: it takes a moment to be ready.
    pub start_ns: u64,
    /// How many samples arrived: the sum over the groups.
    pub samples: u64,
    /// Of these, those beyond [`MAX_SAMPLE_GROUPS`] different ones: their groups have no stack.
    pub ungrouped: u64,
    /// The samples, the most frequent first.
    #[serde(deserialize_with = "super::capped::vec::<MAX_SAMPLE_GROUPS, _, _>")]
    pub groups: Vec<SampleGroup>,
}

impl Profile {
    /// The time that a sample stands for, in nanoseconds.
    pub fn period_ns(&self) -> u64 {
        1_000_000_000 / u64::from(self.frequency_hz.max(1))
    }
}

/// Samples that have everything but their time in common.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SampleGroup {
    /// Name of the thread.
    pub comm: String,
    /// Name of the operation that the thread was in; `None` outside of operations.
    pub operation: Option<String>,
    /// Name of that operation's algorithm; `None` where the operation did not complete, or its
    /// record was lost.
    pub algorithm: Option<String>,
    /// The largest power of two up to that operation's duration in nanoseconds, as its logarithm;
    /// `None` likewise.
    pub duration_log2: Option<u8>,
    /// Whether it ran in the kernel.
    pub in_kernel: bool,
    /// Whether it was at a `pause` instruction.
    pub is_spinning: bool,
    /// The user stack; 0: none was taken.
    pub stack_id: u64,
    /// The kernel's part of the stack; 0: there is none, or none was taken.
    pub kernel_stack_id: u64,
    /// How many samples.
    pub samples: u64,
}
