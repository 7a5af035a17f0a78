//! /proc/PID/maps, line by line. A path in it is whatever the target chose: it may hold spaces and
//! look like other fields, so nothing is split beyond the five fixed fields.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A file's identity within one kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId {
    /// Major number of the device.
    pub major: u32,
    /// Minor number of the device.
    pub minor: u32,
    /// Inode number; 0 where nothing but memory is mapped.
    pub inode: u64,
}

/// One mapping of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// `r-xp` and the like.
    pub permissions: [u8; 4],
    /// Where in the file the mapping starts, in bytes.
    pub offset: u64,
    /// The mapped file.
    pub file: FileId,
    /// The path as the target sees it, or a mark such as `[vdso]`; empty for anonymous memory.
    pub path: PathBuf,
    /// Whether the path ended in ` (deleted)`, which `path` leaves out.
    pub deleted: bool,
}

impl Mapping {
    /// Whether code can run from it.
    pub fn is_executable(&self) -> bool {
        self.permissions[2] == b'x'
    }
}

/// Reads all lines; one that is no mapping is left out.
pub fn parse(maps: &[u8]) -> impl Iterator<Item = Mapping> + '_ {
    maps.split(|&byte| byte == b'\n').filter_map(parse_line)
}

/// Reads one line, without its newline.
pub fn parse_line(line: &[u8]) -> Option<Mapping> {
    let (start, rest) = hex(line, b'-')?;
    let (end, rest) = hex(rest, b' ')?;
    let (permissions, rest) = rest.split_first_chunk::<4>()?;
    let rest = rest.strip_prefix(b" ")?;
    let (offset, rest) = hex(rest, b' ')?;
    let (major, rest) = hex(rest, b':')?;
    let (minor, rest) = hex(rest, b' ')?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (inode, rest) = rest.split_at_checked(digits)?;
    let inode = str::from_utf8(inode).ok()?.parse().ok()?;
    if start >= end {
        return None;
    }
    // The kernel pads with spaces up to the path, which itself starts with `/` or `[`.
    let padding = rest.iter().take_while(|&&byte| byte == b' ').count();
    if padding == 0 && !rest.is_empty() {
        return None;
    }
    let path = rest.get(padding..)?;
    let (path, deleted) = match path.strip_suffix(b" (deleted)") {
        Some(path) => (path, true),
        None => (path, false),
    };
    Some(Mapping {
        start,
        end,
        permissions: *permissions,
        offset,
        file: FileId {
            major: u32::try_from(major).ok()?,
            minor: u32::try_from(minor).ok()?,
            inode,
        },
        path: PathBuf::from(OsString::from_vec(unescape(path))),
        deleted,
    })
}

/// A hexadecimal number up to `end`, and what follows it.
fn hex(bytes: &[u8], end: u8) -> Option<(u64, &[u8])> {
    let length = bytes.iter().position(|&byte| byte == end)?;
    let (digits, rest) = bytes.split_at_checked(length)?;
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let value = u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    Some((value, rest.get(1..)?))
}

/// The kernel escapes newlines here and nothing else (`seq_file_path(m, file, "\n")`), not even
/// the backslash, so no other escape may be undone.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(tail) = rest.strip_prefix(b"\\012") {
            out.push(b'\n');
            rest = tail;
        } else {
            out.push(first);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path_of(line: &str) -> (String, bool) {
        let mapping = parse_line(line.as_bytes()).expect(line);
        (mapping.path.to_str().expect("UTF-8").to_owned(), mapping.deleted)
    }

    /// Check that every field of an ordinary line is read.
    #[test]
    fn ordinary_line() {
        let line = "7f94c5ac5000-7f94c5d44000 r-xp 000c5000 fe:01 1234567  \
                    \t /not trimmed";
        assert_eq!(
            parse_line(line.as_bytes()).expect("valid").path.to_str(),
            Some("\t /not trimmed")
        );
        let line = "7f94c5ac5000-7f94c5d44000 r-xp 000c5000 fe:01 1234567                    \
                    /usr/lib/x86_64-linux-gnu/libcrypto.so.3";
        let mapping = parse_line(line.as_bytes()).expect("valid");
        assert_eq!((mapping.start, mapping.end), (0x7f94_c5ac_5000, 0x7f94_c5d4_4000));
        assert_eq!(mapping.offset, 0xc5000);
        assert_eq!(mapping.file, FileId { major: 0xfe, minor: 1, inode: 1_234_567 });
        assert!(mapping.is_executable() && !mapping.deleted);
        assert_eq!(mapping.path.to_str(), Some("/usr/lib/x86_64-linux-gnu/libcrypto.so.3"));
    }

    /// Check that spaces, the mark of a deleted file and escaped newlines are told apart.
    #[test]
    fn awkward_paths() {
        let fixed = "1000-2000 r-xp 00000000 00:1f 7 ";
        assert_eq!(path_of(&format!("{fixed}/a b  c.so")), ("/a b  c.so".into(), false));
        assert_eq!(path_of(&format!("{fixed}/a (deleted)")), ("/a".into(), true));
        assert_eq!(path_of(&format!("{fixed}/a\\012b\\040c")), ("/a\nb\\040c".into(), false));
        assert_eq!(
            path_of(&format!("{fixed}/x 1000-2000 r-xp 0 08:01 5 /lib/libcrypto.so.3")).0,
            "/x 1000-2000 r-xp 0 08:01 5 /lib/libcrypto.so.3"
        );
        assert_eq!(path_of("1000-2000 rw-p 00000000 00:00 0 "), (String::new(), false));
        assert_eq!(path_of("1000-2000 rw-p 00000000 00:00 0").0, "");
        assert_eq!(path_of("1000-2000 r-xp 00000000 00:00 0    [vdso]").0, "[vdso]");
    }

    /// Check that our own maps are read without a line left out.
    #[test]
    fn own_maps() {
        let maps = std::fs::read("/proc/self/maps").expect("procfs");
        let lines = maps.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count();
        assert_eq!(parse(&maps).count(), lines);
        assert!(parse(&maps).any(|mapping| mapping.is_executable() && mapping.file.inode != 0));
    }

    proptest! {
        /// Check that no bytes make the parser panic.
        #[test]
        fn any_bytes(bytes: Vec<u8>) {
            parse(&bytes).count();
        }

        /// Check that a valid line survives any cut and any changed byte.
        #[test]
        fn damaged_line(cut in 0usize..90, at in 0usize..90, byte: u8) {
            let mut line = b"7f94c5ac5000-7f94c5d44000 r-xp 000c5000 fe:01 1234567   /usr/lib/libcrypto.so.3".to_vec();
            let at = at % line.len();
            line[at] = byte;
            line.truncate(cut);
            parse(&line).count();
        }

        /// Check that any path without a newline comes back as it was.
        #[test]
        fn any_path(tail in proptest::collection::vec(any::<u8>().prop_filter("escape", |b| *b != b'\n' && *b != b'\\' && *b != b')'), 0..60)) {
            use std::os::unix::ffi::OsStrExt;
            let mut line = b"1000-2000 r-xp 00000000 00:1f 7 /".to_vec();
            line.extend_from_slice(&tail);
            let mapping = parse_line(&line).expect("valid");
            prop_assert_eq!(&mapping.path.as_os_str().as_bytes()[1..], &tail[..]);
        }
    }
}
