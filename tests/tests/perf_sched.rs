//! The scheduler's side of the trace beside `perf sched timehist` of the same seconds.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use latency_tests::tracer::{eventually, latency};
use latency_tests::{Process, Tracer, Workload, exclusive, skip};

const PATIENCE: Duration = Duration::from_secs(120);

/// Off the CPU in all, of this in the run queue, both in microseconds, and how often; by the thread's
/// name.
type Times = BTreeMap<String, (f64, f64, f64)>;

/// From lines such as ` 14984.732365 [0000]  worker-0[11233/11231]  4.019  0.000  3.983`: off-CPU
/// time with the run queue in it, run queue, and time on the CPU, in milliseconds. Each thread's first
/// line is left out: no time off the CPU, and in the run queue what the thread waited for its first
/// run, up to some milliseconds; that is before all that is traced of it (`sched.rs`).
fn of_perf(timehist: &str, pid: u32) -> Times {
    let mut times = Times::new();
    let of_pid = format!("/{pid}]");
    for line in timehist.lines() {
        let Some((head, numbers)) = line.split_once(&of_pid) else { continue };
        let task = head.split_once("]  ").expect("a CPU before the task").1;
        let name = task.rsplit_once('[').expect("a thread's id").0;
        if !times.contains_key(name) {
            times.insert(name.to_owned(), (0.0, 0.0, 0.0));
            continue;
        }
        let mut numbers = numbers.split_whitespace().map(|word| word.parse::<f64>().expect("ms"));
        let time = times.entry(name.to_owned()).or_default();
        time.0 += numbers.next().expect("wait time") * 1e3;
        time.1 += numbers.next().expect("sch delay") * 1e3;
        time.2 += 1.0;
    }
    times
}

/// From folded stacks, `NAME;…;[reason] MICROSECONDS`.
fn of_folded(folded: &str) -> Times {
    let mut times = Times::new();
    for line in folded.lines() {
        let (stack, microseconds) = line.rsplit_once(' ').expect("a count");
        let microseconds: f64 = microseconds.parse().expect("a count");
        let time = times.entry(stack.split(';').next().unwrap().to_owned()).or_default();
        time.0 += microseconds;
        if stack.ends_with("[run queue]") {
            time.1 += microseconds;
        }
        time.2 += 1.0;
    }
    times
}

/// Check that time off the CPU and time in the run queue of each thread are those that perf finds.
#[test]
fn agrees_with_perf() {
    let _machine = exclusive();
    if !Command::new("perf").arg("--version").output().is_ok_and(|done| done.status.success()) {
        skip!("agrees_with_perf", "there is no perf (linux-perf)");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("sched.data");
    let mut program = Workload::waits("pool", 400);
    let mut perf = Process::start(
        Command::new("perf").args(["sched", "record", "-m", "4096", "-o"]).arg(&data),
    );
    // perf says nothing when it begins; its file has a header a moment before.
    let is_open = || data.metadata().is_ok_and(|data| data.len() > 0) || !perf.is_running();
    assert!(eventually(PATIENCE, is_open), "perf does not begin");
    std::thread::sleep(Duration::from_secs(1));
    // Neighbours on every CPU: what waits in the run queue is far more than what it costs to look.
    let spinner = || Process::start(Command::new("sh").args(["-c", "while :; do :; done"]));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let neighbours: Vec<Process> = (0..2 * cpus).map(|_| spinner()).collect();
    let request = program.function("take_lock");
    let options = ["--request", &request, "--min-wait", "0.001us", "--ring-size", "64MiB"];
    let tracer = Tracer::attach(program.pid(), &options);
    program.work();
    drop(neighbours);
    let recorded = tracer.stop();
    if perf.is_running() {
        perf.signal(libc::SIGINT);
    }
    let recording = perf.wait(PATIENCE);
    let report = recorded.report();
    let pid = program.pid();
    program.end();
    if !data.is_file() {
        skip!("agrees_with_perf", format!("perf cannot record: {}", recording.stderr.trim()));
    }
    assert_eq!(report.number("/loss/wait_records"), 0);
    let mut timehist = Command::new("perf");
    timehist.args(["sched", "timehist", "-i"]).arg(&data);
    let timehist = Process::run(&mut timehist, PATIENCE);
    assert!(!timehist.stderr.contains("LOST"), "{}", timehist.stderr);
    let perf = of_perf(&timehist.stdout, pid);
    let mut folded = latency(&["flame", "--folded"]);
    let folded = Process::run(folded.arg(recorded.path()), PATIENCE);
    let ours = of_folded(&folded.stdout);

    for name in ["worker-0", "worker-1"] {
        let of = |times: &Times| {
            times.get(name).copied().unwrap_or_else(|| panic!("no {name} in {times:?}"))
        };
        let ((off, queued, _), (perf_off, perf_queued, perf_waits)) = (of(&ours), of(&perf));
        assert!((off - perf_off).abs() <= perf_off / 20.0, "{name}: off {off}, {perf_off} µs");
        // Each of both looks from within the time that the other measures: a microsecond or two.
        let slack = perf_queued / 20.0 + 2.0 * perf_waits;
        assert!((queued - perf_queued).abs() <= slack, "{name}: {queued}, {perf_queued} µs queued");
    }
}
