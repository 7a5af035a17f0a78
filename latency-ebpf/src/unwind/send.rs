//! Sending each distinct stack once.

use aya_ebpf::bindings::{BPF_NOEXIST, BPF_RB_NO_WAKEUP};
use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use latency_common::record::{StackHeader, kind, stack_flags};
use latency_common::unwind::{MAX_FRAMES, UnwindCounter, hash_end};

use super::{SENT_IDS, Scratch, State, count};
use crate::calls::{RECORDS, hide};

/// Stacks seen before, by id, as [`SENDING`] or [`SENT`]; the loader sets the size.
#[map]
static STACKS_SEEN: HashMap<u64, u32> = HashMap::with_max_entries(16_384, 0);

/// Someone is about to send it, who may yet fail.
const SENDING: u32 = 0;

/// The reader has it, or is to get it.
const SENT: u32 = 1;

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
    // SAFETY: the caller's; the index is masked to the length.
    let kept = unsafe { &mut (*scratch).sent[id as usize & (SENT_IDS - 1)] };
    if *kept == id {
        return id;
    }
    // SAFETY: the caller's; header and frames lie one after the other in the scratch (`repr(C)`,
    // asserted in `unwind`).
    let header = unsafe { &raw mut (*scratch).header };
    // SAFETY: as above.
    if unsafe { send::<MAX_FRAMES>(header, frames, end as u8, flags as u8, id, tgid) } {
        *kept = id;
    }
    id
}

/// Sends a stack, header and frames, if it is new; whether the reader has it for sure.
///
/// # Safety
/// `header` is followed by room for `MOST` frames in a live map value that nothing else uses.
#[inline(always)]
pub unsafe fn send<const MOST: usize>(
    header: *mut StackHeader,
    mut frames: u64,
    end: u8,
    flags: u8,
    id: u64,
    tgid: u32,
) -> bool {
    // Most stacks were seen before, and a look-up takes no lock.
    if let Some(state) = STACKS_SEEN.get_ptr(id) {
        // SAFETY: a map value just looked up.
        return unsafe { *state } == SENT;
    }
    match STACKS_SEEN.insert(id, SENDING, BPF_NOEXIST as u64) {
        Ok(()) => {}
        Err(error) if error == -EEXIST => return false,
        // Sent at each sight: more records, but no stack lost.
        Err(_) => count(UnwindCounter::SeenTableFull as u32, 1),
    }
    // Here, and not where the compiler would like to: the verifier of Linux 6.1 takes a number that was
    // spilled before it was compared for unbounded.
    hide(&mut frames);
    let frames = if frames > MOST as u64 { MOST } else { frames as usize };
    // SAFETY: the caller's.
    let record = unsafe {
        *header =
            StackHeader { kind: kind::STACK, frames: frames as u16, end, flags, id, tgid, _pad: 0 };
        let bytes = size_of::<StackHeader>() + 8 * frames;
        core::slice::from_raw_parts(header.cast::<u8>(), bytes)
    };
    match RECORDS.output::<[u8]>(record, BPF_RB_NO_WAKEUP as u64) {
        Ok(()) => {
            count(UnwindCounter::StacksSent as u32, 1);
            if let Some(state) = STACKS_SEEN.get_ptr_mut(id) {
                // SAFETY: a map value just looked up.
                unsafe { *state = SENT };
            }
            true
        }
        Err(_) => {
            count(UnwindCounter::LostRingFull as u32, 1);
            // Its next sight is to try again.
            let _ = STACKS_SEEN.remove(id);
            false
        }
    }
}
