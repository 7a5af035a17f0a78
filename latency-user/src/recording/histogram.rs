//! Latency histograms: a dense one to count into, and a sparse one to keep, merge and store.
//!
//! Both use the buckets of HdrHistogram with three significant digits: a value below 2,048 ns has a
//! bucket of its own, above that a bucket is at most 1/1024 of its value wide.

use hdrhistogram::Histogram;
use latency_common::histogram::{BUCKETS, bounds_of, midpoint_of};
use serde::{Deserialize, Serialize};

/// The largest value with a bucket of its own, in nanoseconds (18 minutes). Larger values are
/// counted in the last bucket and under [`SparseHistogram::clamped`].
pub const MAX_TRACKABLE_NS: u64 = (1 << 40) - 1;

/// More buckets than any histogram of ours has.
const MAX_BUCKETS: usize = 32 << 10;

/// A histogram to count into: takes any value, never panics, never loses a count.
#[derive(Clone, Debug)]
pub struct DenseHistogram {
    buckets: Histogram<u64>,
    sum_ns: u64,
    min_ns: u64,
    max_ns: u64,
    clamped: u64,
}

impl Default for DenseHistogram {
    fn default() -> Self {
        Self {
            // Grows with the largest value seen, so that a microsecond function costs little.
            buckets: Histogram::new(3).expect("three digits are within HdrHistogram's 0 to 5"),
            sum_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
            clamped: 0,
        }
    }
}

impl DenseHistogram {
    /// Counts one value, in nanoseconds.
    #[inline]
    pub fn record(&mut self, value_ns: u64) {
        let value = if value_ns > MAX_TRACKABLE_NS {
            self.clamped = self.clamped.saturating_add(1);
            MAX_TRACKABLE_NS
        } else {
            value_ns
        };
        if self.buckets.record(value).is_err() {
            self.buckets.saturating_record(value);
        }
        self.sum_ns = self.sum_ns.saturating_add(value_ns);
        self.min_ns = self.min_ns.min(value_ns);
        self.max_ns = self.max_ns.max(value_ns);
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.buckets.len()
    }

    /// The histogram so far, in its sparse form.
    pub fn to_sparse(&self) -> SparseHistogram {
        if self.count() == 0 {
            return SparseHistogram::default();
        }
        let buckets = self
            .buckets
            .iter_recorded()
            .map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()))
            .collect();
        SparseHistogram {
            count: self.count(),
            sum_ns: self.sum_ns,
            min_ns: self.min_ns,
            max_ns: self.max_ns,
            clamped: self.clamped,
            buckets,
        }
    }

    /// Gives the sparse form and starts again from nothing, with the memory it has.
    pub fn take(&mut self) -> SparseHistogram {
        let sparse = self.to_sparse();
        self.buckets.reset();
        (self.sum_ns, self.min_ns, self.max_ns, self.clamped) = (0, u64::MAX, 0, 0);
        sparse
    }
}

/// A histogram as it is kept: only the buckets that counted something.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "UncheckedHistogram")]
pub struct SparseHistogram {
    /// How many values were counted.
    pub count: u64,
    /// The exact sum of all values, in nanoseconds; stays at 2^64 - 1 when it gets there.
    pub sum_ns: u64,
    /// The smallest value, in nanoseconds; 0 when nothing was counted. Exact for a histogram of
    /// records, the lower bound of the first bucket for one of the kernel.
    pub min_ns: u64,
    /// The exact largest value, in nanoseconds; 0 when nothing was counted.
    pub max_ns: u64,
    /// How many values were beyond [`MAX_TRACKABLE_NS`] and are counted in the last bucket.
    pub clamped: u64,
    /// Value in nanoseconds and count, ascending. The value is the highest of the bucket for a
    /// histogram of records, and the bucket's midpoint for one of the kernel.
    pub buckets: Vec<(u64, u64)>,
}

impl SparseHistogram {
    /// Takes a histogram of the kernel: the sum and the largest value in nanoseconds, and a count
    /// for each bucket of [`latency_common::histogram`].
    pub fn from_kernel(sum_ns: u64, max_ns: u64, counts: &[u64]) -> Self {
        let mut histogram = Self::default();
        for (bucket, &count) in counts.iter().take(BUCKETS).enumerate() {
            if count == 0 {
                continue;
            }
            if histogram.count == 0 {
                histogram.min_ns = bounds_of(bucket).0;
            }
            histogram.count = histogram.count.saturating_add(count);
            histogram.buckets.push((midpoint_of(bucket), count));
        }
        if histogram.count != 0 {
            histogram.sum_ns = sum_ns;
            // The counts are read while the programs may still run: keep the two consistent.
            histogram.max_ns = max_ns.max(histogram.min_ns);
        }
        histogram
    }

