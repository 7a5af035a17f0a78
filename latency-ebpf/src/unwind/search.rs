//! The two searches of each frame: the segment of an address, and the row of a program counter.

use latency_common::unwind::{
    BLOCK_BITS, CHUNK_BITS, CHUNK_WORDS, MAX_SEGMENTS, Segment, SegmentTable,
};

use super::UNWIND_ROWS;

const _: () = assert!(MAX_SEGMENTS.is_power_of_two());

/// The last segment that starts at or before `pc`, and the offset from its start: `pc` is in it if
/// the offset is below the length. `hint` is the index of the segment found last.
///
/// No `Option`: the compiler would carry its payload around where there is none, and the verifier
/// refuses that.
#[inline(always)]
pub fn find_segment(table: &SegmentTable, hint: &mut u64, pc: u64) -> (Segment, u64) {
    // Every index is masked to the table's length.
    let at = |index: u64| {
        let index = index as usize & (MAX_SEGMENTS - 1);
        (table.segments[index], pc.wrapping_sub(table.starts[index]))
    };
    let (segment, offset) = at(*hint);
    if offset < u64::from(segment.length) {
        return (segment, offset);
    }
    let mut low = 0;
    let mut length = u64::from(table.count);
    for _ in 0..MAX_SEGMENTS.ilog2() {
        if length <= 1 {
            break;
        }
        let half = length >> 1;
        let start = table.starts[(low + half) as usize & (MAX_SEGMENTS - 1)];
        low += half & not_above(start, pc);
        length -= half;
    }
    *hint = low;
    at(low)
}

/// The packed row that holds for `pc`, a program counter as the segment's rows count it.
#[inline(always)]
pub fn find_row(segment: Segment, pc: u32) -> u64 {
    /// A row with the rule "no row".
    const NONE: u64 = 0;
    if segment.rows == 0 {
        return NONE;
    }
    let Some(chunk) = UNWIND_ROWS.get_ptr(segment.index >> CHUNK_BITS) else { return NONE };
    // SAFETY: a map value just looked up; every index is masked to its length.
    let word = |index: u64| unsafe { (*chunk).words[index as usize & (CHUNK_WORDS - 1)] };
    let block = u64::from(pc.wrapping_sub(segment.block_pc) >> BLOCK_BITS);
    let entry = |number: u64| {
        let four = word(u64::from(segment.index) + (number >> 2));
        four >> ((number & 3) * 16) & 0xffff
    };
    let first = entry(block);
    let mut low = u64::from(segment.first_row) + first;
    let mut length = (entry(block + 1).wrapping_sub(first) & 0xffff) + 1;
    // A block has at most 256 rows, and one before.
    for _ in 0..BLOCK_BITS + 1 {
        if length <= 1 {
            break;
        }
        let half = length >> 1;
        low += half & not_above(u64::from(word(low + half) as u32), u64::from(pc));
        length -= half;
    }
    let bits = word(low);
    if bits as u32 > pc { NONE } else { bits }
}

/// All ones if `a <= b`, else 0, without a branch: a branch for each step of a binary search would
/// be mispredicted half of the time, and double the verifier's work. Both are below 2^63.
#[inline(always)]
fn not_above(a: u64, b: u64) -> u64 {
    let mut difference = a.wrapping_sub(b).wrapping_sub(1);
    // SAFETY: pure arithmetic on one register. In assembly, since the compiler would turn the
    // shift of a sign bit into a branch.
    unsafe {
        core::arch::asm!("{0} s>>= 63", inout(reg) difference, options(pure, nomem, nostack));
    }
    difference
}
