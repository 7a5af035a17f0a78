use super::*;
use crate::recording::sample;
use crate::recording::{Counts, LockClass, Price, Reason};

fn with_warning(change: impl FnOnce(&mut Recording), expected: &str) {
    let mut recording = sample::recording();
    change(&mut recording);
    let warnings = Report::from(&recording).warnings;
    assert!(warnings.iter().any(|warning| warning.contains(expected)), "{warnings:#?}");
}

/// Check the numbers of the hand-written recording.
#[test]
fn numbers() {
    let report = Report::from(&sample::recording());
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    let [sign, verify] = &report.operations[..] else { panic!() };
    assert_eq!((sign.count, sign.size_queries, sign.rate_hz), (1500, 1500, 750.0));
    assert_eq!(sign.latency_ns.max, Some(104_000_000));
    assert_eq!(sign.failed_latency_ns, None);
    assert!(sign.low_confidence.is_empty());
    assert_eq!((verify.count, verify.failures, verify.errors), (82, 1, 1));
    assert_eq!(verify.low_confidence, ["p99", "p999"]);
    assert_eq!(verify.failed_latency_ns.unwrap().max, Some(95_000));
    let counts: Vec<u64> = verify.intervals.iter().map(|interval| interval.count).collect();
    assert_eq!(counts, [80, 2]);
    assert_eq!(verify.intervals[1].p50, None, "no success");
}

/// Check that every key of the schema is there, values or not, and that the report reads back.
#[test]
fn keys() {
    let mut recording = sample::recording();
    recording.rows[0].success = SparseHistogram::default();
    let report = Report::from(&recording);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["schema"], "latency.report/1");
    let operation = json["operations"][0].as_object().unwrap();
    for key in ["failed_latency_ns", "latency_ns", "source", "slowest", "intervals"] {
        assert!(operation.contains_key(key), "{key}");
    }
    assert!(operation["latency_ns"].as_object().unwrap()["p999"].is_null());
    assert!(json.as_object().unwrap().contains_key("exit_status"));
    assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    // The description must not forget a key.
    let documented = include_str!("../../../docs/report-schema.md");
    let mut missing = Vec::new();
    for recording in [
        sample::recording(),
        sample::recording_with_waits(),
        sample::recording_with_samples(),
        sample::recording_with_requests(),
    ] {
        let report = serde_json::to_value(Report::from(&recording)).unwrap();
        undocumented(&report, documented, &mut missing);
    }
    assert!(missing.is_empty(), "not in docs/report-schema.md: {missing:?}");
}

fn undocumented(value: &serde_json::Value, documented: &str, missing: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                if !documented.contains(&format!("`{key}`")) {
                    missing.push(key.clone());
                }
                undocumented(value, documented, missing);
            }
        }
        serde_json::Value::Array(array) => {
            array.iter().for_each(|value| undocumented(value, documented, missing));
        }
        _ => {}
    }
}

/// Check that the most frequent algorithm of an operation comes first.
#[test]
fn order() {
    let mut recording = sample::recording();
    let mut rare = recording.rows[0].clone();
    rare.algorithm = "dsa".into();
    (rare.received.successes, rare.counted.successes) = (1, 1);
    recording.rows.insert(0, rare);
    let report = Report::from(&recording);
    let titles: Vec<String> = report.operations.iter().map(Operation::title).collect();
    assert_eq!(titles, ["sign ecdsa-p256", "sign dsa", "verify ecdsa-p256"]);
}

/// Check that each condition a reader must know of is said.
#[test]
fn warnings() {
    with_warning(
        |recording| {
            recording.rows.clear();
            recording.intervals.clear();
            recording.probes.iter_mut().for_each(|probe| probe.hits = 0);
        },
        "nothing was called",
    );
    with_warning(
        |recording| {
            recording.rows.clear();
            recording.intervals.clear();
            recording.probes.clear();
        },
        "No function was probed",
    );
    with_warning(
        |recording| {
            let row = &mut recording.rows[0];
            (row.received, row.counted) = Default::default();
            row.success = SparseHistogram::default();
            row.received = Counts { successes: 9, ..Counts::default() };
            (0..9).for_each(|_| row.success.record(1_999));
        },
        "less than 2 µs",
    );
    with_warning(|recording| recording.probes[0].price = Price::SingleStepped, "single-stepped");
    with_warning(
        |recording| {
            recording.loss.received -= 82;
            recording.loss.records = 82;
        },
        "82 of 3,082 records were lost",
    );
    with_warning(|recording| recording.loss.unaccounted = 1, "without a known cause");
    with_warning(|recording| recording.loss.thread_table_full = 1, "too many threads");
    with_warning(|recording| recording.loss.recursion_misses = 1, "skipped by the kernel");
    with_warning(|recording| recording.loss.length_unreadable = 1, "could not be read");
    with_warning(|recording| recording.loss.clock_backwards = 1, "ran backwards");
    with_warning(|recording| recording.loss.histogram_table_full = 1, "too many algorithms");
    with_warning(|recording| recording.exit_status = Some(132), "exit status 132");
    with_warning(|recording| recording.ledger_mismatches = 2, "2 operations have parts");
    with_warning(|recording| recording.ungrouped_waits = 2, "2 waits are counted only by reason");
    with_warning(|recording| recording.warnings.push("from tracing".into()), "from tracing");
}

