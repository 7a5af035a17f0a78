//! One sentence on why the slow operations are slow, and the figures behind it.

mod on_cpu;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::waits::Stacks;
use super::{LockSummary, Operation};
use crate::aggregate::{Category, Excess, Part, duration};
use crate::recording::{LockClass, Reason, Recording, RowLedger, WaitGroup, Waker};

/// A part with at least this share of the excess is its cause; the same share of the lock wait makes
/// a lock the one to name.
const CAUSE_SHARE: f64 = 0.6;
/// A thread that held the lock for at least this share of the waits is named.
const HOLDER_SHARE: f64 = 0.5;
/// Where there is no single cause, parts below this share are left out.
const MENTIONED_SHARE: f64 = 0.05;

/// Why the slowest 1 % of an operation are slower than the middle half; or, where none are slow, what
/// the middle half mostly spends its time on besides its own work.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The sentence.
    pub sentence: String,
    /// Name of the operation or request: the one whose slow calls have most time in excess. Where
    /// a request has any, no operation is looked at: it is part of a request.
    pub operation: String,
    /// Name of its algorithm.
    pub algorithm: String,
    /// What most of the excess is.
    pub cause: Cause,
    /// Whether this is about the excess of the slow operations, or about the typical ones.
    pub basis: Basis,
    /// The share of the excess (or of the typical duration) that the cause has, or without a single cause the largest part;
    /// between 0 and 1.
    pub share: f64,
    /// The 99th percentile, in nanoseconds.
    pub p99_ns: u64,
    /// Mean of the middle half, in nanoseconds.
    pub typical_ns: u64,
    /// The lock's name or address, where the cause is the wait for one lock.
    pub lock: Option<String>,
    /// The thread that held it, where it mostly was one.
    pub holder: Option<u32>,
    /// The function that released it; where the cause is time on the CPU, the one in which most of
    /// its category was met.
    pub function: Option<String>,
    /// What at least half of the time on the CPU is, where that is the cause.
    pub category: Option<Category>,
}

/// What a verdict explains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// What the slowest operations have more than the typical.
    Excess,
    /// The duration of the typical operations.
    #[serde(other)]
    Typical,
}

/// What most of the excess is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The operation ran longer.
    OnCpu,
    /// It was runnable, and waited for a CPU: run queue and preempted together.
    CpuWait,
    /// It waited for a lock.
    Lock,
    /// It waited uninterruptibly.
    Io,
    /// It waited interruptibly for something that is no futex.
    Sleep,
    /// It cannot be told.
    Other,
    /// There is no single cause.
    #[serde(other)]
    None,
}

