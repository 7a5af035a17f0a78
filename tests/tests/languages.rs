//! Stacks of programs in several languages: whole, or marked as cut short, and rightly named.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use latency_tests::{Folded, Process, Recorded, Tracer, Workload, exclusive, skip};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads").join(name)
}

/// Compiles a service; `None` where the compiler is missing.
#[track_caller]
fn compiled(
    folder: &Path,
    compiler: &str,
    before: &[&str],
    name: &str,
    after: &[&str],
) -> Option<PathBuf> {
    let program = folder.join("service");
    let mut command = Command::new(compiler);
    command.args(before).arg("-o").arg(&program).arg(source(name)).args(after);
    // Go keeps what it has compiled in the home folder, which root may not have.
    command.env("GOCACHE", latency_tests::cache_folder().join("go"));
    let done = match command.output() {
        Ok(done) => done,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => panic!("{compiler}: {error}"),
    };
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    Some(program)
}

/// Records a service from before its first request to after its last. Then it is ended in order, or
/// killed while the trace goes on.
#[track_caller]
fn recorded(command: &mut Command, options: &[&str], kill: bool) -> (Recorded, u32) {
    let mut service = Process::start(command);
    service.wait_stdout("ready");
    let pid = service.pid();
    let tracer = Tracer::attach(pid, options);
    if kill {
        // Rows of a program as large as node come while the trace goes on.
        std::thread::sleep(Duration::from_millis(1500));
    }
    service.send_line();
    service.wait_stdout("done");
    if kill {
        // The mappings made since the start are looked at four times a second.
        std::thread::sleep(Duration::from_millis(600));
        service.signal(libc::SIGKILL);
        return (tracer.end(), pid);
    }
    let recorded = tracer.stop();
    service.send_line();
    let finished = service.finish();
    assert!(finished.status.success(), "{}", finished.stderr);
    (recorded, pid)
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|done| done.status.success())
}

/// A function of the service that is probed, so that there is something to trace.
fn probe(program: &Path, symbol: &str) -> String {
    format!("{}:{symbol}=request", program.display())
}

/// Check that a lock taken in the usual way and in the handler of an exception is seen with its
/// callers, that the lock has its C++ name, and that lines and inlined functions are there if asked
/// for.
#[test]
fn cpp_with_exceptions() {
    let _machine = exclusive();
    let folder = tempfile::tempdir().unwrap();
    let flags = ["-O2", "-g", "-fomit-frame-pointer", "-pthread"];
    let Some(program) = compiled(folder.path(), "g++", &flags, "service.cpp", &[]) else {
        skip!("cpp_with_exceptions", "g++ is not installed");
    };
    let probe = probe(&program, "_ZN4keys5Vault4signEi");
    let (recorded, _) =
        recorded(&mut Command::new(&program), &["--lines", "--probe", &probe], false);
    let folded = Folded::of(&recorded, &[]);
    folded.assert_whole(95);
    let sign = ["keys::Vault::sign", "keys::checked", "pthread_mutex_lock", "[lock]"];
    let (usual, all) = (folded.time_in_us(&sign), folded.time_in_us(&[sign[0], sign[2], sign[3]]));
    assert!(usual > 0 && all > usual, "{usual} µs of {all}");
    assert!(folded.time_in_us(&["keys::checked", "work", "nanosleep"]) > 0);
    let lines = Folded::of(&recorded, &["--lines"]);
    assert_eq!(folded.time_in_us(&["(service.cpp:"]), 0);
    // `std::lock_guard<std::mutex> held(vault_lock)`, and the sleep of `work`.
    assert!(lines.time_in_us(&["keys::checked (service.cpp:24)", "pthread_mutex_lock"]) > 0);
    assert!(lines.time_in_us(&["keys::checked (service.cpp:25)", "work (service.cpp:18)"]) > 0);
    let report = recorded.report();
    assert_eq!(report.text("/locks/0/name"), "service:keys::vault_lock");
}

/// Check that a Rust program without frame pointers has whole stacks, with names as written.
#[test]
fn rust() {
    let _machine = exclusive();
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--edition", "2024", "-C", "opt-level=3", "-C", "force-frame-pointers=no"];
    let Some(program) = compiled(folder.path(), "rustc", &flags, "service.rs", &[]) else {
        skip!("rust", "rustc is not installed");
    };
    let probe = probe(&program, "_start");
    let (recorded, _) = recorded(&mut Command::new(&program), &["--probe", &probe], false);
    let folded = Folded::of(&recorded, &[]);
    folded.assert_whole(95);
    let lock = ["service::serve", "service::sign", "lock_contended", "[lock]"];
    assert!(folded.time_in_us(&lock) > 0);
    assert!(folded.time_in_us(&["service::sign", "std::thread", "nanosleep", "[sleep]"]) > 0);
    let report = recorded.report();
    assert_eq!(report.text("/locks/0/name"), "service:service::KEYS");
    assert_eq!(report.text("/locks/0/class"), "mutex");
}

