//! Starting a command as the caller of sudo, stopped where its first own instruction would run:
//! the dynamic loader has mapped its libraries, and none of its code but theirs has run.
//!
//! The stop is a breakpoint at the entry point, set by ptrace, which is gone before the command
//! goes on; a process that was running already is never touched this way.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context as _, Result, bail};

/// A started command, stopped at its entry point until [`Self::go`].
pub struct Started {
    child: Child,
    stopped: bool,
}

/// Starts `command` and stops it at its entry point.
///
/// # Errors
/// It does not exist, may not be run, or ends before its entry point.
pub fn start(command: &[OsString]) -> Result<Started> {
    let (program, arguments) = command.split_first().context("no command was given after --")?;
    let mut builder = Command::new(program);
    builder.args(arguments);
    let user = sudo_caller();
    if let Some(user) = &user {
        for (name, value) in [("HOME", &user.home), ("USER", &user.name), ("LOGNAME", &user.name)] {
            builder.env(name, OsStr::from_bytes(value.as_bytes()));
        }
    }
    // SAFETY: between fork and exec only async-signal-safe system calls are made, on memory that
    // was prepared before.
    unsafe {
        builder.pre_exec(move || {
            if let Some(user) = &user {
                user.become_them()?;
            }
            if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let child = builder.spawn().with_context(|| {
        format!("cannot start `{}`; is it installed and executable?", program.to_string_lossy())
    })?;
    let mut started = Started { child, stopped: true };
    started.run_to_entry().with_context(|| {
        format!("cannot stop `{}` at its entry point", program.to_string_lossy())
    })?;
    Ok(started)
}

impl Started {
    /// The command's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets the command run.
    ///
    /// # Errors
    /// It is gone.
    pub fn go(&mut self) -> Result<()> {
        ptrace(libc::PTRACE_DETACH, self.tid(), 0, 0).context("cannot let the command run")?;
        self.stopped = false;
        Ok(())
    }

    /// Asks the command to end, by SIGTERM.
    pub fn terminate(&self) {
        // SAFETY: plain system call; the child is not reaped yet, so the id is its.
        unsafe { libc::kill(self.tid(), libc::SIGTERM) };
    }

    /// Waits for the command's end and returns what its exit status is to a shell: 128 + the
    /// signal's number if one killed it.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn wait(&mut self) -> Result<i32> {
        Ok(status_code(self.child.wait().context("cannot wait for the command")?))
    }

    /// Like [`Self::wait`], but `None` if it still runs.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn try_wait(&mut self) -> Result<Option<i32>> {
        Ok(self.child.try_wait().context("cannot wait for the command")?.map(status_code))
    }

    fn tid(&self) -> libc::pid_t {
        self.child.id() as libc::pid_t
    }

    fn run_to_entry(&mut self) -> Result<()> {
        // The stop after exec.
        self.wait_for_stop(libc::SIGTRAP)?;
        let entry = entry_point(self.child.id())?;
        let original = peek(self.tid(), entry)?;
        const BREAKPOINT: u64 = 0xcc;
        poke(self.tid(), entry, (original & !0xff) | BREAKPOINT)?;
        ptrace(libc::PTRACE_CONT, self.tid(), 0, 0)?;
        self.wait_for_stop(libc::SIGTRAP)?;
        let mut registers: libc::user_regs_struct =
            // SAFETY: a struct of plain integers.
            unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS, self.tid(), 0, (&raw mut registers) as u64)?;
        if registers.rip != entry + 1 {
            bail!("it stopped at {:#x} instead of {entry:#x}", registers.rip);
        }
        poke(self.tid(), entry, original)?;
        registers.rip = entry;
        ptrace(libc::PTRACE_SETREGS, self.tid(), 0, (&raw mut registers) as u64)?;
        Ok(())
    }

    /// Waits until the command stops with `signal`, passing on others.
    fn wait_for_stop(&mut self, signal: i32) -> Result<()> {
        loop {
            let mut status = 0;
            // SAFETY: a valid pointer to the status.
            if unsafe { libc::waitpid(self.tid(), &raw mut status, 0) } < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error).context("cannot wait for the command");
            }
            if !libc::WIFSTOPPED(status) {
                self.stopped = false;
                bail!("it ended at once, {}", ExitStatus::from_raw(status));
            }
            if libc::WSTOPSIG(status) == signal {
                return Ok(());
            }
            ptrace(libc::PTRACE_CONT, self.tid(), 0, libc::WSTOPSIG(status) as u64)?;
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // A command that never ran its first instruction is ended; one that runs is left alone.
        if self.stopped {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The copies of libcrypto that the dynamic loader finds on this machine: what a command may load
/// while it runs.
pub fn system_libraries() -> Vec<PathBuf> {
    const FOLDERS: [&str; 8] = [
        "/usr/local/lib",
        "/usr/local/lib64",
        "/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu",
        "/lib64",
        "/usr/lib64",
        "/lib",
        "/usr/lib",
    ];
    let asked = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::env::split_paths(&asked).chain(FOLDERS.iter().map(PathBuf::from));
    folders
        .filter_map(|folder| folder.read_dir().ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name == "libcrypto.so" || name.starts_with("libcrypto.so.")
        })
        .collect()
}

fn status_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn ptrace(request: u32, tid: libc::pid_t, address: u64, data: u64) -> io::Result<i64> {
    // SAFETY: the requests used here read or write only what `data` points to, or the tracee.
    let result = unsafe { libc::ptrace(request, tid, address, data) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Reads 8 bytes of the tracee's memory. By the raw system call, which stores the word instead of
/// returning it, so that -1 is no special case.
fn peek(tid: libc::pid_t, address: u64) -> io::Result<u64> {
    let mut word = 0_u64;
    // SAFETY: the kernel writes one word to `word`.
    let result = unsafe {
        libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKTEXT, tid, address, &raw mut word)
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(word) }
}

fn poke(tid: libc::pid_t, address: u64, word: u64) -> io::Result<()> {
    ptrace(libc::PTRACE_POKETEXT, tid, address, word).map(drop)
}

/// The address of the program's first own instruction, from the auxiliary vector.
fn entry_point(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/auxv");
    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {path}"))?;
    bytes
        .chunks_exact(16)
        .map(|pair| {
            let word = |range: std::ops::Range<usize>| {
                pair[range].iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte))
            };
            (word(0..8), word(8..16))
        })
        .find_map(|(key, value)| (key == libc::AT_ENTRY).then_some(value))
        .filter(|entry| *entry != 0)
        .with_context(|| format!("{path} has no entry point"))
}

