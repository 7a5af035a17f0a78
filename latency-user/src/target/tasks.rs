//! What threads of a process wait in, as /proc tells: for those that did not stir while the scheduler
//! was traced.

use std::path::Path;

use super::process::parse_stat;

/// A thread that does not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitingTask {
    /// The thread, in the tracer's PID namespace.
    pub tid: u32,
    /// Its state, as /proc/PID/stat has it: `S`, `D`, `T`, …
    pub state: u8,
    /// Number and first two arguments of the system call that it is in.
    pub syscall: Option<(i32, [u64; 2])>,
}

/// The threads of a process that do not run just now. One that ends meanwhile is left out.
pub fn waiting_tasks(pid: u32) -> Vec<WaitingTask> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| waiting_task(&entry.path())).collect()
}

fn waiting_task(path: &Path) -> Option<WaitingTask> {
    let tid = path.file_name()?.to_str()?.parse().ok()?;
    let stat = parse_stat(&std::fs::read(path.join("stat")).ok()?)?;
    if stat.state == b'R' || stat.is_zombie() {
        return None;
    }
    let syscall = std::fs::read_to_string(path.join("syscall")).unwrap_or_default();
    Some(WaitingTask { tid, state: stat.state, syscall: parse_syscall(&syscall) })
}

/// Reads /proc/PID/task/TID/syscall: number and six arguments, or `running`, or `-1` for a thread
/// that is in the kernel for something else.
fn parse_syscall(text: &str) -> Option<(i32, [u64; 2])> {
    let mut words = text.split_whitespace();
    let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    Some((number, [argument()?, argument()?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check the forms of the file.
    #[test]
    fn syscalls() {
        let futex = "202 0x55d0c0ffee40 0x80 0x2 0x0 0x0 0x0 0x7ffd10 0x7f1234\n";
        assert_eq!(parse_syscall(futex), Some((202, [0x55d0_c0ff_ee40, 0x80])));
        for other in ["running\n", "-1 0x7ffd10 0x7f1234\n", "", "202", "202 12 0x1"] {
            assert_eq!(parse_syscall(other), None, "{other}");
        }
    }

    /// Check that a thread that waits for a lock is found, in a futex call.
    #[test]
    fn own_threads() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let waiter = std::thread::spawn(move || receiver.recv());
        let is_in_futex = |task: &WaitingTask| {
            task.state == b'S' && task.syscall.is_some_and(|(number, _)| number == 202)
        };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !waiting_tasks(std::process::id()).iter().any(is_in_futex) {
            assert!(std::time::Instant::now() < deadline, "no thread waits");
            std::thread::yield_now();
        }
        drop(sender);
        assert!(waiter.join().unwrap().is_err());
    }
}
