//! How a recording begins and ends, and what it leaves behind.

use std::process::Stdio;
use std::time::{Duration, Instant};

use latency_tests::breakpoints::breakpoints;
use latency_tests::tracer::{eventually, latency};
use latency_tests::{Build, Process, Recorded, Tracer, Workload, exclusive, skip};

/// A service that works slowly until it is told to end, or for twenty seconds at most.
#[track_caller]
fn steady_service() -> Workload {
    let options = ["--threads", "2", "--algorithm", "ed25519", "--rate", "300", "--seconds", "20"];
    Workload::key_service(&options)
}

/// Ends a service in the middle of its work: it must say so, and exit in peace.
#[track_caller]
fn end_early(mut service: Workload) {
    service.process().signal(libc::SIGTERM);
    assert!(service.result().of("sign", "ed25519", "count") > 0);
    service.end();
}

#[track_caller]
fn ends_in_full_by(signal: i32) {
    let _machine = exclusive();
    let mut service = steady_service();
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", service.pid())).unwrap();
    let tracer = Tracer::attach(service.pid(), &[]);
    service.go();
    std::thread::sleep(Duration::from_millis(700));
    let recorded = tracer.stop_by(signal);
    assert!(service.process().is_running());
    assert_eq!(breakpoints(service.pid()), [""; 0], "probes left behind");
    end_early(service);

    let report = recorded.report();
    let count = report.row("sign", "ed25519").number("count");
    assert!((100..2_000).contains(&count), "{count} in 0.7 s at 600 a second");
    report.assert_no_loss();
    assert!(report.number("/duration_ns") >= 600_000_000);
    assert_eq!(report.json["target"]["comm"], comm.trim_end());
    let text = &recorded.finished.stdout;
    for word in ["sign", "verify", "ed25519"] {
        assert!(text.contains(word), "no {word} in the report:\n{text}");
    }
}

/// Check that SIGINT ends a recording with the whole report, exit status 0 and no probe left.
#[test]
fn sigint() {
    ends_in_full_by(libc::SIGINT);
}

/// Check that SIGTERM does the same.
#[test]
fn sigterm() {
    ends_in_full_by(libc::SIGTERM);
}

/// Check that a recording ends by itself after its duration.
#[test]
fn duration() {
    let _machine = exclusive();
    let mut service = steady_service();
    let tracer = Tracer::attach(service.pid(), &["-d", "1s"]);
    service.go();
    let recorded = tracer.end();
    end_early(service);
    let report = recorded.report();
    let measured = report.number("/duration_ns");
    assert!((900_000_000..2_000_000_000).contains(&measured), "{measured} ns");
    assert!(report.count("sign") > 100);
}

/// Check that the tracer keeps off the one CPU that its target is bound to, and stays where it may run beside
/// a target that is not bound.
#[test]
fn cpus_of_the_target() {
    let _machine = exclusive();
    let own = allowed_cpus(std::process::id());
    if own.len() < 2 {
        skip!("cpus_of_the_target", "there is one CPU only");
    }
    let options = ["--threads", "2", "--algorithm", "ed25519", "--count", "20"];
    let mut bound = Workload::key_service_on(&own[0].to_string(), &options);
    let mut tracer = Tracer::attach(bound.pid(), &[]);
    assert_eq!(allowed_cpus(tracer.process().pid()), own[1..]);
    let truth = bound.work();
    assert_eq!(tracer.stop().report().operations(), truth.operations());
    assert_eq!(allowed_cpus(bound.pid()), own[..1]);
    bound.end();

    let mut free = Workload::key_service(&options);
    let mut tracer = Tracer::attach(free.pid(), &[]);
    assert_eq!(allowed_cpus(tracer.process().pid()), own);
    free.work();
    tracer.stop();
    free.end();
}

/// The CPUs that a process may run on.
#[track_caller]
fn allowed_cpus(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let numbers = list.trim().split(',').flat_map(|range| {
        let mut ends = range.split('-').map(|end| end.parse::<u32>().unwrap());
        let first = ends.next().unwrap();
        first..=ends.next().unwrap_or(first)
    });
    numbers.collect()
}

/// Check that every format of the report is made from the recording alone, and that the saved
/// text is the one that was printed.
#[test]
fn formats() {
    let _machine = exclusive();
    let mut signloop = Workload::signloop(Build::Shared, "ed25519", 200);
    let tracer = Tracer::attach(signloop.pid(), &[]);
    signloop.work();
    let recorded = tracer.stop();
    signloop.end();
    assert_eq!(recorded.rendered("text").trim_end(), recorded.finished.stdout.trim_end());
    assert!(recorded.rendered("csv").lines().count() >= 3, "a header, sign and verify");
    assert!(recorded.rendered("hlog").contains("Tag="));
    let text = recorded.rendered("json");
    assert_eq!(text, recorded.rendered("json"), "the same recording gives the same report");
}

/// Check that the target's exit ends the recording within a second, with all of it.
#[test]
fn target_exits() {
    let _machine = exclusive();
    let mut signloop = Workload::signloop(Build::Shared, "ed25519", 500);
    let tracer = Tracer::attach(signloop.pid(), &[]);
    let truth = signloop.work();
    signloop.end();
    let exited = Instant::now();
    let recorded = tracer.end();
    let took = exited.elapsed();
    assert_eq!(recorded.report().operations(), truth.operations());
    assert!(recorded.finished.stdout.contains("ed25519"), "{}", recorded.finished.stdout);
    assert!(took < Duration::from_secs(1), "ended {took:?} after its target");
}

