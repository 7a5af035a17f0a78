//! User stacks of the current task, walked by the rows that the loader compiled from `.eh_frame`.
//!
//! [`capture`] is the one way in. A stack gets an id from a hash of its frames; the frames go to the
//! reader once, as a [`kind::STACK`](latency_common::record::kind::STACK) record, and other records carry the id.

mod cache;
mod search;
mod send;

use core::ffi::c_void;
use core::ptr::read_volatile;

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_probe_read_user;
use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_loop, bpf_task_pt_regs};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, PerCpuArray};
use latency_common::record::{StackHeader, stack_flags};
use latency_common::unwind::{
    CAPTURE_CONTEXTS, CaptureContext, Chunk, MAX_FRAMES, Registers, SegmentTable, StackEnd,
    UNWIND_COUNTERS, UnwindCounter, hash_frame, step, step_frame_pointer,
};

use crate::counters::add;
use crate::{globals, return_probes};
use cache::{Place, RowCache};
use search::{find_row, find_segment};
use send::finish;
pub use send::send;

/// Rows of all files; the loader sets the size.
#[map]
pub static UNWIND_ROWS: Array<Chunk> = Array::with_max_entries(1, 0);

/// The target's executable mappings: two tables, so that one can be replaced while the other is in use.
#[map]
static UNWIND_TABLES: Array<SegmentTable> = Array::with_max_entries(2, 0);

/// `[0]`: which of `UNWIND_TABLES` is in use, counted from 1; 0: none yet.
#[map]
static UNWIND_TABLE_IN_USE: Array<u32> = Array::with_max_entries(1, 0);

/// By [`StackEnd`] and [`UnwindCounter`].
#[map]
static UNWIND_COUNTERS_BY_ID: PerCpuArray<u64> = PerCpuArray::with_max_entries(UNWIND_COUNTERS, 0);

/// One stack in the making, for each [`CaptureContext`].
#[map]
static UNWIND_SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(CAPTURE_CONTEXTS, 0);

#[repr(C)]
struct Scratch {
    /// Not 0 while in use: a uprobe program can be preempted by another on the same CPU.
    busy: u64,
    /// The innermost frame's, by DWARF number.
    registers: [u64; 16],
    state: State,
    rows: RowCache,
    /// Ids of stacks that the reader has, each in the place that its low bits name: most stacks are one of a
    /// few, and a look here touches one cache line where one into a hash table touches three.
    sent: [u64; SENT_IDS],
    /// The record as it is sent: header and frames, without a gap.
    header: StackHeader,
    frames: [u64; MAX_FRAMES],
}

/// Ids of stacks that each scratch keeps.
const SENT_IDS: usize = 64;

/// What a walk carries from frame to frame. It lies in a map, where the verifier takes every value
/// for unknown: on the stack it would follow the counts through each round of the loop, and give
/// up after a million instructions.
#[derive(Clone, Copy)]
#[repr(C)]
struct State {
    registers: Registers,
    hash: u64,
    /// Index of the segment of the frame before: most calls stay in one file.
    segment: u64,
    frames: u64,
    /// A [`StackEnd`].
    end: u64,
    /// [`stack_flags`].
    flags: u64,
    /// Whether the current address was found by the frame pointer.
    doubtful: u64,
}

/// What the loop's body is passed.
#[repr(C)]
struct Walk {
    table: *const SegmentTable,
    scratch: *mut Scratch,
}

/// Captures the current task's user stack and returns its id, 0 if there is none: then a counter
/// tells why.
///
/// `tgid` is the current process as the tracer's PID namespace numbers it. `context` says what kind
/// of program asks.
///
/// The current task must be the one whose stack is wanted: so it is in `sched_switch` (the task
/// switched out), `sched_waking` (the waker), syscall tracepoints, samples and uprobes. No lock that
/// a page fault could need may be held; memory that is not resident ends the stack.
#[inline(always)]
pub fn capture(context: CaptureContext, tgid: u32) -> u64 {
    unwind_capture(context as u32, tgid)
}

