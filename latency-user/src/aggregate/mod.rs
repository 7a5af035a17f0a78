//! Statistics of a recording: which counts to trust, and the percentiles that follow.
//!
//! A percentile is by nearest rank: the value at rank `ceil(q * n)` of the `n` values in order. It
//! is exact to the bucket that holds it: 0.1 % from records, 0.8 % from the kernel's histogram of
//! those whose record was lost.

mod category;
mod excess;
mod number;
mod stack;

use serde::{Deserialize, Serialize};

use crate::recording::{Counts, Recording, Row, SparseHistogram, rate_hz};

pub use category::Category;
pub(crate) use category::categorize;
pub(crate) use excess::{Excess, Part};
pub(crate) use number::{duration, grouped, plural, three_digits};
pub(crate) use stack::{frame_text, own_function};

/// Where a row's numbers come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// From a record of each operation: none was lost.
    Records,
    /// From the records that arrived, and for the others from the histogram in which the kernel counts
    /// what it has no room for.
    KernelHistogram,
}

/// A distribution of latencies in nanoseconds; each `None` when there were none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// The mean, rounded.
    pub mean: Option<u64>,
    /// The median.
    pub p50: Option<u64>,
    /// The 90th percentile.
    pub p90: Option<u64>,
    /// The 99th percentile.
    pub p99: Option<u64>,
    /// The 99.9th percentile.
    pub p999: Option<u64>,
    /// The exact maximum.
    pub max: Option<u64>,
}

impl Latency {
    /// Takes the numbers from a histogram.
    pub fn of(histogram: &SparseHistogram) -> Self {
        Self {
            mean: histogram.mean_ns(),
            p50: histogram.value_at(500),
            p90: histogram.value_at(900),
            p99: histogram.value_at(990),
            p999: histogram.value_at(999),
            max: histogram.max(),
        }
    }
}

/// The statistics of one operation and algorithm.
#[derive(Clone, PartialEq, Debug)]
pub struct RowStatistics {
    /// Index into [`Recording::rows`].
    pub row: usize,
    /// Where the numbers come from.
    pub source: Source,
    /// How many there were.
    pub counts: Counts,
    /// Completed operations per second, however they ended.
    pub rate_hz: f64,
    /// Latency of the successful operations.
    pub success: Latency,
    /// Latency of the operations that failed or ended in an error.
    pub failed: Latency,
}

/// The statistics of a recording.
#[derive(Clone, PartialEq, Debug)]
pub struct Statistics {
    /// One for each row of the recording, in the same order.
    pub rows: Vec<RowStatistics>,
    /// Contradictions found in the counts.
    pub warnings: Vec<String>,
}

/// Works out the statistics of a recording.
pub fn statistics(recording: &Recording) -> Statistics {
    let rows = recording.rows.iter().enumerate();
    let rows = rows.map(|(index, row)| row_statistics(recording, index, row)).collect();
    Statistics { rows, warnings: contradictions(recording) }
}

fn row_statistics(recording: &Recording, index: usize, row: &Row) -> RowStatistics {
    let source = source_of(row);
    let (counts, success, failed) = match source {
        Source::Records => (row.received, &row.success, &row.failed),
        Source::KernelHistogram => (row.counted, &row.kernel_success, &row.kernel_failed),
    };
    RowStatistics {
        row: index,
        source,
        counts,
        rate_hz: rate_hz(counts.operations(), recording.duration_ns),
        success: Latency::of(success),
        failed: Latency::of(failed),
    }
}

fn source_of(row: &Row) -> Source {
    if calls(&row.counted) > calls(&row.received) {
        Source::KernelHistogram
    } else {
        Source::Records
    }
}

/// All calls, size queries included.
fn calls(counts: &Counts) -> u64 {
    counts.operations().saturating_add(counts.size_queries)
}

/// What the kernel counted one by one must be in some row, but for what is missing without a cause, which
/// is said anyhow.
fn contradictions(recording: &Recording) -> Vec<String> {
    let in_rows = |row: &Row| calls(&row.counted).max(calls(&row.received));
    let told = recording.rows.iter().map(in_rows).fold(0, u64::saturating_add);
    let counted = recording.loss.counted.saturating_sub(recording.loss.unaccounted);
    if told >= counted {
        return Vec::new();
    }
    vec![format!(
        "The kernel counted {} calls, but only {} are in the table.",
        grouped(counted),
        grouped(told)
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::sample::recording;
    use crate::recording::{DenseHistogram, Loss};

    fn histogram(values: impl IntoIterator<Item = u64>) -> SparseHistogram {
        let mut histogram = DenseHistogram::default();
        values.into_iter().for_each(|value| histogram.record(value));
        histogram.to_sparse()
    }

    fn one_row() -> Recording {
        let mut recording = recording();
        let counts = Counts { successes: 1000, ..Counts::default() };
        recording.rows = vec![Row {
            operation: "sign".into(),
            algorithm: "ed25519".into(),
            counted: counts,
            received: counts,
            success: histogram(1..=1000),
            kernel_success: histogram(1001..=2000),
            ..Row::default()
        }];
        recording.duration_ns = 2_000_000_000;
        recording.loss = Loss { counted: 1000, received: 1000, ..Loss::default() };
        recording
    }

    /// Check that records are the source when all arrived, with nearest-rank percentiles.
    #[test]
    fn from_records() {
        let statistics = statistics(&one_row());
        let row = &statistics.rows[0];
        assert_eq!((row.source, row.rate_hz), (Source::Records, 500.0));
        let expected = Latency {
            mean: Some(501),
            p50: Some(500),
            p90: Some(900),
            p99: Some(990),
            p999: Some(999),
            max: Some(1000),
        };
        assert_eq!((row.success, row.failed), (expected, Latency::default()));
        assert!(statistics.warnings.is_empty(), "{:?}", statistics.warnings);
    }

    /// Check that the kernel's counts are the source when records were lost.
    #[test]
    fn from_kernel() {
        let mut recording = one_row();
        recording.rows[0].received.successes = 400;
        recording.loss = Loss { counted: 1000, received: 400, records: 600, ..Loss::default() };
        let statistics = statistics(&recording);
        let row = &statistics.rows[0];
        assert_eq!((row.source, row.counts.successes), (Source::KernelHistogram, 1000));
        assert_eq!(row.success.p50, Some(1500));
        assert!(statistics.warnings.is_empty(), "{:?}", statistics.warnings);
    }

    /// Check that a row whose records all arrived is told from them, though another one's were lost.
    #[test]
    fn each_row_has_its_source() {
        let mut recording = one_row();
        let other = Counts { successes: 2000, ..Counts::default() };
        recording.rows.push(Row { counted: other, ..recording.rows[0].clone() });
        recording.loss = Loss { counted: 3000, received: 2000, records: 1000, ..Loss::default() };
        let sources: Vec<Source> =
            statistics(&recording).rows.iter().map(|row| row.source).collect();
        assert_eq!(sources, [Source::Records, Source::KernelHistogram]);
    }

    /// Check that calls that are in no row are said, unless they are as missing.
    #[test]
    fn disagreement() {
        let mut recording = one_row();
        recording.loss = Loss { counted: 1007, received: 1000, records: 7, ..Loss::default() };
        let [warning] = &statistics(&recording).warnings[..] else { panic!() };
        assert!(warning.contains("counted 1,007 calls, but only 1,000 are"), "{warning}");
        recording.loss.unaccounted = 7;
        assert!(statistics(&recording).warnings.is_empty());
    }
}
