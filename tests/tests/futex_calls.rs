//! Futex calls of every kind, made by hand.

use latency_tests::{Tracer, Workload, exclusive};

const ROUNDS: u64 = 5;

/// Check that each kind of call that waits is a lock of its own name, with one wait for each call,
/// ended in the way it was, and that a call that does not wait is no wait.
#[test]
fn every_command() {
    let _machine = exclusive();
    let mut futexes = Workload::futexes(ROUNDS as u32);
    let request = futexes.function("round_of_calls");
    let tracer = Tracer::attach(futexes.pid(), &["--request", &request]);
    let truth = futexes.work();
    let report = tracer.stop().report();
    futexes.end();

    report.assert_no_loss();
    assert_eq!(report.count("round_of_calls"), ROUNDS);
    let name = |lock: &serde_json::Value| lock["name"].as_str().unwrap_or_default().to_owned();
    let names: Vec<String> = report.list("/locks").iter().map(name).collect();
    assert_eq!(truth.number("/eagain"), ROUNDS);
    assert!(!names.iter().any(|name| name.ends_with(":f_eagain")), "{names:?}");
    for (kind, symbol, end) in [
        ("timeout", ":f_timeout", "timed_out"),
        ("eintr", ":f_eintr", "signal"),
        ("wait", ":f_wait", "woken"),
        ("bitset", ":f_bitset", "woken"),
        ("pi", ":f_pi", "woken"),
        ("waitv", ":f_waitv", "woken"),
        ("wait2", ":f_wait2", "woken"),
    ] {
        let calls = truth.number(&format!("/{kind}"));
        if calls == 0 {
            // A kernel without the call: the program counts those that it could make.
            continue;
        }
        assert_eq!(calls, ROUNDS, "{kind}: the program itself");
        let lock = report.lock(symbol);
        assert_eq!(lock["waits"], ROUNDS, "{lock:#}");
        assert_eq!(lock["ends"][end], ROUNDS, "{lock:#}");
        // Each of them slept, and for no longer than a round takes.
        assert!(lock["total_ns"].as_u64().unwrap() > ROUNDS * 1_000_000, "{lock:#}");
    }
    let pi = report.lock(":f_pi");
    assert_eq!(pi["class"], "mutex");
    assert_eq!(pi["holders"][0]["waits"], ROUNDS, "{pi:#}");
}
