//! Folds samples into groups. Of an operation, its algorithm and duration are known only when it
//! completes: until then its samples wait.

use std::cmp::Reverse;

use hashbrown::HashMap;
use latency_common::sample::{SampleRecord, sample_flag};

use super::names::{CATCH_ALL_NAME, Names};
use super::profile::{MAX_SAMPLE_GROUPS, Profile, SampleClock, SampleGroup};

/// Of [`MAX_SAMPLE_GROUPS`], so many are for samples beyond the others: for each operation and outside,
/// each algorithm and power of two of the duration that occurs, in the kernel and not.
const CATCH_ALL_GROUPS: usize = 16 << 10;
/// So many different samples of one open operation are kept apart.
const MAX_PENDING: usize = 4096;
/// So many threads may have samples in open operations.
const MAX_PENDING_THREADS: usize = 16 << 10;

/// What is common to the samples of a group. `name` is of [`Samples::names`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    name: u32,
    operation: Option<u8>,
    algorithm: Option<u32>,
    duration_log2: Option<u8>,
    in_kernel: bool,
    is_spinning: bool,
    stack_id: u64,
    kernel_stack_id: u64,
}

/// Samples in a thread's open operation.
#[derive(Clone, Default, Debug)]
struct Pending {
    start_ns: u64,
    samples: HashMap<Key, u64>,
}

/// Samples in the making. The memory is bounded, however long the run.
#[derive(Clone, Default, Debug)]
pub(super) struct Samples {
    /// How often, by what, and since when since tracing began; `None` while nothing is sampled.
    pub(super) clock: Option<(u32, SampleClock, u64)>,
    groups: HashMap<Key, u64>,
    names: Names,
    /// By thread, and whether it is in a request but in none of its operations.
    pending: HashMap<(u32, bool), Pending>,
    received: u64,
    ungrouped: u64,
}

impl Samples {
    /// Takes a sample.
    pub(super) fn add(&mut self, record: &SampleRecord, comm_of: &mut dyn FnMut(u32) -> String) {
        self.received += 1;
        let in_operation = record.flags & sample_flag::IN_OPERATION != 0;
        let key = Key {
            name: self.names.of_thread(record.tid, record.time_ns, comm_of),
            operation: in_operation.then_some(record.operation),
            algorithm: None,
            duration_log2: None,
            in_kernel: record.flags & sample_flag::KERNEL != 0,
            is_spinning: record.flags & sample_flag::PAUSE != 0,
            stack_id: record.stack_id,
            kernel_stack_id: record.kernel_stack_id,
        };
        if !in_operation {
            self.count(key, 1);
            return;
        }
        let scope = (record.tid, record.flags & sample_flag::IN_REQUEST != 0);
        if self.pending.len() >= MAX_PENDING_THREADS && !self.pending.contains_key(&scope) {
            for pending in std::mem::take(&mut self.pending).into_values() {
                pending.samples.into_iter().for_each(|(key, samples)| self.count(key, samples));
            }
        }
        let pending = self.pending.entry(scope).or_default();
        let mut before = HashMap::new();
        if pending.start_ns != record.operation_start_ns || pending.samples.len() >= MAX_PENDING {
            // The record of the operation before was lost, or there is none.
            before = std::mem::take(&mut pending.samples);
        }
        pending.start_ns = record.operation_start_ns;
        *pending.samples.entry(key).or_default() += 1;
        before.into_iter().for_each(|(key, samples)| self.count(key, samples));
    }

    /// Whether any sample waits for its operation to complete.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// An operation of a thread completed (`scope`: the thread, and whether it was a request), which
    /// had begun at `start_ns`. `algorithm` is `None` where the call was no operation after all.
    pub(super) fn completed(
        &mut self,
        scope: (u32, bool),
        start_ns: u64,
        duration_ns: u64,
        algorithm: Option<u32>,
    ) {
        let Some(pending) = self.pending.remove(&scope) else { return };
        let is_it = pending.start_ns == start_ns && algorithm.is_some();
        for (key, samples) in pending.samples {
            let key = if is_it {
                let duration_log2 = Some(duration_ns.max(1).ilog2() as u8);
                Key { algorithm, duration_log2, ..key }
            } else {
                key
            };
            self.count(key, samples);
        }
    }

    fn count(&mut self, mut key: Key, samples: u64) {
        if self.groups.len() >= MAX_SAMPLE_GROUPS - CATCH_ALL_GROUPS
            && !self.groups.contains_key(&key)
        {
            self.ungrouped = self.ungrouped.saturating_add(samples);
            key =
                Key { name: self.names.id(CATCH_ALL_NAME), stack_id: 0, kernel_stack_id: 0, ..key };
            // Not even this is known of what comes when the catch-all groups are used up.
            if self.groups.len() >= MAX_SAMPLE_GROUPS - 1 && !self.groups.contains_key(&key) {
                key = Key {
                    operation: None,
                    algorithm: None,
                    duration_log2: None,
                    in_kernel: false,
                    is_spinning: false,
                    ..key
                };
            }
        }
        let sum = self.groups.entry(key).or_default();
        *sum = sum.saturating_add(samples);
    }

    /// The profile so far; `None` where nothing was sampled.
    pub(super) fn folded(
        &self,
        operation_name: impl Fn(u8) -> String,
        algorithm_name: impl Fn(u32) -> String,
    ) -> Option<Profile> {
        let (frequency_hz, clock, start_ns) = self.clock?;
        let mut all = self.clone();
        for pending in std::mem::take(&mut all.pending).into_values() {
            pending.samples.into_iter().for_each(|(key, samples)| all.count(key, samples));
        }
        let group = |(key, &samples): (&Key, &u64)| SampleGroup {
            comm: all.names.get(key.name),
            operation: key.operation.map(&operation_name),
            algorithm: key.algorithm.map(&algorithm_name),
            duration_log2: key.duration_log2,
            in_kernel: key.in_kernel,
            is_spinning: key.is_spinning,
            stack_id: key.stack_id,
            kernel_stack_id: key.kernel_stack_id,
            samples,
        };
        let mut groups: Vec<SampleGroup> = all.groups.iter().map(group).collect();
        // By everything: a map has no order, and equal runs must give equal files.
        groups.sort_by(|left, right| order(left).cmp(&order(right)));
        Some(Profile {
            frequency_hz,
            clock,
            start_ns,
            samples: all.received,
            ungrouped: all.ungrouped,
            groups,
        })
    }
}

type Order<'a> = (Reverse<u64>, &'a str, [Option<&'a str>; 2], Option<u8>, [bool; 2], u64, u64);

fn order(group: &SampleGroup) -> Order<'_> {
    (
        Reverse(group.samples),
        &group.comm,
        [group.operation.as_deref(), group.algorithm.as_deref()],
        group.duration_log2,
        [group.in_kernel, group.is_spinning],
        group.stack_id,
        group.kernel_stack_id,
    )
}

#[cfg(test)]
#[path = "samples/tests.rs"]
mod tests;