/// The user who called sudo.
struct User {
    uid: libc::uid_t,
    gid: libc::gid_t,
    name: CString,
    home: CString,
    groups: Vec<libc::gid_t>,
}

impl User {
    /// Gives up root for good. Runs between fork and exec: no allocation.
    fn become_them(&self) -> io::Result<()> {
        // SAFETY: plain system calls on memory that lives.
        let results = unsafe {
            [
                libc::setgroups(self.groups.len(), self.groups.as_ptr()),
                libc::setgid(self.gid),
                libc::setuid(self.uid),
            ]
        };
        if results == [0; 3] { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// The user who called sudo, if we are root by sudo.
fn sudo_caller() -> Option<User> {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    let id = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let (uid, gid) = (id("SUDO_UID")?, id("SUDO_GID")?);
    if uid == 0 {
        return None;
    }
    // SAFETY: the result points to static memory, copied at once; no other thread runs yet.
    let (name, home) = unsafe {
        let entry = libc::getpwuid(uid);
        if entry.is_null() {
            return Some(User {
                uid,
                gid,
                name: CString::default(),
                home: c"/".into(),
                groups: vec![gid],
            });
        }
        (CStr::from_ptr((*entry).pw_name).to_owned(), CStr::from_ptr((*entry).pw_dir).to_owned())
    };
    let mut groups = vec![0; 256];
    let mut count = groups.len() as libc::c_int;
    // SAFETY: `groups` has room for `count` entries.
    let found =
        unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
    groups.truncate(if found < 0 { 0 } else { count as usize });
    if groups.is_empty() {
        groups.push(gid);
    }
    Some(User { uid, gid, name, home, groups })
}
