//! Where the time goes: ledgers, locks, and the graphs drawn of them.

use std::process::Command;
use std::time::Duration;

use latency_tests::tracer::latency;
use latency_tests::{Process, Tracer, Workload, exclusive};

/// Check that a lock held for half a millisecond is named, with a total near the service's own
/// timing, a thread of the service as its holder, and whole stacks down to the thread's start.
#[test]
fn contended_lock_is_named() {
    let _machine = exclusive();
    let mut service = Workload::key_service(&[
        "--threads",
        "4",
        "--count",
        "300",
        "--hold-us",
        "500",
        "--algorithm",
        "ecdsa-p256",
    ]);
    let tracer = Tracer::attach(service.pid(), &[]);
    let truth = service.work();
    let recorded = tracer.stop();
    service.end();

    let report = recorded.report();
    assert_eq!(report.operations(), truth.operations());
    report.assert_no_loss();
    assert_eq!(report.number("/ledger_mismatches"), 0);
    let name = report.text("/locks/0/name");
    assert!(name.ends_with(":g_keystore_lock"), "{name}");
    assert_eq!(report.text("/locks/0/class"), "mutex");
    assert!(report.number("/locks/0/holders/0/tid") > 0);
    // The service's clock also sees how long a woken thread waits for a CPU: there are more
    // threads than CPUs, so that this is much of it.
    let (measured, own) = (report.number("/locks/0/total_ns"), truth.number("/lock/wait_total_ns"));
    assert!(measured < own + own / 20, "{measured} ns waited, {own} ns by the service's clock");
    assert!(measured > own / 4, "{measured} ns waited, {own} ns by the service's clock");

    let mut flame = latency(&["flame", "--view", "locks", "--folded"]);
    let finished = Process::run(flame.arg(recorded.path()), Duration::from_secs(30));
    assert!(finished.status.success(), "{finished:?}");
    let whole = finished.stdout.lines().filter(|line| {
        line.contains(":g_keystore_lock;")
            && line.contains("handle_request;pthread_mutex_lock")
            && (line.contains("start_thread") || line.contains("clone"))
    });
    assert!(whole.count() > 0, "no whole stack of the lock in\n{}", finished.stdout);
}

/// Check that two processes on one CPU are told as waiting for a CPU, not for a lock.
#[test]
fn neighbour_is_no_lock() {
    let _machine = exclusive();
    let pinned = |seconds: &str| {
        Process::start(Command::new("taskset").args([
            "-c",
            "0",
            "openssl",
            "speed",
            "-seconds",
            seconds,
            "ecdsap256",
        ]))
    };
    let neighbour = pinned("6");
    let target = pinned("4");
    std::thread::sleep(Duration::from_millis(300));
    let tracer = Tracer::attach(target.pid(), &["-d", "2s"]);
    let report = tracer.end().report();
    for mut process in [target, neighbour] {
        process.signal(libc::SIGTERM);
    }
    assert_eq!(report.number("/ledger_mismatches"), 0);
    let part = |name: &str| report.number(&format!("/operations/0/ledger_ns/{name}"));
    let total = ["on_cpu", "run_queue", "preempted", "lock", "io", "sleep", "other"].map(part);
    assert!(part("preempted") + part("run_queue") > total.iter().sum::<u64>() / 4, "{total:?}");
    assert_eq!(part("lock"), 0);
}

/// Check that without the scheduler nothing is said of where the time goes, and nothing is wrong.
#[test]
fn without_ledger() {
    let _machine = exclusive();
    let mut target = Workload::signloop(latency_tests::Build::Shared, "ed25519", 100);
    let tracer = Tracer::attach(target.pid(), &["--no-ledger"]);
    let truth = target.work();
    let report = tracer.stop().report();
    assert_eq!(report.operations(), truth.operations());
    assert!(report.is_null("/operations/0/ledger_ns"));
    assert!(report.is_null("/verdict"));
    target.end();
}
