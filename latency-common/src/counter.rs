//! The kernel side's event counters: one per-CPU array, indexed by [`Counter`].

/// Index into the `COUNTERS` map. Ids are append-only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u32)]
pub enum Counter {
    /// Completed outermost calls: operations, size queries and requests. Each one is sent as a record,
    /// or counted in a histogram of the kernel's and under [`Counter::LostRingFull`].
    Completed = 0,
    /// Records not sent: the ring buffer was full.
    LostRingFull = 1,
    /// Calls not followed: the table of threads was full.
    ThreadTableFull = 2,
    /// Lost records whose operation is counted under "other": the table of histograms was full.
    HistogramTableFull = 3,
    /// Calls that never returned: the thread jumped out of them (`longjmp`, an exception).
    Abandoned = 4,
    /// Calls whose thread ended inside them.
    ThreadExited = 5,
    /// Signature lengths that could not be read from the target's memory.
    LengthUnreadable = 6,
    /// Clock readings that ran backwards; the duration is taken as 0.
    ClockBackwards = 7,
    /// Returns that matched no entry: calls entered before the tracer attached.
    UnmatchedReturn = 8,
    /// Calls of probed functions nested in an operation; not operations of their own.
    Nested = 9,
    /// Wait records not sent: the ring buffer was full. Their times are in the totals.
    LostWaitRecords = 10,
    /// Switches that fit no known state of their thread: one before it was missed.
    MissedSwitch = 11,
    /// Samples taken of threads on the CPU: sent, or counted under [`Counter::LostSampleRecords`].
    Samples = 12,
    /// Samples not sent: the ring buffer was full.
    LostSampleRecords = 13,
}

impl Counter {
    /// How many counters there are.
    pub const COUNT: u32 = 14;

    /// Every counter, in the order of its id.
    pub const ALL: [Self; Self::COUNT as usize] = [
        Self::Completed,
        Self::LostRingFull,
        Self::ThreadTableFull,
        Self::HistogramTableFull,
        Self::Abandoned,
        Self::ThreadExited,
        Self::LengthUnreadable,
        Self::ClockBackwards,
        Self::UnmatchedReturn,
        Self::Nested,
        Self::LostWaitRecords,
        Self::MissedSwitch,
        Self::Samples,
        Self::LostSampleRecords,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that `ALL` lists each counter at its own index.
    #[test]
    fn all_is_in_order() {
        for (index, counter) in Counter::ALL.into_iter().enumerate() {
            assert_eq!(counter as usize, index);
        }
    }
}
