//! Functions that the user names.

use latency_tests::{Tracer, Workload, exclusive};

/// Check that a function of the target's own is timed under the name the user gave it.
#[test]
fn named_function() {
    let _machine = exclusive();
    let mut tiny = Workload::tiny("work", 500);
    let probe = format!("{}:work=unit", tiny.program().display());
    let tracer = Tracer::attach(tiny.pid(), &["--probe", &probe]);
    let truth = tiny.work();
    let report = tracer.stop().report();
    tiny.end();
    assert_eq!(report.count("unit"), truth.number("/work"));
    assert_eq!(report.operations().len(), 1);
    let row = &report.json["operations"][0];
    let p50 = row["latency_ns"]["p50"].as_f64().unwrap();
    assert!((20_000.0..30_000.0).contains(&p50), "work takes 20 µs and a little: {p50} ns");
    report.assert_no_loss();
}

/// Check that a probed function inside a probed function makes no operation of its own.
#[test]
fn nested_functions() {
    let _machine = exclusive();
    let mut tiny = Workload::tiny("nested", 500);
    let probes = ["outer", "inner"].map(|name| format!("{}:{name}", tiny.program().display()));
    let options = ["--probe", &probes[0], "--probe", &probes[1]];
    let tracer = Tracer::attach(tiny.pid(), &options);
    let truth = tiny.work();
    let report = tracer.stop().report();
    tiny.end();
    assert_eq!(report.count("outer"), truth.number("/outer"));
    assert_eq!(report.count("inner"), 0);
    report.assert_no_loss();
}

/// Check that the inner function alone is counted at each of its calls.
#[test]
fn inner_function_alone() {
    let _machine = exclusive();
    let mut tiny = Workload::tiny("both", 200);
    let probe = format!("{}:inner", tiny.program().display());
    let tracer = Tracer::attach(tiny.pid(), &["--probe", &probe]);
    let truth = tiny.work();
    let report = tracer.stop().report();
    tiny.end();
    assert_eq!(report.count("inner"), truth.number("/inner"));
}
