//! The files a process runs code from, each opened as the target maps it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::Wanted;
use super::elf::{self, ElfFacts};
use super::maps::{FileId, Mapping};

/// A file that the target maps executable; symlinked and hard-linked copies are one.
#[derive(Debug)]
pub struct ElfFile {
    /// The path as the target maps it. In another mount namespace it may name something else
    /// here, so it is only for showing; `file` is what is mapped.
    pub path: PathBuf,
    /// Whether the file was deleted or replaced on disk since it was mapped.
    pub deleted: bool,
    /// Device and inode, as /proc/PID/maps shows them.
    pub id: FileId,
    /// The mapped file itself.
    pub file: File,
    /// Whether it is not mapped yet, and only may be later.
    pub expected: bool,
    /// Whether it is the target's main executable.
    pub is_main_executable: bool,
    /// What was read of it.
    pub facts: ElfFacts,
}

impl ElfFile {
    /// The last component of the path.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// Whether both are the same inode.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self.file.metadata(), other.file.metadata()) {
            (Ok(ours), Ok(theirs)) => (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()),
            _ => false,
        }
    }

    /// Whether other files may call its functions by name.
    pub fn is_shared_library(&self) -> bool {
        self.facts.soname.is_some() || !self.is_main_executable
    }

    /// Reads up to `size_bytes` of code from a file offset on; fewer where the code ends.
    pub fn read_code(&self, file_offset: u64, size_bytes: usize) -> io::Result<Vec<u8>> {
        let left = self.facts.code_bytes_from(file_offset).unwrap_or(0);
        let size_bytes = usize::try_from(left).unwrap_or(usize::MAX).min(size_bytes);
        let mut code = vec![0; size_bytes];
        let mut filled = 0;
        while filled < size_bytes {
            match self.file.read_at(&mut code[filled..], file_offset + filled as u64) {
                Ok(0) => break,
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        code.truncate(filled);
        Ok(code)
    }
}

/// Why a mapped file was not opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// It is unmapped by now, or was replaced; the next scan may find another.
    Vanished,
    /// It is no regular file (a device, shared memory).
    NotRegular,
    /// The system refused.
    Io(io::Error),
}

/// Opens the file behind a mapping: the very inode by /proc/PID/map_files, which needs privileges;
/// otherwise by its path within the target's root, if that still is the mapped inode.
pub(crate) fn open(
    pid: u32,
    mapping: &Mapping,
    is_main_executable: bool,
    wanted: &Wanted,
) -> Result<ElfFile, OpenError> {
    let exact = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    let file = match open_regular(Path::new(&exact)) {
        Ok(file) if matches_mapping(&file, mapping) || is_still_mapped(pid, mapping) => file,
        Ok(_) => return Err(OpenError::Vanished),
        Err(OpenError::Io(error)) => {
            let file = open_by_path(pid, mapping, is_main_executable);
            // The first failure tells more than that the path is gone.
            file.map_err(|second| match second {
                OpenError::Io(_) => OpenError::Io(error),
                other => other,
            })?
        }
        Err(other) => return Err(other),
    };
    let facts = elf::read(&file, wanted);
    Ok(ElfFile {
        path: mapping.path.clone(),
        deleted: mapping.deleted,
        id: mapping.file,
        file,
        expected: false,
        is_main_executable,
        facts,
    })
}

/// Opens a file that is not mapped yet, by a path of the tracer's own mount namespace.
pub(crate) fn open_expected(path: &Path, wanted: &Wanted) -> Result<ElfFile, OpenError> {
    let path = path.canonicalize().map_err(OpenError::Io)?;
    let file = open_regular(&path)?;
    let metadata = file.metadata().map_err(OpenError::Io)?;
    let id = FileId {
        major: libc::major(metadata.dev()),
        minor: libc::minor(metadata.dev()),
        inode: metadata.ino(),
    };
    let facts = elf::read(&file, wanted);
    Ok(ElfFile { path, deleted: false, id, file, expected: true, is_main_executable: false, facts })
}

fn open_by_path(pid: u32, mapping: &Mapping, is_main: bool) -> Result<File, OpenError> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let relative = mapping.path.strip_prefix("/").map_err(|_| OpenError::NotRegular)?;
    let mut candidates = vec![root.join(relative)];
    if is_main {
        // Leads to the inode even when the path is gone.
        candidates.push(PathBuf::from(format!("/proc/{pid}/exe")));
    }
    let mut last = OpenError::Vanished;
    for candidate in candidates {
        match open_regular(&candidate) {
            Ok(file) if matches_mapping(&file, mapping) => return Ok(file),
            Ok(_) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Opens a regular file for reading. It is looked at before it is opened for real: opening what
/// the target put there could block (a FIFO) or act (a device).
fn open_regular(path: &Path) -> Result<File, OpenError> {
    let handle = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
        .open(path)
        .map_err(OpenError::Io)?;
    regular(&handle).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => OpenError::NotRegular,
        _ => OpenError::Io(error),
    })
}

/// Opens for reading what a handle (`O_PATH`) names, if it is a regular file; else the error is
/// [`io::ErrorKind::InvalidInput`].
pub(super) fn regular(handle: &File) -> io::Result<File> {
    if !handle.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    File::open(format!("/proc/self/fd/{}", handle.as_raw_fd()))
}

fn matches_mapping(file: &File, mapping: &Mapping) -> bool {
    file.metadata().is_ok_and(|metadata| {
        let device = metadata.dev();
        metadata.ino() == mapping.file.inode
            && libc::major(device) == mapping.file.major
            && libc::minor(device) == mapping.file.minor
    })
}

/// Some file systems (btrfs, older overlayfs) show another device in maps than in stat. A
/// map_files entry is right all the same as long as the mapping it was opened by is still there.
fn is_still_mapped(pid: u32, mapping: &Mapping) -> bool {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    super::maps::parse(&maps).any(|now| now == *mapping)
}