/// The verdict on a recording; `None` where there is no slow tail, or no ledger.
pub(super) fn verdict(
    recording: &Recording,
    operations: &[Operation],
    locks: &[LockSummary],
    stacks: &Stacks<'_>,
) -> Option<Verdict> {
    let excess = |ledger: &RowLedger, operation: &Operation| {
        let p99_ns = operation.latency_ns.p99?;
        Excess::of(ledger, p99_ns).map(|excess| (excess, p99_ns))
    };
    let candidates = operations.iter().filter_map(|operation| {
        let is_it = |row: &&crate::recording::Row| {
            (&row.operation, &row.algorithm) == (&operation.operation, &operation.algorithm)
        };
        let ledger = recording.rows.iter().find(is_it)?.ledger.as_ref()?;
        let (excess, p99_ns) = excess(ledger, operation)?;
        Some((operation, excess, p99_ns))
    });
    let slowest = candidates.max_by(|left, right| {
        let by_excess = left.1.total_ns.total_cmp(&right.1.total_ns);
        left.0.is_request.cmp(&right.0.is_request).then(by_excess)
    });
    let Some((operation, excess, p99_ns)) = slowest else {
        return on_cpu::typical(operations);
    };
    let (cause, share) = cause_of(&excess);
    let culprit = if cause == Cause::Lock {
        Culprit::of(recording, operation, locks, stacks)
    } else {
        Culprit::default()
    };
    let mostly = (cause == Cause::OnCpu).then(|| on_cpu::Mostly::of_slow(operation)).flatten();
    let beginning = format!(
        "P99 {} is {} against {} typical",
        operation.title(),
        duration(p99_ns),
        duration(excess.typical_ns)
    );
    let end = match cause {
        Cause::None => format!("no single cause: {}", parts(&excess)),
        Cause::CpuWait => format!(
            "{} of the excess is waiting for a CPU (run queue {}, preempted {})",
            percent(share),
            percent(excess.share(Part::RunQueue)),
            percent(excess.share(Part::Preempted))
        ),
        Cause::Lock => format!("{} of the excess is {}", percent(share), culprit.text()),
        Cause::OnCpu => {
            let mostly = mostly.as_ref().map(|mostly| format!(", {mostly}")).unwrap_or_default();
            format!("{} of the excess is time on the CPU{mostly}", percent(share))
        }
        Cause::Io => format!("{} of the excess is I/O (uninterruptible waits)", percent(share)),
        Cause::Sleep => {
            format!("{} of the excess is sleep (timers, pipes, sockets)", percent(share))
        }
        Cause::Other => format!("{} of the excess cannot be told", percent(share)),
    };
    Some(Verdict {
        sentence: format!("{beginning}: {end}"),
        operation: operation.operation.clone(),
        algorithm: operation.algorithm.clone(),
        cause,
        share,
        p99_ns,
        typical_ns: excess.typical_ns,
        lock: culprit.lock,
        holder: culprit.holder,
        function: culprit.function.or(mostly.as_ref().and_then(|mostly| mostly.function.clone())),
        category: mostly.map(|mostly| mostly.category),
        basis: Basis::Excess,
    })
}

fn cause_of(excess: &Excess) -> (Cause, f64) {
    let share = |part| excess.share(part);
    let causes = [
        (Cause::OnCpu, share(Part::OnCpu)),
        (Cause::CpuWait, share(Part::RunQueue) + share(Part::Preempted)),
        (Cause::Lock, share(Part::Lock)),
        (Cause::Io, share(Part::Io)),
        (Cause::Sleep, share(Part::Sleep)),
        (Cause::Other, share(Part::Other)),
    ];
    let largest = causes.into_iter().max_by(|left, right| left.1.total_cmp(&right.1));
    match largest {
        Some((cause, share)) if share >= CAUSE_SHARE => (cause, share),
        Some((_, share)) => (Cause::None, share),
        None => (Cause::None, 0.0),
    }
}

