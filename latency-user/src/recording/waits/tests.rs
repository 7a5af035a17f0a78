use latency_common::record::kind;
use latency_common::wait::syscall;

use super::*;
use crate::recording::names::NAME_AGE_NS;

const MUTEX: u64 = 0x5555_0000_1000;

fn record(tid: u32, wait_ns: u64) -> WaitRecord {
    WaitRecord {
        kind: kind::WAIT,
        reason: off_cpu::LOCK as u8,
        flags: wait_flag::IN_OPERATION | wait_flag::VALUE_READ | wait_flag::OWNER_READ,
        waker_flags: waker_flag::SEEN,
        start_ns: 1,
        duration_ns: wait_ns,
        run_queue_ns: 7,
        tgid: 10,
        tid,
        waker_tgid: 10,
        waker_tid: 12,
        waker_syscall: syscall::FUTEX,
        syscall: syscall::FUTEX,
        futex_address: MUTEX,
        futex_owner: 12,
        stack_id: 3,
        waker_stack_id: 4,
        ..WaitRecord::default()
    }
}

fn fold(waits: &mut Waits, records: &[WaitRecord]) -> Folded {
    for record in records {
        let comm_of = &mut |tid| format!("thread-{tid}");
        waits.note(record, comm_of);
        waits.add(record, comm_of, &|tid| (11..=13).contains(&tid));
    }
    waits.folded(0, |operation| format!("operation {operation}"))
}

/// Check that waits which differ in nothing but their length are one group and one lock.
#[test]
fn groups_and_locks() {
    let mut other = record(11, 50);
    other.flags = 0;
    other.waker_flags = waker_flag::SEEN | waker_flag::INTERRUPT;
    let folded = fold(&mut Waits::default(), &[record(11, 100), record(11, 300), other]);
    let [group, outside] = &folded.groups[..] else { panic!() };
    assert_eq!((group.count, group.total_ns, group.run_queue_ns, group.max_ns), (2, 400, 14, 300));
    assert_eq!((&*group.comm, group.operation.as_deref()), ("thread-11", Some("operation 0")));
    assert_eq!(group.waker, Waker::Thread { tid: 12, pid: 10, comm: "thread-12".into() });
    assert_eq!((group.holder_tid, group.stack_id, group.waker_stack_id), (12, 3, 4));
    assert_eq!((outside.operation.as_deref(), &outside.waker), (None, &Waker::Interrupt));
    let [lock] = &folded.locks[..] else { panic!() };
    assert_eq!((lock.address, lock.waits, lock.total_ns, lock.max_ns), (MUTEX, 3, 450, 300));
    assert_eq!((lock.histogram.count, lock.histogram.max_ns), (3, 300));
    assert_eq!(lock.ends, WaitEnds { woken: 2, timed_out: 1, ..WaitEnds::default() });
    let holder = HolderShare {
        tid: 12,
        comm: "thread-12".into(),
        waits: 2,
        total_ns: 400,
        meanwhile: Meanwhile { ran_ns: 400, ..Meanwhile::default() },
    };
    assert_eq!(lock.holders, [holder]);
    let wakers: Vec<u64> = lock.wakers.iter().map(|share| share.total_ns).collect();
    assert_eq!(wakers, [400, 50]);
    assert_eq!(lock.stacks, [StackShare { stack_id: 3, waits: 3, total_ns: 450 }]);
    assert_eq!(folded.ungrouped, 0);
}

/// Check that a preempted thread's time is its time in the run queue, and no lock's.
#[test]
fn preempted() {
    let preempted =
        WaitRecord { reason: off_cpu::PREEMPTED as u8, run_queue_ns: 500, ..record(11, 0) };
    let folded = fold(&mut Waits::default(), &[preempted]);
    let group = &folded.groups[0];
    assert_eq!((group.reason, group.total_ns, group.run_queue_ns), (Reason::Preempted, 500, 0));
    assert_eq!((group.futex_address, group.holder_tid), (0, 0));
    assert!(folded.locks.is_empty());
}

/// Check that only a live thread other than the waiter holds a lock, told from the right word.
#[test]
fn holders() {
    let plain = record(11, 1);
    for (record, expected) in [
        (plain, 12),
        (WaitRecord { flags: wait_flag::VALUE_READ, ..plain }, 0),
        (WaitRecord { futex_owner: 11, ..plain }, 0),
        (WaitRecord { futex_owner: 0, ..plain }, 0),
        (WaitRecord { futex_owner: 99, ..plain }, 0),
        (WaitRecord { futex_command: futex::LOCK_PI, futex_value: 0x8000_000d, ..plain }, 13),
        (WaitRecord { futex_command: futex::LOCK_PI2, futex_value: 0xc000_000d, ..plain }, 13),
        (WaitRecord { futex_command: futex::WAIT_REQUEUE_PI, futex_value: 13, ..plain }, 0),
        (WaitRecord { futex_command: futex::WAIT_BITSET, futex_value: 13, ..plain }, 12),
    ] {
        let folded = fold(&mut Waits::default(), &[record]);
        assert_eq!(folded.groups[0].holder_tid, expected, "{record:?}");
    }
}