/// A global function, in the kernel's words: one that the verifier checks once, for any arguments,
/// and not again for each state in which a program calls it. Otherwise the walk would be verified
/// some twenty times over for `sched_switch` alone. It must have a name that is not mangled, and
/// only numbers as arguments.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn unwind_capture(context: u32, tgid: u32) -> u64 {
    // Before Linux 6.8, global functions are verified even if nothing calls them.
    if !globals::unwind() {
        return 0;
    }
    let Some(scratch) = UNWIND_SCRATCH.get_ptr_mut(context) else { return 0 };
    // SAFETY: a map value just looked up; the flag is only used atomically.
    let was_busy = unsafe {
        core::intrinsics::atomic_xchg::<u64, { core::intrinsics::AtomicOrdering::SeqCst }>(
            &raw mut (*scratch).busy,
            1,
        )
    };
    if was_busy != 0 {
        count(StackEnd::ScratchBusy as u32, 1);
        return 0;
    }
    // SAFETY: this CPU's scratch, which the flag makes ours.
    let id = unsafe { capture_into(scratch, tgid) };
    // SAFETY: as above.
    unsafe { core::ptr::write_volatile(&raw mut (*scratch).busy, 0) };
    id
}

/// # Safety
/// `scratch` is a live map value that nothing else uses.
#[inline(always)]
unsafe fn capture_into(scratch: *mut Scratch, tgid: u32) -> u64 {
    let in_use = UNWIND_TABLE_IN_USE.get(0).copied().unwrap_or(0);
    // Without one the index is beyond the map's end.
    let Some(table) = UNWIND_TABLES.get_ptr(in_use.wrapping_sub(1)) else {
        count(StackEnd::UnknownProcess as u32, 1);
        return 0;
    };
    // SAFETY: the caller's; the registers are the current task's.
    let Some(registers) = (unsafe { user_registers(scratch) }) else {
        count(StackEnd::NoUserRegisters as u32, 1);
        return 0;
    };
    // SAFETY: the caller's.
    unsafe {
        (*scratch).state = State {
            registers,
            hash: 0,
            segment: 0,
            frames: 0,
            end: StackEnd::FrameLimit as u64,
            flags: 0,
            doubtful: 0,
        };
    }
    let mut walk = Walk { table, scratch };
    // SAFETY: the callback takes a `Walk`, which outlives the loop. One more round than frames, to
    // tell a stack of just as many frames from a longer one.
    unsafe {
        bpf_loop(
            MAX_FRAMES as u32 + 1,
            walk_frame as *mut c_void,
            (&raw mut walk).cast::<c_void>(),
            0,
        )
    };
    // SAFETY: as above.
    unsafe { finish(scratch, tgid) }
}

/// The registers with which the current task left user mode, also copied to the scratch.
///
/// # Safety
/// As of [`capture_into`].
#[inline(always)]
unsafe fn user_registers(scratch: *mut Scratch) -> Option<Registers> {
    // SAFETY: no preconditions; the kernel keeps the registers at the top of the task's stack.
    let regs = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as *const pt_regs;
    macro_rules! read {
        // SAFETY: a typed kernel pointer, whose loads the verifier makes safe. Volatile: each
        // field must be a load of its own.
        ($register:ident) => {
            unsafe { read_volatile(&raw const (*regs).$register) }
        };
    }
    // The low two bits are the privilege level; 3 is user mode. Threads of the kernel's own (io_uring
    // workers carry the process's id) have zeros here.
    if read!(cs) & 3 != 3 {
        return None;
    }
    let registers = Registers { rip: read!(rip), rsp: read!(rsp), rbp: read!(rbp), returned_to: 0 };
    macro_rules! save {
        ($($number:literal $register:ident),*) => {
            $(
                let value = read!($register);
                // SAFETY: the caller's.
                unsafe { (*scratch).registers[$number] = value };
            )*
        };
    }
    save!(0 rax, 1 rdx, 2 rcx, 3 rbx, 4 rsi, 5 rdi, 8 r8, 9 r9, 10 r10, 11 r11, 12 r12, 13 r13);
    save!(14 r14, 15 r15);
    Some(registers)
}

