use std::process::{Child as Process, Command, Stdio};

use super::*;

/// A process that is killed with the test.
struct Spawned(Process);

impl Spawned {
    fn new(program: &str, arguments: &[&str]) -> Option<Self> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                eprintln!("skipped: {program}: {error}");
                None
            }
        }
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..500 {
        if condition() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("waited 5 s for: {what}");
}

fn has_started(pid: u32, name: &str) -> bool {
    process::comm(pid).as_deref() == Some(name)
}

/// Check the facts of this very process, and that a thread of it leads to it.
#[test]
fn own_process() {
    let pid = std::process::id();
    let target =
        Target::open(pid, Wanted::new(|name| name == "main", Vec::new())).expect("own process");
    assert_eq!(target.pid, pid);
    assert_eq!(target.exe, std::env::current_exe().expect("own path"));
    assert!(target.same_process() && target.shares_pid_namespace);
    assert!(target.thread_count >= 1 && target.start_time_ticks > 0);
    let main = target.files.iter().find(|file| file.is_main_executable).expect("main executable");
    assert!(main.facts.functions.iter().any(|function| function.name == "main"));
    assert!(target.files.iter().any(|file| file.name().starts_with("libc.so")));

    // SAFETY: gettid takes nothing and cannot fail.
    let tid = unsafe { libc::gettid() } as u32;
    if tid == pid {
        eprintln!("skipped: the test runs in the first thread");
        return;
    }
    let target = Target::open(tid, Wanted::new(|_| false, Vec::new())).expect("own thread");
    assert_eq!(target.pid, pid);
    assert!(target.notes.iter().any(|note| note.contains("is a thread of process")));
}

/// Check that what is no traceable process is refused by name and with a remedy.
#[test]
fn refusals() {
    let refusal = |pid| {
        Target::open(pid, Wanted::new(|_| false, Vec::new())).expect_err("refused").to_string()
    };
    assert!(refusal(0).contains("pgrep"));
    assert!(refusal(4_194_305).contains("no process has PID 4194305"), "{}", refusal(4_194_305));
    assert!(refusal(u32::MAX).contains("no process has PID"));
    let own = std::process::id();
    assert!(Target::refuse_self(own).is_err() && Target::refuse_self(own + 1).is_ok());
    if has_started(2, "kthreadd") {
        assert!(refusal(2).contains("kernel thread"));
    } else {
        eprintln!("skipped: no kernel threads in sight (PID namespace)");
    }
}

/// Check that an exited process is told from a running one, before and after it is reaped.
#[test]
fn exit_is_noticed() {
    let Some(mut sleep) = Spawned::new("sleep", &["60"]) else { return };
    wait_until("exec", || has_started(sleep.pid(), "sleep"));
    let mut target = Target::open(sleep.pid(), Wanted::new(|_| false, Vec::new())).expect("sleep");
    assert!(target.same_process());
    wait_until("libc", || {
        target.rescan().expect("scanned");
        target.files.iter().any(|file| file.name().starts_with("libc.so"))
    });
    assert_eq!(target.rescan().expect("scanned"), Vec::<usize>::new());
    sleep.0.kill().expect("killed");
    wait_until("exit", || !target.same_process());
    let error = Target::open(target.pid, Wanted::new(|_| false, Vec::new())).expect_err("zombie");
    assert!(matches!(error, TargetError::Zombie { .. }), "{error}");
    sleep.0.wait().expect("reaped");
    assert!(matches!(target.rescan(), Err(TargetError::Exited(_))));
    let error = Target::open(target.pid, Wanted::new(|_| false, Vec::new())).expect_err("gone");
    assert!(matches!(error, TargetError::NotFound(_)), "{error}");
}

/// Check that the children of a process are listed.
#[test]
fn children_are_listed() {
    let Some(shell) = Spawned::new("sh", &["-c", "sleep 60 & wait"]) else { return };
    let listed = || process::children(shell.pid()).unwrap_or_default();
    wait_until("the child", || listed().iter().any(|child| child.comm == "sleep"));
    let target = Target::open(shell.pid(), Wanted::new(|_| false, Vec::new())).expect("shell");
    assert_eq!(target.children.len(), 1);
    for child in &target.children {
        // SAFETY: the process is a child of the shell that this test started.
        unsafe { libc::kill(child.pid as i32, libc::SIGKILL) };
    }
}

/// Check that a program deleted on disk is still read, by inode, and marked; and that a copy that
/// took its path is not taken for it.
#[test]
fn deleted_program() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("sleep (1) copy");
    if std::fs::copy("/bin/sleep", &path).is_err() {
        eprintln!("skipped: no /bin/sleep to copy");
        return;
    }
    let Some(sleep) = Spawned::new(path.to_str().expect("UTF-8"), &["60"]) else { return };
    wait_until("exec", || has_started(sleep.pid(), "sleep (1) copy"));
    std::fs::remove_file(&path).expect("removed");
    std::fs::write(&path, "replaced").expect("written");
    let target = Target::open(sleep.pid(), Wanted::new(|_| false, Vec::new())).expect("sleep");
    let main = target.files.iter().find(|file| file.is_main_executable).expect("main executable");
    assert!(main.deleted, "{main:?}");
    assert_eq!(main.path, path);
    assert_eq!(main.facts.unreadable, None);
}

/// Check that /usr/bin/openssl, which starts ASYNC jobs, is a hazard, but its libraries are not.
#[test]
fn stack_switching_is_found() {
    let Some(openssl) = Spawned::new("openssl", &["speed", "-seconds", "20", "ed25519"]) else {
        return;
    };
    wait_until("exec", || has_started(openssl.pid(), "openssl"));
    let mut target =
        Target::open(openssl.pid(), Wanted::new(|name| name == "EVP_DigestSign", Vec::new()))
            .expect("openssl");
    wait_until("libcrypto", || {
        target.rescan().expect("scanned");
        target.files.iter().any(|file| file.name().starts_with("libcrypto"))
    });
    let names: Vec<_> = target
        .hazards
        .iter()
        .filter_map(|hazard| match hazard {
            Hazard::StackSwitching { file, symbol } => Some((target.files[*file].name(), symbol)),
            _ => None,
        })
        .collect();
    assert_eq!(names, [("openssl".to_owned(), &"ASYNC_start_job".to_owned())]);
    let openssl = target.files.iter().find(|file| file.is_main_executable).expect("openssl");
    assert!(openssl.facts.imports.contains("EVP_DigestSign"));
}
