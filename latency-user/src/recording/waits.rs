//! Folds the records of single waits into groups and locks.

use std::cmp::Reverse;

use hashbrown::HashMap;
use latency_common::histogram::BUCKETS;
use latency_common::ledger::off_cpu;
use latency_common::record::{WaitRecord, wait_flag};
use latency_common::wait::{WaitEnd, futex, futex_wait_end, waker_flag};

use super::buckets::Buckets;
use super::histogram::SparseHistogram;
use super::in_progress::{MAX_IN_PROGRESS, Open, WaitInProgress, add_to_locks};
use super::lock::{HolderShare, Lock, MAX_LOCKS, MAX_SHARES, StackShare, WaitEnds, WakerShare};
use super::meanwhile::{Meanwhile, Recent};
use super::names::{CATCH_ALL_NAME, Names};
use super::off_cpu::{Reason, WaitGroup, Waker};

/// At most this many groups are in a recording.
pub const MAX_GROUPS: usize = 256 << 10;
/// Of these, so many are for waits beyond the others: one for each reason, inside each operation
/// and outside.
const CATCH_ALL_GROUPS: usize = 5 * 257;
/// The owner's tid in the futex word of a PI mutex: `FUTEX_TID_MASK` (include/uapi/linux/futex.h).
const FUTEX_TID_MASK: u32 = 0x3fff_ffff;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum WakerKey {
    Thread { tid: u32, pid: u32 },
    Interrupt,
    Unknown,
}

/// Everything about a wait but its length. `name` is of [`Waits::names`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct GroupKey {
    reason: Reason,
    name: u32,
    operation: Option<u8>,
    request: Option<u8>,
    futex_address: u64,
    futex_command: u32,
    stack_id: u64,
    waker_stack_id: u64,
    waker: WakerKey,
    holder_tid: u32,
}

#[derive(Clone, Copy, Default, Debug)]
struct Sums {
    count: u64,
    total_ns: u64,
    run_queue_ns: u64,
    max_ns: u64,
}

impl Sums {
    fn add(&mut self, wait_ns: u64, run_queue_ns: u64) {
        self.count = self.count.saturating_add(1);
        self.total_ns = self.total_ns.saturating_add(wait_ns);
        self.run_queue_ns = self.run_queue_ns.saturating_add(run_queue_ns);
        self.max_ns = self.max_ns.max(wait_ns);
    }
}

/// Sums by thread, waker or stack, at most [`MAX_SHARES`] of them.
type Shares<K> = HashMap<K, Sums>;

fn add_share<K: Eq + std::hash::Hash>(shares: &mut Shares<K>, key: K, wait_ns: u64) {
    if let Some(sums) = shares.get_mut(&key) {
        sums.add(wait_ns, 0);
    } else if shares.len() < MAX_SHARES {
        shares.entry(key).or_default().add(wait_ns, 0);
    }
}

/// A map's entries, longest total first.
fn sorted<K: Copy + Ord>(shares: &Shares<K>) -> Vec<(K, Sums)> {
    let mut sorted: Vec<(K, Sums)> = shares.iter().map(|(&key, &sums)| (key, sums)).collect();
    sorted.sort_unstable_by_key(|&(key, sums)| (Reverse((sums.total_ns, sums.count)), key));
    sorted
}

#[derive(Clone, Default, Debug)]
struct LockBuilder {
    command: u32,
    sums: Sums,
    buckets: Buckets<u64>,
    ends: WaitEnds,
    holders: Shares<u32>,
    /// What those did meanwhile.
    meanwhile: HashMap<u32, Meanwhile>,
    wakers: Shares<WakerKey>,
    stacks: Shares<u64>,
    waker_stacks: Shares<u64>,
}

/// Waits in the making. The memory is bounded, however long the run.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    groups: HashMap<GroupKey, Sums>,
    locks: HashMap<u64, LockBuilder>,
    names: Names,
    /// Waits counted in a catch-all group.
    ungrouped: u64,
    recent: Recent,
    /// Waits that had begun before the trace.
    at_start: Vec<Open>,
    /// Waits that have not ended.
    at_end: Vec<Open>,
    #[cfg(test)]
    pub(super) max_groups: Option<usize>,
}

