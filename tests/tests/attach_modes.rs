//! Every way to attach, also those that this kernel's newer ones make unnecessary: older kernels have no
//! other. Linux 6.13 has all three, 6.6 two, those before it one.

use latency_tests::workload::build;
use latency_tests::{Build, Recorded, exclusive, operations, skip};
use serde_json::Value;

/// Where the kernel counts the runs of programs, while this is 1. What it was before comes back at the end.
struct ProgramStatistics(String);

impl ProgramStatistics {
    const PATH: &str = "/proc/sys/kernel/bpf_stats_enabled";

    fn on() -> Self {
        let before = std::fs::read_to_string(Self::PATH).expect("the kernel's setting");
        std::fs::write(Self::PATH, "1").expect("root may change it");
        Self(before)
    }
}

impl Drop for ProgramStatistics {
    fn drop(&mut self) {
        std::fs::write(Self::PATH, &self.0).expect("as before");
    }
}

/// Traces the key service from its start in one mode. Every operation must be counted, with whole ledgers
/// and the wait for its lock.
#[track_caller]
fn key_service_in(mode: &str) {
    let _machine = exclusive();
    let program = build("keysvc", Build::Shared);
    let program = program.to_str().expect("a plain path");
    let service = [
        program,
        "--algorithm",
        "ecdsa-p256",
        "--threads",
        "4",
        "--count",
        "500",
        "--hold-us",
        "200",
    ];
    let recorded = Recorded::with(&[], &service, &[("LATENCY_ATTACH_MODE", mode)]);
    let finished = &recorded.finished;
    if finished.stderr.contains("this kernel has none of the attach modes asked for") {
        skip!(mode, "this kernel does not have it");
    }
    assert!(finished.status.success(), "{mode}: {}\n{}", finished.status, finished.stderr);
    let mut truth: Value =
        serde_json::from_str(&finished.stdout).expect("the service's own account");
    // It makes a signature of another message at its start, which it does not count.
    assert_eq!(truth["operations"][0]["count"], 2000);
    truth["operations"][0]["count"] = 2001.into();
    let report = recorded.report();
    report.assert_no_loss();
    assert_eq!(report.operations(), operations(&truth), "{mode}");
    assert_eq!(report.number("/ledger_mismatches"), 0, "{mode}");
    let symbol = report.lock("g_keystore_lock");
    assert!(symbol["waits"].as_u64() > Some(0), "{mode}: {symbol}");
}

/// Check that one program for entry and return counts all.
#[test]
fn session() {
    key_service_in("uprobe-session");
}

/// Check that a link for entries and one for returns count all.
#[test]
fn multi() {
    key_service_in("uprobe-multi");
}

/// Check that two perf events a probe count all.
#[test]
fn perf() {
    key_service_in("perf-uprobe");
}

/// Check that a call nested in an operation is trapped at its entry alone, where the kernel has sessions:
/// by the runs of the programs, which the kernel counts.
#[test]
fn nested_calls_have_no_return_probe() {
    const RUNS_BESIDE: u64 = 2_000;
    let _machine = exclusive();
    let _statistics = ProgramStatistics::on();
    let program = build("signloop", Build::Shared);
    let program = program.to_str().expect("a plain path");
    let options = ["--no-ledger", "--probe-all"];
    let command = [program, "evp-signfinal", "2000"];
    let mode = "uprobe-session";
    let recorded = Recorded::with(&options, &command, &[("LATENCY_ATTACH_MODE", mode)]);
    if recorded.finished.stderr.contains("this kernel has none of the attach modes asked for") {
        skip!(mode, "this kernel does not have it");
    }
    let report = recorded.report();
    report.assert_no_loss();
    let entries: u64 = report.json["probes"]
        .as_array()
        .expect("the probes")
        .iter()
        .filter_map(|probe| probe["hits"].as_u64())
        .sum();
    let nested = report.number("/nested_calls");
    assert!(nested >= 2 * 2000, "the functions call one another: {nested}");
    let traps = 2 * entries - nested;
    // Programs run at the ends of threads as well, and where the tracer measures its own cost.
    let runs = report.number("/own_cost/program_runs");
    assert!(
        (traps..traps + RUNS_BESIDE).contains(&runs),
        "{runs} runs, {entries} entries, {nested} nested"
    );
}
