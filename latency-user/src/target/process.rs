//! What /proc says of a process besides its mappings.

use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use super::TargetError;

/// A child process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Child {
    /// Its PID.
    pub pid: u32,
    /// Its name.
    pub comm: String,
}

/// The fields of /proc/PID/status that matter here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Status {
    pub(crate) tgid: u32,
    pub(crate) uid: u32,
    pub(crate) threads: u32,
    pub(crate) seccomp: u32,
    /// The process id in the process's own PID namespace.
    pub(crate) own_pid: u32,
}

/// The fields of /proc/PID/stat that matter here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stat {
    pub(crate) comm: String,
    pub(crate) state: u8,
    pub(crate) flags: u64,
    pub(crate) start_time_ticks: u64,
}

/// `PF_KTHREAD` of the kernel's sched.h: the task is a kernel thread.
const PF_KTHREAD: u64 = 0x0020_0000;

impl Stat {
    pub(crate) fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    pub(crate) fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Reads /proc/PID/stat. The name in it may hold spaces and parentheses: only the last `)` ends it.
pub(crate) fn parse_stat(stat: &[u8]) -> Option<Stat> {
    let open = stat.iter().position(|&byte| byte == b'(')?;
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    let comm = String::from_utf8_lossy(stat.get(open + 1..close)?).into_owned();
    let fields: Vec<&str> =
        str::from_utf8(stat.get(close + 1..)?).ok()?.split_whitespace().collect();
    // proc(5) numbers the fields from 1; what follows the name starts with field 3.
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Stat {
        comm,
        state: *field(3)?.as_bytes().first()?,
        flags: field(9)?.parse().ok()?,
        start_time_ticks: field(22)?.parse().ok()?,
    })
}

/// Reads /proc/PID/status; a kernel without seccomp has no such line.
pub(crate) fn parse_status(status: &[u8]) -> Option<Status> {
    let words = |name: &[u8]| {
        let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))?;
        Some(str::from_utf8(line).ok()?.split_whitespace())
    };
    let number = |name: &[u8]| -> Option<u32> { words(name)?.next()?.parse().ok() };
    let tgid = number(b"Tgid:")?;
    Some(Status {
        tgid,
        uid: number(b"Uid:")?,
        threads: number(b"Threads:").unwrap_or(0),
        seccomp: number(b"Seccomp:").unwrap_or(0),
        // From the tracer's PID namespace down to the innermost.
        own_pid: words(b"NStgid:").and_then(|ids| ids.last()?.parse().ok()).unwrap_or(tgid),
    })
}

/// Reads a file of the process's directory.
pub(crate) fn read(pid: u32, name: &str) -> Result<Vec<u8>, TargetError> {
    let mut bytes = Vec::new();
    read_into(pid, name, &mut bytes)?;
    Ok(bytes)
}

/// Replaces what is in `bytes` by a file of the process's.
pub(crate) fn read_into(pid: u32, name: &str, bytes: &mut Vec<u8>) -> Result<(), TargetError> {
    bytes.clear();
    let path = format!("/proc/{pid}/{name}");
    // A file of /proc has no size to ask for.
    let read = std::fs::File::open(&path).and_then(|file| file.take(u64::MAX).read_to_end(bytes));
    read.map(|_| ()).map_err(|error| TargetError::reading(pid, path, error))
}

pub(crate) fn read_stat(pid: u32) -> Result<Stat, TargetError> {
    parse_stat(&read(pid, "stat")?).ok_or_else(|| TargetError::Malformed {
        path: format!("/proc/{pid}/stat"),
        what: "start time",
    })
}

pub(crate) fn read_status(pid: u32) -> Result<Status, TargetError> {
    parse_status(&read(pid, "status")?)
        .ok_or_else(|| TargetError::Malformed { path: format!("/proc/{pid}/status"), what: "Tgid" })
}

/// The children of all threads of a process, by PID; `None` where the kernel does not tell
/// (`CONFIG_PROC_CHILDREN` is off).
pub(crate) fn children(pid: u32) -> Option<Vec<Child>> {
    let mut children = Vec::new();
    let mut is_told = false;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        // A thread that has just ended takes its file along.
        let Ok(list) = std::fs::read_to_string(task.path().join("children")) else { continue };
        is_told = true;
        for pid in list.split_whitespace().filter_map(|word| word.parse().ok()) {
            children.push(Child { pid, comm: comm(pid).unwrap_or_default() });
        }
    }
    children.sort_by_key(|child| child.pid);
    is_told.then_some(children)
}

/// The process's name, without the newline procfs adds.
pub(crate) fn comm(pid: u32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    Some(String::from_utf8_lossy(name).into_owned())
}

/// Whether the process lives in our PID namespace; `None` if that cannot be read.
pub(crate) fn shares_pid_namespace(pid: u32) -> Option<bool> {
    let namespace = |who: &str| std::fs::read_link(Path::new("/proc").join(who).join("ns/pid"));
    Some(namespace(&pid.to_string()).ok()? == namespace("self").ok()?)
}

/// Opens a descriptor that stays with this process even when its PID is given to another.
pub(crate) fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the whole process (not only its first thread) has exited.
pub(crate) fn has_exited(pidfd: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one valid pollfd that lives through the call.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready > 0 && poll.revents != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that a name with parentheses and spaces does not shift the fields.
    #[test]
    fn stat_with_awkward_name() {
        let line = b"42 (a) b (c)) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2\n";
        let stat = parse_stat(line).expect("valid");
        assert_eq!(stat.comm, "a) b (c)");
        assert_eq!((stat.state, stat.start_time_ticks), (b'S', 98765));
        assert!(!stat.is_kernel_thread() && !stat.is_zombie());
    }

    /// Check that status is read by name, and that our own is plausible.
    #[test]
    fn status() {
        let text = b"Name:\tx\nTgid:\t7\nUid:\t1000\t0\t0\t0\nThreads:\t3\nSeccomp:\t2\n";
        let expected = Status { tgid: 7, uid: 1000, threads: 3, seccomp: 2, own_pid: 7 };
        assert_eq!(parse_status(text), Some(expected));
        let text = b"Tgid:\t4711\nNStgid:\t4711\t88\t1\nUid:\t0\t0\t0\t0\n";
        assert_eq!(parse_status(text).map(|status| status.own_pid), Some(1));
        let own = read_status(std::process::id()).expect("procfs");
        assert_eq!(own.tgid, std::process::id());
        assert!(own.threads >= 1);
    }

    proptest::proptest! {
        /// Check that no bytes make the parsers panic.
        #[test]
        fn any_bytes(bytes: Vec<u8>) {
            parse_stat(&bytes);
            parse_status(&bytes);
            parse_stat(&[b"1 (x) ", &bytes[..]].concat());
        }
    }
}
