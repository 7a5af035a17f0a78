//! Samples of the target's threads on the CPU.
//!
//! The event is one a CPU, not one a thread: it sees threads that start later without a race, costs
//! nothing at a context switch, and needs one descriptor a CPU however many threads there are. For
//! all other tasks its price is a tick's interrupt with one comparison in it.
//!
//! The program runs in the interrupt of a timer, or in an NMI where the event counts cycles, on top of
//! any other program of this CPU: it keeps scratch memory of its own, and writes to nothing that the
//! others write but counters, the ring buffer, and the hints of [`threads`], which are made for it.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::{BPF_RB_NO_WAKEUP, bpf_perf_event_data};
use aya_ebpf::helpers::generated::bpf_get_stack;
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_probe_read_user};
use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use aya_ebpf::programs::PerfEventContext;
use latency_common::counter::Counter;
use latency_common::probe::ProbeCookie;
use latency_common::record::{StackHeader, kind, stack_flags};
use latency_common::sample::{MAX_KERNEL_FRAMES, SampleRecord, is_at_pause, sample_flag};
use latency_common::unwind::{CaptureContext, StackEnd, hash_end, hash_frame};

use crate::calls::{RECORDS, is_taking};
use crate::counters::count;
use crate::identity::Current;
use crate::{globals, threads, unwind};

/// A kernel stack in the making.
#[map]
static KERNEL_SCRATCH: PerCpuArray<KernelScratch> = PerCpuArray::with_max_entries(1, 0);

/// The record as it is sent.
#[repr(C)]
struct KernelScratch {
    header: StackHeader,
    frames: [u64; MAX_KERNEL_FRAMES],
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(KernelScratch, frames) == size_of::<StackHeader>());
};

/// The clock of this CPU ticks, on top of the current task.
#[inline(always)]
pub fn sample(ctx: &PerfEventContext) {
    let Some(current) = Current::in_target() else { return };
    if !is_taking() {
        return;
    }
    count(Counter::Samples);
    let mut record = SampleRecord {
        kind: kind::SAMPLE,
        // SAFETY: no preconditions.
        time_ns: unsafe { bpf_ktime_get_ns() },
        tgid: current.tgid,
        tid: current.tid,
        ..SampleRecord::default()
    };
    if let Some(thread) = threads::get(current.kernel_tid()) {
        // SAFETY: a live map value of the thread that runs below this program; what is half written
        // of it has no start yet, or none any more.
        let (call, request) = unsafe { (&(*thread).call, &(*thread).request) };
        let (open, flags) = if call.start_ns != 0 || !globals::requests() {
            (call, sample_flag::IN_OPERATION)
        } else {
            (request, sample_flag::IN_OPERATION | sample_flag::IN_REQUEST)
        };
        if open.start_ns != 0 {
            let described = ProbeCookie::unpack(open.cookie);
            record.flags |= flags;
            record.operation = described.operation;
            record.probe = described.probe;
            record.operation_start_ns = open.start_ns;
        }
    }
    // Where the tick hit the kernel, the user stack is walked from the registers that the task
    // entered it with, as at a switch.
    record.stack_id = unwind::capture(CaptureContext::Sample, current.tgid);
    if hit_kernel(ctx) {
        record.flags |= sample_flag::KERNEL;
        record.kernel_stack_id = kernel_stack(ctx, current.tgid);
    } else if spins(ctx) {
        record.flags |= sample_flag::PAUSE;
    }
    match RECORDS.reserve::<SampleRecord>(0) {
        Some(mut entry) => {
            entry.write(record);
            entry.submit(BPF_RB_NO_WAKEUP.into());
        }
        None => count(Counter::LostSampleRecords),
    }
}

/// Whether the tick interrupted the kernel: the low two bits of `cs` are the privilege level.
#[inline(always)]
fn hit_kernel(ctx: &PerfEventContext) -> bool {
    let data = ctx.as_ptr().cast::<bpf_perf_event_data>();
    // SAFETY: the context is the kernel's; volatile, so that the load keeps its constant offset.
    unsafe { core::ptr::read_volatile(&raw const (*data).regs.cs) & 3 == 0 }
}

/// Whether the tick interrupted a `pause`. Reads code, 4 bytes of it.
#[inline(always)]
fn spins(ctx: &PerfEventContext) -> bool {
    let data = ctx.as_ptr().cast::<bpf_perf_event_data>();
    // SAFETY: as above; the helper checks the address.
    unsafe {
        let rip = core::ptr::read_volatile(&raw const (*data).regs.rip);
        bpf_probe_read_user(rip.wrapping_sub(2) as *const u32).is_ok_and(is_at_pause)
    }
}

/// Sends the kernel's part of the stack, if it is new, and returns its id; 0 if there is none.
#[inline(always)]
fn kernel_stack(ctx: &PerfEventContext, tgid: u32) -> u64 {
    let Some(scratch) = KERNEL_SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: this CPU's scratch; the kernel does not let one perf event program interrupt another.
    unsafe {
        let frames = &raw mut (*scratch).frames;
        let room = size_of::<[u64; MAX_KERNEL_FRAMES]>() as u32;
        let bytes = bpf_get_stack(ctx.as_ptr(), frames.cast(), room, 0);
        if bytes < 8 {
            return 0;
        }
        let found = (bytes as usize / 8).min(MAX_KERNEL_FRAMES);
        let mut hash = 0;
        for at in 0..MAX_KERNEL_FRAMES {
            if at >= found {
                break;
            }
            hash = hash_frame(hash, (*frames)[at]);
        }
        let end = if found < MAX_KERNEL_FRAMES { StackEnd::Complete } else { StackEnd::FrameLimit };
        // The same code of the kernel is the same stack in every process.
        let id = hash_end(hash, 0, end as u8, stack_flags::KERNEL);
        unwind::send::<MAX_KERNEL_FRAMES>(
            &raw mut (*scratch).header,
            found as u64,
            end as u8,
            stack_flags::KERNEL,
            id,
            tgid,
        );
        id
    }
}
