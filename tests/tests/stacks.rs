//! Stacks: whole, the same as a debugger's, and in number.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::time::Duration;

use latency_tests::stacks::{self, Stack, Wait, share};
use latency_tests::{Build, Process, Tracer, Workload, exclusive, skip};

/// How long a peer may take to look at a process.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often threads waited, with their stacks, which waits that began before the trace do not have.
fn counted<'a>(waits: impl IntoIterator<Item = &'a Wait>) -> Vec<(u64, Option<Stack>)> {
    waits.into_iter().map(|wait| (wait.count, wait.stack.clone())).collect()
}

/// Whether the stack goes down to the thread's start. A thread that is just made has nothing but the
/// function that made it, and one that ends gives its stack's memory back first.
fn is_whole(stack: &Option<Stack>) -> bool {
    stack.as_ref().is_some_and(|stack| {
        let first = ["start_thread", "clone3", "clone"];
        let ends = matches!(&stack.frames[..], [only] if first.contains(&&*only.function));
        stack.is_whole || ends
    })
}

/// The stacks that are not.
fn cut(counted: &[(u64, Option<Stack>)]) -> Vec<&(u64, Option<Stack>)> {
    counted.iter().filter(|(_, stack)| !is_whole(stack)).collect()
}

/// Check that 99 of 100 waits of a service without frame pointers have a stack that goes through
/// each of its functions down to `main` or to the thread's first function, and that the caller of
/// `pthread_mutex_lock` is in the stacks of the lock.
#[test]
fn key_service() {
    let _machine = exclusive();
    let mut service = Workload::key_service(&[
        "--threads",
        "4",
        "--count",
        "400",
        "--hold-us",
        "300",
        "--algorithm",
        "ecdsa-p256",
    ]);
    let tracer = Tracer::attach(service.pid(), &[]);
    service.work();
    let recorded = tracer.stop();
    service.end();

    let waits = stacks::waits(&recorded.path());
    let (all, lock) = (counted(&waits), counted(waits.iter().filter(|wait| wait.reason == "lock")));
    for counted in [&all, &lock] {
        let whole = share(counted, is_whole);
        assert!(whole >= 0.99, "{whole} are whole, but for {:#?}", cut(counted));
        let own = ["main", "serve", "start_thread"];
        let to_start = share(counted, |stack| {
            stack.as_ref().is_some_and(|stack| own.iter().any(|function| stack.has(function)))
        });
        assert!(to_start >= 0.99, "{to_start} go through the service's own functions");
    }
    let locked = stacks::waits_for_lock(&recorded.path(), "g_keystore_lock");
    let with_caller = share(&locked, |stack| {
        let caller = stack.as_ref().and_then(|stack| stack.caller_of("pthread_mutex_lock"));
        caller == Some("handle_request")
    });
    assert!(with_caller >= 0.99, "{with_caller} have the lock's caller: {locked:#?}");
}

/// Check that the stack of each blocked thread is the one that gdb finds, frame for frame: through
/// frames of variable size and aligned ones, a callback of the C library, a signal handler, sixty
/// levels of recursion, and a library that was loaded during the trace.
#[test]
fn same_as_gdb() {
    let _machine = exclusive();
    if Command::new("gdb").arg("--version").output().is_err() {
        skip!("same_as_gdb", "gdb is not installed");
    }
    let mut program = Workload::blocked(&[]);
    let probe = format!("{}:finish", program.program().display());
    let tracer = Tracer::attach(program.pid(), &["--probe", &probe]);
    program.go();
    program.process().wait_stderr("blocked: blocked");
    let expected = gdb(program.pid());
    program.work();
    let recorded = tracer.stop();
    program.end();

    let waits = stacks::waits(&recorded.path());
    let names: Vec<&str> = expected.keys().map(String::as_str).collect();
    let all =
        ["aligned", "callback", "condition", "deep", "late", "mutex", "pipe", "signal", "variable"];
    for name in all {
        let Some(addresses) = expected.get(name) else { panic!("no {name} among {names:?}") };
        let ours: Vec<&Stack> = waits
            .iter()
            .filter(|wait| wait.comm == name)
            .filter_map(|wait| wait.stack.as_ref())
            .collect();
        let same = ours.iter().find(|stack| stack.addresses() == *addresses);
        let Some(same) = same else { panic!("{name}: {addresses:#x?} is not among {ours:#?}") };
        assert!(same.is_whole, "{name}: {same:#?}");
    }
}

/// Each thread's frames by its name, innermost first; only those that the stack has: no inlined calls, and
/// none that ended in a jump.
#[track_caller]
fn gdb(pid: u32) -> BTreeMap<String, Vec<u64>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = folder.path().join("frames.py");
    let text = "\
for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame, addresses = gdb.newest_frame(), []
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            addresses.append(str(frame.pc()))
        frame = frame.older()
    print('\\nTHREAD', thread.name, *addresses, flush=True)
