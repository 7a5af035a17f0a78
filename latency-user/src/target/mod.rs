//! From a PID to the facts: what the process is, which files it runs code from (by inode, never by
//! a path of the tracer's), what they define and import, and what makes probing them dangerous.

mod elf;
mod error;
mod file;
mod hazard;
mod maps;
mod process;
mod root;
mod tasks;
mod texts;
mod version;

use std::collections::HashSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

pub use elf::{ElfFacts, Function, Segment};
pub use error::TargetError;
pub use file::ElfFile;
pub use hazard::Hazard;
pub use maps::{FileId, Mapping, parse as parse_maps};
pub use process::Child;
pub use root::Root;
pub use tasks::{WaitingTask, waiting_tasks};
use texts::Texts;

use file::OpenError;

/// What is worth keeping of the files' names.
pub struct Wanted {
    /// Whether a function of that name is.
    pub(crate) is_name: Box<dyn Fn(&str) -> bool + Send + Sync>,
    /// Texts to look for among imports and constants.
    texts: Texts,
}

impl Wanted {
    /// Wants functions whose names pass, and to know which files mention which of `texts`.
    pub fn new(is_name: impl Fn(&str) -> bool + Send + Sync + 'static, texts: Vec<String>) -> Self {
        Self { is_name: Box::new(is_name), texts: Texts::new(texts) }
    }
}

/// A running process, held by pidfd and start time: a PID given away again is nobody's.
pub struct Target {
    /// The process (thread group) id.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_time_ticks: u64,
    /// Becomes readable when the process exits.
    pub pidfd: OwnedFd,
    /// Its name, as the kernel knows it.
    pub comm: String,
    /// Its executable, as the target sees it.
    pub exe: PathBuf,
    /// Its real user id.
    pub uid: u32,
    /// How many threads it had.
    pub thread_count: u32,
    /// The child processes it had.
    pub children: Vec<Child>,
    /// 0: off, 1: strict, 2: filter.
    pub seccomp_mode: u32,
    /// Whether it lives in our PID namespace.
    pub shares_pid_namespace: bool,
    /// Its id in its own PID namespace.
    pub own_pid: u32,
    /// Its mappings as of the last scan: the same allocation for as long as they are the same.
    pub last_mappings: Arc<Vec<Mapping>>,
    /// The files it runs code from; only ever appended to.
    pub files: Vec<ElfFile>,
    /// What makes return probes dangerous.
    pub hazards: Vec<Hazard>,
    /// What the user should know of how the facts were found.
    pub notes: Vec<String>,
    wanted: Wanted,
    seen: HashSet<FileId>,
    /// /proc/PID/maps as of the last scan; empty when that is to be looked at again.
    last_maps: Vec<u8>,
    /// What the next scan reads into: with room for all of it, that takes a few calls.
    next_maps: Vec<u8>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("pid", &self.pid)
            .field("comm", &self.comm)
            .field("exe", &self.exe)
            .field("files", &self.files)
            .field("hazards", &self.hazards)
            .field("notes", &self.notes)
            .finish_non_exhaustive()
    }
}

impl Target {
    /// Looks at a process. Of the functions in its files only those are kept whose name (without
    /// a version) is `wanted`.
    ///
    /// # Errors
    ///
    /// See [`TargetError`]: there is no such process, it cannot be traced, or may not be read.
    pub fn open(pid: u32, wanted: Wanted) -> Result<Self, TargetError> {
        if pid == 0 {
            return Err(TargetError::PidZero);
        }
        let mut notes = Vec::new();
        let status = process::read_status(pid).map_err(|error| match error {
            TargetError::Exited(_) if process::open_pidfd(pid).is_ok() => TargetError::Hidden(pid),
            TargetError::Exited(_) => TargetError::NotFound(pid),
            other => other,
        })?;
        let asked = pid;
        let pid = status.tgid;
        if asked != pid {
            notes
                .push(format!("{asked} is a thread of process {pid}: the whole process is traced"));
        }
        let pidfd = process::open_pidfd(pid).map_err(|source| match source.raw_os_error() {
            Some(libc::ESRCH) => TargetError::NotFound(pid),
            _ => TargetError::PidFd { pid, source },
        })?;
        // Only now is the process held: what was read before may have been of another one.
        let status = process::read_status(pid)?;
        let stat = process::read_stat(pid)?;
        let comm = stat.comm.clone();
        if stat.is_kernel_thread() {
            return Err(TargetError::KernelThread { pid, comm });
        }
        if stat.is_zombie() && !process::has_exited(&pidfd) {
            return Err(TargetError::FirstThreadExited { pid, comm });
        }
        if stat.is_zombie() {
            return Err(TargetError::Zombie { pid, comm });
        }
        let exe_link = format!("/proc/{pid}/exe");
        let exe = std::fs::read_link(&exe_link)
            .map_err(|error| TargetError::reading(pid, exe_link, error))?;
        let children = process::children(pid).unwrap_or_else(|| {
            notes.push(format!(
                "the kernel does not list child processes (CONFIG_PROC_CHILDREN is off): \
                 `pgrep -P {pid}` finds them"
            ));
            Vec::new()
        });
        let mut target = Self {
            pid,
            start_time_ticks: stat.start_time_ticks,
            pidfd,
            comm,
            exe: without_deleted_mark(exe),
            uid: status.uid,
            thread_count: status.threads,
            children,
            seccomp_mode: status.seccomp,
            shares_pid_namespace: process::shares_pid_namespace(pid).unwrap_or(true),
            own_pid: status.own_pid,
            last_mappings: Arc::default(),
            files: Vec::new(),
            hazards: Vec::new(),
            notes,
            wanted,
            seen: HashSet::new(),
            last_maps: Vec::new(),
            next_maps: Vec::new(),
        };
        if status.seccomp != 0 {
            target.hazards.push(Hazard::Seccomp { mode: status.seccomp });
        }
        target.rescan()?;
        let main = target.files.iter().find(|file| file.is_main_executable);
        if main.is_some_and(|file| file.facts.is_32_bit) {
            let exe = target.exe.display().to_string();
            return Err(TargetError::ThirtyTwoBit { pid, exe });
        }
        Ok(target)
    }