/// Check the ledgers, locks and times off the CPU by the paths that the schema promises.
#[test]
fn waits() {
    let report = Report::from(&sample::recording_with_waits());
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    let json = serde_json::to_value(&report).unwrap();
    let sign = &json["operations"][0];
    assert_eq!(sign["ledger_ns"]["lock"], 1500 * 76_000);
    assert_eq!(sign["switches"], 1500);
    assert_eq!(sign["tail"]["p99"]["count"], 15);
    assert_eq!(sign["tail"]["p99"]["ledger_ns"]["lock"], 15 * 3_745_000);
    assert_eq!(sign["tail"]["p999"]["ledger_ns"]["run_queue"], 2 * 122_000);
    assert_eq!(sign["typical"]["ledger_ns"]["on_cpu"], 750 * 28_000);
    // The contended lock comes first, although the idle one was waited for longer.
    let [mutex, condvar] = &report.locks[..] else { panic!() };
    assert_eq!(mutex.title(), "keysvc:g_keystore_lock");
    assert_eq!(
        (&*mutex.address, mutex.class, mutex.is_idle),
        ("0x558100420040", LockClass::Mutex, false)
    );
    assert_eq!((mutex.holders[0].tid, mutex.wakers[0].tid), (4711, Some(4711)));
    assert_eq!(mutex.stacks[0].frames, ["libc.so.6+0x1000", "pthread_mutex_lock", "key_find"]);
    assert_eq!(mutex.waited_in.as_deref(), Some("key_find"));
    assert_eq!(mutex.released_in.as_deref(), Some("audit_log_write"));
    assert!(mutex.p99_ns.unwrap().abs_diff(5_600_000) < 50_000);
    assert_eq!((condvar.class, condvar.is_idle), (LockClass::Condvar, true));
    assert_eq!(condvar.title(), "0x558100420080");
    let off_cpu: Vec<(Reason, Option<&str>, u64)> = report
        .off_cpu
        .iter()
        .map(|kind| (kind.reason, kind.operation.as_deref(), kind.total_ns))
        .collect();
    let expected = [
        (Reason::Lock, None, 9_000_000_000),
        (Reason::Lock, Some("sign"), 112_000_000),
        (Reason::Preempted, Some("sign"), 2_000_000),
    ];
    assert_eq!(off_cpu, expected);
    assert_eq!(report.off_cpu[2].stacks[0].frames, ["ossl_bn_mul", "handle_sign"]);
    assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
}

/// Check that a report names at most so many stacks, and those with most time.
#[test]
fn stacks_are_capped() {
    let mut recording = sample::recording_with_waits();
    for stack_id in 0..200 {
        let mut wait = recording.waits[2].clone();
        (wait.stack_id, wait.total_ns) = (1000 + stack_id, 10_000_000 + stack_id);
        recording.waits.push(wait);
    }
    let report = Report::from(&recording);
    let preempted = report.off_cpu.iter().find(|kind| kind.reason == Reason::Preempted).unwrap();
    assert_eq!((preempted.count, preempted.stacks.len()), (201 * 20, 50));
    assert_eq!(preempted.stacks[0].total_ns, 10_000_199);
}

/// Check that locks get their class from the stacks, and lose holders that the class excludes.
#[test]
fn classified() {
    let mut recording = sample::recording_with_waits();
    let expected = recording.clone();
    recording.locks.iter_mut().for_each(|lock| lock.class = LockClass::Unknown);
    recording.waits[0].holder_tid = 1;
    recording.classify_locks();
    assert_eq!(recording, expected);
}

/// Check that requests come first, that their parts add up, and that a wait in progress has the
/// name of its lock.
#[test]
fn requests() {
    let report = Report::from(&sample::recording_with_requests());
    let [request, sign, verify] = &report.operations[..] else { panic!() };
    assert_eq!((&*request.operation, request.is_request), ("handle_request", true));
    assert_eq!(request.title(), "handle_request");
    assert!(!sign.is_request && sign.parts.is_none() && !verify.is_request);
    let parts = request.parts.as_ref().unwrap();
    assert_eq!((parts.typical.count, parts.typical.duration_ns), (750, 750 * 139_000));
    assert_eq!(parts.p99.around_ns.lock, 15 * 5_600_000);
    let [wait] = &report.in_progress[..] else { panic!() };
    assert_eq!(wait.lock.as_deref(), Some("keysvc:g_keystore_lock"));
    assert_eq!((wait.holder, wait.start_ns), (Some(4711), Some(1_998_000_000)));
    assert_eq!(wait.frames.len(), 3);
    assert!(report.off_cpu.iter().any(|kind| kind.in_operation && kind.operation.is_none()));
}