";
    std::fs::write(&script, text).expect("writing gdb's script");
    let mut command = Command::new("gdb");
    command.args(["-batch", "-nx", "-p", &pid.to_string()]);
    command.args(["-ex", "set backtrace past-main on", "-ex", "set backtrace past-entry on", "-x"]);
    let finished = Process::run(command.arg(&script), PATIENCE);
    let lines = finished.stdout.lines().filter_map(|line| line.strip_prefix("THREAD "));
    let threads: BTreeMap<String, Vec<u64>> = lines
        .map(|line| {
            let (name, addresses) = line.split_once(' ').expect("a name and addresses");
            let addresses = addresses.split(' ').map(|word| word.parse().expect("an address"));
            (name.to_owned(), addresses.collect())
        })
        .collect();
    assert!(!threads.is_empty(), "gdb: {finished:?}");
    threads
}

/// Check that a signer that is preempted in the midst of OpenSSL's assembly gets no frame that no
/// call leads to, that its stacks start in `main`, and that the graph has all the time that was measured.
#[test]
fn preempted_in_assembly() {
    let _machine = exclusive();
    // Keys of 4096 bits take long to make: both do it on all CPUs, before the trace.
    let [mut target, mut neighbour] =
        [150, 100_000].map(|count| Workload::signloop(Build::Shared, "rsa-4096", count));
    for signer in [&target, &neighbour] {
        let mut pin = Command::new("taskset");
        let pinned = Process::run(pin.args(["-acp", "0", &signer.pid().to_string()]), PATIENCE);
        assert!(pinned.status.success(), "{pinned:?}");
    }
    neighbour.go();
    let tracer = Tracer::attach(target.pid(), &[]);
    // Its end leaves no operation open, which would have waits and no ledger.
    target.work();
    let recorded = tracer.stop();

    let memory = File::open(format!("/proc/{}/mem", target.pid())).expect("the target's memory");
    let waits = stacks::waits(&recorded.path());
    // The one wait from before the trace has no stack.
    let all = counted(waits.iter().filter(|wait| wait.in_operation));
    let whole = share(&all, is_whole);
    for stack in waits.iter().filter_map(|wait| wait.stack.as_ref()) {
        for (inner, frame) in stack.frames.iter().zip(stack.frames.iter().skip(1)) {
            let mut before = [0; 7];
            // What a signal interrupted was not called.
            let read = memory.read_exact_at(&mut before, frame.address - 7);
            assert!(read.is_ok(), "{:#x} is no code: {stack:#?}", frame.address);
            assert!(
                is_call(&before),
                "no call before {:#x}, said to call {:#x}: {before:x?} {stack:#?}",
                frame.address,
                inner.address
            );
        }
        assert!(!stack.is_whole || stack.has("main"), "{stack:#?}");
    }
    assert!(whole >= 0.99, "{whole} are whole, but for {:#?}", cut(&all));

    let mut flame = latency_tests::tracer::latency(&["flame", "--folded", "--in-operation"]);
    let folded = Process::run(flame.arg(recorded.path()), PATIENCE).stdout;
    let drawn_us: f64 = folded
        .lines()
        .map(|line| line.rsplit(' ').next().and_then(|us| us.parse::<f64>().ok()).expect("a time"))
        .sum();
    let report = recorded.report();
    let parts = ["run_queue", "preempted", "lock", "io", "sleep", "other"];
    let operations = report.json["operations"].as_array().expect("operations").len();
    let measured_ns: u64 = (0..operations)
        .flat_map(|row| parts.map(|part| format!("/operations/{row}/ledger_ns/{part}")))
        .map(|part| report.number(&part))
        .sum();
    let difference = (drawn_us * 1e3 - measured_ns as f64).abs() / measured_ns as f64;
    // Preemptions shorter than 10 us are not drawn. A single one of 4 ms, as on the edge of an operation,
    // is 0.7 %.
    assert!(difference <= 0.002, "{drawn_us} us drawn, {measured_ns} ns measured\n{folded}");
    target.end();
    neighbour.process().signal(libc::SIGTERM);
}

/// Whether the 7 bytes before a return address end in a call: relative, or through a register or
/// memory with a displacement of any length.
fn is_call(before: &[u8; 7]) -> bool {
    let indirect = |length: usize| {
        let [opcode, operand, ..] = before[7 - length..] else { return false };
        opcode == 0xff && operand >> 3 & 7 == 2
    };
    before[2] == 0xe8 || (2..=7).any(indirect)
}

