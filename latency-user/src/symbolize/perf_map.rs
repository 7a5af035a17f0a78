//! The map that a compiler at run time keeps of its code, as `perf` reads it: a line for each
//! function, added when it is made. Code that is no longer used is made room of, so that of entries
//! that overlap, the later one is right.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use super::read_at::Positioned;
use crate::target::Root;

/// Maps of large programs are tens of megabytes.
const CAP_BYTES: u64 = 256 << 20;
const NAME_CAP_BYTES: usize = 4096;

/// Where a process's map is, and who may have written it.
#[derive(Clone, Copy, Debug)]
pub struct PerfMapOf {
    /// The process, as it knows itself: in its own PID namespace.
    pub own_pid: u32,
    /// Its user.
    pub uid: u32,
}

impl PerfMapOf {
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/tmp/perf-{}.map", self.own_pid))
    }

    /// Reads the map as it is now. `None` if there is none.
    ///
    /// # Errors
    /// Why the file that is there is not used.
    pub(super) fn read(&self, root: &Root) -> Result<Option<PerfMap>, String> {
        let path = self.path();
        let Ok(file) = root.open(&path) else { return Ok(None) };
        read(&file, self.uid).map(Some).map_err(|why| format!("{}: {why}", path.display()))
    }
}

fn read(file: &File, uid: u32) -> Result<PerfMap, String> {
    let owner = file.metadata().map_err(|error| error.to_string())?.uid();
    // Anybody can make a file of this name in /tmp.
    if owner != uid && owner != 0 {
        return Err(format!("it is not used, since it belongs to user {owner}, not {uid}"));
    }
    let mut text = Vec::new();
    let read = Positioned::new(file).take(CAP_BYTES).read_to_end(&mut text);
    read.map_err(|error| error.to_string())?;
    Ok(PerfMap::parse(text))
}

/// The functions of a map.
#[derive(Default, Debug)]
pub(super) struct PerfMap {
    text: Vec<u8>,
    /// By start, and not overlapping.
    ranges: Vec<Range>,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    end: u64,
    /// Where its name is in the text.
    name: (usize, usize),
}

impl PerfMap {
    /// Lines of `START SIZE NAME`, in hexadecimal; others are left out, as the last one is if the
    /// file is being written.
    fn parse(text: Vec<u8>) -> Self {
        let mut entries = Vec::new();
        let mut at = 0;
        while let Some(length) = text[at..].iter().position(|&byte| byte == b'\n') {
            entries.extend(entry(&text, at, at + length));
            at += length + 1;
        }
        Self { ranges: flattened(&entries), text }
    }

    /// The name of the code at an address.
    pub fn name(&self, address: u64) -> Option<String> {
        let at = self.ranges.partition_point(|range| range.start <= address).checked_sub(1)?;
        let range = self.ranges.get(at).filter(|range| address < range.end)?;
        let name = self.text.get(range.name.0..range.name.1)?;
        Some(String::from_utf8_lossy(name).into_owned())
    }
}

fn entry(text: &[u8], from: usize, to: usize) -> Option<Range> {
    let line = &text[from..to];
    let first = line.iter().position(|&byte| byte == b' ')?;
    let second = first + 1 + line[first + 1..].iter().position(|&byte| byte == b' ')?;
    let start = number(&line[..first])?;
    let end = start.checked_add(number(&line[first + 1..second])?)?;
    let name = (from + second + 1, to.min(from + second + 1 + NAME_CAP_BYTES));
    (start < end && name.0 < name.1).then_some(Range { start, end, name })
}

fn number(text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// Cuts entries so that at each address only the latest is left.
fn flattened(entries: &[Range]) -> Vec<Range> {
    let mut by_start: Vec<usize> = (0..entries.len()).collect();
    by_start.sort_unstable_by_key(|&index| (entries[index].start, Reverse(index)));
    let mut ranges: Vec<Range> = Vec::new();
    // Entries that have begun, the latest on top.
    let mut begun: BinaryHeap<usize> = BinaryHeap::new();
    let mut next = by_start.into_iter().peekable();
    let mut at = 0;
    loop {
        while let Some(index) = next.next_if(|&index| entries[index].start <= at) {
            begun.push(index);
        }
        while begun.peek().is_some_and(|&index| entries[index].end <= at) {
            begun.pop();
        }
        let upcoming = next.peek().map(|&index| entries[index].start);
        let Some(&latest) = begun.peek() else {
            let Some(start) = upcoming else { return ranges };
            at = start;
            continue;
        };
        let entry = entries[latest];
        let end = upcoming.map_or(entry.end, |start| start.min(entry.end));
        match ranges.last_mut().filter(|last| last.end == at && last.name == entry.name) {
            Some(last) => last.end = end,
            None => ranges.push(Range { start: at, end, name: entry.name }),
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(text: &str) -> PerfMap {
        PerfMap::parse(text.as_bytes().to_vec())
    }

    /// Check that names keep their spaces, that both forms of numbers are read, and that broken lines
    /// and a last one without its end are left out.
    #[test]
    fn lines() {
        let map = map("1000 10 LazyCompile:*sign /srv/key service.js:12\n\
                       0x2000 0x20 py::main\nbroken\n3000 zz x\n4000 0 empty\n5000 8 \n6000 8 half");
        assert_eq!(map.name(0x100f).as_deref(), Some("LazyCompile:*sign /srv/key service.js:12"));
        assert_eq!(map.name(0x1010), None);
        assert_eq!(map.name(0x2010).as_deref(), Some("py::main"));
        for address in [0, 0xfff, 0x3000, 0x4000, 0x5000, 0x6000, u64::MAX] {
            assert_eq!(map.name(address), None, "{address:#x}");
        }
    }

    /// Check that code made later takes the place of what it overlaps, and no more.
    #[test]
    fn later_wins() {
        let map = map("1000 100 old\n1040 20 new\n1040 20 newest\n10f0 20 tail\n");
        let names = [0x1000, 0x103f, 0x1040, 0x105f, 0x1060, 0x10ef, 0x10f0, 0x110f]
            .map(|address| map.name(address).unwrap());
        assert_eq!(names, ["old", "old", "newest", "newest", "old", "old", "tail", "tail"]);
        assert_eq!(map.name(0x1110), None);
    }

    /// Check that a map is read where the process's root is, and one of another user is not.
    #[test]
    fn owners() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"1000 10 f\n").unwrap();
        let own = file.metadata().unwrap().uid();
        assert_eq!(read(&file, own).unwrap().name(0x1000).as_deref(), Some("f"));
        if own == 0 {
            std::os::unix::fs::fchown(&file, Some(65_534), None).unwrap();
        }
        let error = read(&file, own.wrapping_add(1)).unwrap_err();
        assert!(error.contains("belongs to user"), "{error}");
    }

    proptest! {
        /// Check that any text is read, and that an entry made of it has the name of the last line
        /// that covers it.
        #[test]
        fn any_text(text: Vec<u8>, address: u64) {
            PerfMap::parse(text).name(address);
        }

        /// Check each address against a search through all lines.
        #[test]
        fn as_by_search(entries in proptest::collection::vec((0_u64..64, 1_u64..32), 0..40)) {
            let lines = entries.iter().enumerate();
            let text: String =
                lines.map(|(index, (start, size))| format!("{start:x} {size:x} f{index}\n")).collect();
            let map = map(&text);
            for address in 0..100 {
                let covers = |(start, size): &(u64, u64)| (*start..start + size).contains(&address);
                let expected = entries.iter().rposition(covers).map(|index| format!("f{index}"));
                prop_assert_eq!(map.name(address), expected);
            }
        }
    }
}
