//! Tests of the layout, by the kernel side's searches written plainly.

use super::*;
use latency_common::unwind::{Row, Rule, SavedRbp};

fn file(rows: usize, file_offset: u64) -> FileRows {
    let row = |index: usize| Row {
        pc: 0x100 + 16 * index as u32,
        rule: Rule::Rsp(8 * (1 + index as u32 % 2)),
        saved_rbp: SavedRbp::Unchanged,
    };
    FileRows {
        base: 0x40_0000,
        rows: (0..rows).filter_map(|index| row(index).pack()).collect(),
        code: vec![LoadSegment { address: 0x40_0000, file_offset, file_bytes: 0x1000_0000 }],
        broken_entries: 0,
    }
}

const KEY: FileKey = FileKey { device: 1, inode: 2 };

fn mapping(start: u64, end: u64, file_offset: u64, file: Option<FileKey>) -> Mapping {
    Mapping { start, end, file_offset, file }
}

/// The row that the kernel side would find: the same two searches, written plainly.
fn find(store: &RowStore, table: &SegmentTable, address: u64) -> Option<u64> {
    let index = table.starts[..table.count as usize].iter().rposition(|at| *at <= address)?;
    let (start, segment) = (table.starts[index], table.segments[index]);
    let offset = address - start;
    if offset >= u64::from(segment.length) {
        return None;
    }
    if segment.rows == 0 {
        return None;
    }
    let pc = segment.pc + offset as u32;
    let chunk = store.chunk(segment.index as usize / CHUNK_WORDS);
    let (index, from) =
        (segment.index as usize % CHUNK_WORDS, segment.first_row as usize % CHUNK_WORDS);
    let block = ((pc - segment.block_pc) >> BLOCK_BITS) as usize;
    let entry = |block: usize| {
        assert!(index + block / 4 < from, "the index has no entry for block {block}");
        (chunk[index + block / 4] >> (block % 4 * 16)) as usize & 0xffff
    };
    let rows = &chunk[from..from + segment.rows as usize];
    let found = rows[entry(block)..=entry(block + 1)].iter().rfind(|row| **row as u32 <= pc);
    // The block index must not hide a row that a search of all would find.
    assert_eq!(found, rows.iter().rfind(|row| **row as u32 <= pc));
    found.copied()
}

/// Check that every address of a file whose rows cross chunks finds its row, at a mapping
/// offset other than its link-time one, and none outside.
#[test]
fn rows_across_chunks() {
    let mut store = RowStore::new(Limits::default());
    store.add(FileKey { device: 1, inode: 1 }, file(1000, 0)).unwrap();
    store.add(KEY, file(70_000, 0x2000)).unwrap();
    let (start, end) = (0x7000_0000, 0x7000_0000 + 0x20_0000);
    let ProcessTable { table, dropped_segments } =
        store.process_table(&[mapping(start, end, 0x2000, Some(KEY))]);
    assert_eq!((dropped_segments, table.count), (0, 5));
    for index in (0..69_999).step_by(7) {
        let address = start + 0x100 + 16 * index;
        for address in [address, address + 15] {
            let row = find(&store, &table, address).map(|row| row as u32);
            assert_eq!(row, Some(0x100 + 16 * index as u32), "{address:#x}");
        }
    }
    assert_eq!(find(&store, &table, start + 0xff), None);
    assert_eq!(find(&store, &table, start - 1), None);
    assert_eq!(find(&store, &table, end), None);
}

/// Check that files of every length of index, and with gaps of every length, find each row.
#[test]
fn index_lengths() {
    for gap in [1, 3, 100, 255, 256, 257, 1000, 5000] {
        for rows in 1..20 {
            let mut file = file(0, 0);
            file.rows = (0..rows)
                .filter_map(|index| {
                    let rule = Rule::Rsp(8 * (1 + index % 2));
                    Row { pc: 0x80 + gap * index, rule, saved_rbp: SavedRbp::Unchanged }.pack()
                })
                .collect();
            let mut store = RowStore::new(Limits::default());
            store.add(KEY, file.clone()).unwrap();
            let table = store.process_table(&[mapping(0x1000, 0x3_0000, 0, Some(KEY))]).table;
            for (index, row) in file.rows.iter().enumerate() {
                let expected = (index + 1 < file.rows.len()).then_some(*row);
                let first = 0x1000 + u64::from(*row as u32);
                for address in [first, first + u64::from(gap) - 1] {
                    assert_eq!(find(&store, &table, address), expected, "{gap} {rows} {index}");
                }
            }
        }
    }
}

/// Check that a file too large leaves the others, and is remembered without rows.
#[test]
fn row_limit() {
    let mut store = RowStore::new(Limits { rows: 1516 });
    store.add(KEY, file(1000, 0)).unwrap();
    let other = FileKey { device: 1, inode: 3 };
    assert_eq!(store.add(other, file(501, 0)), Err(NotUnwound::RowLimit { rows: 501, free: 500 }));
    assert!(store.contains(other));
    let table = store.process_table(&[
        mapping(0x1000, 0x3000, 0, Some(KEY)),
        mapping(0x5000, 0x6000, 0, Some(other)),
    ]);
    let last = table.table.count as usize - 1;
    assert_eq!(table.table.starts[last], 0x5000);
    assert_eq!(table.table.segments[last], Segment { length: 0x1000, ..Segment::default() });
}

/// Check that a JIT compiler's mappings join, that more than 4 GiB are split, and that what
/// does not fit is counted.
#[test]
fn many_mappings() {
    let store = RowStore::new(Limits::default());
    let jit: Vec<Mapping> = (0..5000).map(|n| mapping(n << 12, (n + 1) << 12, 0, None)).collect();
    assert_eq!(store.process_table(&jit).table.count, 1);
    let huge = store.process_table(&[mapping(0, 1 << 33, 0, None)]).table;
    let total: u64 = huge.segments.iter().map(|segment| u64::from(segment.length)).sum();
    assert_eq!(total, 1 << 33);
    let apart: Vec<Mapping> =
        (0..3000).map(|n| mapping(n << 13, (n << 13) + 4096, 0, None)).collect();
    let table = store.process_table(&apart);
    assert_eq!((table.table.count, table.dropped_segments), (2048, 952));
    // A file at the highest addresses, as libraries are, does not give way to those.
    let mut store = RowStore::new(Limits::default());
    store.add(KEY, file(100, 0)).unwrap();
    let with_file = [&apart[..], &[mapping(1 << 40, (1 << 40) + 4096, 0, Some(KEY))]].concat();
    let table = store.process_table(&with_file).table;
    assert!(find(&store, &table, (1 << 40) + 0x200).is_some());
}
