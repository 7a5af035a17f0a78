//! A million calls under load on every CPU, each with parts that add up exactly.

use latency_tests::{Tracer, Workload, exclusive};

/// Calls of each function by each thread; with one thread more than CPUs, which are at least one,
/// there are a million in all.
const CALLS: u32 = 250_000;

/// Check that of each of a million requests and operations the parts add up to the duration, with
/// more threads than CPUs, so that they are pushed off their CPUs in the middle.
#[test]
fn a_million_calls() {
    let _machine = exclusive();
    let mut program = Workload::waits("quick", CALLS);
    let (request, operation) = (program.function("outer"), program.function("quick"));
    let options = ["--request", &request, "--probe", &operation, "--ring-size", "256MiB"];
    let tracer = Tracer::attach(program.pid(), &options);
    let truth = program.work();
    let report = tracer.stop().report();
    program.end();

    let calls = truth.number("/calls");
    assert!(2 * calls >= 1_000_000, "{calls}");
    assert_eq!(report.count("outer"), calls);
    assert_eq!(report.count("quick"), calls);
    report.assert_no_loss();
    assert_eq!(report.number("/ledger_mismatches"), 0);
    let ledger = report.json["operations"][0]["ledger_ns"].as_object().expect("a ledger");
    let sum: u64 = ledger.values().map(|part| part.as_u64().expect("ns")).sum();
    assert_eq!(sum, report.number("/operations/0/parts/total/duration_ns"));
    assert!(ledger["preempted"].as_u64() > Some(0), "nothing was in the way: {ledger:?}");
}
