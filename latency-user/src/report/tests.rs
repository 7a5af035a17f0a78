use super::*;
use crate::recording::sample;
use crate::recording::{Counts, Price};

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
    undocumented(
        &serde_json::to_value(Report::from(&sample::recording())).unwrap(),
        documented,
        &mut missing,
    );
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
    rare.received.successes = 1;
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
    with_warning(|recording| recording.warnings.push("from tracing".into()), "from tracing");
}
