//! What a probe's trap costs its caller: two clocks on a function of the tracer's own.
//!
//! A program's clock runs from after the trap into the kernel at the entry to before the way back
//! at the return. The caller's runs from before to after. These programs read the clock where the
//! tracing ones do; the tracer reads it around the call, and so learns the difference.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::map;
use aya_ebpf::maps::Array;

/// When the last call was entered and when it returned, in nanoseconds of `CLOCK_MONOTONIC`.
#[map]
static TRAP_TIMES: Array<u64> = Array::with_max_entries(2, 0);

/// Notes the time of an entry.
#[inline(always)]
pub fn entered() {
    note(0);
}

/// Notes the time of a return.
#[inline(always)]
pub fn returned() {
    note(1);
}

#[inline(always)]
fn note(index: u32) {
    // SAFETY: no preconditions.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if let Some(time) = TRAP_TIMES.get_ptr_mut(index) {
        // SAFETY: a live map value, which only the tracer's one measuring thread writes.
        unsafe { *time = now_ns };
    }
}
