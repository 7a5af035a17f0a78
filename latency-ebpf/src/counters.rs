//! Event counters: per CPU, and added to atomically, since a uprobe program can be preempted
//! between reading and writing.

use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use latency_common::counter::Counter;

/// Counts by [`Counter`].
#[map]
static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Counter::COUNT, 0);

/// Entries seen by each probe of the plan; the loader sets the size.
#[map]
static PROBE_HITS: PerCpuArray<u64> = PerCpuArray::with_max_entries(64, 0);

/// Adds `amount` to `*cell`, which other programs on this CPU may be adding to as well.
///
/// # Safety
/// `cell` points to a live map value.
#[inline(always)]
pub unsafe fn add(cell: *mut u64, amount: u64) {
    // SAFETY: the caller's.
    unsafe {
        core::intrinsics::atomic_xadd::<u64, u64, { core::intrinsics::AtomicOrdering::Relaxed }>(
            cell, amount,
        )
    };
}

/// Counts one event.
#[inline(always)]
pub fn count(counter: Counter) {
    if let Some(cell) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: a map value just looked up.
        unsafe { add(cell, 1) };
    }
}

/// Counts one entry of a probe.
#[inline(always)]
pub fn hit(probe: u16) {
    if let Some(cell) = PROBE_HITS.get_ptr_mut(u32::from(probe)) {
        // SAFETY: a map value just looked up.
        unsafe { add(cell, 1) };
    }
}
