//! The immutable result of a run of the tracer, how it is put together, and its file.

mod builder;
mod capped;
mod file;
mod histogram;
mod model;
mod row;
#[cfg(test)]
pub(crate) mod sample;

pub use builder::{Finish, Header, Live, LiveRow, RecordingBuilder};
pub use file::{FORMAT_VERSION, MAGIC, ReadError, RecordingFile, WriteError, read};
pub use histogram::{DenseHistogram, MAX_TRACKABLE_NS, SparseHistogram};
pub(crate) use model::rate_hz;
pub use model::{
    Counts, EndedBy, Host, IncompleteCalls, Interval, IntervalRow, Library, Loss, MAX_ALGORITHMS,
    MAX_INTERVALS, MAX_SLOWEST, Outcome, OwnCost, Price, Probe, Recording, Row, Skipped,
    SlowOperation, Target,
};
