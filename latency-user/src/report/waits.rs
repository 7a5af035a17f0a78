//! Locks and time off the CPU, as a report has them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::aggregate::{frame_text, own_function};
use crate::recording::{
    HolderShare, Lock, LockClass, Reason, Recording, Stack, StackShare, WaitEnds, Waker, WakerShare,
};

/// So many locks are reported.
const MAX_LOCKS: usize = 256;
/// So many holders, wakers and stacks are reported of each lock.
const MAX_SHARES: usize = 10;
/// So many stacks are reported of each kind of time off the CPU.
const MAX_STACKS: usize = 50;

/// A lock that was waited for.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockSummary {
    /// Its name, where a symbol covers the address.
    pub name: Option<String>,
    /// Its address in hexadecimal; "0x0" stands for all locks beyond the first 4,095.
    pub address: String,
    /// What kind of lock it is.
    pub class: LockClass,
    /// Whether its waits are idleness rather than contention.
    pub is_idle: bool,
    /// How many waits.
    pub waits: u64,
    /// How long they were blocked in all, in nanoseconds.
    pub total_ns: u64,
    /// Median of a wait, in nanoseconds.
    pub p50_ns: Option<u64>,
    /// 99th percentile of a wait, in nanoseconds.
    pub p99_ns: Option<u64>,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// How they ended.
    pub ends: WaitEnds,
    /// Waits that had not ended when tracing did; they are in none of the numbers above.
    pub in_progress: u64,
    /// How long those had lasted, in nanoseconds.
    pub in_progress_ns: u64,
    /// Who held it when the waits began, longest wait first; only where the holder is known.
    pub holders: Vec<HolderShare>,
    /// Who ended the waits, longest wait first.
    pub wakers: Vec<WakerSummary>,
    /// The function that waited longest for it, outside the C library.
    pub waited_in: Option<String>,
    /// The function that released it most, by the length of the waits, outside the C library.
    pub released_in: Option<String>,
    /// Where it was waited for, longest wait first.
    pub stacks: Vec<StackSummary>,
    /// Where the waits were ended, longest wait first.
    pub waker_stacks: Vec<StackSummary>,
}

/// Who ended waits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WakerSummary {
    /// Whether it was a thread.
    pub kind: WakerKind,
    /// The thread; null for others.
    pub tid: Option<u32>,
    /// Its process; null for others.
    pub pid: Option<u32>,
    /// Its name; null for others.
    pub comm: Option<String>,
    /// How many waits.
    pub waits: u64,
    /// How long they were, in nanoseconds.
    pub total_ns: u64,
}

/// What ended a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WakerKind {
    /// A thread.
    Thread,
    /// An interrupt: a timer, a device.
    Interrupt,
    /// Nobody was seen.
    #[serde(other)]
    Unknown,
}

/// Waits with one stack.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StackSummary {
    /// The frames as text, innermost first; empty where no stack was taken.
    pub frames: Vec<String>,
    /// How many waits.
    pub waits: u64,
    /// How long they were, in nanoseconds.
    pub total_ns: u64,
}

/// Time off the CPU for one reason, inside one operation and request or outside of all.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OffCpu {
    /// Why the threads were off the CPU.
    pub reason: Reason,
    /// Whether they were in an operation or a request.
    pub in_operation: bool,
    /// Name of that operation.
    pub operation: Option<String>,
    /// Name of that request.
    pub request: Option<String>,
    /// How often.
    pub count: u64,
    /// Time blocked, in nanoseconds; for preempted threads, time runnable without running.
    pub total_ns: u64,
    /// Time runnable without running after that, in nanoseconds.
    pub run_queue_ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// The stacks with most of it, longest first.
    pub stacks: Vec<StackSummary>,
}

impl LockSummary {
    /// Its name or its address.
    pub fn title(&self) -> String {
        match &self.name {
            Some(name) => name.clone(),
            None if self.address == "0x0" => "other locks".to_owned(),
            None => self.address.clone(),
        }
    }
}

/// The stacks of a recording by their ids.
pub(super) struct Stacks<'a>(HashMap<u64, &'a Stack>);

impl<'a> Stacks<'a> {
    pub(super) fn of(recording: &'a Recording) -> Self {
        Self(recording.stacks.iter().map(|stack| (stack.id, stack)).collect())
    }

    pub(super) fn frames(&self, id: u64) -> Vec<String> {
        let frames = self.0.get(&id).map_or(&[][..], |stack| &stack.frames);
        frames.iter().map(|frame| frame_text(frame)).collect()
    }

