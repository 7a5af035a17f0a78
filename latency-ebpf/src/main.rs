//! The eBPF programs: small entry points over the functions of the modules, whose arithmetic and
//! state transitions live in `latency-common` and are tested there.
//!
//! Uprobe programs can be preempted by one another on the same CPU: nothing here keeps scratch
//! data in per-CPU memory, and shared counters are only added to atomically.
#![no_std]
#![no_main]
#![feature(core_intrinsics, asm_experimental_arch)]
#![allow(internal_features)]

mod calls;
mod counters;
mod globals;
mod histograms;
mod identity;
mod profile;
mod requests;
mod return_probes;
mod sched;
mod slots;
mod task;
mod threads;
mod trap;
mod unwind;

use core::ffi::c_void;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_get_func_ip};
use aya_ebpf::macros::{btf_tracepoint, perf_event, raw_tracepoint, uprobe, uretprobe};
use aya_ebpf::programs::{
    BtfTracePointContext, PerfEventContext, ProbeContext, RawTracePointContext, RetProbeContext,
};

/// Entry of a probed function.
#[uprobe]
pub fn call_entry(ctx: ProbeContext) -> u32 {
    // SAFETY: the context is the kernel's, valid for this program's run.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    calls::enter(&ctx, ctx.regs, cookie);
    0
}

/// Return of a probed function.
#[uretprobe]
pub fn call_return(ctx: RetProbeContext) -> u32 {
    // SAFETY: as above.
    calls::leave(&ctx, ctx.regs, || unsafe { bpf_get_attach_cookie(ctx.as_ptr()) });
    0
}

/// Both, where the kernel has uprobe sessions: one program sees the entry and the return, and
/// returning 1 from the entry spares a nested call its return probe. Without the attribute
/// `uprobe`, whose program returns 0 whatever its function does.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub fn call_session(ctx: *mut c_void) -> u32 {
    let ctx = ProbeContext::new(ctx);
    // SAFETY: as above; `regs` points to the kernel's copy of the registers.
    let (function_ip, ip) = unsafe { (bpf_get_func_ip(ctx.as_ptr()), (*ctx.regs).rip) };
    // SAFETY: as above.
    let cookie = || unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    if function_ip != ip {
        calls::leave(&ctx, ctx.regs, cookie);
        return 0;
    }
    calls::enter(&ctx, ctx.regs, cookie()) as u32
}

/// Entry of the tracer's own function that [`trap`] is about.
#[uprobe]
pub fn trap_entry(_ctx: ProbeContext) -> u32 {
    trap::entered();
    0
}

/// Its return.
#[uretprobe]
pub fn trap_return(_ctx: RetProbeContext) -> u32 {
    trap::returned();
    0
}

/// Both, as for [`call_session`].
#[uprobe]
pub fn trap_session(ctx: ProbeContext) -> u32 {
    // SAFETY: as for [`call_session`].
    let (function_ip, ip) = unsafe { (bpf_get_func_ip(ctx.as_ptr()), (*ctx.regs).rip) };
    if function_ip == ip {
        trap::entered()
    } else {
        trap::returned()
    }
    0
}

/// A thread ends: forget its open call.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn thread_exit(_ctx: RawTracePointContext) -> i32 {
    calls::forget_thread();
    0
}

/// A CPU switches from one task to another.
#[btf_tracepoint(function = "sched_switch")]
pub fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    sched::switch(&ctx);
    0
}

/// A task is about to be made runnable.
#[btf_tracepoint(function = "sched_waking")]
pub fn sched_waking(ctx: BtfTracePointContext) -> i32 {
    sched::waking(&ctx);
    0
}

/// The clock of a CPU ticks.
#[perf_event]
pub fn on_cpu_sample(ctx: PerfEventContext) -> u32 {
    profile::sample(&ctx);
    0
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    // SAFETY: nothing here can panic; the verifier refuses a program that could get here.
    unsafe { core::hint::unreachable_unchecked() }
}

/// Tracing needs helpers that the kernel gives to GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
