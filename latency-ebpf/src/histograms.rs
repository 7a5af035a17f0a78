//! Counting every operation in the kernel, so that percentiles survive any loss of records.

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, PerCpuArray};
use latency_common::counter::Counter;
use latency_common::histogram::{BUCKETS, KernelHistogram, bucket_of};
use latency_common::record::SlotKey;

use crate::counters::{add, count};
use crate::slots;

/// One histogram a slot; the loader sets the size. Slot 0 takes what finds no slot of its own.
#[map]
static HISTOGRAMS: PerCpuArray<KernelHistogram> = PerCpuArray::with_max_entries(64, 0);

/// [`SlotKey`] → slot. The same size as `HISTOGRAMS`.
#[map]
static HISTOGRAM_SLOTS: HashMap<u64, u32> = HashMap::with_max_entries(64, 0);

/// The slots found last, by a hash of their key: key and slot in one word. A look into a hash table
/// takes some 60 ns of every operation.
static mut RECENT_HISTOGRAMS: [u64; 1 << RECENT_BITS] = [0; 1 << RECENT_BITS];
const RECENT_BITS: u32 = 6;

/// 2^64 divided by the golden ratio: the top bits of a product with it are a hash.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// The next free slot, and how many there are; the loader sets both.
#[map]
static SLOT_ALLOCATOR: Array<[u32; 2]> = Array::with_max_entries(1, 0);

/// The histogram that counts operations of `key` on this CPU.
#[inline(always)]
pub fn find(key: SlotKey) -> Option<*mut KernelHistogram> {
    let slot = slot_of(key);
    if slot == 0 {
        count(Counter::HistogramTableFull);
    }
    HISTOGRAMS.get_ptr_mut(slot)
}

/// Brings what [`add_to`] is going to write into the cache, should the operation take as long as the
/// last one did: after milliseconds of bignum arithmetic it is not there, and a miss after the clock
/// was read would be time that the caller sees and the duration does not have.
#[inline(always)]
pub fn warm(histogram: *mut KernelHistogram) {
    // SAFETY: a live map value.
    let bucket = unsafe { (&raw const (*histogram).last_bucket).read_volatile() } as usize;
    if bucket >= BUCKETS {
        return;
    }
    // SAFETY: as above; the bucket is inside it.
    unsafe { (&raw const (*histogram).buckets).cast::<u64>().add(bucket).read_volatile() };
}

/// Counts one operation of `duration_ns` in a histogram that [`find`] found.
#[inline(always)]
pub fn add_to(histogram: *mut KernelHistogram, duration_ns: u64) {
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
        (*histogram).last_bucket = bucket as u64;
    }
}

#[inline(always)]
fn slot_of(key: SlotKey) -> u32 {
    let key = key.pack();
    let hash = key.wrapping_mul(GOLDEN_RATIO) >> (u64::BITS - RECENT_BITS);
    // SAFETY: inside the table.
    let recent = unsafe { (&raw mut RECENT_HISTOGRAMS).cast::<u64>().add(hash as usize) };
    // SAFETY: one load, which no other CPU can come between.
    let (found, slot) = SlotKey::without_slot(unsafe { recent.read_volatile() });
    if found == key && slot != 0 {
        return slot;
    }
    let slot = find_slot(key);
    // SAFETY: one store, likewise.
    unsafe { recent.write_volatile(SlotKey::with_slot(key, slot)) };
    slot
}

/// A function of its own: it is seldom called.
#[inline(never)]
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
