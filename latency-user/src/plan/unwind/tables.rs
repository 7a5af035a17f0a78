//! The rows of all files that a target maps, and its table of mappings.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Cursor, Read as _, Seek as _, SeekFrom};

use super::{FileKey, Limits, Mapping, ProcessTable, RowStore, compile};
use crate::target::{self, Target};

/// The kernel's own code in every process: it has no inode.
const VDSO: FileKey = FileKey { device: u64::MAX, inode: 0 };

/// A vdso is a few pages; more is not read.
const VDSO_CAP_BYTES: u64 = 1 << 20;

/// The rows of a target's files, and where they are mapped.
pub struct Tables {
    /// The rows, file by file.
    pub store: RowStore,
    /// Where the target maps them.
    pub table: ProcessTable,
    /// The mappings that `table` was made of, those that are not executable too.
    pub mappings: Vec<target::Mapping>,
    /// The code of the vdso, where it could be read.
    pub vdso: Option<Vec<u8>>,
    /// What the user should know.
    pub warnings: Vec<String>,
    tried: HashSet<FileKey>,
}

impl Tables {
    /// Compiles the rows of every file that the target maps, and its table. What cannot be read
    /// becomes a warning, and is unwound by frame pointer.
    pub fn of(target: &Target) -> Self {
        let store = RowStore::new(Limits::default());
        let mut tables = Self {
            table: store.process_table(&[]),
            store,
            mappings: Vec::new(),
            vdso: None,
            warnings: Vec::new(),
            tried: HashSet::new(),
        };
        tables.refresh(target);
        tables
    }

    /// Does the same again for what was mapped since.
    pub fn refresh(&mut self, target: &Target) {
        // A target that is gone keeps the tables it had.
        let Ok(mappings) = target.mappings() else { return };
        let mut executable = Vec::new();
        for mapping in mappings.iter().filter(|mapping| mapping.is_executable()) {
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
        self.table = self.store.process_table(&executable);
        if self.table.dropped_segments > 0 {
            self.warn(format!(
                "{} mappings at the highest addresses do not fit in the table: stacks end there",
                self.table.dropped_segments
            ));
        }
        self.mappings = mappings;
    }

    fn add(&mut self, target: &Target, mapping: &target::Mapping, file: FileKey) {
        let compiled = if file == VDSO {
            let Some(code) = read_vdso(target.pid, mapping) else { return };
            self.vdso = Some(code.clone());
            compile(Cursor::new(code))
        } else {
            let open = target.files.iter().find(|known| known.id == mapping.file);
            match open.and_then(|known| known.file.try_clone().ok()) {
                Some(open) => compile(open),
                None => return,
            }
        };
        // A file without rows is one that is unwound by frame pointer, as every JIT's code is:
        // the stacks are marked, and nothing is to be said here.
        let Ok(compiled) = compiled else { return };
        if let Err(error) = self.store.add(file, compiled) {
            self.warn(format!("{}: {error}", mapping.path.display()));
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
        let mut tables = Tables::of(&target);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(tables.table.table.count > 2, "{} segments", tables.table.table.count);
        assert!(tables.store.words() > 10_000, "{} words", tables.store.words());
        assert!(tables.store.contains(VDSO) || tables.vdso.is_none());
        let words = tables.store.words();
        tables.refresh(&target);
        assert_eq!(tables.store.words(), words);
    }
}