    /// The function outside the C library with the longest waits, of stacks and wait times.
    pub(super) fn longest(&self, stacks: impl Iterator<Item = (u64, u64)>) -> Option<&'a str> {
        let mut totals = BTreeMap::<&str, u64>::new();
        for (id, total_ns) in stacks {
            if let Some(function) = self.0.get(&id).and_then(|stack| own_function(stack)) {
                let total = totals.entry(function).or_default();
                *total = total.saturating_add(total_ns);
            }
        }
        totals.into_iter().max_by_key(|&(name, total)| (total, Reverse(name))).map(|(name, _)| name)
    }

    fn summary(&self, share: &StackShare) -> StackSummary {
        StackSummary {
            frames: self.frames(share.stack_id),
            waits: share.waits,
            total_ns: share.total_ns,
        }
    }
}

/// The locks: the contended ones before the idle ones, longest wait first.
pub(super) fn locks(recording: &Recording, stacks: &Stacks<'_>) -> Vec<LockSummary> {
    let mut locks: Vec<&Lock> = recording.locks.iter().collect();
    locks.sort_by_key(|lock| (lock.class.is_idle(), Reverse(lock.total_ns), lock.address));
    locks.truncate(MAX_LOCKS);
    locks.into_iter().map(|lock| lock_summary(lock, stacks)).collect()
}

fn lock_summary(lock: &Lock, stacks: &Stacks<'_>) -> LockSummary {
    let summaries = |shares: &[StackShare]| {
        shares.iter().take(MAX_SHARES).map(|share| stacks.summary(share)).collect()
    };
    let longest = |shares: &[StackShare]| {
        let shares = shares.iter().map(|share| (share.stack_id, share.total_ns));
        stacks.longest(shares).map(String::from)
    };
    LockSummary {
        name: lock.name.clone(),
        address: format!("0x{:x}", lock.address),
        class: lock.class,
        is_idle: lock.class.is_idle(),
        waits: lock.waits,
        total_ns: lock.total_ns,
        p50_ns: lock.histogram.value_at(500),
        p99_ns: lock.histogram.value_at(990),
        max_ns: lock.max_ns,
        ends: lock.ends,
        in_progress: lock.in_progress,
        in_progress_ns: lock.in_progress_ns,
        holders: lock.holders.iter().take(MAX_SHARES).cloned().collect(),
        wakers: lock.wakers.iter().take(MAX_SHARES).map(waker).collect(),
        waited_in: longest(&lock.stacks),
        released_in: longest(&lock.waker_stacks),
        stacks: summaries(&lock.stacks),
        waker_stacks: summaries(&lock.waker_stacks),
    }
}

fn waker(share: &WakerShare) -> WakerSummary {
    let (kind, tid, pid, comm) = match &share.waker {
        Waker::Thread { tid, pid, comm } => {
            (WakerKind::Thread, Some(*tid), Some(*pid), Some(comm.clone()))
        }
        Waker::Interrupt => (WakerKind::Interrupt, None, None, None),
        Waker::Unknown => (WakerKind::Unknown, None, None, None),
    };
    WakerSummary { kind, tid, pid, comm, waits: share.waits, total_ns: share.total_ns }
}

/// Time off the CPU by reason and operation, longest first.
pub(super) fn off_cpu(recording: &Recording, stacks: &Stacks<'_>) -> Vec<OffCpu> {
    type Kind<'a> = (Reason, Option<&'a str>, Option<&'a str>);
    let mut kinds = BTreeMap::<Kind<'_>, (OffCpu, BTreeMap<u64, StackShare>)>::new();
    for group in &recording.waits {
        let key = (group.reason, group.operation.as_deref(), group.request.as_deref());
        let (kind, by_stack) = kinds.entry(key).or_insert_with(|| {
            let kind = OffCpu {
                reason: group.reason,
                in_operation: group.operation.is_some() || group.request.is_some(),
                operation: group.operation.clone(),
                request: group.request.clone(),
                count: 0,
                total_ns: 0,
                run_queue_ns: 0,
                max_ns: 0,
                stacks: Vec::new(),
            };
            (kind, BTreeMap::new())
        });
        kind.count = kind.count.saturating_add(group.count);
        kind.total_ns = kind.total_ns.saturating_add(group.total_ns);
        kind.run_queue_ns = kind.run_queue_ns.saturating_add(group.run_queue_ns);
        kind.max_ns = kind.max_ns.max(group.max_ns);
        let share = by_stack.entry(group.stack_id).or_default();
        share.stack_id = group.stack_id;
        share.waits = share.waits.saturating_add(group.count);
        share.total_ns = share.total_ns.saturating_add(group.total_ns);
    }
    let mut off_cpu: Vec<OffCpu> = kinds
        .into_values()
        .map(|(kind, by_stack)| {
            let mut shares: Vec<StackShare> = by_stack.into_values().collect();
            shares.sort_by_key(|share| (Reverse(share.total_ns), share.stack_id));
            let top = shares.iter().take(MAX_STACKS).map(|share| stacks.summary(share)).collect();
            OffCpu { stacks: top, ..kind }
        })
        .collect();
    off_cpu.sort_by_key(|kind| Reverse(kind.total_ns));
    off_cpu
}
