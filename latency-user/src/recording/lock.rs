//! Locks: futexes that threads of the target waited for.

use std::collections::{HashMap, HashSet};

use latency_common::wait::futex;
use serde::{Deserialize, Serialize};

use super::histogram::SparseHistogram;
use super::meanwhile::Meanwhile;
use super::model::Recording;
use super::off_cpu::{Stack, Waker};

/// At most this many locks are kept apart; the waits for others are counted under address 0.
pub const MAX_LOCKS: usize = 4096;
/// At most this many holders, wakers and stacks are kept of each lock.
pub const MAX_SHARES: usize = 256;

/// A futex that was waited for.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lock {
    /// Its address in the target; 0 for the waits beyond [`MAX_LOCKS`] locks.
    pub address: u64,
    /// Its name, such as `keysvc:g_keystore_lock`, where a symbol covers the address.
    pub name: Option<String>,
    /// What kind of lock it is.
    pub class: LockClass,
    /// Command of the first futex call that waited; see [`latency_common::wait::futex`].
    pub command: u32,
    /// How many waits.
    pub waits: u64,
    /// How long they were blocked in all, in nanoseconds.
    pub total_ns: u64,
    /// How long each was blocked, in buckets of the kernel's histogram.
    pub histogram: SparseHistogram,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// How they ended.
    pub ends: WaitEnds,
    /// Waits that had not ended when tracing did; they are in none of the numbers above.
    #[serde(default)]
    pub in_progress: u64,
    /// How long those had lasted, in nanoseconds.
    #[serde(default)]
    pub in_progress_ns: u64,
    /// Who held it when the waits began, longest wait first; only where the holder is known.
    #[serde(deserialize_with = "super::capped::vec::<MAX_SHARES, _, _>")]
    pub holders: Vec<HolderShare>,
    /// Who ended the waits, longest wait first.
    #[serde(deserialize_with = "super::capped::vec::<MAX_SHARES, _, _>")]
    pub wakers: Vec<WakerShare>,
    /// Where it was waited for, longest wait first.
    #[serde(deserialize_with = "super::capped::vec::<MAX_SHARES, _, _>")]
    pub stacks: Vec<StackShare>,
    /// Where the waits were ended, longest wait first.
    #[serde(deserialize_with = "super::capped::vec::<MAX_SHARES, _, _>")]
    pub waker_stacks: Vec<StackShare>,
}

/// How waits ended, as far as the waker shows it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WaitEnds {
    /// Another thread released or signalled the lock.
    pub woken: u64,
    /// The timer ran out.
    pub timed_out: u64,
    /// A signal arrived.
    pub signal: u64,
    /// Nothing tells.
    pub unknown: u64,
}

/// The waits that began while one thread held the lock.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HolderShare {
    /// The thread.
    pub tid: u32,
    /// Its name, where it could be read.
    pub comm: String,
    /// How many waits.
    pub waits: u64,
    /// How long they were blocked, in nanoseconds.
    pub total_ns: u64,
    /// What the holder did in that time, as far as its own records tell.
    #[serde(default)]
    pub meanwhile: Meanwhile,
}

/// The waits that one waker ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WakerShare {
    /// Who ended them.
    pub waker: Waker,
    /// How many waits.
    pub waits: u64,
    /// How long they were blocked, in nanoseconds.
    pub total_ns: u64,
}

/// The waits with one stack.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StackShare {
    /// The stack; see [`super::Recording::stacks`].
    pub stack_id: u64,
    /// How many waits.
    pub waits: u64,
    /// How long they were blocked, in nanoseconds.
    pub total_ns: u64,
}

/// What kind of lock a futex is.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum LockClass {
    /// A mutex.
    Mutex,
    /// A reader-writer lock.
    Rwlock,
    /// A condition variable.
    Condvar,
    /// A semaphore.
    Semaphore,
    /// The end of a thread.
    Join,
    /// A thread parked by a language's runtime.
    Park,
    /// Nothing tells.
    #[default]
    #[serde(other)]
    Unknown,
}

impl LockClass {
    /// Whether a wait is idleness: for work, or for another thread to come that far. The others
    /// are contention.
    pub const fn is_idle(self) -> bool {
        matches!(self, Self::Condvar | Self::Semaphore | Self::Join | Self::Park)
    }

    /// Whether the word at `address + 8` can be the owner's tid: glibc's other types have something
    /// else there.
    pub(crate) const fn has_holder(self) -> bool {
        matches!(self, Self::Mutex | Self::Unknown)
    }

    /// The word for it, as the file has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Rwlock => "rwlock",
            Self::Condvar => "condvar",
            Self::Semaphore => "semaphore",
            Self::Join => "join",
            Self::Park => "park",
            Self::Unknown => "unknown",
        }
    }
}