    /// Replaces every value by another, in nanoseconds; `map` must rise with its argument, so that
    /// buckets stay in order.
    pub fn map_values(&mut self, map: impl Fn(u64) -> u64) {
        if self.is_empty() {
            return;
        }
        self.min_ns = map(self.min_ns);
        self.max_ns = map(self.max_ns);
        for (value_ns, count) in &mut self.buckets {
            let mapped_ns = map(*value_ns);
            let more_ns = mapped_ns.saturating_sub(*value_ns).saturating_mul(*count);
            self.sum_ns = self.sum_ns.saturating_add(more_ns);
            *value_ns = mapped_ns;
        }
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Counts one value, in nanoseconds, as [`DenseHistogram::record`] would. Slower: for values
    /// that come late.
    pub fn record(&mut self, value_ns: u64) {
        let value = highest_equivalent(value_ns.min(MAX_TRACKABLE_NS));
        let one = Self {
            count: 1,
            sum_ns: value_ns,
            min_ns: value_ns,
            max_ns: value_ns,
            clamped: u64::from(value_ns > MAX_TRACKABLE_NS),
            buckets: vec![(value, 1)],
        };
        self.merge(&one);
    }

    /// Adds the values of another histogram of the same kind.
    pub fn merge(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        self.min_ns = if self.is_empty() { other.min_ns } else { self.min_ns.min(other.min_ns) };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.count = self.count.saturating_add(other.count);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.clamped = self.clamped.saturating_add(other.clamped);
        // One bucket, and it exists already: the case of a late value, without any allocation.
        if let [(value, count)] = other.buckets[..] {
            match self.buckets.binary_search_by_key(&value, |bucket| bucket.0) {
                Ok(at) => self.buckets[at].1 = self.buckets[at].1.saturating_add(count),
                Err(at) => self.buckets.insert(at, (value, count)),
            }
            return;
        }
        let mut merged = Vec::with_capacity(self.buckets.len() + other.buckets.len());
        let (mut left, mut right) = (self.buckets.iter().peekable(), other.buckets.iter());
        for &(value, count) in right.by_ref() {
            while let Some(&&bucket) = left.peek().filter(|bucket| bucket.0 < value) {
                merged.push(bucket);
                left.next();
            }
            match left.peek() {
                Some(&&(same, more)) if same == value => {
                    merged.push((value, count.saturating_add(more)));
                    left.next();
                }
                _ => merged.push((value, count)),
            }
        }
        merged.extend(left);
        merged.shrink_to_fit();
        self.buckets = merged;
    }

    /// The value, in nanoseconds, at this quantile in thousandths, by nearest rank: the smallest
    /// counted value that at least so many thousandths of all values do not exceed. `None` when
    /// nothing was counted.
    pub fn value_at(&self, thousandths: u32) -> Option<u64> {
        let wanted = u128::from(self.count) * u128::from(thousandths.min(1000));
        let rank = wanted.div_ceil(1000).max(1);
        let mut seen = 0u128;
        for &(value, count) in &self.buckets {
            seen += u128::from(count);
            if seen >= rank {
                return Some(value.clamp(self.min_ns, self.max_ns));
            }
        }
        None
    }

    /// The mean in nanoseconds, rounded; `None` when nothing was counted.
    pub fn mean_ns(&self) -> Option<u64> {
        let half = self.count / 2;
        let sum = u128::from(self.sum_ns) + u128::from(half);
        sum.checked_div(u128::from(self.count)).and_then(|mean| u64::try_from(mean).ok())
    }

    /// The largest value in nanoseconds; `None` when nothing was counted.
    pub fn max(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.max_ns)
    }

    /// The same counts as a `hdrhistogram` value, for its serializers.
    pub fn to_hdr(&self) -> Histogram<u64> {
        let mut histogram = DenseHistogram::default().buckets;
        for &(value, count) in &self.buckets {
            let value = value.min(MAX_TRACKABLE_NS);
            if histogram.record_n(value, count).is_err() {
                histogram.saturating_record_n(value, count);
            }
        }
        histogram
    }
}

/// The highest value, in nanoseconds, of the HdrHistogram bucket that counts `value_ns`.
fn highest_equivalent(value_ns: u64) -> u64 {
    // 2048 sub-buckets, of which the upper 1024 are in use from the second power of two on.
    let shift = value_ns.checked_ilog2().unwrap_or(0).saturating_sub(10);
    value_ns | ((1 << shift) - 1)
}

/// A [`SparseHistogram`] as it was read, before it is believed.
#[derive(Deserialize)]
struct UncheckedHistogram {
    count: u64,
    sum_ns: u64,
    min_ns: u64,
    max_ns: u64,
    clamped: u64,
    #[serde(deserialize_with = "super::capped::vec::<MAX_BUCKETS, _, _>")]
    buckets: Vec<(u64, u64)>,
}

impl TryFrom<UncheckedHistogram> for SparseHistogram {
    type Error = &'static str;