/// What [`Waits`] gives in the end.
pub(super) struct Folded {
    pub(super) groups: Vec<WaitGroup>,
    pub(super) locks: Vec<Lock>,
    pub(super) ungrouped: u64,
    pub(super) in_progress: Vec<WaitInProgress>,
}

impl Waits {
    /// Notes what has to be known of a wait at once, of others and of its thread while that lives.
    pub(super) fn note(&mut self, record: &WaitRecord, comm_of: &mut dyn FnMut(u32) -> String) {
        self.recent.add(record);
        let now_ns = record.start_ns.saturating_add(record.duration_ns);
        self.names.of_thread(record.tid, now_ns, comm_of);
    }

    /// Takes a wait that was noted.
    pub(super) fn add(
        &mut self,
        record: &WaitRecord,
        comm_of: &mut dyn FnMut(u32) -> String,
        live: &dyn Fn(u32) -> bool,
    ) {
        let reason = reason_of(record.reason);
        let (wait_ns, run_queue_ns) = match reason {
            Reason::Preempted => (record.duration_ns.saturating_add(record.run_queue_ns), 0),
            _ => (record.duration_ns, record.run_queue_ns),
        };
        let waker = waker_of(record);
        let is_lock = reason == Reason::Lock;
        let holder_tid = if is_lock { holder_of(record, live) } else { 0 };
        let now_ns = record.start_ns.saturating_add(record.duration_ns);
        let mut key = GroupKey {
            reason,
            name: self.names.of_thread(record.tid, now_ns, comm_of),
            operation: (record.flags & wait_flag::IN_OPERATION != 0).then_some(record.operation),
            request: (record.flags & wait_flag::IN_REQUEST != 0).then_some(record.request),
            futex_address: if is_lock { record.futex_address } else { 0 },
            futex_command: if is_lock { record.futex_command } else { futex::NONE },
            stack_id: record.stack_id,
            waker_stack_id: record.waker_stack_id,
            waker,
            holder_tid,
        };
        if let WakerKey::Thread { tid, .. } = waker {
            self.names.of_thread(tid, now_ns, comm_of);
        }
        if holder_tid != 0 {
            self.names.of_thread(holder_tid, now_ns, comm_of);
        }
        if self.groups.len() >= self.max_groups() && !self.groups.contains_key(&key) {
            self.ungrouped = self.ungrouped.saturating_add(1);
            key = GroupKey {
                name: self.names.id(CATCH_ALL_NAME),
                request: None,
                futex_address: 0,
                futex_command: futex::NONE,
                stack_id: 0,
                waker_stack_id: 0,
                waker: WakerKey::Unknown,
                holder_tid: 0,
                ..key
            };
        }
        self.groups.entry(key).or_default().add(wait_ns, run_queue_ns);
        if record.flags & wait_flag::BEGAN_BEFORE_TRACE != 0
            && self.at_start.len() < MAX_IN_PROGRESS
        {
            let comm = self.names.comm(record.tid);
            self.at_start.push(Open { record: *record, comm, holder_tid, at_end: false });
        }
        if is_lock {
            self.lock(record, waker, holder_tid);
        }
    }

    /// Takes a wait that has not ended.
    pub(super) fn add_open(
        &mut self,
        record: &WaitRecord,
        comm_of: &mut dyn FnMut(u32) -> String,
        live: &dyn Fn(u32) -> bool,
    ) {
        let now_ns = record.start_ns.saturating_add(record.duration_ns);
        self.names.of_thread(record.tid, now_ns, comm_of);
        let is_lock = reason_of(record.reason) == Reason::Lock;
        let holder_tid = if is_lock { holder_of(record, live) } else { 0 };
        let comm = self.names.comm(record.tid);
        self.at_end.push(Open { record: *record, comm, holder_tid, at_end: true });
    }

    /// Forgets the waits that have not ended.
    pub(super) fn clear_open(&mut self) {
        self.at_end.clear();
    }

