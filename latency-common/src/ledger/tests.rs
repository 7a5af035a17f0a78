use super::*;

/// A thread that runs from `now_ns` on, on CPU 0, with an empty ledger.
fn running_since(now_ns: u64) -> Timeline {
    let mut timeline = Timeline::default();
    timeline.switch_in(now_ns, 0);
    timeline.ledger = Ledger::default();
    timeline
}

/// The ledger as it was at `start_ns`, copied at once: what [`Base`] keeps late.
fn begin(timeline: &mut Timeline, start_ns: u64) -> Ledger {
    timeline.runs(start_ns);
    timeline.closed(start_ns).0
}

/// Check an operation that is never switched out.
///
/// ```text
///   0         100
///   ├─on-CPU──┤
/// ```
#[test]
fn alone() {
    let (ledger, end_ns) = running_since(0).closed(100);
    assert_eq!((ledger, end_ns), (Ledger { on_cpu_ns: 100, ..Ledger::default() }, 100));
}

/// Check that a lock wait is split at the wakeup.
///
/// ```text
///   0        10        60        75       100
///   ├─on-CPU─┼──lock───┼run queue┼─on-CPU─┤
///            out       wake      in
/// ```
#[test]
fn lock_wait() {
    let mut timeline = running_since(0);
    timeline.switch_out(10, off_cpu::LOCK);
    timeline.wake(60);
    let off = timeline.switch_in(75, 0);
    assert_eq!(
        off,
        OffCpu {
            state: off_cpu::LOCK,
            start_ns: 10,
            blocked_ns: 50,
            runnable_ns: 15,
            clock_backwards: false
        }
    );
    let (ledger, _) = timeline.closed(100);
    let expected = Ledger {
        on_cpu_ns: 35,
        lock_ns: 50,
        run_queue_ns: 15,
        voluntary_switches: 1,
        ..Ledger::default()
    };
    assert_eq!(ledger, expected);
}

/// Check that a preempted thread is runnable, not blocked, whatever woke it while it was off.
///
/// ```text
///   0        10                  75       100
///   ├─on-CPU─┼─────preempted─────┼─on-CPU─┤
///            out    (wake 20)    in, CPU 1
/// ```
#[test]
fn preempted() {
    let mut timeline = running_since(0);
    timeline.switch_out(10, off_cpu::PREEMPTED);
    timeline.wake(20);
    let off = timeline.switch_in(75, 1);
    assert_eq!((off.blocked_ns, off.runnable_ns), (0, 65));
    let (ledger, _) = timeline.closed(100);
    let expected = Ledger {
        on_cpu_ns: 35,
        preempted_ns: 65,
        involuntary_switches: 1,
        migrations: 1,
        ..Ledger::default()
    };
    assert_eq!(ledger, expected);
}

/// Check that a waker that overtakes the traced switch leaves no blocked time.
///
/// ```text
///   0     8      10                  75
///   ├─on-CPU─────┼─────run queue─────┤
///         wake   out                 in
/// ```
#[test]
fn wake_before_switch_out() {
    let mut timeline = running_since(0);
    timeline.wake(8);
    timeline.switch_out(10, off_cpu::SLEEP);
    let off = timeline.switch_in(75, 0);
    assert_eq!((off.state, off.blocked_ns, off.runnable_ns), (off_cpu::SLEEP, 0, 65));
}

/// Check that a wakeup of one wait says nothing about the next.
#[test]
fn stale_wake() {
    let mut timeline = running_since(0);
    timeline.wake(5);
    timeline.switch_out(10, off_cpu::IO);
    timeline.wake(40);
    assert_eq!(timeline.switch_in(50, 0).blocked_ns, 30);
    timeline.switch_out(60, off_cpu::IO);
    timeline.wake(65);
    assert_eq!(timeline.switch_in(70, 0).blocked_ns, 5);
    assert_eq!(timeline.ledger.io_ns, 35);
}

/// Check that a new operation starts with nothing of what came before it.
///
/// ```text
///   0        10      60     70        90
///   ├─on-CPU─┼─sleep─┼on-CPU┼operation┤
///                           begin
/// ```
#[test]
fn begin_clips() {
    let mut timeline = running_since(0);
    timeline.switch_out(10, off_cpu::SLEEP);
    timeline.wake(60);
    timeline.switch_in(60, 1);
    let base = begin(&mut timeline, 70);
    let (ledger, _) = timeline.closed(90);
    assert_eq!(ledger.since(&base), Ledger { on_cpu_ns: 20, ..Ledger::default() });
}