/// Check that waits beyond the most groups keep their time, their reason and their operation.
#[test]
fn too_many_groups() {
    let mut waits = Waits { max_groups: Some(10), ..Waits::default() };
    let records: Vec<WaitRecord> =
        (0..100).map(|stack_id| WaitRecord { stack_id, ..record(11, 10) }).collect();
    let folded = fold(&mut waits, &records);
    assert_eq!((folded.groups.len(), folded.ungrouped), (11, 90));
    assert_eq!(folded.groups.iter().map(|group| group.total_ns).sum::<u64>(), 1000);
    let rest = &folded.groups[0];
    assert_eq!((rest.count, rest.reason, &*rest.comm), (90, Reason::Lock, CATCH_ALL_NAME));
    assert_eq!(rest.operation.as_deref(), Some("operation 0"));
    assert_eq!(folded.locks[0].waits, 100);
}

/// Check that waits beyond the most locks, holders and stacks are counted all the same.
#[test]
fn too_many_locks() {
    let records: Vec<WaitRecord> = (0..5000u64)
        .map(|n| WaitRecord { futex_address: MUTEX + n * 8, stack_id: n + 1, ..record(11, 10) })
        .collect();
    let folded = fold(&mut Waits::default(), &records);
    assert_eq!(folded.locks.len(), MAX_LOCKS);
    assert_eq!(folded.locks.iter().map(|lock| lock.waits).sum::<u64>(), 5000);
    let rest = &folded.locks[0];
    assert_eq!((rest.address, rest.waits), (0, 5000 - MAX_LOCKS as u64 + 1));
    assert_eq!(rest.stacks.len(), MAX_SHARES);
}

/// Check that a thread's name is read again after a while, and kept when the thread is gone.
#[test]
fn names() {
    let mut waits = Waits::default();
    let mut add = |start_ns, name: &str| {
        let record = WaitRecord { start_ns, waker_flags: 0, flags: 0, ..record(11, 1) };
        waits.add(&record, &mut |_| name.to_owned(), &|_| false);
    };
    add(0, "early");
    add(1, "not asked");
    add(2 * NAME_AGE_NS, "late");
    add(4 * NAME_AGE_NS, "");
    let mut names: Vec<(String, u64)> = waits
        .folded(0, |_| String::new())
        .groups
        .into_iter()
        .map(|group| (group.comm, group.count))
        .collect();
    names.sort();
    assert_eq!(names, [("early".into(), 2), ("late".into(), 2)]);
}

proptest::proptest! {
    /// Check that no record does harm, and that no wait gets lost.
    #[test]
    fn any_records(numbers in proptest::collection::vec(proptest::array::uniform6(0_u64..), 0..20)) {
        let records: Vec<WaitRecord> = numbers
            .iter()
            .map(|&[a, b, c, d, e, f]| WaitRecord {
                reason: a as u8 % 9,
                flags: b as u8,
                waker_flags: c as u8,
                duration_ns: d,
                run_queue_ns: e,
                futex_address: f,
                futex_command: (a >> 32) as u32 % 16,
                start_ns: b,
                ..record(c as u32, 0)
            })
            .collect();
        let folded = fold(&mut Waits::default(), &records);
        let count: u64 = folded.groups.iter().map(|group| group.count).sum();
        assert_eq!(count, records.len() as u64);
        assert!(folded.locks.iter().all(|lock| lock.waits == lock.histogram.count));
    }
}

/// Check that waits which the trace's start and end cut are kept, by name and with their holder,
/// and that those at the end can be taken anew.
#[test]
fn in_progress() {
    let mut waits = Waits::default();
    let begun = WaitRecord { flags: wait_flag::BEGAN_BEFORE_TRACE, ..record(11, 100) };
    fold(&mut waits, &[begun, record(12, 50)]);
    for _ in 0..2 {
        waits.clear_open();
        waits.add_open(&record(13, 900), &mut |_| "late".into(), &|_| true);
    }
    let folded = waits.folded(0, |operation| format!("operation {operation}"));
    let [end, start] = &folded.in_progress[..] else { panic!("{:?}", folded.in_progress) };
    assert_eq!((end.tid, &*end.comm, end.holder_tid), (13, "late", 12));
    assert_eq!((end.duration_ns, end.at_start, end.at_end), (907, false, true));
    assert_eq!((start.tid, &*start.comm), (11, "thread-11"));
    assert_eq!((start.duration_ns, start.at_start, start.at_end), (107, true, false));
    assert_eq!((folded.locks[0].waits, folded.locks[0].in_progress), (2, 1));
    assert_eq!(folded.locks[0].in_progress_ns, 907);
}

/// Check that waits of a request are kept apart from the same waits outside.
#[test]
fn requests() {
    let flags = wait_flag::IN_REQUEST;
    let inside = WaitRecord { flags, request: 2, ..record(11, 100) };
    let outside = WaitRecord { flags: 0, ..record(11, 50) };
    let folded = fold(&mut Waits::default(), &[inside, outside]);
    let requests: Vec<_> = folded.groups.iter().map(|group| group.request.as_deref()).collect();
    assert_eq!(requests, [Some("operation 2"), None]);
    assert!(folded.groups.iter().all(|group| group.operation.is_none()));
}
