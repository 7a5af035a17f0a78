//! Which names a file mentions at all, among its imports or its constants. What a file neither
//! imports nor holds as text for `dlsym`, it cannot call by name.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use aho_corasick::{AhoCorasick, MatchKind};
use object::read::elf::{FileHeader, SectionHeader};

use super::elf::{Capped, Header};

const CHUNK_BYTES: usize = 256 << 10;
/// Longer texts than this are not looked for.
const TEXT_CAP_BYTES: usize = 256;
/// A file with more constants than this counts as mentioning everything.
const SEARCH_CAP_BYTES: u64 = 64 << 20;
const RANGE_CAP: usize = 64;

/// The file ranges that can hold names: constants, initialised data, and the names of imports.
pub(super) fn ranges(data: Capped) -> Option<Vec<Range<u64>>> {
    let header = Header::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let mut ranges = Vec::new();
    for section in sections.iter() {
        let name = sections.section_name(endian, section).unwrap_or_default();
        let holds_names = name == b".dynstr"
            || name == b".data"
            || name.starts_with(b".rodata")
            || name.starts_with(b".data.rel.ro");
        if holds_names && let Some((offset, size)) = section.file_range(endian) {
            ranges.push(offset..offset.checked_add(size)?);
        }
    }
    let total =
        ranges.iter().try_fold(0_u64, |sum, range| sum.checked_add(range.end - range.start));
    // Without a single such section, the file is laid out as no compiler does it.
    let is_searchable = !ranges.is_empty()
        && ranges.len() <= RANGE_CAP
        && total.is_some_and(|total| total <= SEARCH_CAP_BYTES);
    is_searchable.then_some(ranges)
}

/// The texts to look for, prepared once.
#[derive(Debug)]
pub struct Texts {
    texts: Vec<String>,
    search: Option<AhoCorasick>,
}

impl Texts {
    /// Prepares to look for `texts`.
    pub fn new(texts: Vec<String>) -> Self {
        let mut texts = texts;
        texts.retain(|text| !text.is_empty() && text.len() <= TEXT_CAP_BYTES);
        // Without a search, nothing can be told of any file.
        let search =
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts).ok();
        Self { texts, search }
    }

    /// The texts that occur in the ranges, also inside of longer ones; `None` if the file cannot
    /// be read to its end.
    pub(super) fn find(&self, file: &File, ranges: &[Range<u64>]) -> Option<BTreeSet<String>> {
        let search = self.search.as_ref()?;
        let mut found = vec![false; self.texts.len()];
        let mut chunk = vec![0; CHUNK_BYTES + TEXT_CAP_BYTES];
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                // Chunks overlap by the longest text, so none is cut.
                let wanted = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(chunk.len());
                let length = file.read_at(&mut chunk[..wanted], at).ok()?;
                if length == 0 {
                    return None;
                }
                for hit in search.find_iter(&chunk[..length]) {
                    found[hit.pattern().as_usize()] = true;
                }
                let step = if length < wanted { length } else { length.min(CHUNK_BYTES) };
                at = at.saturating_add(step as u64);
            }
        }
        let hits: Vec<&String> = self
            .texts
            .iter()
            .zip(found)
            .filter(|(_, found)| *found)
            .map(|(text, _)| text)
            .collect();
        // Of texts that contain each other, the search tells the longest.
        let is_inside = |text: &&String| hits.iter().any(|hit| hit.contains(text.as_str()));
        Some(self.texts.iter().filter(is_inside).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn find(texts: &[&str], content: &[u8]) -> Vec<String> {
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(content).expect("written");
        let texts = Texts::new(texts.iter().map(|text| (*text).to_owned()).collect());
        let range = 0..content.len() as u64;
        let found = texts.find(&file, std::slice::from_ref(&range)).expect("readable");
        found.into_iter().collect()
    }

    /// Check that a text is found inside of others, beside those that contain it, and not when it
    /// is absent.
    #[test]
    fn inside_others() {
        let texts = ["RSA_sign", "EVP_DigestSign", "EVP_DigestSignFinal", "CMS"];
        assert_eq!(
            find(&texts, b"\0xEVP_DigestSignFinal\0RSA_sig\0i2d_CMS_bio"),
            ["CMS", "EVP_DigestSign", "EVP_DigestSignFinal"]
        );
        assert!(find(&texts, b"").is_empty());
    }

    /// Check that a text across the border of two chunks is found.
    #[test]
    fn across_chunks() {
        for lead in [CHUNK_BYTES - 3, CHUNK_BYTES + TEXT_CAP_BYTES - 3, 2 * CHUNK_BYTES - 1] {
            let mut content = vec![b'.'; lead];
            content.extend_from_slice(b"RSA_sign");
            assert_eq!(find(&["RSA_sign"], &content), ["RSA_sign"], "{lead}");
        }
    }

    /// Check that a file that ends before its ranges do is not said to mention nothing.
    #[test]
    fn cut_short() {
        let file = tempfile::tempfile().expect("temporary file");
        let texts = Texts::new(vec!["RSA_sign".into()]);
        assert_eq!(texts.find(&file, std::slice::from_ref(&(0..10))), None);
    }
}