/// Check that a request has the time around the operation in it as well, each exactly.
///
/// ```text
///   0        10     20     30      50     60      100
///   ├request─┼─lock─┼on-CPU┼──op────┼─────┼request──┤
///            out    in     begin    closed (op: preempted 40–50)
/// ```
#[test]
fn nested_scopes() {
    let mut timeline = running_since(0);
    let request = begin(&mut timeline, 0);
    timeline.switch_out(10, off_cpu::LOCK);
    timeline.wake(20);
    timeline.switch_in(20, 0);
    let operation = begin(&mut timeline, 30);
    timeline.switch_out(40, off_cpu::PREEMPTED);
    timeline.switch_in(50, 0);
    let inner = timeline.closed(60).0.since(&operation);
    let expected =
        Ledger { on_cpu_ns: 20, preempted_ns: 10, involuntary_switches: 1, ..Ledger::default() };
    assert_eq!(inner, expected);
    let outer = timeline.closed(100).0.since(&request);
    assert_eq!((outer.on_cpu_ns, outer.lock_ns, outer.preempted_ns), (80, 10, 10));
    assert_eq!(outer.total_ns(), 100);
}

/// Check that the ledger is kept at the first switch inside a call and at no later one, and that the
/// faults of the begin stay.
#[test]
fn kept_once() {
    let mut timeline = running_since(0);
    timeline.switch_out(10, off_cpu::SLEEP);
    timeline.switch_in(15, 0);
    let mut base = Base::default();
    base.mark(timeline.sequence, [3, 4]);
    base.keep(&timeline, 20);
    timeline.switch_out(30, off_cpu::IO);
    base.keep(&timeline, 20);
    timeline.wake(40);
    timeline.switch_in(45, 0);
    let kept = Ledger {
        on_cpu_ns: 15,
        run_queue_ns: 5,
        voluntary_switches: 1,
        minor_faults: 3,
        major_faults: 4,
        ..Ledger::default()
    };
    assert_eq!(base.ledger, kept);
    let (ledger, end_ns) = base.closed(&timeline, 20, 50, [5, 4]);
    let expected = Ledger {
        on_cpu_ns: 15,
        io_ns: 10,
        run_queue_ns: 5,
        voluntary_switches: 1,
        minor_faults: 2,
        ..Ledger::default()
    };
    assert_eq!((ledger, end_ns), (expected, 50));
}

/// Check that a call is undisturbed until it is switched out or reads from a disk.
#[test]
fn undisturbed() {
    let mut timeline = running_since(10);
    let mut base = Base::default();
    base.mark(timeline.sequence, [3, 4]);
    assert_eq!(base.undisturbed(&timeline, [3, 4]), Some(0));
    assert_eq!(base.undisturbed(&timeline, [5, 4]), Some(2));
    assert_eq!(base.undisturbed(&timeline, [5, 5]), None);
    timeline.switch_out(30, off_cpu::PREEMPTED);
    timeline.switch_in(35, 0);
    assert_eq!(base.undisturbed(&timeline, [3, 4]), None);
}

/// Check that a thread seen first by its own probe runs from then on.
#[test]
fn first_seen_beginning() {
    let mut timeline = Timeline::default();
    let base = begin(&mut timeline, 1_000);
    assert_eq!(timeline.closed(1_100).0.since(&base).on_cpu_ns, 100);
}

/// Check that a call whose program is switched out between the entry and the begin has none of that
/// wait, be it the first that is known of the thread.
///
/// ```text
///   0       10      20          50       60
///   ├───────┼program┼─preempted─┼──call──┤
///           entry   out         in
/// ```
#[test]
fn preempted_before_begin() {
    for mut timeline in [Timeline::default(), running_since(0)] {
        timeline.switch_out(20, off_cpu::PREEMPTED);
        timeline.switch_in(50, 0);
        let begin_ns = timeline.begin_ns(10);
        assert_eq!(begin_ns, 50);
        let mut base = Base::default();
        base.mark(timeline.sequence, [0, 0]);
        let (ledger, end_ns) = base.closed(&timeline, begin_ns, 60, [0, 0]);
        assert_eq!((ledger, end_ns), (Ledger { on_cpu_ns: 10, ..Ledger::default() }, 60));
        // The same where the ledger had to be kept.
        base.keep(&timeline, begin_ns);
        timeline.switch_out(60, off_cpu::SLEEP);
        let (ledger, _) = base.closed(&timeline, begin_ns, 60, [0, 0]);
        assert_eq!((ledger.on_cpu_ns, ledger.total_ns()), (10, 10));
    }
}

