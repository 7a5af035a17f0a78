//! Each kind of wait under its own name, held against the programs' own clocks and the kernel's
//! counts.

use std::process::Command;

use latency_tests::{Process, Report, Tracer, Workload, exclusive};

/// Check that sleep, a slow pipe and a file on its way to the disk are told apart inside one
/// request, each with the time that the program itself measured of it, and by its stack.
#[test]
fn sleep_pipe_and_disk() {
    let _machine = exclusive();
    let count = 60;
    let mut program = Workload::waits("parts", count);
    let parts = ["part_sleep", "part_pipe", "part_sync"].map(|name| program.function(name));
    let request = program.function("handle");
    let mut options = vec!["--request", &request];
    options.extend(parts.iter().flat_map(|part| ["--probe", part]));
    let tracer = Tracer::attach(program.pid(), &options);
    let truth = program.work();
    let report = tracer.stop().report();
    program.end();

    report.assert_no_loss();
    assert_eq!(report.number("/ledger_mismatches"), 0);
    assert_eq!(report.count("handle"), u64::from(count));
    let inside = &report.json["operations"][0]["parts"]["total"]["operations"];
    for (at, name, own, reason) in [
        (0, "part_sleep", "/slept_ns", "sleep"),
        (1, "part_pipe", "/read_ns", "sleep"),
        (2, "part_sync", "/synced_ns", "io"),
    ] {
        assert_eq!(inside[at]["operation"], name);
        let (whole, own) = (inside[at]["total_ns"].as_u64().unwrap(), truth.number(own));
        assert!(whole.abs_diff(own) <= own / 20, "{name}: {whole} ns, {own} ns by its own clock");
        // Of the waits inside, all but a few are of the one kind, in the stack of the function.
        let ledger = &report.operation(name)["ledger_ns"];
        let waited = |reason: &str| ledger[reason].as_u64().expect("a part of the ledger");
        let others: u64 = ["lock", "io", "sleep"].into_iter().map(waited).sum();
        let of_reason = waited(reason);
        assert!(of_reason > 0 && of_reason >= others - others / 10, "{name}: {ledger:#}");
        let in_stack = report.off_cpu_ns(reason, name);
        assert!(in_stack.abs_diff(of_reason) <= of_reason / 50, "{name}: {in_stack}, {of_reason}");
    }
    // A timer does not fire early.
    let slept = report.operation("part_sleep")["ledger_ns"]["sleep"].as_u64().unwrap();
    let asked_ns = u64::from(count) * 2_000_000;
    assert!(slept >= asked_ns - asked_ns / 20, "{slept} of {asked_ns} ns");
    let whole = report.number("/operations/0/parts/total/duration_ns");
    let own = truth.number("/requests_ns");
    assert!(whole.abs_diff(own) <= own / 20, "{whole} ns, {own} ns by its own clock");
}

/// Check that workers waiting for work are no contention beside a mutex that is, and that the time
/// of the mutex is that of the program's own clock.
#[test]
fn idle_pool() {
    let _machine = exclusive();
    let mut program = Workload::waits("pool", 150);
    let request = program.function("take_lock");
    let tracer = Tracer::attach(program.pid(), &["--request", &request]);
    let truth = program.work();
    let report = tracer.stop().report();
    program.end();

    report.assert_no_loss();
    assert_eq!(report.number("/ledger_mismatches"), 0);
    let mutex = report.lock(":g_work_lock");
    assert_eq!((&mutex["class"], &mutex["is_idle"]), (&"mutex".into(), &false.into()));
    let pool = report.list("/locks").iter().find(|lock| lock["class"] == "condvar");
    let pool = pool.unwrap_or_else(|| panic!("no condvar in {:#}", report.json["locks"]));
    assert_eq!(pool["is_idle"], true);
    assert!(pool["name"].as_str().unwrap().contains(":g_pool_ready"), "{pool:#}");
    // Eight threads, from the start to the end, and yet after the contended ones.
    assert!(pool["total_ns"].as_u64() > mutex["total_ns"].as_u64());
    let is_idle = |lock: &serde_json::Value| lock["is_idle"] == true;
    assert!(report.list("/locks").is_sorted_by_key(is_idle));

    let blocked = mutex["total_ns"].as_u64().unwrap();
    let ledger = |part: &str| report.number(&format!("/operations/0/ledger_ns/{part}"));
    let in_requests = ledger("lock");
    assert!(in_requests.abs_diff(blocked) <= blocked / 50, "{in_requests}, {blocked} ns");
    let waited = in_requests + ledger("run_queue") + ledger("preempted");
    let own = truth.number("/waited_ns");
    assert!(waited.abs_diff(own) <= own / 10, "{waited} ns, {own} ns by its own clock");
}

/// Times off the CPU of all threads: blocked and preempted.
fn times_off(report: &Report) -> (u64, u64) {
    let count = |is_preempted: bool| {
        let of = |total: &&serde_json::Value| (total["reason"] == "preempted") == is_preempted;
        let totals = report.list("/off_cpu_totals").iter().filter(of);
        totals.map(|total| total["count"].as_u64().unwrap()).sum()
    };
    (count(false), count(true))
}

/// Check that neighbours on the same CPU are told as waiting for a CPU and not for a lock, with as
/// many switches as the kernel counts itself.
#[test]
fn busy_neighbours() {
    let _machine = exclusive();
    let pinned = |arguments: &[&str]| {
        Process::start(Command::new("taskset").args(["-c", "0"]).args(arguments))
    };
    let spinner = ["sh", "-c", "while :; do :; done"];
    let neighbours = [pinned(&spinner), pinned(&spinner)];
    let options = ["--threads", "2", "--algorithm", "ecdsa-p256", "--seconds", "6"];
    let mut service = Workload::key_service_on("0", &options);
    let request = service.function("handle_request");
    let tracer = Tracer::attach(service.pid(), &["--request", &request]);
    let truth = service.work();
    let report = tracer.stop().report();
    service.end();
    drop(neighbours);

    report.assert_no_loss();
    assert_eq!(report.number("/ledger_mismatches"), 0);
    let ledger = |part: &str| report.number(&format!("/operations/0/ledger_ns/{part}"));
    let waiting = ledger("run_queue") + ledger("preempted");
    assert!(waiting > 4 * ledger("lock"), "{:#}", report.json["operations"][0]["ledger_ns"]);
    let verdict = &report.json["verdict"];
    assert_eq!(verdict["cause"], "cpu-wait", "{verdict:#}");
    let (blocked, preempted) = times_off(&report);
    let own = |kind: &str| truth.number(&format!("/switches/{kind}"));
    let (own_blocked, own_preempted) = (own("voluntary"), own("involuntary"));
    // Before it starts and after its end, the service waits for a word: a few times more.
    let near = |measured: u64, own: u64| measured.abs_diff(own) <= own / 50 + 10;
    assert!(near(blocked, own_blocked), "{blocked} voluntary, {own_blocked} by the kernel");
    assert!(near(preempted, own_preempted), "{preempted} involuntary, {own_preempted}");
}