/// Check that at least as many stacks are whole as perf's are, which copies the stack's memory.
#[test]
fn as_many_as_perf() {
    const OPTIONS: [&str; 8] =
        ["--threads", "4", "--count", "100", "--hold-us", "300", "--algorithm", "ecdsa-p256"];
    let _machine = exclusive();
    if Command::new("perf").arg("--version").output().is_err() {
        skip!("as_many_as_perf", "perf is not installed");
    }
    let mut service = Workload::key_service(&OPTIONS);
    let tracer = Tracer::attach(service.pid(), &[]);
    service.work();
    let recorded = tracer.stop();
    service.end();
    let waits = stacks::waits(&recorded.path());
    // The thread's start, in the words of a C library with debug symbols or without.
    let starts = ["clone", "_start", "start_thread"];
    let is_start = |function: &str| starts.iter().any(|start| function.contains(start));
    let reaches_start = |stack: &Option<Stack>| {
        let last = stack.as_ref().and_then(|stack| stack.frames.last());
        last.is_some_and(|last| is_start(&last.function))
    };
    // Waits that began before the trace have no stack, and perf does not see them: one for each
    // thread, at most.
    let (all, before): (Vec<_>, Vec<_>) =
        counted(&waits).into_iter().partition(|(_, stack)| stack.is_some());
    assert!(before.iter().map(|(count, _)| count).sum::<u64>() <= 5, "{before:#?}");
    let ours = share(&all, reaches_start);
    let not: Vec<_> = all.iter().filter(|(_, stack)| !reaches_start(stack)).collect();

    let mut service = Workload::key_service(&OPTIONS);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("perf.data");
    let mut command = Command::new("perf");
    command.args(["record", "-e", "context-switches", "-c", "1", "--call-graph", "dwarf", "-p"]);
    command.arg(service.pid().to_string()).arg("-o").arg(&data);
    let mut perf = Process::start(&mut command);
    std::thread::sleep(Duration::from_secs(1));
    assert!(perf.is_running(), "perf record: {:?}", perf.wait(PATIENCE));
    service.work();
    perf.signal(libc::SIGINT);
    let finished = perf.wait(PATIENCE);
    service.end();
    let mut script = Command::new("perf");
    script.args(["script", "--max-stack", "128", "-F", "comm,ip,sym", "-i"]).arg(&data);
    let listed = Process::run(&mut script, PATIENCE);
    let theirs: Vec<_> = listed
        .stdout
        .split("\n\n")
        .filter(|sample| !sample.trim().is_empty())
        .map(|sample| (1, sample.trim_end().lines().last().unwrap_or_default().to_owned()))
        .collect();
    assert!(!theirs.is_empty(), "perf: {finished:?} {listed:?}");
    let theirs = share(&theirs, |last| is_start(last));
    assert!(ours >= theirs, "{ours} of ours are whole, {theirs} of perf's: {not:#?}");
    eprintln!("whole stacks: {ours:.4}, perf's {theirs:.4}");
}

/// Check that a process with many mappings has whole stacks as long as they fit in the table, and
/// beyond it while those that do not fit are of no file; and that more is said.
#[test]
fn many_mappings() {
    let _machine = exclusive();
    for (files, unknown, fits) in [("600", "0", true), ("100", "2500", false)] {
        let mut program = Workload::blocked(&[files, unknown]);
        let probe = format!("{}:finish", program.program().display());
        let tracer = Tracer::attach(program.pid(), &["--probe", &probe]);
        program.go();
        program.process().wait_stderr("blocked: blocked");
        program.work();
        let recorded = tracer.stop();
        program.end();
        let warnings = recorded.report().warnings();
        assert_eq!(!warnings.contains("executable mappings"), fits, "{warnings}");
        let waits = stacks::waits(&recorded.path());
        for function in ["recursive", "in_late_library", "in_signal_handler", "in_aligned_frame"] {
            let mut through = waits.iter().filter(|wait| {
                is_whole(&wait.stack) && wait.stack.iter().any(|stack| stack.has(function))
            });
            assert!(through.next().is_some(), "{files}, {unknown}: {function}: {waits:#?}");
        }
    }
}

/// Check that a program of 300 MB is traced like any other: its own frames, a million rows, are found
/// once they are compiled, while the trace goes on, and in bounded memory.
#[test]
fn big_program() {
    const MEMORY_BYTES: u64 = 300 << 20;
    let _machine = exclusive();
    let mut program = Workload::big(600);
    let file = program.program().to_owned();
    let probe = format!("{}:finish", file.display());
    let tracer = Tracer::attach(program.pid(), &["--probe", &probe]);
    program.work();
    let recorded = tracer.stop();
    program.end();
    std::fs::remove_file(file).expect("removing the program");

    let report = recorded.report();
    report.assert_no_loss();
    assert_eq!(report.count("finish"), 1);
    let memory = report.number("/own_cost/peak_memory_bytes");
    assert!(memory < MEMORY_BYTES, "{memory} bytes of memory");
    let waits = stacks::waits(&recorded.path());
    let naps: Vec<_> = waits
        .iter()
        .filter(|wait| wait.stack.as_ref().is_some_and(|stack| stack.has("nap")))
        .collect();
    let whole = naps.iter().find(|wait| {
        let stack = wait.stack.as_ref();
        stack.is_some_and(|stack| stack.is_whole && stack.has("call_back") && stack.has("main"))
    });
    assert!(whole.is_some(), "no stack goes through the program: {naps:#?}");
}
