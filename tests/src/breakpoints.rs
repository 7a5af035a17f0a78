//! Whether anything is left in a process that was traced.
//!
//! A uprobe is a breakpoint written into the process's own copy of a page of code. So the code in
//! memory differs from the file it was mapped from exactly where a probe sits.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// The places, as `FILE+OFFSET`, where the process's code is not what its files say.
#[track_caller]
pub fn breakpoints(pid: u32) -> Vec<String> {
    let proc = format!("/proc/{pid}");
    let maps = fs::read_to_string(format!("{proc}/maps")).expect("the target's mappings");
    let memory = File::open(format!("{proc}/mem")).expect("the target's memory");
    let mut found = Vec::new();
    for line in maps.lines() {
        let Some(mapping) = Mapping::parse(line) else { continue };
        // By the mapping, not by the path: the file may be deleted, or another one by now.
        let link = format!("{proc}/map_files/{}", mapping.range);
        let Ok(file) = File::open(&link) else { continue };
        let mut in_memory = vec![0; mapping.bytes];
        let mut in_file = vec![0; mapping.bytes];
        memory.read_exact_at(&mut in_memory, mapping.start).expect("reading the target's code");
        let read = file.read_at(&mut in_file, mapping.offset).expect("reading the mapped file");
        let pairs = in_memory.iter().zip(&in_file[..read]).enumerate();
        for (at, _) in pairs.filter(|(_, (memory, file))| memory != file) {
            found.push(format!("{}+{:#x}", mapping.path, mapping.offset + at as u64));
        }
    }
    found
}

/// Executable code, mapped from a file.
struct Mapping<'a> {
    range: &'a str,
    start: u64,
    bytes: usize,
    offset: u64,
    path: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let range = fields.next()?;
        let (start, end) = range.split_once('-')?;
        let (start, end) = (hex(start)?, hex(end)?);
        if !fields.next()?.contains('x') {
            return None;
        }
        let offset = hex(fields.next()?)?;
        let path = fields.nth(2)?.trim_start();
        path.starts_with('/').then_some(Self {
            range,
            start,
            bytes: usize::try_from(end - start).ok()?,
            offset,
            path,
        })
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}
