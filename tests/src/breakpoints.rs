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

#[cfg(test)]
mod tests {
    use super::*;

    /// Never called: what it says does not matter, what lies at its address does.
    #[inline(never)]
    fn to_be_changed() -> u32 {
        std::hint::black_box(7)
    }

    /// Check that one changed byte of code is found, at its offset in the file.
    #[test]
    fn finds_a_changed_byte() {
        // The kernel lets root alone open the files of mappings.
        // SAFETY: geteuid takes nothing and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            crate::skip!("finds_a_changed_byte", "not root");
        }
        let pid = std::process::id();
        assert_eq!(breakpoints(pid), [""; 0]);
        let function: fn() -> u32 = std::hint::black_box(to_be_changed);
        let memory = File::options().write(true).open("/proc/self/mem").unwrap();
        memory.write_at(&[0xcc], function as usize as u64).unwrap();
        let found = breakpoints(pid);
        assert_eq!(found.len(), 1, "{found:?}");
        let exe = std::env::current_exe().unwrap();
        assert!(found[0].starts_with(&format!("{}+0x", exe.display())), "{found:?}");
    }

    /// Check that lines of /proc/PID/maps are read, and data, anonymous and odd ones left out.
    #[test]
    fn mappings() {
        let code =
            "7f00-8f00 r-xp 00002000 fe:00 1234                 /a folder/lib x.so (deleted)";
        let mapping = Mapping::parse(code).unwrap();
        assert_eq!((mapping.start, mapping.bytes, mapping.offset), (0x7f00, 0x1000, 0x2000));
        assert_eq!(mapping.path, "/a folder/lib x.so (deleted)");
        for other in
            ["1-2 rw-p 0 0:0 1 /lib/x.so", "1-2 r-xp 0 0:0 0 [vdso]", "1-2 r-xp 0 0:0 0 ", "", "x"]
        {
            assert!(Mapping::parse(other).is_none(), "{other:?}");
        }
    }
}