    fn lock(&mut self, record: &WaitRecord, waker: WakerKey, holder_tid: u32) {
        let is_known = self.locks.contains_key(&record.futex_address);
        let address =
            if is_known || self.locks.len() < MAX_LOCKS - 1 { record.futex_address } else { 0 };
        let wait_ns = record.duration_ns;
        let lock = self.locks.entry(address).or_insert_with(|| LockBuilder {
            command: if address == 0 { futex::NONE } else { record.futex_command },
            ..LockBuilder::default()
        });
        lock.sums.add(wait_ns, 0);
        *lock.buckets.at(wait_ns) += 1;
        let end = match futex_wait_end(record.waker_flags, record.waker_syscall) {
            WaitEnd::Woken => &mut lock.ends.woken,
            WaitEnd::TimedOut => &mut lock.ends.timed_out,
            WaitEnd::Signal => &mut lock.ends.signal,
            WaitEnd::Unknown => &mut lock.ends.unknown,
        };
        *end += 1;
        if holder_tid != 0 {
            add_share(&mut lock.holders, holder_tid, wait_ns);
            if lock.holders.contains_key(&holder_tid) {
                let did = self.recent.of(holder_tid, record.start_ns, wait_ns);
                lock.meanwhile.entry(holder_tid).or_default().add(&did);
            }
        }
        add_share(&mut lock.wakers, waker, wait_ns);
        if record.stack_id != 0 {
            add_share(&mut lock.stacks, record.stack_id, wait_ns);
        }
        if record.waker_stack_id != 0 {
            add_share(&mut lock.waker_stacks, record.waker_stack_id, wait_ns);
        }
    }

    fn max_groups(&self) -> usize {
        #[cfg(test)]
        if let Some(max_groups) = self.max_groups {
            return max_groups;
        }
        MAX_GROUPS - CATCH_ALL_GROUPS
    }

    fn waker(&self, waker: WakerKey) -> Waker {
        match waker {
            WakerKey::Thread { tid, pid } => Waker::Thread { tid, pid, comm: self.names.comm(tid) },
            WakerKey::Interrupt => Waker::Interrupt,
            WakerKey::Unknown => Waker::Unknown,
        }
    }

    /// The groups and locks so far, longest first.
    pub(super) fn folded(
        &self,
        trace_start_ns: u64,
        operation_name: impl Fn(u8) -> String,
    ) -> Folded {
        let group = |(key, sums): (&GroupKey, &Sums)| WaitGroup {
            reason: key.reason,
            comm: self.names.get(key.name),
            operation: key.operation.map(&operation_name),
            request: key.request.map(&operation_name),
            futex_address: key.futex_address,
            futex_command: key.futex_command,
            stack_id: key.stack_id,
            waker_stack_id: key.waker_stack_id,
            waker: self.waker(key.waker),
            holder_tid: key.holder_tid,
            count: sums.count,
            total_ns: sums.total_ns,
            run_queue_ns: sums.run_queue_ns,
            max_ns: sums.max_ns,
        };
        let mut groups: Vec<WaitGroup> = self.groups.iter().map(group).collect();
        // By everything: a map has no order, and equal runs must give equal files.
        groups.sort_by(|left, right| order(left).cmp(&order(right)));
        let mut locks: Vec<Lock> =
            self.locks.iter().map(|(&address, lock)| self.finished(address, lock)).collect();
        let mut in_progress: Vec<WaitInProgress> = self
            .at_start
            .iter()
            .chain(&self.at_end)
            .map(|open| open.finished(trace_start_ns, &operation_name))
            .collect();
        in_progress.sort_by_key(|wait| (Reverse(wait.duration_ns), wait.tid, wait.start_ns));
        in_progress.truncate(MAX_IN_PROGRESS);
        add_to_locks(&mut locks, &in_progress);
        locks.sort_by_key(|lock| (Reverse(lock.total_ns), lock.address));
        Folded { groups, locks, ungrouped: self.ungrouped, in_progress }
    }

