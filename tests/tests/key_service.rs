//! The tracer beside the key service, which times and counts itself.

use latency_tests::{Tracer, Workload, exclusive};

/// Within which a percentile must agree with the service's own clock, at the least. This catches
/// wrong pairs and wrong units on a busy machine; how close they are on a quiet one is measured by
/// `cargo xtask bench accuracy`.
const CLOSE_NS: u64 = 10_000;

#[track_caller]
fn assert_close(measured: u64, expected: u64, percent: u64, what: &str) {
    let tolerance = (expected * percent / 100).max(CLOSE_NS);
    assert!(
        measured.abs_diff(expected) <= tolerance,
        "{what}: {measured} ns measured, {expected} ns by the service's clock: more than \
         {tolerance} ns apart"
    );
}

/// Traces four threads for five seconds. The rate keeps both CPUs partly idle: at full load, the
/// P99 would be a matter of which operations were preempted.
#[track_caller]
fn agrees(algorithm: &str, rate: &str) {
    let _machine = exclusive();
    let mut service = Workload::key_service(&[
        "--threads",
        "4",
        "--seconds",
        "5",
        "--algorithm",
        algorithm,
        "--rate",
        rate,
        "--size-queries",
    ]);
    let tracer = Tracer::attach(service.pid(), &[]);
    let truth = service.work();
    let report = tracer.stop().report();
    service.end();

    assert_eq!(report.operations(), truth.operations());
    report.assert_no_loss();
    assert_eq!(report.incomplete_calls(), 0);
    for operation in ["sign", "verify"] {
        let row = report.row(operation, algorithm);
        for (name, percent) in [("p50", 10), ("p99", 30)] {
            let expected = truth.of(operation, algorithm, &format!("{name}_ns"));
            let what = format!("{name} of {operation} {algorithm}");
            assert_close(row.latency_ns(name), expected, percent, &what);
        }
        assert_eq!(row.source(), "records");
    }
}

/// Check that counts and percentiles of P-256 agree with the service's own.
#[test]
fn ecdsa_p256_agrees() {
    agrees("ecdsa-p256", "1000");
}

/// Check that counts and percentiles of RSA-2048 agree with the service's own.
#[test]
fn rsa_2048_agrees() {
    agrees("rsa-2048", "250");
}

/// Check that counts and percentiles of Ed25519 agree with the service's own.
#[test]
fn ed25519_agrees() {
    agrees("ed25519", "1000");
}

/// Check that nothing is missed at full load, with every algorithm in one process.
#[test]
fn full_load_is_counted() {
    let _machine = exclusive();
    let mut service = Workload::key_service(&["--threads", "8", "--count", "300"]);
    let tracer = Tracer::attach(service.pid(), &[]);
    let truth = service.work();
    let report = tracer.stop().report();
    service.end();
    assert_eq!(report.operations(), truth.operations());
    report.assert_no_loss();
}

/// Check that refused signatures are counted as failures of their algorithm.
#[test]
fn failures_are_labelled() {
    let _machine = exclusive();
    let mut service = Workload::key_service(&["--threads", "2", "--count", "150", "--tamper", "7"]);
    let tracer = Tracer::attach(service.pid(), &[]);
    let truth = service.work();
    let report = tracer.stop().report();
    service.end();
    assert_eq!(truth.number("/totals/failures"), 2 * (150 / 7));
    assert_eq!(report.operations(), truth.operations());
}
