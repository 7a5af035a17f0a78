//! The workloads by themselves: what tests compare the tracer with must be right first. These
//! tests need no root and no tracer.

use std::process::Command;
use std::time::Duration;

use latency_tests::workload::build;
use latency_tests::{Build, Process, Workload};

/// Check that the key service's account is consistent: counts, failures, size queries, and
/// percentiles that rise.
#[test]
fn key_service_keeps_count() {
    let mut service = Workload::key_service(&[
        "--threads",
        "3",
        "--count",
        "40",
        "--algorithm",
        "all",
        "--size-queries",
        "--tamper",
        "4",
        "--hold-us",
        "20",
    ]);
    let truth = service.work();
    for algorithm in ["rsa-2048", "ecdsa-p256", "ed25519"] {
        let signs = truth.of("sign", algorithm, "count");
        assert_eq!(truth.of("verify", algorithm, "count"), signs);
        assert_eq!(truth.of("sign", algorithm, "size_queries"), signs);
        for operation in ["sign", "verify"] {
            let percentiles = ["p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"]
                .map(|name| truth.of(operation, algorithm, name));
            assert!(percentiles.is_sorted() && percentiles[0] > 1000, "{percentiles:?}");
        }
    }
    assert_eq!(truth.number("/totals/operations"), 3 * 40 * 2);
    assert_eq!(truth.number("/totals/size_queries"), 3 * 40);
    assert_eq!(truth.number("/totals/failures"), 3 * 10);
    assert_eq!(truth.number("/requests/count"), 3 * 40);
    assert_eq!(truth.number("/lock/acquisitions"), 3 * 40);
    service.end();
}

/// Check that SIGTERM ends the key service with its result and exit status 0, and that SIGUSR1
/// starts it.
#[test]
fn key_service_ends_on_sigterm() {
    let mut service =
        Workload::key_service(&["--algorithm", "ed25519", "--rate", "200", "--seconds", "20"]);
    service.process().signal(libc::SIGUSR1);
    std::thread::sleep(Duration::from_millis(300));
    service.process().signal(libc::SIGTERM);
    let truth = service.result();
    assert!(truth.of("sign", "ed25519", "count") > 0);
    assert!(truth.number("/elapsed_ns") < 5_000_000_000, "ended by the signal, not by the time");
    service.end();
}

/// Check that every mode of signloop does what it says, however it is linked.
#[test]
fn signloop_modes_count() {
    let help = Command::new(build("signloop", Build::Shared)).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let modes = help.split("Modes:\n").nth(1).expect("a list of modes");
    for mode in modes.lines().filter_map(|line| line.split_whitespace().next()) {
        let mut signloop = Workload::signloop(Build::Shared, mode, 3);
        let operations = signloop.work().operations();
        assert!(!operations.is_empty(), "{mode}");
        for ((operation, _), (count, _, queries)) in operations {
            assert_eq!(count + queries, 3, "{mode}, {operation}");
        }
        signloop.end();
    }
    for linked in [Build::Static, Build::StaticStripped] {
        let mut signloop = Workload::signloop(linked, "evp-digestsign", 3);
        assert_eq!(signloop.work().operations().len(), 2);
        signloop.end();
    }
}

/// Check that a wrong command line is refused, and that no workload is left behind by a test that
/// gives up on it.
#[test]
fn wrong_arguments_and_lost_tests() {
    for (name, arguments) in [
        ("keysvc", &["--threads", "many"][..]),
        ("keysvc", &["--algorithm", "rot13"]),
        ("signloop", &["no-such-mode", "3"]),
        ("tiny", &[]),
    ] {
        let program = build(name, Build::Shared);
        let finished = Process::run(Command::new(program).args(arguments), Duration::from_secs(10));
        assert!(!finished.status.success(), "{name} {arguments:?}");
        assert!(!finished.stderr.is_empty(), "{name} {arguments:?}");
    }
    // `run` closes stdin at once: nobody will ever give the word.
    let mut waiting = Command::new(build("signloop", Build::Shared));
    let finished = Process::run(waiting.args(["ed25519", "1", "--wait"]), Duration::from_secs(10));
    assert!(!finished.status.success());
}
