//! The log-linear histogram of the kernel's, for the operations whose records are lost.
//!
//! Values below 64 ns have a bucket each; above, each power of two is split into 64 equal buckets,
//! so that a bucket is at most 1/64 of its value wide and its midpoint is off by at most 0.8 %.

/// log2 of the number of buckets per power of two.
const SUB_BUCKET_BITS: u32 = 6;
const SUB_BUCKETS: u64 = 1 << SUB_BUCKET_BITS;
/// Values of 2^38 ns (275 s) and more share the last bucket.
const VALUE_BITS: u32 = 38;

/// Number of buckets.
pub const BUCKETS: usize =
    (((VALUE_BITS - SUB_BUCKET_BITS) as u64 * SUB_BUCKETS) + SUB_BUCKETS) as usize;

/// The largest value, in nanoseconds, with a bucket of its own width.
pub const MAX_VALUE_NS: u64 = (1 << VALUE_BITS) - 1;

/// One histogram on one CPU, as it lies in the `HISTOGRAMS` map.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct KernelHistogram {
    /// Sum of all values, in nanoseconds; wraps.
    pub sum_ns: u64,
    /// The largest value, in nanoseconds.
    pub max_ns: u64,
    /// Count per bucket, see [`bucket_of`].
    pub buckets: [u64; BUCKETS],
}

const _: () = assert!(size_of::<KernelHistogram>() == 16 + 8 * BUCKETS);
// The kernel refuses per-CPU values over PCPU_MIN_UNIT_SIZE, 32 KiB.
const _: () = assert!(size_of::<KernelHistogram>() <= 32 << 10);

/// The bucket that counts `value_ns`; always below [`BUCKETS`].
#[inline(always)]
pub const fn bucket_of(value_ns: u64) -> usize {
    let value = if value_ns > MAX_VALUE_NS { MAX_VALUE_NS } else { value_ns };
    if value < SUB_BUCKETS {
        return value as usize;
    }
    let shift = (63 - value.leading_zeros()) - SUB_BUCKET_BITS;
    (((shift as u64) << SUB_BUCKET_BITS) + (value >> shift)) as usize
}

/// The lowest and highest value, in nanoseconds, that `bucket` counts; the last bucket for any
/// index beyond it.
pub const fn bounds_of(bucket: usize) -> (u64, u64) {
    let bucket = if bucket >= BUCKETS { BUCKETS - 1 } else { bucket } as u64;
    if bucket < 2 * SUB_BUCKETS {
        return (bucket, bucket);
    }
    let shift = (bucket >> SUB_BUCKET_BITS) - 1;
    let low = (bucket - (shift << SUB_BUCKET_BITS)) << shift;
    (low, low + (1 << shift) - 1)
}

/// The value, in nanoseconds, that stands for everything in `bucket`: its midpoint.
pub const fn midpoint_of(bucket: usize) -> u64 {
    let (low, high) = bounds_of(bucket);
    low + (high - low) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that buckets tile the values without gap or overlap.
    #[test]
    fn buckets_tile() {
        let mut next = 0;
        for bucket in 0..BUCKETS {
            let (low, high) = bounds_of(bucket);
            assert_eq!(low, next, "bucket {bucket}");
            assert_eq!(bucket_of(low), bucket);
            assert_eq!(bucket_of(high), bucket);
            next = high + 1;
        }
        assert_eq!(next, MAX_VALUE_NS + 1);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    proptest::proptest! {
        /// Check that a bucket's midpoint is within 0.8 % of every value in it.
        #[test]
        fn relative_error(value in 0..=MAX_VALUE_NS) {
            let error = midpoint_of(bucket_of(value)).abs_diff(value) as f64;
            assert!(error <= value as f64 * 0.008, "{value}: {error}");
        }

        /// Check that any value and any index are taken.
        #[test]
        fn total(value: u64, bucket: usize) {
            assert!(bucket_of(value) < BUCKETS);
            let (low, high) = bounds_of(bucket);
            assert!(low <= high);
        }
    }
}
