//! What happens when the tracer cannot keep up.

use std::time::{Duration, Instant};

use latency_tests::{Tracer, Workload, exclusive};

/// Check that a tracer stopped for two seconds, with the smallest ring, still counts every
/// operation, says what it lost, and gives percentiles that lost nothing.
#[test]
fn stopped_reader_loses_no_count() {
    let _machine = exclusive();
    let algorithm = "ecdsa-p256";
    let mut service = Workload::key_service(&[
        "--threads",
        "4",
        "--seconds",
        "2",
        "--rate",
        "1000",
        "--algorithm",
        algorithm,
    ]);
    let mut tracer = Tracer::attach(service.pid(), &["--ring-size", "4KiB"]);
    tracer.process().signal(libc::SIGSTOP);
    let stopped = Instant::now();
    let truth = service.work();
    assert!(stopped.elapsed() >= Duration::from_secs(2));
    tracer.process().signal(libc::SIGCONT);
    let recorded = tracer.stop();
    service.end();

    let report = recorded.report();
    assert_eq!(report.operations(), truth.operations());
    let [received, lost, counted] =
        ["received", "records", "counted"].map(|name| report.number(&format!("/loss/{name}")));
    assert!(lost > 0, "4 KiB cannot hold {counted} records");
    assert_eq!(received + lost, counted);
    assert_eq!(counted, truth.number("/totals/operations"));

    for operation in ["sign", "verify"] {
        let row = report.row(operation, algorithm);
        assert_eq!(row.source(), "kernel-histogram");
        let expected = truth.of(operation, algorithm, "p50_ns");
        let measured = row.latency_ns("p50");
        // One per cent for the histogram; the rest for what the traps cost outside the duration,
        // which only the service's clock sees.
        assert!(
            measured.abs_diff(expected) <= expected / 100 + 10_000,
            "p50 of {operation}: {measured} ns, {expected} ns by the service's clock"
        );
    }

    // Digits may be grouped in text meant for people.
    let text = recorded.finished.stdout.replace([',', '_', '\'', '\u{202f}', '\u{2009}'], "");
    assert!(text.contains("lost") || text.contains("loss"), "no loss in the text:\n{text}");
    assert!(text.contains(&lost.to_string()), "not the number {lost} in the text:\n{text}");
}