/// Check that a thread whose first event is a switch out has an untold past and a known wait.
#[test]
fn first_seen_leaving() {
    let mut timeline = Timeline::default();
    timeline.switch_out(10, off_cpu::SLEEP);
    assert_eq!(timeline.ledger.other_ns, 10);
    timeline.wake(30);
    assert_eq!(timeline.switch_in(35, 1).blocked_ns, 20);
}

/// Check that a clock that steps back attributes nothing and is told.
#[test]
fn clock_steps_back() {
    let mut timeline = running_since(100);
    assert!(timeline.switch_out(90, off_cpu::LOCK));
    timeline.wake(95);
    assert!(timeline.switch_in(98, 0).clock_backwards);
    let (ledger, end_ns) = timeline.closed(99);
    assert_eq!((ledger.total_ns(), end_ns), (0, 100));
}

/// Check that a switch after the end was read moves the end, and keeps the sum.
#[test]
fn switched_while_closing() {
    let mut timeline = running_since(0);
    let end_ns = 50;
    timeline.switch_out(60, off_cpu::PREEMPTED);
    timeline.switch_in(80, 0);
    let (ledger, end_ns) = timeline.closed(end_ns);
    assert_eq!((ledger.total_ns(), end_ns), (80, 80));
}

/// Check that a missed switch out is untold time, not a broken sum.
#[test]
fn missed_switch_out() {
    let mut timeline = running_since(0);
    assert_eq!(timeline.switch_in(30, 0).state, off_cpu::ON_CPU);
    let (ledger, end_ns) = timeline.closed(100);
    assert_eq!((ledger.other_ns, ledger.on_cpu_ns, end_ns), (30, 70, 100));
}

/// Check that what the kernel counted as waiting is run queue time, though the switch in was missed.
///
/// ```text
///   0        10      60          85    90        100
///   ├─on-CPU─┼─sleep─┼─run queue─┼─on-CPU┼preempted┤
///            out     wake   (in missed)  out       in
/// ```
#[test]
fn missed_switch_in_told_by_the_kernel() {
    let mut timeline = running_since(0);
    timeline.switch_out(10, off_cpu::SLEEP);
    timeline.run_delay_ns = 1_000;
    timeline.wake(60);
    let off = timeline.recover(90, Some(1_025)).unwrap();
    assert_eq!((off.state, off.blocked_ns, off.runnable_ns), (off_cpu::SLEEP, 50, 25));
    timeline.switch_out(90, off_cpu::PREEMPTED);
    timeline.switch_in(100, 0);
    let (ledger, _) = timeline.closed(100);
    let expected = Ledger {
        on_cpu_ns: 15,
        sleep_ns: 50,
        run_queue_ns: 25,
        preempted_ns: 10,
        voluntary_switches: 1,
        involuntary_switches: 1,
        ..Ledger::default()
    };
    assert_eq!(ledger, expected);
}

/// Check that a preempted thread's missed switch in is told likewise.
#[test]
fn missed_switch_in_after_preemption() {
    let mut timeline = running_since(0);
    timeline.switch_out(10, off_cpu::PREEMPTED);
    timeline.run_delay_ns = u64::MAX;
    let off = timeline.recover(90, Some(69)).unwrap();
    assert_eq!((off.state, off.blocked_ns, off.runnable_ns), (off_cpu::PREEMPTED, 0, 70));
    assert_eq!((timeline.ledger.preempted_ns, timeline.ledger.on_cpu_ns), (70, 20));
    assert_eq!((timeline.ledger.run_queue_ns, timeline.ledger.other_ns), (0, 0));
}

/// Check that the kernel's count takes no more than there is, and that a wait whose wakeup was not
/// seen either is not called running.
#[test]
fn missed_switch_in_without_a_wakeup() {
    let mut timeline = running_since(0);
    timeline.switch_out(10, off_cpu::IO);
    assert_eq!(timeline.recover(90, Some(20)).unwrap().runnable_ns, 20);
    assert_eq!((timeline.ledger.run_queue_ns, timeline.ledger.other_ns), (20, 60));
    timeline.switch_out(100, off_cpu::IO);
    timeline.wake(105);
    assert_eq!(timeline.recover(110, Some(500)).unwrap().runnable_ns, 5);
    assert_eq!((timeline.ledger.io_ns, timeline.ledger.on_cpu_ns), (5, 20));
}

