//! Waits that the trace's start or end cut, as a report has them.

use serde::{Deserialize, Serialize};

use super::waits::Stacks;
use crate::recording::{Reason, Recording, WaitInProgress};

/// So many are reported, the longest.
const MAX_IN_PROGRESS: usize = 256;

/// A wait in progress when tracing began or ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InProgress {
    /// The thread.
    pub tid: u32,
    /// Its name.
    pub comm: String,
    /// Why it is off the CPU.
    pub reason: Reason,
    /// The operation around the wait.
    pub operation: Option<String>,
    /// The request around the wait.
    pub request: Option<String>,
    /// Name or address of the lock that it waits for.
    pub lock: Option<String>,
    /// The thread that held it when the wait began, where known.
    pub holder: Option<u32>,
    /// When it began, in nanoseconds since tracing began; null where it had begun before.
    pub start_ns: Option<u64>,
    /// How long it lasted while traced, in nanoseconds.
    pub duration_ns: u64,
    /// Whether it had begun before the trace.
    pub at_start: bool,
    /// Whether it had not ended when the trace did.
    pub at_end: bool,
    /// The stack, innermost frame first; empty where none was taken.
    pub frames: Vec<String>,
}

/// The longest waits in progress, longest first.
pub(super) fn in_progress(recording: &Recording, stacks: &Stacks<'_>) -> Vec<InProgress> {
    let one = |wait: &WaitInProgress| {
        let lock = recording.locks.iter().find(|lock| lock.address == wait.futex_address);
        let name = lock.and_then(|lock| lock.name.clone());
        let has_holder = wait.holder_tid != 0 && lock.is_none_or(|lock| lock.class.has_holder());
        InProgress {
            tid: wait.tid,
            comm: wait.comm.clone(),
            reason: wait.reason,
            operation: wait.operation.clone(),
            request: wait.request.clone(),
            lock: (wait.futex_address != 0)
                .then(|| name.unwrap_or_else(|| format!("0x{:x}", wait.futex_address))),
            holder: has_holder.then_some(wait.holder_tid),
            start_ns: (!wait.at_start).then_some(wait.start_ns),
            duration_ns: wait.duration_ns,
            at_start: wait.at_start,
            at_end: wait.at_end,
            frames: stacks.frames(wait.stack_id),
        }
    };
    recording.waits_in_progress.iter().take(MAX_IN_PROGRESS).map(one).collect()
}
