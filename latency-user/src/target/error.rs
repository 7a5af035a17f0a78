//! Why a process cannot be a target.

use std::io;

/// Why a process cannot be traced; each text names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// 0 is no process.
    #[error("PID 0 is no process; `pgrep -a NAME` finds the PID of a running program")]
    PidZero,
    /// The tracer was asked to trace itself.
    #[error(
        "PID {0} is latency itself; give the PID of another process (`pgrep -a NAME` finds it)"
    )]
    OwnPid(u32),
    /// No such process.
    #[error("no process has PID {0}; `pgrep -a NAME` finds the PID")]
    NotFound(u32),
    /// The process lives, but /proc does not show it.
    #[error(
        "process {0} exists but /proc/{0} is hidden (/proc is mounted with hidepid, or belongs to \
         another PID namespace); run with sudo, or inside the namespace of the target"
    )]
    Hidden(u32),
    /// The process has exited and waits for its parent to notice.
    #[error(
        "process {pid} ({comm}) is a zombie: it has exited and can no longer be traced; \
         `pgrep -a {comm}` finds a running one"
    )]
    Zombie {
        /// The process.
        pid: u32,
        /// Its name.
        comm: String,
    },
    /// Only threads other than the first are left, and /proc shows nothing of the process.
    #[error(
        "the first thread of process {pid} ({comm}) has exited while others run, so the kernel \
         hides its mappings; restart it, or attach while its first thread lives"
    )]
    FirstThreadExited {
        /// The process.
        pid: u32,
        /// Its name.
        comm: String,
    },
    /// A thread of the kernel: it runs no user code.
    #[error(
        "process {pid} ({comm}) is a kernel thread and runs no OpenSSL; \
         `pgrep -a NAME` finds the PID of a program"
    )]
    KernelThread {
        /// The thread.
        pid: u32,
        /// Its name.
        comm: String,
    },
    /// The process is a 32-bit one.
    #[error(
        "process {pid} runs {exe}, a 32-bit program, which is not supported; \
         trace a 64-bit build of it"
    )]
    ThirtyTwoBit {
        /// The process.
        pid: u32,
        /// Its executable.
        exe: String,
    },
    /// The kernel does not let the tracer look into the process.
    #[error(
        "may not read {path}: {source}; run with sudo, or grant CAP_SYS_PTRACE \
         (and CAP_CHECKPOINT_RESTORE for map_files)"
    )]
    Permission {
        /// What was read.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A file of /proc could not be read for another reason.
    #[error("cannot read {path}: {source}; check that /proc is mounted and the process still runs")]
    Proc {
        /// What was read.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A file of /proc had content that makes no sense.
    #[error("{path} does not look like procfs (no {what}); check what is mounted on /proc")]
    Malformed {
        /// What was read.
        path: String,
        /// What was looked for.
        what: &'static str,
    },
    /// `pidfd_open` failed.
    #[error("cannot open a pidfd of process {pid}: {source}; Linux 5.3 or later is needed")]
    PidFd {
        /// The process.
        pid: u32,
        /// The system's answer.
        source: io::Error,
    },
    /// The process ended, or its PID belongs to another one by now.
    #[error("process {0} has exited; `pgrep -a NAME` finds a running one")]
    Exited(u32),
}

impl TargetError {
    /// Sorts a failure to read `path`, a file of process `pid`.
    pub(crate) fn reading(pid: u32, path: String, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => Self::Permission { path, source },
            Some(libc::ENOENT | libc::ESRCH) => Self::Exited(pid),
            _ => Self::Proc { path, source },
        }
    }
}