/// Check that a missed switch in keeps the wait, and leaves untold only what came after it where the
/// kernel does not count.
///
/// ```text
///   0        10      60                70       100
///   ├─on-CPU─┼─sleep─┼──────other──────┼preempted┤
///            out     wake  (in missed) out       in
/// ```
#[test]
fn missed_switch_in() {
    let mut timeline = running_since(0);
    timeline.switch_out(10, off_cpu::SLEEP);
    timeline.wake(60);
    let off = timeline.recover(70, None).unwrap();
    assert_eq!((off.state, off.blocked_ns, off.runnable_ns), (off_cpu::SLEEP, 50, 0));
    timeline.switch_out(70, off_cpu::PREEMPTED);
    timeline.switch_in(100, 0);
    let (ledger, _) = timeline.closed(100);
    let expected = Ledger {
        on_cpu_ns: 10,
        sleep_ns: 50,
        other_ns: 10,
        preempted_ns: 30,
        voluntary_switches: 1,
        involuntary_switches: 1,
        ..Ledger::default()
    };
    assert_eq!(ledger, expected);
}

/// Check that a wait in progress is told, woken or not, and changes nothing.
#[test]
fn in_progress() {
    let mut timeline = running_since(0);
    assert_eq!(timeline.in_progress(5), None);
    timeline.switch_out(10, off_cpu::LOCK);
    let before = timeline;
    let off = timeline.in_progress(50).unwrap();
    assert_eq!((off.state, off.start_ns, off.blocked_ns, off.runnable_ns), (3, 10, 40, 0));
    timeline.wake(30);
    let off = timeline.in_progress(50).unwrap();
    assert_eq!((off.blocked_ns, off.runnable_ns), (20, 20));
    assert_eq!(timeline, Timeline { wake_ns: 30, ..before });
}

/// Check that the end of an operation shows a missed switch in as well.
#[test]
fn missed_switch_in_at_the_end() {
    let mut timeline = running_since(0);
    timeline.switch_out(10, off_cpu::LOCK);
    timeline.wake(60);
    let (ledger, _) = timeline.closed(100);
    assert_eq!((ledger.on_cpu_ns, ledger.lock_ns, ledger.other_ns), (10, 50, 40));
}

proptest::proptest! {
    /// Check that no sequence of events, with any clock, breaks the sum, of a request or of an
    /// operation that begins somewhere in it, and that the ledger can be kept late.
    #[test]
    fn sum_is_wall_time(start_ns in 0_u64..1000, begin_at: u8, events: Vec<(u8, u16, u8)>, run_delay_ns: Option<u16>, end_ns in 0_u64..100_000) {
        let run_delay_ns = run_delay_ns.map(u64::from);
        let mut timeline = running_since(start_ns);
        let request = begin(&mut timeline, start_ns);
        let mut operation = (request, start_ns);
        let mut kept = Base::default();
        kept.mark(timeline.sequence, [7, 1]);
        for (index, (event, now_ns, detail)) in events.into_iter().enumerate() {
            let now_ns = u64::from(now_ns);
            if index == usize::from(begin_at) {
                kept.keep(&timeline, operation.1);
                timeline.recover(now_ns, run_delay_ns);
                let begin_ns = timeline.begin_ns(now_ns);
                operation = (begin(&mut timeline, begin_ns), begin_ns);
                kept.mark(timeline.sequence, [7, 1]);
            }
            if event % 3 != 1 {
                kept.keep(&timeline, operation.1);
            }
            match event % 3 {
                0 => {
                    timeline.recover(now_ns, run_delay_ns);
                    // A thread never leaves for nowhere, nor for the CPU; a number too high is odd.
                    let states = off_cpu::COUNT - 1;
                    timeline.switch_out(now_ns, off_cpu::PREEMPTED + u32::from(detail) % states);
                }
                1 => timeline.wake(now_ns),
                _ => {
                    let off = timeline.switch_in(now_ns, u32::from(detail) % 2);
                    assert!(off.start_ns + off.blocked_ns + off.runnable_ns <= timeline.since_ns);
                }
            }
        }
        let (ledger, end_ns) = timeline.closed(end_ns);
        assert_eq!(ledger.since(&request).total_ns(), end_ns - start_ns);
        let (base, begin_ns) = operation;
        assert_eq!(ledger.since(&base).total_ns(), end_ns.wrapping_sub(begin_ns));
        // What is kept at the first switch is what could have been copied at the begin.
        if end_ns >= begin_ns {
            let expected = Ledger { minor_faults: 2, ..ledger.since(&base) };
            assert_eq!(kept.closed(&timeline, begin_ns, end_ns, [9, 1]), (expected, end_ns));
            if let Some(minor_faults) = kept.undisturbed(&timeline, [9, 1]) {
                assert_eq!(Ledger::on_cpu(end_ns - begin_ns, minor_faults), expected);
            }
        }
    }
}
