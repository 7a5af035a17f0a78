//! The rows of all files that a target maps, and its table of mappings.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Cursor, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use latency_common::unwind::MAX_SEGMENTS;

use super::large::{Compiled, LargeFiles};
use super::{
    CompileError, FileKey, FileRows, Limits, Mapping, ProcessTable, RowStore, compile, size,
};
use crate::target::{self, Target};

/// The kernel's own code in every process: it has no inode.
const VDSO: FileKey = FileKey { device: u64::MAX, inode: 0 };

/// A vdso is a few pages; more is not read.
const VDSO_CAP_BYTES: u64 = 1 << 20;

/// Files with more call frame information than this, in bytes, are compiled by a thread of their
/// own while the trace goes on: more takes longer than 50 ms. That of libcrypto has 450 kB.
const LARGE_BYTES: u64 = 2 << 20;

/// The rows of a target's files, and where they are mapped.
pub struct Tables {
    /// The rows, file by file.
    pub store: RowStore,
    /// Where the target maps them.
    pub table: ProcessTable,
    /// The code of the vdso, where it could be read.
    pub vdso: Option<Vec<u8>>,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// What `executable` was taken from.
    mappings: Arc<Vec<target::Mapping>>,
    executable: Vec<Mapping>,
    tried: HashSet<FileKey>,
    large: LargeFiles,
}

impl Tables {
    /// Words that the rows of a target's files may take, told from their headers; for those
    /// that are mapped and those that it is expected to map.
    pub fn estimate_words(target: &Target) -> usize {
        target
            .files
            .iter()
            .filter_map(|known| known.file.try_clone().ok())
            .fold(0_usize, |words, file| words.saturating_add(size(file).words()))
    }

    /// Compiles the rows of every file that the target maps, and its table. What cannot be read
    /// becomes a warning, and is unwound by frame pointer; so are large files until
    /// [`Tables::refresh`] finds them compiled.
    pub fn of(target: &Target, limits: Limits) -> Self {
        let store = RowStore::new(limits);
        let mut tables = Self {
            table: store.process_table(&[]),
            store,
            mappings: Arc::default(),
            vdso: None,
            warnings: Vec::new(),
            executable: Vec::new(),
            tried: HashSet::new(),
            large: LargeFiles::default(),
        };
        tables.refresh(target);
        tables
    }

    /// Files that are not compiled yet: see [`Tables::of`].
    pub const fn pending(&self) -> usize {
        self.large.pending()
    }

    /// Takes in what the target's last scan found mapped since, and large files that were compiled
    /// meanwhile; whether anything changed.
    pub fn refresh(&mut self, target: &Target) -> bool {
        let mut changed = false;
        for Compiled { file, path, rows } in self.large.finished() {
            changed = true;
            self.place(file, &path, rows);
        }
        if !changed && Arc::ptr_eq(&self.mappings, &target.last_mappings) {
            return false;
        }
        self.mappings = Arc::clone(&target.last_mappings);
        let mut executable = Vec::new();
        for mapping in target.last_mappings.iter().filter(|mapping| mapping.is_executable()) {
            let name = mapping.path.as_os_str();
            if name == "[uprobes]" || name == "[vsyscall]" {
                continue;
            }
            let file = if name == "[vdso]" {
                Some(VDSO)
            } else {
                (mapping.file.inode != 0).then(|| key(mapping.file))
            };
            if let Some(file) = file
                && self.tried.insert(file)
            {
                self.add(target, mapping, file);
            }
            executable.push(Mapping {
                start: mapping.start,
                end: mapping.end,
                file_offset: mapping.offset,
                file,
            });
        }
        if !changed && executable == self.executable {
            return false;
        }
        self.table = self.store.process_table(&executable);
        self.executable = executable;
        if self.table.dropped_segments > 0 {
            self.warn(format!(
                "the executable mappings take more than {MAX_SEGMENTS} segments: stacks end in those \
                 beyond, of which those of no file come first"
            ));
        }
        true
    }

    fn add(&mut self, target: &Target, mapping: &target::Mapping, file: FileKey) {
        let compiled = if file == VDSO {
            let Some(code) = read_vdso(target.pid, mapping) else { return };
            self.vdso = Some(code.clone());
            compile(Cursor::new(code))
        } else {
            let open = target.files.iter().find(|known| known.id == mapping.file);
            let Some(open) = open.and_then(|known| known.file.try_clone().ok()) else { return };
            let bytes = open.try_clone().map_or(0, |open| size(open).frame_bytes);
            if bytes > LARGE_BYTES {
                self.large.compile(file, mapping.path.clone(), open);
                return;
            }
            compile(open)
        };
        self.place(file, &mapping.path, compiled);
    }

    fn place(&mut self, file: FileKey, path: &Path, compiled: Result<FileRows, CompileError>) {
        let result = match compiled {
            Ok(compiled) => self.store.add(file, compiled).map_err(|error| error.to_string()),
            Err(error @ (CompileError::TooLarge(_) | CompileError::TooManyRows)) => {
                Err(format!("{error}: its frames are found by frame pointer, and marked"))
            }
            // A file without rows is one that is unwound by frame pointer, as every JIT's code
            // is: the stacks are marked, and nothing is to be said here.
            Err(_) => return,
        };
        if let Err(error) = result {
            self.warn(format!("{}: {error}", path.display()));
        }
    }

    fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

fn key(file: target::FileId) -> FileKey {
    FileKey { device: u64::from(file.major) << 32 | u64::from(file.minor), inode: file.inode }
}

fn read_vdso(pid: u32, mapping: &target::Mapping) -> Option<Vec<u8>> {
    let length = mapping.end.checked_sub(mapping.start).filter(|bytes| *bytes <= VDSO_CAP_BYTES)?;
    let mut memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    memory.seek(SeekFrom::Start(mapping.start)).ok()?;
    let mut code = vec![0; length as usize];
    memory.read_exact(&mut code).ok()?;
    Some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that the tables of a running process hold rows for its libc and its vdso, and that
    /// refreshing without a change changes nothing.
    #[test]
    fn running_process() {
        let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        // Its libraries are mapped once it sleeps.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let target =
            Target::open(child.id(), crate::target::Wanted::new(|_| false, Vec::new())).unwrap();
        let mut tables = Tables::of(&target, Limits::default());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(tables.table.table.count > 2, "{} segments", tables.table.table.count);
        assert!(tables.store.words() > 10_000, "{} words", tables.store.words());
        assert!(tables.store.contains(VDSO) || tables.vdso.is_none());
        let words = tables.store.words();
        assert!(words <= Tables::estimate_words(&target) + vdso_words(&tables));
        assert!(!tables.refresh(&target), "nothing changed");
        assert_eq!(tables.store.words(), words);
    }

    /// The vdso is no file, and small.
    fn vdso_words(tables: &Tables) -> usize {
        tables.vdso.as_ref().map_or(0, Vec::len)
    }
}
