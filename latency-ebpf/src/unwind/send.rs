//! Sending each distinct stack once.

use aya_ebpf::bindings::{BPF_NOEXIST, BPF_RB_NO_WAKEUP};
use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use latency_common::record::{StackHeader, kind, stack_flags};
use latency_common::unwind::{MAX_FRAMES, UnwindCounter, hash_end};

use super::{Scratch, State, count};
use crate::calls::RECORDS;

/// Ids of the stacks already sent; the loader sets the size.
#[map]
static STACKS_SEEN: HashMap<u64, u32> = HashMap::with_max_entries(16_384, 0);

/// `EEXIST` of include/uapi/asm-generic/errno-base.h.
const EEXIST: i32 = 17;

/// Counts the stack, and sends it if it is new.
///
/// # Safety
/// As of [`super::capture_into`].
#[inline(always)]
pub unsafe fn finish(scratch: *mut Scratch, tgid: u32) -> u64 {
    // SAFETY: the caller's.
    let State { hash, end, flags, frames, .. } = unsafe { (*scratch).state };
    count(UnwindCounter::Stacks as u32, 1);
    count(UnwindCounter::Frames as u32, frames);
    count(end as u32 & 31, 1);
    if flags & u64::from(stack_flags::FRAME_POINTER) != 0 {
        count(UnwindCounter::FramePointerStacks as u32, 1);
    }
    let id = hash_end(hash, tgid, end as u8, flags as u8);
    let frames = if frames as usize > MAX_FRAMES { MAX_FRAMES } else { frames as usize };
    // SAFETY: the caller's; header and frames lie one after the other in the scratch (`repr(C)`,
    // asserted in `unwind`).
    unsafe { send(&raw mut (*scratch).header, frames, end as u8, flags as u8, id, tgid) };
    id
}

/// Sends a stack, header and frames, if it is new.
///
/// # Safety
/// `header` is followed by `frames` frames in a live map value that nothing else uses.
#[inline(always)]
pub unsafe fn send(
    header: *mut StackHeader,
    frames: usize,
    end: u8,
    flags: u8,
    id: u64,
    tgid: u32,
) {
    // Most stacks were seen before, and a look-up takes no lock.
    if STACKS_SEEN.get_ptr(id).is_some() {
        return;
    }
    match STACKS_SEEN.insert(id, 0, BPF_NOEXIST as u64) {
        Ok(()) => {}
        Err(error) if error == -EEXIST => return,
        // Sent at each sight: more records, but no stack lost.
        Err(_) => count(UnwindCounter::SeenTableFull as u32, 1),
    }
    // SAFETY: the caller's.
    let record = unsafe {
        *header =
            StackHeader { kind: kind::STACK, frames: frames as u16, end, flags, id, tgid, _pad: 0 };
        let bytes = size_of::<StackHeader>() + 8 * frames;
        core::slice::from_raw_parts(header.cast::<u8>(), bytes)
    };
    match RECORDS.output::<[u8]>(record, BPF_RB_NO_WAKEUP as u64) {
        Ok(()) => count(UnwindCounter::StacksSent as u32, 1),
        Err(_) => {
            count(UnwindCounter::LostRingFull as u32, 1);
            // Its next sight is to try again.
            let _ = STACKS_SEEN.remove(id);
        }
    }
}