/// How a function's name is compared with a rule.
enum Match {
    /// The name of a C function, without leading underscores and symbol version.
    Exact(&'static str),
    /// The beginning of such a name.
    Prefix(&'static str),
    /// A part of a Rust path.
    Part(&'static str),
}

use Match::{Exact, Part, Prefix};

/// What a function in the waiter's stack says of the lock. The innermost frame with a rule decides:
/// a mutex taken again inside `pthread_cond_wait` is a mutex. Frames without a name are passed
/// over, since glibc is stripped of `__lll_lock_wait` and the like.
const RULES: &[(Match, LockClass)] = &[
    (Prefix("lll_lock"), LockClass::Mutex),
    (Prefix("pthread_mutex_"), LockClass::Mutex),
    (Exact("mtx_lock"), LockClass::Mutex),
    (Exact("mtx_timedlock"), LockClass::Mutex),
    (Prefix("pthread_rwlock_"), LockClass::Rwlock),
    (Exact("pthread_cond_wait"), LockClass::Condvar),
    (Exact("pthread_cond_timedwait"), LockClass::Condvar),
    (Exact("pthread_cond_clockwait"), LockClass::Condvar),
    (Exact("pthread_cond_wait_common"), LockClass::Condvar),
    (Exact("cnd_wait"), LockClass::Condvar),
    (Exact("cnd_timedwait"), LockClass::Condvar),
    (Exact("sem_wait"), LockClass::Semaphore),
    // As inner functions of glibc call themselves, with its debug symbols.
    (Prefix("new_sem_wait"), LockClass::Semaphore),
    (Exact("sem_timedwait"), LockClass::Semaphore),
    (Exact("sem_clockwait"), LockClass::Semaphore),
    (Exact("pthread_join"), LockClass::Join),
    (Exact("pthread_timedjoin_np"), LockClass::Join),
    (Exact("pthread_clockjoin_np"), LockClass::Join),
    (Exact("pthread_clockjoin_ex"), LockClass::Join),
    (Exact("thrd_join"), LockClass::Join),
    // Rust's standard library: `std::sys::sync::mutex::futex` since 1.76, before that
    // `std::sys::unix::locks::futex_mutex`.
    (Part("sys::sync::mutex"), LockClass::Mutex),
    (Part("futex_mutex"), LockClass::Mutex),
    (Part("sys::sync::rwlock"), LockClass::Rwlock),
    (Part("futex_rwlock"), LockClass::Rwlock),
    (Part("sys::sync::condvar"), LockClass::Condvar),
    (Part("futex_condvar"), LockClass::Condvar),
    (Part("thread_parking"), LockClass::Park),
    (Part("std::thread::park"), LockClass::Park),
    (Part("raw_mutex::RawMutex"), LockClass::Mutex),
    (Part("raw_rwlock::RawRwLock"), LockClass::Rwlock),
    (Part("parking_lot::condvar"), LockClass::Condvar),
];

/// The same for functions that serve several kinds of locks: only where no other frame decides.
const FALLBACK_RULES: &[(Match, LockClass)] = &[
    (Part("thread_parker"), LockClass::Park),
    (Part("parking_lot_core::"), LockClass::Park),
    (Part("::futex_wait"), LockClass::Park),
];

/// What kind of lock a wait was for, judged from the futex command and the names of the functions in
/// the waiter's stack, innermost first.
pub fn classify<'a>(
    command: u32,
    functions: impl Iterator<Item = Option<&'a str>> + Clone,
) -> LockClass {
    match command {
        // Only mutexes inherit priorities.
        futex::LOCK_PI | futex::LOCK_PI2 => return LockClass::Mutex,
        // A condition variable, whose waiters go on to such a mutex.
        futex::WAIT_REQUEUE_PI => return LockClass::Condvar,
        _ => {}
    }
    let judge = |rules: &[(Match, LockClass)]| {
        functions.clone().flatten().find_map(|function| class_of(function, rules))
    };
    judge(RULES).or_else(|| judge(FALLBACK_RULES)).unwrap_or_default()
}

fn class_of(function: &str, rules: &[(Match, LockClass)]) -> Option<LockClass> {
    let c_name = function.split('@').next().unwrap_or_default().trim_start_matches('_');
    let rule = rules.iter().find(|(pattern, _)| match pattern {
        Exact(name) => c_name == *name,
        Prefix(name) => c_name.starts_with(name),
        Part(name) => function.contains(name),
    });
    rule.map(|rule| rule.1)
}

impl Lock {
    /// Judges the class from the stacks of the waiters, and forgets holders that the class shows to
    /// be none.
    pub(super) fn settle<'a>(&mut self, stack: impl Fn(u64) -> Option<&'a Stack>) {
        let mut totals = [(LockClass::Unknown, 0u64); 7];
        for share in &self.stacks {
            let frames = stack(share.stack_id).map_or(&[][..], |stack| &stack.frames);
            let class =
                classify(self.command, frames.iter().map(|frame| frame.function.as_deref()));
            let total = &mut totals[class as usize];
            *total = (class, total.1.saturating_add(share.total_ns.max(1)));
        }
        let told = totals.iter().filter(|(class, _)| *class != LockClass::Unknown);
        self.class = match told.max_by_key(|(_, total_ns)| *total_ns) {
            // A mutex is also waited for by those who come back from a condition variable, whose
            // stack may show no more than that; nobody locks a condition variable.
            Some(_) if totals[LockClass::Mutex as usize].1 > 0 => LockClass::Mutex,
            Some(&(class, _)) => class,
            None => classify(self.command, std::iter::empty()),
        };
        if !self.class.has_holder() {
            self.holders.clear();
        }
    }
}

impl Recording {
    /// Judges the classes of the locks from the stacks, and takes back holders that were none.
    /// Comes after `stacks` was set.
    pub fn classify_locks(&mut self) {
        let stacks: HashMap<u64, &Stack> =
            self.stacks.iter().map(|stack| (stack.id, stack)).collect();
        let mut not_held = HashSet::new();
        for lock in &mut self.locks {
            lock.settle(|id| stacks.get(&id).copied());
            if !lock.class.has_holder() {
                not_held.insert(lock.address);
            }
        }
        for group in &mut self.waits {
            if not_held.contains(&group.futex_address) {
                group.holder_tid = 0;
            }
        }
    }
}

#[cfg(test)]
#[path = "lock/tests.rs"]
mod tests;
