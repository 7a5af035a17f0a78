//! Which process, and which copy of the library, the operations come from.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use latency_tests::breakpoints::breakpoints;
use latency_tests::workload::{Truth, build};
use latency_tests::{Build, Process, Tracer, Workload, exclusive};

/// The libcrypto that signloop maps; under a static system there is none to copy.
fn libcrypto() -> Option<String> {
    let linked = Command::new("ldd").arg(build("signloop", Build::Shared)).output().ok()?;
    let text = String::from_utf8(linked.stdout).ok()?;
    let line = text.lines().find(|line| line.contains("libcrypto.so"))?;
    line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned)
}

/// Check that another process on the same library contributes nothing, and is not disturbed.
#[test]
fn other_processes_are_left_out() {
    let _machine = exclusive();
    let mut traced = Workload::signloop(Build::Shared, "evp-digestsign", 300);
    let mut other = Workload::signloop(Build::Shared, "evp-digestsign", 1000);
    let tracer = Tracer::attach(traced.pid(), &[]);
    assert!(!breakpoints(traced.pid()).is_empty(), "no probe to be seen in the target's code");
    other.go();
    let truth = traced.work();
    other.result();
    let report = tracer.stop().report();
    assert_eq!(report.operations(), truth.operations());
    assert_eq!(report.number("/target/pid"), u64::from(traced.pid()));
    assert_eq!(breakpoints(traced.pid()), [""; 0], "probes left behind");
    traced.end();
    other.end();
}

/// Check that a library deleted on disk is traced as before, and that the report says so.
#[test]
fn deleted_library() {
    let _machine = exclusive();
    let Some(library) = libcrypto() else {
        latency_tests::skip!("deleted_library", "signloop maps no libcrypto.so");
    };
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join(Path::new(&library).file_name().unwrap());
    std::fs::copy(&library, &copy).unwrap();
    let mut signloop = Workload::signloop_at(
        &build("signloop", Build::Shared),
        "evp-digestsign",
        300,
        &[("LD_LIBRARY_PATH", folder.path().to_str().unwrap())],
    );
    std::fs::remove_file(&copy).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", signloop.pid())).unwrap();
    assert!(maps.contains(copy.to_str().unwrap()), "the copy is not what signloop maps");

    let tracer = Tracer::attach(signloop.pid(), &[]);
    let truth = signloop.work();
    let recorded = tracer.stop();
    signloop.end();
    let report = recorded.report();
    assert_eq!(report.operations(), truth.operations());
    let said = format!("{} {}", report.json["probes"], report.warnings());
    assert!(said.contains("deleted"), "neither probes nor warnings say deleted: {said}");
    assert!(recorded.finished.stdout.contains("deleted"), "{}", recorded.finished.stdout);
}

/// Check that a second copy of the library, opened after the tracer attached, is traced within a
/// second.
#[test]
fn library_opened_later() {
    let _machine = exclusive();
    let Some(library) = libcrypto() else {
        latency_tests::skip!("library_opened_later", "signloop maps no libcrypto.so");
    };
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("libcrypto-of-its-own.so");
    std::fs::copy(&library, &copy).unwrap();
    let mut command = Command::new(build("latelib", Build::Shared));
    let mut target = Process::start(command.arg(&copy).arg("200"));
    target.wait_stderr("latelib: ready");
    let tracer = Tracer::attach(target.pid(), &[]);
    target.send_line();
    let line = target.wait_stdout("{");
    let report = tracer.end().report();
    assert!(target.finish().status.success());
    let truth = Truth { json: serde_json::from_str(&line).unwrap() };
    assert_eq!(report.operations(), truth.operations());
}

/// Check that children that are not followed are named in a warning, and not counted.
#[test]
fn children_are_named() {
    let _machine = exclusive();
    let command = ["openssl", "speed", "-seconds", "1", "-multi", "2", "ecdsap256"];
    let recorded = latency_tests::Recorded::of(&[], &command);
    assert!(recorded.finished.status.success(), "{}", recorded.finished.stderr);
    assert!(recorded.finished.took < Duration::from_secs(15));
    let report = recorded.report();
    assert_eq!(report.count("sign") + report.count("verify"), 0, "the parent only waits");
    let warnings = report.warnings();
    assert!(warnings.contains("child"), "no warning of the children: {warnings}");
}
