//! Sums kept per bucket of duration, with memory only for the durations that occur.

use latency_common::histogram::{BUCKETS, bucket_of};

/// Buckets of one power of two.
const PAGE: usize = 64;
const PAGES: usize = BUCKETS.div_ceil(PAGE);

/// A value for each bucket of [`latency_common::histogram`]. The buckets of a power of two are made
/// when the first of them is used, so that taking a value allocates at most 33 times in all.
#[derive(Clone, Debug)]
pub(super) struct Buckets<T> {
    pages: [Option<Box<[T; PAGE]>>; PAGES],
}

impl<T> Default for Buckets<T> {
    fn default() -> Self {
        Self { pages: [const { None }; PAGES] }
    }
}

impl<T: Copy + Default> Buckets<T> {
    /// The bucket of this duration in nanoseconds.
    #[inline]
    pub(super) fn at(&mut self, duration_ns: u64) -> &mut T {
        let bucket = bucket_of(duration_ns);
        let page = self.pages[bucket / PAGE].get_or_insert_with(|| Box::new([T::default(); PAGE]));
        &mut page[bucket % PAGE]
    }

    /// Number and value of the buckets, ascending; those of powers of two that never occurred are
    /// left out.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.pages.iter().enumerate().flat_map(|(page, values)| {
            let values = values.iter().flat_map(|values| values.iter());
            values.enumerate().map(move |(at, value)| (page * PAGE + at, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that the smallest and the largest duration have a bucket, and that they come in order.
    #[test]
    fn extremes() {
        let mut buckets = Buckets::<u64>::default();
        for duration_ns in [u64::MAX, 1 << 20, 0, u64::MAX] {
            *buckets.at(duration_ns) += 1;
        }
        let used: Vec<(usize, u64)> = buckets
            .iter()
            .filter(|bucket| *bucket.1 > 0)
            .map(|(bucket, &count)| (bucket, count))
            .collect();
        assert_eq!(used, [(0, 1), (bucket_of(1 << 20), 1), (BUCKETS - 1, 2)]);
    }
}