    fn finished(&self, address: u64, lock: &LockBuilder) -> Lock {
        let mut counts = vec![0; BUCKETS];
        for (bucket, &count) in lock.buckets.iter() {
            if let Some(slot) = counts.get_mut(bucket) {
                *slot = count;
            }
        }
        let stacks = |shares: &Shares<u64>| {
            let shares = sorted(shares).into_iter().map(|(stack_id, sums)| StackShare {
                stack_id,
                waits: sums.count,
                total_ns: sums.total_ns,
            });
            shares.collect()
        };
        let holder = |(tid, sums): (u32, Sums)| HolderShare {
            tid,
            comm: self.names.comm(tid),
            waits: sums.count,
            total_ns: sums.total_ns,
            meanwhile: lock.meanwhile.get(&tid).copied().unwrap_or_default(),
        };
        let waker = |(waker, sums): (WakerKey, Sums)| WakerShare {
            waker: self.waker(waker),
            waits: sums.count,
            total_ns: sums.total_ns,
        };
        Lock {
            address,
            name: None,
            class: super::lock::classify(lock.command, std::iter::empty()),
            command: lock.command,
            waits: lock.sums.count,
            total_ns: lock.sums.total_ns,
            histogram: SparseHistogram::from_kernel(lock.sums.total_ns, lock.sums.max_ns, &counts),
            max_ns: lock.sums.max_ns,
            ends: lock.ends,
            in_progress: 0,
            in_progress_ns: 0,
            holders: sorted(&lock.holders).into_iter().map(holder).collect(),
            wakers: sorted(&lock.wakers).into_iter().map(waker).collect(),
            stacks: stacks(&lock.stacks),
            waker_stacks: stacks(&lock.waker_stacks),
        }
    }
}

type Scope<'a> = (Option<&'a str>, Option<&'a str>);
type Order<'a> = (Reverse<(u64, u64)>, Reason, &'a str, Scope<'a>, [u64; 5], &'a Waker);

fn order(group: &WaitGroup) -> Order<'_> {
    let numbers = [
        group.futex_address,
        group.futex_command.into(),
        group.stack_id,
        group.waker_stack_id,
        group.holder_tid.into(),
    ];
    (
        Reverse((group.total_ns, group.count)),
        group.reason,
        &group.comm,
        (group.operation.as_deref(), group.request.as_deref()),
        numbers,
        &group.waker,
    )
}

pub(super) fn reason_of(reason: u8) -> Reason {
    match u32::from(reason) {
        off_cpu::PREEMPTED => Reason::Preempted,
        off_cpu::LOCK => Reason::Lock,
        off_cpu::IO => Reason::Io,
        off_cpu::SLEEP => Reason::Sleep,
        _ => Reason::Other,
    }
}

fn waker_of(record: &WaitRecord) -> WakerKey {
    if record.waker_flags & waker_flag::SEEN == 0 {
        WakerKey::Unknown
    } else if record.waker_flags & waker_flag::INTERRUPT != 0 {
        WakerKey::Interrupt
    } else if record.waker_tid == 0 {
        WakerKey::Unknown
    } else {
        WakerKey::Thread { tid: record.waker_tid, pid: record.waker_tgid }
    }
}

/// The thread that held the lock when the wait began; 0 if what the memory says is no live thread.
fn holder_of(record: &WaitRecord, live: &dyn Fn(u32) -> bool) -> u32 {
    let (flag, tid) = match record.futex_command {
        futex::LOCK_PI | futex::LOCK_PI2 => {
            (wait_flag::VALUE_READ, record.futex_value & FUTEX_TID_MASK)
        }
        // A condition variable, which nobody holds.
        futex::WAIT_REQUEUE_PI => return 0,
        _ => (wait_flag::OWNER_READ, record.futex_owner),
    };
    let is_read = record.flags & flag != 0;
    // A thread does not wait for a lock that it holds: then the word is something else.
    if is_read && tid != 0 && tid != record.tid && live(tid) { tid } else { 0 }
}

#[cfg(test)]
#[path = "waits/tests.rs"]
mod tests;