/// Check that a target killed in the middle of its work gives a report too.
#[test]
fn target_is_killed() {
    let _machine = exclusive();
    let mut service = steady_service();
    let tracer = Tracer::attach(service.pid(), &[]);
    service.go();
    std::thread::sleep(Duration::from_millis(500));
    service.process().signal(libc::SIGKILL);
    let recorded = tracer.end();
    assert!(recorded.report().count("sign") > 50);
}

/// Check that a command's own exit status, output and errors pass through.
#[test]
fn command_passes_through() {
    let _machine = exclusive();
    let recorded = Recorded::of(&[], &["false"]);
    assert_eq!(recorded.finished.status.code(), Some(1), "{}", recorded.finished.stderr);
    let recorded = Recorded::of(&[], &["sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(recorded.finished.status.code(), Some(7), "{}", recorded.finished.stderr);
    assert_eq!(recorded.finished.stdout, "out\n", "the report goes to stderr");
    assert!(recorded.finished.stderr.lines().any(|line| line == "err"));
}

/// Check that a command is traced from its very first operation, and its report goes to stderr.
#[test]
fn command_from_its_start() {
    let _machine = exclusive();
    let signloop = latency_tests::workload::build("signloop", Build::Shared);
    let recorded = Recorded::of(&[], &[signloop.to_str().unwrap(), "ed25519", "50"]);
    assert!(recorded.finished.status.success(), "{}", recorded.finished.stderr);
    let truth = serde_json::from_str(&recorded.finished.stdout).expect("the command's own output");
    assert_eq!(recorded.report().operations(), latency_tests::operations(&truth));
    assert!(recorded.finished.stderr.contains("ed25519"), "{}", recorded.finished.stderr);
}

/// Check that under sudo the command runs as the user who called sudo.
#[test]
fn command_runs_as_the_sudo_caller() {
    let _machine = exclusive();
    let vars = [("SUDO_UID", "65534"), ("SUDO_GID", "65534"), ("SUDO_USER", "nobody")];
    let recorded = Recorded::with(&[], &["sh", "-c", "id -u; id -g"], &vars);
    assert_eq!(recorded.finished.stdout, "65534\n65534\n", "{}", recorded.finished.stderr);
}

/// Check that a tracer killed by SIGKILL leaves no probe, a target that works on, and the way
/// free for another tracer.
#[test]
fn tracer_is_killed() {
    let _machine = exclusive();
    let mut signloop = Workload::signloop(Build::Shared, "evp-digestsign", 400);
    let mut first = Tracer::attach(signloop.pid(), &[]);
    assert!(!breakpoints(signloop.pid()).is_empty(), "no probe to be seen in the target's code");
    first.process().signal(libc::SIGKILL);
    drop(first);
    let pid = signloop.pid();
    let gone = eventually(Duration::from_secs(2), || breakpoints(pid).is_empty());
    assert!(gone, "probes left behind: {:?}", breakpoints(pid));

    let second = Tracer::attach(pid, &[]);
    let truth = signloop.work();
    let report = second.stop().report();
    signloop.end();
    assert_eq!(report.operations(), truth.operations());
}

/// Check that two tracers on one target both see everything.
#[test]
fn two_tracers() {
    let _machine = exclusive();
    let mut signloop = Workload::signloop(Build::Shared, "evp-digestsign", 400);
    let tracers = [0, 1].map(|_| Tracer::attach(signloop.pid(), &[]));
    let truth = signloop.work();
    for tracer in tracers {
        assert_eq!(tracer.stop().report().operations(), truth.operations());
    }
    signloop.end();
}

/// Check that `doctor` looks at the machine and at a target without touching it.
#[test]
fn doctor() {
    let _machine = exclusive();
    let mut signloop = Workload::signloop(Build::Shared, "ed25519", 10);
    let run = |arguments: &[&str]| {
        let finished = Process::run(&mut latency(arguments), Duration::from_secs(10));
        assert!(finished.status.success(), "{}{}", finished.stdout, finished.stderr);
        finished.stdout
    };
    assert!(!run(&["doctor"]).is_empty());
    let text = run(&["doctor", "-p", &signloop.pid().to_string()]);
    assert!(text.contains("libcrypto") && text.contains("EVP_DigestSign"), "{text}");
    assert_eq!(breakpoints(signloop.pid()), [""; 0]);
    signloop.work();
    signloop.end();
}

/// Check that a closed pipe ends `report` quietly.
#[test]
fn closed_pipe() {
    let _machine = exclusive();
    let mut signloop = Workload::signloop(Build::Shared, "ed25519", 20);
    let tracer = Tracer::attach(signloop.pid(), &[]);
    signloop.work();
    let recorded = tracer.stop();
    signloop.end();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = latency(&["report"]);
    command.arg(recorded.path()).args(["--format", "json"]);
    command.stdout(writer).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let finished = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&finished.stderr), "");
}