fn parts(excess: &Excess) -> String {
    let mut parts: Vec<(Part, f64)> = Part::ALL
        .map(|part| (part, excess.share(part)))
        .into_iter()
        .filter(|(_, share)| *share >= MENTIONED_SHARE)
        .collect();
    parts.sort_by(|left, right| right.1.total_cmp(&left.1));
    let name = |part| match part {
        Part::OnCpu => "on-CPU",
        Part::RunQueue => "run queue",
        Part::Preempted => "preempted",
        Part::Lock => "lock",
        Part::Io => "I/O",
        Part::Sleep => "sleep",
        Part::Other => "other",
    };
    let parts: Vec<String> = parts
        .into_iter()
        .map(|(part, share)| format!("{} {}", name(part), percent(share)))
        .collect();
    parts.join(", ")
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Which lock, and who kept it.
#[derive(Default)]
struct Culprit {
    lock: Option<String>,
    /// Whether any wait for a lock was recorded.
    is_recorded: bool,
    class: LockClass,
    holders: usize,
    holder: Option<u32>,
    function: Option<String>,
}

impl Culprit {
    /// The lock that operations or requests of this name wait for, by the waits inside them.
    fn of(
        recording: &Recording,
        operation: &Operation,
        locks: &[LockSummary],
        stacks: &Stacks<'_>,
    ) -> Self {
        let waits: Vec<&WaitGroup> = recording
            .waits
            .iter()
            .filter(|wait| wait.reason == Reason::Lock)
            .filter(|wait| {
                let scope = if operation.is_request { &wait.request } else { &wait.operation };
                scope.as_deref() == Some(&operation.operation)
            })
            .collect();
        let Some((address, _)) =
            dominant(waits.iter().map(|wait| (wait.futex_address, wait.total_ns)), CAUSE_SHARE)
        else {
            return Self { is_recorded: !waits.is_empty(), ..Self::default() };
        };
        // 0 stands for the locks that there was no room for.
        let name = format!("0x{address:x}");
        let Some(lock) = locks.iter().find(|lock| lock.address == name && address != 0) else {
            return Self::default();
        };
        let mut culprit = Self { lock: Some(lock.title()), class: lock.class, ..Self::default() };
        let waits: Vec<&WaitGroup> =
            waits.into_iter().filter(|wait| wait.futex_address == address).collect();
        let held = waits.iter().filter(|wait| wait.holder_tid != 0);
        let held: Vec<(u32, u64)> = held.map(|wait| (wait.holder_tid, wait.total_ns)).collect();
        let mut holders: Vec<u32> = held.iter().map(|held| held.0).collect();
        holders.sort_unstable();
        holders.dedup();
        culprit.holders = holders.len();
        culprit.holder = dominant(held.into_iter(), HOLDER_SHARE).map(|held| held.0);
        // Where one thread held it, what that thread did counts; else what anybody did.
        let released = waits.iter().filter(|wait| match (culprit.holder, &wait.waker) {
            (Some(holder), Waker::Thread { tid, .. }) => holder == *tid,
            (Some(_), _) => false,
            (None, _) => true,
        });
        let released = released.map(|wait| (wait.waker_stack_id, wait.total_ns));
        culprit.function = stacks.longest(released).map(String::from);
        culprit
    }

    fn text(&self) -> String {
        let Some(lock) = &self.lock else {
            let which = if self.is_recorded { ", on several locks" } else { "" };
            return format!("lock wait{which}");
        };
        let what = match self.class {
            LockClass::Mutex | LockClass::Rwlock | LockClass::Unknown => "lock wait on",
            LockClass::Condvar => "waiting for the condition variable",
            LockClass::Semaphore => "waiting for the semaphore",
            LockClass::Join => "waiting for the end of the thread at",
            LockClass::Park => "waiting to be unparked at",
        };
        let kept = match (self.holder, &self.function, self.holders) {
            (Some(holder), Some(function), _) => {
                format!(" (holder: thread {holder} in {function})")
            }
            (Some(holder), None, _) => format!(" (holder: thread {holder})"),
            (None, Some(function), 2..) => {
                format!(" ({} holders, released mostly in {function})", self.holders)
            }
            (None, Some(function), _) => format!(" (released mostly in {function})"),
            (None, None, 2..) => format!(" ({} holders)", self.holders),
            (None, None, _) => String::new(),
        };
        format!("{what} `{lock}`{kept}")
    }
}

/// The key that has at least this share of the sum of all values.
fn dominant<K: Copy + Ord>(values: impl Iterator<Item = (K, u64)>, share: f64) -> Option<(K, u64)> {
    let mut totals = BTreeMap::<K, u64>::new();
    for (key, value) in values {
        let total = totals.entry(key).or_default();
        *total = total.saturating_add(value);
    }
    let sum: f64 = totals.values().map(|&total| total as f64).sum();
    let largest = totals.into_iter().min_by_key(|&(key, total)| (Reverse(total), key))?;
    (largest.1 > 0 && largest.1 as f64 >= share * sum).then_some(largest)
}

#[cfg(test)]
#[path = "verdict/tests.rs"]
mod tests;
