//! The immutable result of a run of the tracer, how it is put together, and its file.

mod as_called;
mod buckets;
mod builder;
mod capped;
mod edges;
mod file;
mod histogram;
mod in_progress;
mod ledger;
mod live;
mod lock;
mod meanwhile;
mod model;
mod names;
mod off_cpu;
mod profile;
mod request;
mod row;
#[cfg(test)]
pub(crate) mod sample;
mod samples;
mod stack_table;
mod waits;

pub use builder::{Finish, Header, RecordingBuilder};
pub use file::{FORMAT_VERSION, MAGIC, ReadError, RecordingFile, WriteError, read};
pub use histogram::{DenseHistogram, MAX_TRACKABLE_NS, SparseHistogram};
pub use in_progress::{KernelTotals, MAX_IN_PROGRESS, WaitInProgress, WaitTotal};
pub use ledger::{LedgerSums, RowLedger};
pub use live::{Live, LiveRow};
pub use lock::{
    HolderShare, Lock, LockClass, MAX_LOCKS, MAX_SHARES, StackShare, WaitEnds, WakerShare, classify,
};
pub use meanwhile::Meanwhile;
pub(crate) use model::rate_hz;
pub use model::{
    Counts, EndedBy, Host, IncompleteCalls, Interval, IntervalRow, Library, Loss, MAX_ALGORITHMS,
    MAX_INTERVALS, MAX_SLOWEST, Outcome, OwnCost, Price, Probe, Recording, Row, Skipped,
    SlowOperation, Target,
};
pub use off_cpu::{Frame, Reason, Stack, WaitGroup, Waker};
pub use profile::{MAX_SAMPLE_GROUPS, Profile, SampleClock, SampleGroup};
pub use request::{InnerOperation, RequestSums, RowRequest};
pub use stack_table::MAX_STACKS;
pub use waits::MAX_GROUPS;
