//! What cannot be done: refused in one line that names the cause and the way out, with no harm.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use latency_tests::breakpoints::breakpoints;
use latency_tests::tracer::{latency, latency_as_nobody, open_to_all};
use latency_tests::{Build, Finished, Process, Tracer, Workload, exclusive};

/// How long a refusal may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The system's list of probes made through tracefs, where it is mounted.
fn uprobe_events() -> String {
    std::fs::read_to_string("/sys/kernel/tracing/uprobe_events").unwrap_or_default()
}

/// Runs `latency`, which must refuse. Its error must have one of each set of words: the first
/// sets name the cause, the last one the remedy.
#[track_caller]
fn refused(command: &mut Command, words: &[&[&str]]) {
    let before = uprobe_events();
    let Finished { status, stdout, stderr, took } = Process::run(command, PATIENCE);
    let what = format!("{command:?} after {took:?}: {status}\nstdout: {stdout}\nstderr: {stderr}");
    assert!(status.code().is_some_and(|code| code != 0), "exit status: {what}");
    let errors = stderr.lines().filter(|line| line.starts_with("error:")).count();
    assert_eq!(errors, 1, "one line `error: …`: {what}");
    assert!(!stderr.contains("panicked"), "{what}");
    assert!(stdout.is_empty(), "a refusal goes to stderr: {what}");
    for any in words {
        let lower = stderr.to_lowercase();
        let named = any.iter().any(|word| lower.contains(&word.to_lowercase()));
        assert!(named, "none of {any:?} in the error: {what}");
    }
    assert_eq!(uprobe_events(), before, "probes left behind");
}

/// A process without OpenSSL, which does nothing for longer than any refusal takes.
#[track_caller]
fn sleeper() -> Process {
    Process::start(Command::new("sleep").arg("60"))
}

/// Check that a process that does not exist is refused by its number.
#[test]
fn no_such_process() {
    let _machine = exclusive();
    let ended = Process::start(&mut Command::new("true"));
    let pid = ended.pid().to_string();
    ended.finish();
    refused(&mut latency(&["record", "-p", &pid]), &[&[&pid]]);
    refused(&mut latency(&["record", "-p", "0"]), &[&["0"]]);
    refused(&mut latency(&["record", "-p", "nonsense"]), &[&["nonsense"]]);
}

/// Check that a user without rights is told to use sudo, and that the target is not disturbed.
#[test]
fn not_root() {
    let _machine = exclusive();
    let folder = tempfile::tempdir().unwrap();
    let mut target = Workload::signloop(Build::Shared, "ed25519", 10);
    let pid = target.pid().to_string();
    let remedy = &["sudo", "root", "CAP_BPF"];
    refused(&mut latency_as_nobody(folder.path(), &["record", "-p", &pid, "-d", "1s"]), &[remedy]);
    refused(&mut latency_as_nobody(folder.path(), &["record", "--", "true"]), &[remedy]);
    target.work();
    target.end();
}

/// Check that a process without OpenSSL is refused, and that the way to name one's own functions
/// is given.
#[test]
fn no_openssl() {
    let _machine = exclusive();
    let mut target = sleeper();
    let pid = target.pid().to_string();
    refused(&mut latency(&["record", "-p", &pid, "-d", "1s"]), &[&["OpenSSL"], &["--probe"]]);
    assert!(target.is_running());
    assert_eq!(breakpoints(target.pid()), [""; 0]);
}

/// Check that a stripped static executable is refused within five seconds, with its file and
/// build id.
#[test]
fn stripped_static_executable() {
    let _machine = exclusive();
    let mut target = Workload::signloop(Build::StaticStripped, "evp-digestsign", 100);
    let pid = target.pid().to_string();
    let name = target.program().file_name().unwrap().to_str().unwrap().to_owned();
    let id = build_id(target.program());
    refused(
        &mut latency(&["record", "-p", &pid, "-d", "1s"]),
        &[&[&name], &[&id], &["symbol", "--probe", "debug"]],
    );
    target.work();
    target.end();
}

