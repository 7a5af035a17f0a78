//! Where rows lie in the kernel's maps, and which of them each process's mappings use.

use std::collections::HashMap;

use latency_common::unwind::{BLOCK_BITS, CHUNK_WORDS, MAX_SEGMENTS, Segment, SegmentTable};
use thiserror::Error;

use super::elf::{FileRows, LoadSegment};

/// A file, whatever path leads to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileKey {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// One executable mapping of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Offset in the file of the first byte.
    pub file_offset: u64,
    /// What is mapped; `None`: anonymous memory, such as a JIT compiler's.
    pub file: Option<FileKey>,
}

/// How much memory unwinding may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most rows of all files together, of 8 bytes each.
    pub rows: usize,
}

impl Default for Limits {
    /// 64 MiB of rows: libc and libcrypto together have 110,000, node 2,000,000.
    fn default() -> Self {
        Self { rows: 8 << 20 }
    }
}

/// Why a file's rows are not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NotUnwound {
    /// There is no room.
    #[error(
        "its {rows} unwind rows do not fit in the {free} that are left: its frames are found by \
         frame pointer, and marked"
    )]
    RowLimit {
        /// Rows of the file.
        rows: usize,
        /// Rows that would still fit.
        free: usize,
    },
}

/// A file's place in the store.
struct Placed {
    base: u64,
    code: Vec<LoadSegment>,
    pieces: Vec<Piece>,
}

/// Some rows of a file, in one chunk, with their block index before them.
#[derive(Clone, Copy)]
struct Piece {
    /// The first program counter it holds for, and the one after the last.
    pc: u32,
    end_pc: u32,
    index: usize,
    first_row: usize,
    rows: usize,
}

/// The rows of all files, in the order they were added: a file is there once, however many
/// processes map it.
pub struct RowStore {
    limits: Limits,
    words: Vec<u64>,
    files: HashMap<FileKey, Placed>,
}

/// A process's table, and how much did not fit in it.
pub struct ProcessTable {
    /// As the kernel reads it.
    pub table: Box<SegmentTable>,
    /// Segments beyond [`MAX_SEGMENTS`], which were left out: those of no file, then the highest
    /// addresses.
    pub dropped_segments: usize,
}

impl RowStore {
    /// An empty store.
    pub fn new(limits: Limits) -> Self {
        Self { limits, words: Vec::new(), files: HashMap::new() }
    }

    /// Whether a file is there.
    pub fn contains(&self, file: FileKey) -> bool {
        self.files.contains_key(&file)
    }

    /// Adds a file.
    ///
    /// # Errors
    /// Its rows do not fit. It is remembered as a file without rows.
    pub fn add(&mut self, file: FileKey, compiled: FileRows) -> Result<(), NotUnwound> {
        let FileRows { base, rows, code, .. } = compiled;
        let free = self.limits.rows.saturating_sub(self.words.len());
        let (result, pieces) = if rows.len() > free {
            (Err(NotUnwound::RowLimit { rows: rows.len(), free }), Vec::new())
        } else {
            (Ok(()), self.place(&rows))
        };
        self.files.insert(file, Placed { base, code, pieces });
        result
    }

    /// Appends rows, a piece for each chunk.
    fn place(&mut self, mut rows: &[u64]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while let Some(first) = rows.first() {
            let room = CHUNK_WORDS - self.words.len() % CHUNK_WORDS;
            let pc = *first as u32;
            // Entries for the blocks from the first row's to the next piece's, and one more.
            let index_words = |count: usize| {
                let end_pc = rows.get(count).or(rows.last()).map_or(pc, |row| *row as u32);
                (block_of(end_pc) - block_of(pc) + 1) as usize / 4 + 1
            };
            // The most rows that fit with their index: more rows never need fewer words.
            let (mut low, mut high) = (0, rows.len().min(room));
            while low < high {
                let count = (low + high).div_ceil(2);
                if count + index_words(count) <= room { low = count } else { high = count - 1 }
            }
            // Nothing fits in the rest of this chunk, or not even one row and the gap behind it in
            // an empty one: then the gap, of 33 MB without a row, ends the file.
            if low == 0 {
                if room == CHUNK_WORDS {
                    break;
                }
                self.words.resize(self.words.len() + room, 0);
                continue;
            }
            let (these, rest) = rows.split_at(low);
            let end_pc = rest.first().map_or(u32::MAX, |row| *row as u32);
            let index = self.words.len();
            let entries = index_words(low) * 4;
            let mut four = 0;
            for entry in 0..entries {
                let start = (u64::from(block_of(pc)) + entry as u64) << BLOCK_BITS;
                let row = these.partition_point(|row| u64::from(*row as u32) <= start);
                four |= (row.saturating_sub(1) as u64) << (16 * (entry % 4));
                if entry % 4 == 3 {
                    self.words.push(four);
                    four = 0;
                }
            }
            let first_row = self.words.len();
            self.words.extend_from_slice(these);
            pieces.push(Piece { pc, end_pc, index, first_row, rows: low });
            rows = rest;
        }
        // The last row says that nothing is known from there on.
        if let Some(last) = pieces.last_mut() {
            last.end_pc = self.words.last().map_or(last.pc, |row| *row as u32);
        }
        pieces
    }

