//! Counting in the kernel what the ring buffer cannot take, so that percentiles survive any loss of
//! records.

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, PerCpuArray};
use latency_common::counter::Counter;
use latency_common::histogram::{BUCKETS, KernelHistogram, bucket_of};

use crate::counters::{add, count};
use crate::slots;

/// One histogram a slot; the loader sets the size. Slot 0 takes what finds no slot of its own.
#[map]
static HISTOGRAMS: PerCpuArray<KernelHistogram> = PerCpuArray::with_max_entries(64, 0);

/// [`SlotKey`] → slot. The same size as `HISTOGRAMS`.
#[map]
static HISTOGRAM_SLOTS: HashMap<u64, u32> = HashMap::with_max_entries(64, 0);

/// The next free slot, and how many there are; the loader sets both.
#[map]
static SLOT_ALLOCATOR: Array<[u32; 2]> = Array::with_max_entries(1, 0);

/// Counts an operation of `duration_ns` whose record the ring buffer had no room for; `key` is a packed
/// [`SlotKey`]. A function of its own: it is seldom called.
///
/// [`SlotKey`]: latency_common::record::SlotKey
#[inline(never)]
pub fn lost(key: u64, duration_ns: u64) {
    let slot = find_slot(key);
    if slot == slots::NONE {
        count(Counter::HistogramTableFull);
    }
    if let Some(histogram) = HISTOGRAMS.get_ptr_mut(slot) {
        add_to(histogram, duration_ns);
    }
    // Last: the reader looks at the counters first, and must find what they count.
    count(Counter::LostRingFull);
}

#[inline(always)]
fn add_to(histogram: *mut KernelHistogram, duration_ns: u64) {
    let bucket = core::hint::black_box(bucket_of(duration_ns));
    if bucket >= BUCKETS {
        return;
    }
    // SAFETY: a live map value; the bucket is inside it.
    unsafe {
        add((&raw mut (*histogram).buckets).cast::<u64>().add(bucket), 1);
        add(&raw mut (*histogram).sum_ns, duration_ns);
        // Two programs that race here may keep the smaller of two maxima; only the maximum of a
        // trace with lost records comes from here.
        if (*histogram).max_ns < duration_ns {
            (*histogram).max_ns = duration_ns;
        }
    }
}

/// The slot of a packed key; [`slots::NONE`], which has a histogram for the rest, when there is none left.
#[inline(always)]
fn find_slot(key: u64) -> u32 {
    // SAFETY: values are plain integers, never deleted.
    if let Some(slot) = unsafe { HISTOGRAM_SLOTS.get(key) } {
        return *slot;
    }
    let slot = slots::next(&SLOT_ALLOCATOR);
    if slot == slots::NONE {
        return slots::NONE;
    }
    // Another CPU may have been first: then its slot counts, and ours stays empty.
    let _ = HISTOGRAM_SLOTS.insert(key, slot, BPF_NOEXIST as u64);
    // SAFETY: as above.
    unsafe { HISTOGRAM_SLOTS.get(key) }.copied().unwrap_or(0)
}