/// One round of `bpf_loop`: records a frame and steps to its caller. Returns 1 to end the loop.
unsafe extern "C" fn walk_frame(_round: u64, walk: *mut Walk) -> i64 {
    // SAFETY: `bpf_loop` passes what `capture_into` gave it; both pointers are to live map values,
    // and nothing else uses the scratch.
    let (table, scratch) = unsafe { (&*(*walk).table, &mut *(*walk).scratch) };
    match next_frame(table, scratch) {
        Ok(()) => 0,
        Err(end) => {
            scratch.state.end = end as u64;
            1
        }
    }
}

#[inline(always)]
fn next_frame(table: &SegmentTable, scratch: &mut Scratch) -> Result<(), StackEnd> {
    let registers = scratch.state.registers;
    if registers.rip == 0 {
        return Err(StackEnd::NoReturnAddress);
    }
    let (row, is_known) = find(table, scratch, registers.lookup_pc());
    let frames = scratch.state.frames as usize;
    if !is_known && frames != 0 {
        // Not code that is known, and so perhaps not code: it is no frame until it is known. The
        // innermost address is always one.
        let doubtful = scratch.state.doubtful != 0;
        return Err(if doubtful { StackEnd::NoRow } else { StackEnd::UnknownMapping });
    }
    if frames >= MAX_FRAMES {
        return Err(StackEnd::FrameLimit);
    }
    scratch.frames[frames & (MAX_FRAMES - 1)] = registers.rip;
    scratch.state.hash = hash_frame(scratch.state.hash, registers.rip);
    scratch.state.frames = frames as u64 + 1;

    if !is_known {
        let (slot, rip) = match return_probes::in_trampoline(registers.rsp) {
            Some(found) => found,
            None => {
                let slot = return_probes::leaving_trampoline(registers.rip, registers.rsp)
                    .ok_or(StackEnd::UnknownMapping)?;
                (slot, read_user(slot).ok_or(StackEnd::UnknownMapping)?)
            }
        };
        count(UnwindCounter::ReturnProbeFrames as u32, 1);
        let rsp = slot.wrapping_add(8);
        scratch.state.registers = Registers { rip, rsp, rbp: registers.rbp, returned_to: 1 };
        return Ok(());
    }
    let known = &scratch.registers;
    let stepped = step(row, &registers, read_user, |number| {
        (frames == 0).then(|| known[number as usize & 15])
    });
    let mut next = match stepped {
        Err(StackEnd::NoRow | StackEnd::UnsupportedRule) => {
            scratch.state.doubtful = 1;
            scratch.state.flags |= u64::from(stack_flags::FRAME_POINTER);
            step_frame_pointer(&registers, read_user)?
        }
        other => {
            scratch.state.doubtful = 0;
            other?
        }
    };
    // The trampoline of return probes starts a page.
    if next.rip & 0xfff == 0 && next.returned_to != 0 {
        let address = return_probes::original(next.rsp.wrapping_sub(8));
        if address != 0 {
            next.rip = address;
            count(UnwindCounter::ReturnProbeFrames as u32, 1);
        }
    }
    scratch.state.registers = next;
    Ok(())
}

/// One word at a time, though a read of many costs hardly more: nothing but addresses is to leave
/// the stack, on which there may be keys.
#[inline(always)]
fn read_user(address: u64) -> Option<u64> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_user(address as *const u64) }.ok()
}

/// The row for an address, and whether the address is in memory that is known.
#[inline(always)]
fn find(table: &SegmentTable, scratch: &mut Scratch, pc: u64) -> (u64, bool) {
    let Some(place) = Place::of(table.generation, pc) else { return (0, false) };
    if let Some(row) = scratch.rows.get(place) {
        return (row, true);
    }
    let (segment, offset) = find_segment(table, &mut scratch.state.segment, pc);
    if offset >= u64::from(segment.length) {
        return (0, false);
    }
    let row = find_row(segment, segment.pc.wrapping_add(offset as u32));
    scratch.rows.set(place, row);
    (row, true)
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Scratch, frames) == offset_of!(Scratch, header) + size_of::<StackHeader>());
    assert!(MAX_FRAMES.is_power_of_two());
    assert!(SENT_IDS.is_power_of_two());
};

#[inline(always)]
fn count(id: u32, amount: u64) {
    if let Some(cell) = UNWIND_COUNTERS_BY_ID.get_ptr_mut(id) {
        // SAFETY: a map value just looked up.
        unsafe { add(cell, amount) };
    }
}
