//! Requests: the service's own function as the scope around its operations.

use latency_tests::{Tracer, Workload, exclusive};
use serde_json::Value;

fn number(value: &Value, pointer: &str) -> u64 {
    let found = value.pointer(pointer).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no number {pointer} in {value:#}"))
}

fn sum_of(value: &Value) -> u64 {
    value.as_object().expect("a ledger").values().map(|part| part.as_u64().expect("ns")).sum()
}

/// Check that every request is counted, that its ledger and its parts add up to its time exactly,
/// and that the operations inside are the operations of the report.
#[test]
fn parts_add_up() {
    let _machine = exclusive();
    let options = ["--threads", "3", "--count", "200", "--algorithm", "ecdsa-p256"];
    let mut service = Workload::key_service(&options);
    let request = format!("{}=request", service.function("handle_request"));
    let tracer = Tracer::attach(service.pid(), &["--request", &request]);
    let truth = service.work();
    let report = tracer.stop().report();
    service.end();

    report.assert_no_loss();
    assert_eq!(report.number("/ledger_mismatches"), 0);
    assert_eq!(report.count("request"), truth.number("/requests/count"));
    assert_eq!(report.count("sign"), truth.of("sign", "ecdsa-p256", "count"));
    assert_eq!(report.count("verify"), truth.of("verify", "ecdsa-p256", "count"));
    let row = &report.json["operations"][0];
    assert_eq!((&row["operation"], &row["is_request"]), (&"request".into(), &true.into()));
    for selection in ["total", "typical", "p99", "p999"] {
        let parts = &row["parts"][selection];
        let inside: u64 =
            parts["operations"].as_array().unwrap().iter().map(|it| number(it, "/total_ns")).sum();
        let whole = number(parts, "/duration_ns");
        assert_eq!(inside + sum_of(&parts["around_ns"]), whole, "{selection}: {parts:#}");
    }
    let total = &row["parts"]["total"];
    let mut edges_ns = 0;
    assert_eq!(sum_of(&row["ledger_ns"]), number(total, "/duration_ns"));
    for (at, operation) in ["sign", "verify"].into_iter().enumerate() {
        let part = &total["operations"][at];
        assert_eq!(part["operation"], operation);
        assert_eq!(number(part, "/count"), report.count(operation));
        let row = report.json["operations"].as_array().unwrap();
        let row = row.iter().find(|row| row["operation"] == operation).unwrap();
        // A preemption on the edge of an operation is in its own row, and around it in the request.
        let edge_ns = sum_of(&row["ledger_ns"]).checked_sub(number(part, "/total_ns"));
        edges_ns += edge_ns.expect("no less in the operation's own row");
    }
    assert!(edges_ns <= number(total, "/around_ns/preempted"), "{edges_ns} ns: {total:#}");
    // The tracer's clock runs a little longer than the service's: around it.
    let (measured, own) = (row["latency_ns"]["p50"].as_u64().unwrap(), "/requests/p50_ns");
    let own = truth.number(own);
    assert!(measured >= own - own / 100, "{measured} ns against {own} ns by the service's clock");
}

/// Check that the wait for a lock around the signature is in the request, by the service's own
/// clock; that lock, holder and the function that held it are named, in the sentence too.
#[test]
fn lock_around_the_signature() {
    let _machine = exclusive();
    let mut service = Workload::key_service(&[
        "--threads",
        "8",
        "--rate",
        "50",
        "--seconds",
        "6",
        "--audit-ms",
        "100",
        "--algorithm",
        "ecdsa-p256",
    ]);
    let request = service.function("handle_request");
    let tracer = Tracer::attach(service.pid(), &["--request", &request]);
    let truth = service.work();
    let report = tracer.stop().report();
    service.end();

    report.assert_no_loss();
    assert_eq!(report.number("/ledger_mismatches"), 0);
    let lock = report.lock(":g_keystore_lock");
    assert_eq!(lock["class"], "mutex");
    // Blocked, and then in the run queue: the service's clock sees both.
    let in_request =
        |kind: &&Value| kind["reason"] == "lock" && kind["request"] == "handle_request";
    let (blocked, queued) = report.list("/off_cpu").iter().filter(in_request).fold(
        (0, 0),
        |(blocked, queued), kind| {
            (blocked + number(kind, "/total_ns"), queued + number(kind, "/run_queue_ns"))
        },
    );
    let own = truth.number("/lock/wait_total_ns");
    let measured = blocked + queued;
    assert!(measured.abs_diff(own) <= own / 20, "{measured} ns, {own} ns by the service's clock");
    // And of single requests: the longest wait, and the slowest request, which is slow by it.
    for (what, measured, own) in [
        ("longest wait", number(lock, "/max_ns"), truth.number("/lock/wait_max_ns")),
        (
            "slowest request",
            number(&report.json["operations"][0], "/latency_ns/max"),
            truth.number("/requests/max_ns"),
        ),
    ] {
        assert!(measured.abs_diff(own) <= own / 20, "{what}: {measured} ns, {own} ns by its clock");
    }
    // The auditor waits for the lock as well, outside of requests.
    let of_lock = number(lock, "/total_ns");
    assert!(of_lock >= blocked - blocked / 20, "{of_lock} ns of {blocked} ns on this lock");
    // The ledger of the requests says the same.
    let ledger = number(&report.json["operations"][0], "/ledger_ns/lock");
    assert!(ledger.abs_diff(blocked) <= blocked / 100, "{ledger} ns, {blocked} ns in the records");

    let auditor = truth.number("/auditor/tid");
    assert_eq!(number(lock, "/holders/0/tid"), auditor);
    let verdict = &report.json["verdict"];
    assert_eq!(verdict["operation"], "handle_request", "{verdict:#}");
    assert_eq!(verdict["cause"], "lock", "{verdict:#}");
    assert_eq!(verdict["holder"], auditor, "{verdict:#}");
    assert_eq!(verdict["function"], "audit_log_write", "{verdict:#}");
    let sentence = verdict["sentence"].as_str().unwrap();
    assert!(sentence.contains(":g_keystore_lock`") && sentence.contains("audit_log_write"));
    let released = lock["waker_stacks"].to_string();
    assert!(released.contains("audit_log_write"), "{released}");
}

/// Check that a request function inside itself counts once, and that a user's operation inside is
/// a part of it.
#[test]
fn nested() {
    let _machine = exclusive();
    let mut tiny = Workload::tiny("nested", 300);
    let (request, operation) = (tiny.function("outer"), tiny.function("inner"));
    let options = ["--request", &request, "--probe", &operation];
    let tracer = Tracer::attach(tiny.pid(), &options);
    let truth = tiny.work();
    let report = tracer.stop().report();
    tiny.end();
    report.assert_no_loss();
    assert_eq!(report.count("outer"), truth.number("/outer"));
    assert_eq!(report.count("inner"), truth.number("/inner"));
    let inside = &report.json["operations"][0]["parts"]["total"]["operations"];
    assert_eq!(inside[0]["operation"], "inner");
    assert_eq!(number(inside, "/0/count"), truth.number("/inner"));
}

/// Check that a request's name that an operation has already is refused, and says what to do.
#[test]
fn names_are_distinct() {
    let _machine = exclusive();
    let tiny = Workload::tiny("work", 1);
    let request = format!("{}=sign", tiny.function("work"));
    let mut command = latency_tests::tracer::latency(&["record", "-p", &tiny.pid().to_string()]);
    command.args(["--request", &request, "-o", "/dev/null"]);
    let finished = latency_tests::Process::run(&mut command, std::time::Duration::from_secs(30));
    assert!(!finished.status.success());
    assert!(finished.stderr.contains("give the request another with =NAME"), "{finished:?}");
}