    fn try_from(read: UncheckedHistogram) -> Result<Self, Self::Error> {
        let UncheckedHistogram { count, sum_ns, min_ns, max_ns, clamped, buckets } = read;
        let mut total = 0u64;
        let mut last = None;
        for &(value, n) in &buckets {
            if last.is_some_and(|last| last >= value) {
                return Err("the buckets of a histogram are not in ascending order");
            }
            if n == 0 || value > MAX_TRACKABLE_NS {
                return Err("a bucket of a histogram is out of range");
            }
            total = total.checked_add(n).ok_or("the counts of a histogram overflow")?;
            last = Some(value);
        }
        if total != count || clamped > count || min_ns > max_ns {
            return Err("the totals of a histogram contradict its buckets");
        }
        if count == 0 && (sum_ns, max_ns) != (0, 0) {
            return Err("an empty histogram claims to hold values");
        }
        Ok(Self { count, sum_ns, min_ns, max_ns, clamped, buckets })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};

    use super::*;

    fn dense(values: &[u64]) -> DenseHistogram {
        let mut histogram = DenseHistogram::default();
        values.iter().for_each(|&value| histogram.record(value));
        histogram
    }

    /// Check that the ends of the range are counted, and that what lies beyond shows as clamped.
    #[test]
    fn extremes() {
        let histogram = dense(&[0, 1, MAX_TRACKABLE_NS, MAX_TRACKABLE_NS + 1, u64::MAX]).take();
        assert_eq!((histogram.count, histogram.clamped), (5, 2));
        assert_eq!((histogram.min_ns, histogram.max_ns, histogram.sum_ns), (0, u64::MAX, u64::MAX));
        assert_eq!(histogram.value_at(200), Some(0));
        assert_eq!(histogram.value_at(1000), Some(MAX_TRACKABLE_NS));
        assert_eq!(SparseHistogram::default().value_at(500), None);
        assert_eq!(SparseHistogram::default().mean_ns(), None);
    }

    /// Check nearest-rank percentiles against a worked example.
    #[test]
    fn nearest_rank() {
        let histogram = dense(&(1..=1000).collect::<Vec<_>>()).to_sparse();
        for (thousandths, expected) in [(0, 1), (500, 500), (900, 900), (990, 990), (999, 999)] {
            assert_eq!(histogram.value_at(thousandths), Some(expected));
        }
        let three = dense(&[10, 20, 30]).to_sparse();
        assert_eq!(three.value_at(500), Some(20), "ceil(1.5) = 2nd");
        assert_eq!(three.value_at(990), Some(30));
        assert_eq!(three.mean_ns(), Some(20));
    }

    /// Check that a kernel histogram gives midpoints, and its exact maximum.
    #[test]
    fn kernel() {
        let mut counts = vec![0; BUCKETS + 7];
        counts[latency_common::histogram::bucket_of(30_000)] = 99;
        counts[latency_common::histogram::bucket_of(1_000_000)] = 1;
        let histogram = SparseHistogram::from_kernel(3_970_000, 1_000_000, &counts);
        let p50 = histogram.value_at(500).unwrap();
        assert!(p50.abs_diff(30_000) < 240, "{p50}");
        assert_eq!(histogram.value_at(1000), Some(1_000_000), "no midpoint beyond the maximum");
        assert_eq!(histogram.mean_ns(), Some(39_700));
    }

    /// Check that histograms that contradict themselves are refused.
    #[test]
    fn nonsense_is_refused() {
        let read = |count: u64, max_ns: u64, buckets: &str| {
            serde_json::from_str::<SparseHistogram>(&format!(
                r#"{{"count":{count},"sum_ns":9,"min_ns":1,"max_ns":{max_ns},"clamped":0,"buckets":{buckets}}}"#
            ))
        };
        assert!(read(3, 9, "[[1,1],[9,2]]").is_ok());
        assert!(read(4, 9, "[[1,1],[9,2]]").is_err(), "count");
        assert!(read(3, 0, "[[1,1],[9,2]]").is_err(), "minimum above maximum");
        assert!(read(3, 9, "[[9,1],[1,2]]").is_err(), "order");
        assert!(read(1, 9, "[[1,1],[2,0]]").is_err(), "empty bucket");
        assert!(read(1, 9, "[[18446744073709551615,1]]").is_err(), "value");
        assert!(read(1, 9, "[[1,18446744073709551615],[2,2]]").is_err(), "overflow");
        assert!(read(0, 9, "[]").is_err(), "empty");
    }

    proptest! {
        /// Check that any values survive JSON, and that merging and late counting equal direct
        /// counting.
        #[test]
        fn any_values(left: Vec<u64>, right: Vec<u64>, shift in 0u32..64, at in any::<u32>()) {
            let left: Vec<u64> = left.iter().map(|v| v >> shift).collect();
            let direct = dense(&[&left[..], &right[..]].concat()).take();
            let mut merged = dense(&left).take();
            merged.merge(&dense(&right).take());
            assert_eq!(merged, direct);
            let mut late = dense(&left).take();
            right.iter().for_each(|&value| late.record(value));
            assert_eq!(late, direct);
            direct.value_at(at);
            direct.mean_ns();
            assert_eq!(direct.to_hdr().len(), direct.count);
            let json = serde_json::to_string(&direct).unwrap();
            assert_eq!(serde_json::from_str::<SparseHistogram>(&json).unwrap(), direct);
        }
    }
}