    /// Refuses to trace the tracer.
    ///
    /// # Errors
    ///
    /// [`TargetError::OwnPid`] if `pid` is this process.
    pub fn refuse_self(pid: u32) -> Result<(), TargetError> {
        if pid == std::process::id() { Err(TargetError::OwnPid(pid)) } else { Ok(()) }
    }

    /// Reads the mappings again and appends the files that are new (`dlopen`), with their hazards.
    /// Returns their indices. Nothing but the mappings is read when nothing is new.
    ///
    /// # Errors
    ///
    /// [`TargetError::Exited`] once the process has ended; a permission error if it may no
    /// longer be read.
    pub fn rescan(&mut self) -> Result<Vec<usize>, TargetError> {
        process::read_into(self.pid, "maps", &mut self.next_maps)?;
        if !self.same_process() {
            return Err(TargetError::Exited(self.pid));
        }
        if self.next_maps == self.last_maps {
            return Ok(Vec::new());
        }
        let mut is_whole = true;
        let mappings: Vec<Mapping> = maps::parse(&self.next_maps).collect();
        let mut new = Vec::new();
        for mapping in &mappings {
            let is_file = mapping.is_executable() && mapping.file.inode != 0;
            if !is_file || !self.seen.insert(mapping.file) {
                continue;
            }
            let is_main = mapping.path == self.exe;
            match file::open(self.pid, mapping, is_main, &self.wanted) {
                Ok(file) => {
                    // An expected one that came, or, where maps and stat disagree on the device,
                    // one that is known.
                    if let Some(known) = self.files.iter().position(|it| file.is_same(it)) {
                        if std::mem::take(&mut self.files[known].expected) {
                            new.push(known);
                        }
                        continue;
                    }
                    let index = self.files.len();
                    self.hazards.extend(hazard::of_file(index, &file));
                    self.files.push(file);
                    new.push(index);
                }
                Err(OpenError::NotRegular) => {}
                Err(OpenError::Vanished) => {
                    self.seen.remove(&mapping.file);
                    is_whole = false;
                    self.note(format!(
                        "{} was replaced while it was looked at, or may be opened only with sudo \
                         (CAP_CHECKPOINT_RESTORE): its functions are not traced",
                        mapping.path.display()
                    ));
                }
                Err(OpenError::Io(error)) => self.note(format!(
                    "{} cannot be opened ({error}): its functions are not traced; run with sudo",
                    mapping.path.display()
                )),
            }
        }
        if *self.last_mappings != mappings {
            self.last_mappings = Arc::new(mappings);
        }
        std::mem::swap(&mut self.last_maps, &mut self.next_maps);
        if !is_whole {
            self.last_maps.clear();
        }
        Ok(new)
    }

    /// The process's mappings as they are now.
    ///
    /// # Errors
    ///
    /// As for [`Target::rescan`].
    pub fn mappings(&self) -> Result<Vec<Mapping>, TargetError> {
        Ok(maps::parse(&process::read(self.pid, "maps")?).collect())
    }

    /// Appends files that the process does not map yet but may (`dlopen`), so that they can be
    /// probed before their first instruction runs. Only for a process in the tracer's own mount
    /// namespace. Paths that lead to no readable file are passed over.
    pub fn expect_files(&mut self, paths: &[PathBuf]) {
        for path in paths {
            let Ok(file) = file::open_expected(path, &self.wanted) else { continue };
            if !self.files.iter().any(|known| file.is_same(known)) {
                self.files.push(file);
            }
        }
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Whether the process still lives and is the one that was opened.
    pub fn same_process(&self) -> bool {
        // Until it is reaped, no other can have its id.
        !process::has_exited(&self.pidfd)
    }
}

fn without_deleted_mark(path: PathBuf) -> PathBuf {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    match path.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(bytes) => PathBuf::from(OsStr::from_bytes(bytes)),
        None => path,
    }
}

#[cfg(test)]
mod tests;
