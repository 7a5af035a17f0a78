//! Which OpenSSL (or fork) a file holds, by the version text in its constants: the one trace that
//! a stripped static copy still shows.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

use super::elf::{Capped, Header};

const CHUNK_BYTES: usize = 256 << 10;
const TEXT_CAP_BYTES: usize = 96;
/// The linker leaves the version out of a static program that does not ask for it; the name of
/// the source file that `EVP_DigestSign` reports its errors with stays.
const EVP_SOURCE: &[u8] = b"/m_sigver.c\0";
/// Beyond this, a file's constants are not searched: it would take longer than attaching.
const SEARCH_CAP_BYTES: u64 = 256 << 20;

/// The file ranges that hold constants: `.rodata*`, or, without such a section, the segments that
/// are read-only.
pub(super) fn ranges(data: Capped) -> Vec<Range<u64>> {
    let Ok(header) = Header::parse(data) else { return Vec::new() };
    let Ok(endian) = header.endian() else { return Vec::new() };
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut add = |offset: u64, size: u64| {
        ranges.extend(offset.checked_add(size).map(|end| offset..end));
    };
    if let Ok(sections) = header.sections(endian, data) {
        for section in sections.iter() {
            let name = sections.section_name(endian, section).unwrap_or_default();
            if name.starts_with(b".rodata")
                && let Some((offset, size)) = section.file_range(endian)
            {
                add(offset, size);
            }
        }
    }
    if ranges.is_empty() {
        let segments = header.program_headers(endian, data).unwrap_or_default();
        for segment in segments {
            if segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian) & elf::PF_W == 0 {
                let (offset, size) = segment.file_range(endian);
                ranges.extend(offset.checked_add(size).map(|end| offset..end));
            }
        }
    }
    // Sections of a hostile file may overlap a thousand times.
    ranges.truncate(16);
    ranges
}

/// Searches the ranges for a version text, or at least a trace of the EVP code.
pub(super) fn find(file: &File, ranges: &[Range<u64>]) -> Option<String> {
    let mut left = SEARCH_CAP_BYTES;
    let mut is_traced = false;
    let mut chunk = vec![0; CHUNK_BYTES + TEXT_CAP_BYTES];
    for range in ranges {
        let mut at = range.start;
        while at < range.end && left > 0 {
            // Chunks overlap by the longest text, so none is cut.
            let wanted = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(chunk.len());
            let Ok(length) = file.read_at(&mut chunk[..wanted], at) else { break };
            if length == 0 {
                break;
            }
            if let Some(text) = find_in(&chunk[..length]) {
                return Some(text);
            }
            is_traced = is_traced
                || chunk[..length].windows(EVP_SOURCE.len()).any(|bytes| bytes == EVP_SOURCE);
            let step = length.min(CHUNK_BYTES) as u64;
            at = at.saturating_add(step);
            left = left.saturating_sub(step);
        }
    }
    is_traced.then(|| "an OpenSSL of unknown version".to_owned())
}

/// Finds `OpenSSL 3.0.22 25 Aug 2026`, `LibreSSL 3.9.0` and the like, up to the NUL.
fn find_in(bytes: &[u8]) -> Option<String> {
    const NAME: &[u8] = b"SSL ";
    let mut from = 0;
    while let Some(at) = bytes.get(from..)?.windows(NAME.len()).position(|it| it == NAME) {
        let at = from + at;
        from = at + NAME.len();
        let start = [&b"Open"[..], b"Libre"].iter().find_map(|prefix| {
            let start = at.checked_sub(prefix.len())?;
            (bytes.get(start..at)? == *prefix).then_some(start)
        });
        let Some(start) = start else { continue };
        let rest = &bytes[start..bytes.len().min(start + TEXT_CAP_BYTES)];
        let Some(end) = rest.iter().position(|&byte| byte == 0) else { continue };
        let text = &rest[..end];
        let number = &text[from - start..];
        // A date or a fork's mark tells the version from `OpenSSL 3.0 legacy provider`.
        let is_version = number.first().is_some_and(u8::is_ascii_digit)
            && number.get(1) == Some(&b'.')
            && text.iter().all(|byte| (b' '..=b'~').contains(byte))
            && (text.starts_with(b"Libre")
                || text.ends_with(b")")
                || text.iter().rev().take(4).all(u8::is_ascii_digit));
        if is_version {
            return Some(String::from_utf8_lossy(text).into_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that only a version counts, not every mention of the library.
    #[test]
    fn versions() {
        let find = |text: &str| find_in(text.as_bytes());
        assert_eq!(
            find("x\0OpenSSL library\0OpenSSL 3.0.22 25 Aug 2026\0y").as_deref(),
            Some("OpenSSL 3.0.22 25 Aug 2026")
        );
        assert_eq!(
            find("OpenSSL 1.1.1 (compatible; AWS-LC 1.40.0)\0").as_deref(),
            Some("OpenSSL 1.1.1 (compatible; AWS-LC 1.40.0)")
        );
        assert_eq!(find("LibreSSL 3.9.2\0").as_deref(), Some("LibreSSL 3.9.2"));
        assert_eq!(find("OpenSSL 3.0 legacy provider\0"), None);
        assert_eq!(find("OpenSSL 3.0.22 cut off"), None);
        assert_eq!(find("SSL 3.0\0OpenSSL error\0"), None);
    }

    /// Check that a static copy without a version is not overlooked.
    #[test]
    fn copy_without_version() {
        use std::io::Write;
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(b"x\0../crypto/evp/m_sigver.c\0y").expect("written");
        let found = find(&file, std::slice::from_ref(&(0..100)));
        assert_eq!(found.as_deref(), Some("an OpenSSL of unknown version"));
        assert_eq!(find(&file, std::slice::from_ref(&(0..20))), None);
    }

    /// Check that a text across the border of two chunks is found.
    #[test]
    fn across_chunks() {
        use std::io::Write;
        for lead in [CHUNK_BYTES - 5, CHUNK_BYTES + TEXT_CAP_BYTES - 9, 2 * CHUNK_BYTES - 1] {
            let mut file = tempfile::tempfile().expect("temporary file");
            file.write_all(&vec![b'.'; lead]).expect("written");
            file.write_all(b"OpenSSL 3.5.0 8 Apr 2025\0").expect("written");
            let length = file.metadata().expect("metadata").len();
            assert_eq!(
                find(&file, std::slice::from_ref(&(0..length))).as_deref(),
                Some("OpenSSL 3.5.0 8 Apr 2025")
            );
        }
    }

    proptest::proptest! {
        /// Check that no bytes make the search panic.
        #[test]
        fn any_bytes(bytes: Vec<u8>) {
            find_in(&bytes);
            find_in(&[b"OpenSSL 3.", &bytes[..]].concat());
        }
    }
}