/// Check that C functions called from Go are named, and that a stack that ends where Go switches to
/// its own is marked so.
#[test]
fn go_calling_c() {
    let _machine = exclusive();
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled(folder.path(), "go", &["build"], "service.go", &[]) else {
        skip!("go_calling_c", "go is not installed");
    };
    let (recorded, _) = recorded(&mut Command::new(&program), &[], false);
    let folded = Folded::of(&recorded, &[]);
    let in_c = folded.time_us(|frames| frames.iter().any(|frame| frame == "c_sign"));
    assert!(in_c > 0);
    let lines = folded.stacks.iter().filter(|(frames, _)| frames.iter().any(|it| it == "c_sign"));
    for (frames, _) in lines {
        let at = frames.iter().position(|frame| frame == "c_sign").unwrap();
        assert!(frames[at - 1].ends_with("_Cfunc_c_sign"), "{frames:?}");
        let is_marked = frames[1].starts_with("[truncated");
        assert!(is_marked || frames.iter().any(|frame| frame == "main.serve"), "{frames:?}");
    }
    let locks = recorded.report();
    let names = locks.json["locks"].as_array().unwrap().iter().map(|lock| &lock["name"]);
    assert!(names.into_iter().any(|name| name == "service:keys"), "{}", locks.json["locks"]);
}

/// Check that the interpreter's functions are named down to the thread's start.
#[test]
fn python() {
    let _machine = exclusive();
    // The interpreter itself: `python3` may be a script that starts it.
    let asked = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let Some(asked) = asked.ok().filter(|done| done.status.success()) else {
        skip!("python", "python3 is not installed");
    };
    let interpreter = String::from_utf8(asked.stdout).unwrap();
    let mut command = Command::new(interpreter.trim());
    let (recorded, _) = recorded(command.arg(source("service.py")), &[], false);
    let folded = Folded::of(&recorded, &[]);
    folded.assert_whole(95);
    assert!(folded.time_in_us(&["_PyEval_EvalFrameDefault", "nanosleep", "[sleep]"]) > 0);
    assert!(folded.time_in_us(&["_PyEval_EvalFrameDefault", "PyThread_acquire_lock_timed"]) > 0);
}

/// Check that node's own functions and those it compiled at run time are named, from the map that it
/// keeps of them, also when it is gone at the end.
#[test]
fn node_killed() {
    let _machine = exclusive();
    if !is_there("node") {
        skip!("node_killed", "node is not installed");
    }
    let mut command = Command::new("node");
    command.arg("--perf-basic-prof").arg(source("service.js"));
    // It writes a log of its own beside the map.
    let folder = tempfile::tempdir().unwrap();
    command.current_dir(folder.path());
    let (recorded, pid) = recorded(&mut command, &[], true);
    // Killed, it leaves its map.
    std::fs::remove_file(format!("/tmp/perf-{pid}.map")).unwrap();
    let folded = Folded::of(&recorded, &[]);
    folded.assert_whole(95);
    let sign = ["node::Start", "serveRequests ", "signRequest ", "pauseInService ", "[lock]"];
    assert!(folded.time_in_us(&sign) > 0, "no JavaScript in {:?}", folded.stacks);
    assert!(folded.time_in_us(&["pauseInService ", "v8::", "pthread_cond_timedwait"]) > 0);
}

/// Check that names do not depend on the target being there at the end: of the time spent waiting
/// for the key store's lock, as large a part is under frames with a name as for a target that lives
/// on, and the lock has its own.
#[test]
fn killed_before_the_end() {
    let _machine = exclusive();
    let named = |kill: bool| {
        let options = ["--threads", "4", "--count", "200", "--hold-us", "300"];
        let mut service = Workload::key_service(&options);
        let tracer = Tracer::attach(service.pid(), &[]);
        service.work();
        let recorded = if kill {
            std::thread::sleep(Duration::from_millis(600));
            service.process().signal(libc::SIGKILL);
            tracer.end()
        } else {
            let recorded = tracer.stop();
            service.end();
            recorded
        };
        let folded = Folded::of(&recorded, &["--view", "locks"]);
        assert!(folded.time_in_us(&["handle_request", "pthread_mutex_lock"]) > 0);
        let of_lock = folded.stacks.iter().filter(|it| it.0[0].ends_with(":g_keystore_lock"));
        let (mut named, mut all) = (0, 0);
        for (frames, time_us) in of_lock {
            let nameless = |frame: &&String| frame.contains("+0x") || *frame == "[unknown]";
            let count = frames.iter().filter(nameless).count();
            named += time_us * (frames.len() - count) as u64;
            all += time_us * frames.len() as u64;
        }
        assert!(all > 0, "no wait for the lock under its name in {:?}", folded.stacks);
        named as f64 / all as f64
    };
    let (of_living, of_killed) = (named(false), named(true));
    // A stripped C library leaves some frames of each stack without a name.
    assert!(of_killed >= of_living - 0.05, "{of_killed}, of a target that lives {of_living}");
}