/// The build id as `file` and `readelf` print it.
#[track_caller]
fn build_id(program: &Path) -> String {
    let notes = Command::new("readelf").arg("-n").arg(program).output().expect("readelf");
    let text = String::from_utf8_lossy(&notes.stdout).into_owned();
    let id = text.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    id.expect("the workload is linked with a build id").to_owned()
}

/// Check that a probe that fits nothing is refused by its name.
#[test]
fn no_such_symbol() {
    let _machine = exclusive();
    let mut target = Workload::tiny("work", 10);
    let pid = target.pid().to_string();
    for (probe, name) in [
        (format!("{}:no_such_function", target.program().display()), "no_such_function"),
        ("/no/such/file:work".to_owned(), "/no/such/file"),
        ("no-colon".to_owned(), "no-colon"),
    ] {
        let mut command = latency(&["record", "-p", &pid, "-d", "1s", "--probe", &probe]);
        refused(&mut command, &[&[name]]);
    }
    target.work();
    target.end();
}

/// Check that what is no recording, or only a part of one, is refused by its name.
#[test]
fn bad_recordings() {
    let _machine = exclusive();
    let folder = tempfile::tempdir().unwrap();
    let mut target = Workload::signloop(Build::Shared, "ed25519", 200);
    let tracer = Tracer::attach(target.pid(), &[]);
    target.work();
    let good = std::fs::read(tracer.stop().path()).unwrap();
    target.end();
    assert!(good.len() > 16);

    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 0x40;
    for (name, bytes) in [
        ("empty", &[][..]),
        ("text", b"not a recording at all\n"),
        ("noise", &[0xa5; 5000]),
        ("header-only", &good[..16]),
        ("half", &good[..good.len() / 2]),
        ("all-but-the-end", &good[..good.len() - 1]),
        ("flipped", &flipped),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        refused(&mut latency(&["report", path.to_str().unwrap()]), &[&[name]]);
    }
    let missing = folder.path().join("missing");
    refused(&mut latency(&["report", missing.to_str().unwrap()]), &[&["missing"]]);
    refused(&mut latency(&["report", folder.path().to_str().unwrap()]), &[&["directory"]]);

    // Rights do not bind root: it takes someone else to find a file unreadable.
    let secret = folder.path().join("secret");
    std::fs::write(&secret, &good).unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    open_to_all(folder.path());
    let arguments = ["report", secret.to_str().unwrap()];
    let mut command = latency_as_nobody(folder.path(), &arguments);
    refused(&mut command, &[&["secret"], &["permission"]]);
}

/// Check that an output that cannot be written is refused before anything is attached.
#[test]
fn output_folder_missing() {
    let _machine = exclusive();
    let mut target = Workload::signloop(Build::Shared, "ed25519", 10);
    let pid = target.pid().to_string();
    let output = "/nonexistent/folder/recording";
    // No duration: only a refusal can end it in time.
    refused(&mut latency(&["record", "-p", &pid, "-o", output]), &[&["/nonexistent/folder"]]);
    target.work();
    target.end();
}

/// Check that options that mean nothing are refused with what they may be.
#[test]
fn bad_options() {
    let _machine = exclusive();
    let mut target = Workload::signloop(Build::Shared, "ed25519", 10);
    let pid = target.pid().to_string();
    let record = |option: &str, value: &str| latency(&["record", "-p", &pid, option, value]);
    for value in ["bogus", "10 parsecs", ""] {
        refused(&mut record("-d", value), &[&["duration", "-d"], &["10s", "500ms", "1s"]]);
    }
    refused(&mut record("--ring-size", "5"), &[&["ring-size"], &["4"]]);
    refused(&mut record("--ring-size", "lots"), &[&["lots"], &["4"]]);
    refused(&mut record("--no-such-option", "1"), &[&["--no-such-option"], &["--help"]]);
    refused(&mut latency(&["record"]), &[&["--pid", "-p"]]);
    refused(&mut latency(&["record", "--", "/no/such/program"]), &[&["/no/such/program"]]);
    target.work();
    target.end();
}
