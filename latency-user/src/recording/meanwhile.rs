//! What the holder of a lock did while others waited for it, as far as its own records tell.

use std::collections::VecDeque;

use hashbrown::HashMap;
use latency_common::record::WaitRecord;
use serde::{Deserialize, Serialize};

use super::off_cpu::Reason;
use super::waits::reason_of;

/// So many times off the CPU are kept of each thread, the latest.
const MAX_TIMES: usize = 64;
/// Times are kept of so many threads at a time.
const MAX_THREADS: usize = 4096;

/// What a thread did in some stretches of time; adds up to their length.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Meanwhile {
    /// It ran, or was off the CPU for too short to be recorded, in nanoseconds.
    pub ran_ns: u64,
    /// It was runnable without running: preempted, or in the run queue, in nanoseconds.
    pub runnable_ns: u64,
    /// It waited for a futex itself, in nanoseconds.
    pub lock_ns: u64,
    /// It waited uninterruptibly, in nanoseconds.
    pub io_ns: u64,
    /// It waited interruptibly for anything but a futex, in nanoseconds.
    pub sleep_ns: u64,
    /// It was off the CPU for what cannot be told, in nanoseconds.
    pub other_ns: u64,
}

impl Meanwhile {
    pub(super) fn add(&mut self, other: &Self) {
        for (sum, value) in [
            (&mut self.ran_ns, other.ran_ns),
            (&mut self.runnable_ns, other.runnable_ns),
            (&mut self.lock_ns, other.lock_ns),
            (&mut self.io_ns, other.io_ns),
            (&mut self.sleep_ns, other.sleep_ns),
            (&mut self.other_ns, other.other_ns),
        ] {
            *sum = sum.saturating_add(value);
        }
    }
}

/// One time off the CPU: blocked first, then runnable.
#[derive(Clone, Copy, Debug)]
struct Time {
    reason: Reason,
    start_ns: u64,
    blocked_until_ns: u64,
    end_ns: u64,
}

/// The latest times off the CPU of each thread. A holder's own wait ends before it can release the
/// lock, and so its record comes before the waiter's.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    threads: HashMap<u32, VecDeque<Time>>,
}

impl Recent {
    pub(super) fn add(&mut self, record: &WaitRecord) {
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&record.tid) {
            self.threads.clear();
        }
        let times = self.threads.entry(record.tid).or_default();
        if times.len() == MAX_TIMES {
            times.pop_front();
        }
        let blocked_until_ns = record.start_ns.saturating_add(record.duration_ns);
        times.push_back(Time {
            reason: reason_of(record.reason),
            start_ns: record.start_ns,
            blocked_until_ns,
            end_ns: blocked_until_ns.saturating_add(record.run_queue_ns),
        });
    }

    /// What the thread did from `start_ns` on for `duration_ns`.
    pub(super) fn of(&self, tid: u32, start_ns: u64, duration_ns: u64) -> Meanwhile {
        let end_ns = start_ns.saturating_add(duration_ns);
        let mut did = Meanwhile::default();
        // No two overlap, but for records of a kernel side gone wrong: never more than there is.
        let mut left_ns = duration_ns;
        let mut take = |part: &mut u64, from_ns: u64, to_ns: u64| {
            let ns = to_ns.min(end_ns).saturating_sub(from_ns.max(start_ns)).min(left_ns);
            *part += ns;
            left_ns -= ns;
        };
        // Mostly it is the last one or two of many.
        let times = self.threads.get(&tid).into_iter().flatten().rev();
        for time in times.take_while(|time| time.end_ns > start_ns) {
            let part = match time.reason {
                Reason::Preempted => &mut did.runnable_ns,
                Reason::Lock => &mut did.lock_ns,
                Reason::Io => &mut did.io_ns,
                Reason::Sleep => &mut did.sleep_ns,
                Reason::Other => &mut did.other_ns,
            };
            take(part, time.start_ns, time.blocked_until_ns);
            take(&mut did.runnable_ns, time.blocked_until_ns, time.end_ns);
        }
        did.ran_ns = left_ns;
        did
    }
}

#[cfg(test)]
mod tests {
    use latency_common::ledger::off_cpu;

    use super::*;

    fn time(reason: u32, start_ns: u64, duration_ns: u64, run_queue_ns: u64) -> WaitRecord {
        let reason = reason as u8;
        WaitRecord { tid: 7, reason, start_ns, duration_ns, run_queue_ns, ..WaitRecord::default() }
    }

    /// Check that a holder's times are cut to those of the wait, and that the rest is running.
    ///
    /// ```text
    ///   holder  0────sleep────100─queue─120──ran──150─preempted─200
    ///   waiter           50────────────lock wait──────────180
    /// ```
    #[test]
    fn overlaps() {
        let mut recent = Recent::default();
        recent.add(&time(off_cpu::SLEEP, 0, 100, 20));
        recent.add(&time(off_cpu::PREEMPTED, 150, 0, 50));
        let expected =
            Meanwhile { sleep_ns: 50, runnable_ns: 50, ran_ns: 30, ..Meanwhile::default() };
        assert_eq!(recent.of(7, 50, 130), expected);
        assert_eq!(recent.of(8, 50, 130), Meanwhile { ran_ns: 130, ..Meanwhile::default() });
    }

    /// Check that memory is bounded, and that the latest times are the ones kept.
    #[test]
    fn bounded() {
        let mut recent = Recent::default();
        for n in 0..1_000 {
            recent.add(&time(off_cpu::IO, n * 10, 10, 0));
        }
        assert_eq!(recent.of(7, 9_980, 20).io_ns, 20);
        assert_eq!(recent.of(7, 0, 20).io_ns, 0);
        for tid in 0..10_000 {
            recent.add(&WaitRecord { tid, ..time(off_cpu::IO, 0, 1, 0) });
        }
        assert!(recent.threads.len() <= MAX_THREADS);
    }

    proptest::proptest! {
        /// Check that the parts add up to the wait, whatever the records say.
        #[test]
        fn adds_up(times: Vec<(u8, u64, u64, u64)>, start_ns: u64, duration_ns: u64) {
            let mut recent = Recent::default();
            for (reason, start_ns, duration_ns, run_queue_ns) in times {
                recent.add(&time(reason.into(), start_ns, duration_ns, run_queue_ns));
            }
            let did = recent.of(7, start_ns, duration_ns);
            let mut sum = did.ran_ns + did.runnable_ns + did.lock_ns + did.io_ns;
            sum += did.sleep_ns + did.other_ns;
            assert_eq!(sum, duration_ns);
        }
    }
}
