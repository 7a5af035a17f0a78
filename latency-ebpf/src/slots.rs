//! Numbers given out one after another, to be indices of an array. Number 0 means none.

use aya_ebpf::maps::Array;

/// No number.
pub const NONE: u32 = 0;

/// The next number that nobody has yet; [`NONE`] when there is none left. `[0]` of `allocator` holds it, and
/// how many the array has. Several CPUs may pass the check at once: the array then has no entry for
/// what the last ones get.
#[inline(always)]
pub fn next(allocator: &Array<[u32; 2]>) -> u32 {
    let Some(allocator) = allocator.get_ptr_mut(0) else { return NONE };
    // SAFETY: a map value just looked up.
    unsafe {
        let [next, slots] = *allocator;
        if next >= slots {
            return NONE;
        }
        // Not relaxed: LLVM's BPF backend makes of a relaxed one the instruction that does not
        // fetch, and takes the operand for the old value.
        core::intrinsics::atomic_xadd::<u32, u32, { core::intrinsics::AtomicOrdering::AcqRel }>(
            allocator.cast::<u32>(),
            1,
        )
    }
}