    /// Number of rows, of all files.
    pub fn rows(&self) -> usize {
        self.files.values().flat_map(|placed| &placed.pieces).map(|piece| piece.rows).sum()
    }

    /// Number of words: rows and their index.
    pub fn words(&self) -> usize {
        self.words.len()
    }

    /// Number of chunks that hold them.
    pub fn chunks(&self) -> usize {
        self.words.len().div_ceil(CHUNK_WORDS)
    }

    /// The words of one chunk; the last one may be shorter than [`CHUNK_WORDS`].
    pub fn chunk(&self, index: usize) -> &[u64] {
        let start = (index * CHUNK_WORDS).min(self.words.len());
        &self.words[start..(start + CHUNK_WORDS).min(self.words.len())]
    }

    /// The table of a process with these executable mappings. Files not added have no rows.
    pub fn process_table(&self, mappings: &[Mapping]) -> ProcessTable {
        let mut segments: Vec<(u64, Segment)> = Vec::new();
        let mut mappings = mappings.to_vec();
        mappings.sort_by_key(|mapping| mapping.start);
        let mut covered = 0;
        for mapping in &mappings {
            if mapping.start < covered || mapping.start >= mapping.end {
                continue;
            }
            covered = mapping.end;
            let placed = mapping.file.and_then(|file| self.files.get(&file));
            if placed.is_none_or(|placed| push_pieces(&mut segments, mapping, placed).is_none()) {
                push_unknown(&mut segments, mapping.start, mapping.end);
            }
        }
        let dropped_segments = segments.len().saturating_sub(MAX_SEGMENTS);
        if dropped_segments > 0 {
            // First those of which nothing is known anyway, such as a JIT compiler's.
            let mut unknown_left = dropped_segments;
            segments.reverse();
            segments.retain(|(_, segment)| {
                let dropped = segment.rows == 0 && unknown_left > 0;
                unknown_left -= usize::from(dropped);
                !dropped
            });
            segments.reverse();
            segments.truncate(MAX_SEGMENTS);
        }
        let mut table = Box::new(SegmentTable {
            count: segments.len() as u32,
            generation: 1,
            starts: [0; MAX_SEGMENTS],
            segments: [Segment::default(); MAX_SEGMENTS],
        });
        for (index, (start, segment)) in segments.into_iter().enumerate() {
            table.starts[index] = start;
            table.segments[index] = segment;
        }
        ProcessTable { table, dropped_segments }
    }
}

/// Appends a mapping's segments, one for each piece of the file's rows that it maps; `None` if it
/// has no rows.
fn push_pieces(
    segments: &mut Vec<(u64, Segment)>,
    mapping: &Mapping,
    placed: &Placed,
) -> Option<()> {
    const PAGE_BYTES: u64 = 4096;
    // The mapping starts on the page that the segment starts in.
    let code = placed.code.iter().find(|code| {
        let page = code.file_offset / PAGE_BYTES * PAGE_BYTES;
        let end = code.file_offset.saturating_add(code.file_bytes);
        (page..end).contains(&mapping.file_offset)
    })?;
    let address = code.address.wrapping_sub(code.file_offset).wrapping_add(mapping.file_offset);
    let start_pc = u32::try_from(address.checked_sub(placed.base)?).ok()?;
    let length = u32::try_from(mapping.end - mapping.start).ok()?;
    let end_pc = start_pc.checked_add(length)?;
    let address_of = |pc: u32| mapping.start + u64::from(pc - start_pc);
    let mut covered = start_pc;
    let inside = placed.pieces.iter().filter(|piece| piece.pc < end_pc && piece.end_pc > start_pc);
    for piece in inside {
        let (from, to) = (piece.pc.max(start_pc), piece.end_pc.min(end_pc));
        if from > covered {
            push_unknown(segments, address_of(covered), address_of(from));
        }
        let segment = Segment {
            length: to - from,
            pc: from,
            block_pc: block_of(piece.pc) << BLOCK_BITS,
            index: piece.index as u32,
            first_row: piece.first_row as u32,
            rows: piece.rows as u32,
        };
        segments.push((address_of(from), segment));
        covered = to;
    }
    if covered == start_pc {
        return None;
    }
    if covered < end_pc {
        push_unknown(segments, address_of(covered), mapping.end);
    }
    Some(())
}

const fn block_of(pc: u32) -> u32 {
    pc >> BLOCK_BITS
}

/// Appends memory of which nothing is known but that it is executable, joined to such memory
/// before it: a JIT compiler's heap can be hundreds of mappings in a row.
fn push_unknown(segments: &mut Vec<(u64, Segment)>, mut start: u64, end: u64) {
    if let Some((last_start, last)) = segments.last_mut()
        && last.rows == 0
        && *last_start + u64::from(last.length) == start
        && let Ok(length) = u32::try_from(end - *last_start)
    {
        last.length = length;
        return;
    }
    while start < end {
        let length = u32::try_from(end - start).unwrap_or(1 << 31);
        segments.push((start, Segment { length, ..Segment::default() }));
        start += u64::from(length);
    }
}

#[cfg(test)]
mod tests;
