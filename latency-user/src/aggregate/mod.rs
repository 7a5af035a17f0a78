//! Statistics of a recording: which counts to trust, and the percentiles that follow.
//!
//! A percentile is by nearest rank: the value at rank `ceil(q * n)` of the `n` values in order. It
//! is exact to the bucket that holds it: 0.1 % from records, 0.8 % from the kernel's histogram.

mod category;
mod excess;
mod number;
mod stack;

use serde::{Deserialize, Serialize};

use crate::recording::{Counts, Loss, Recording, Row, SparseHistogram, rate_hz};

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
    /// From the histogram that the kernel keeps, which loses nothing: records were lost.
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
    let source = source_of(row, &recording.loss);
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

/// Records if all arrived; else the kernel's counts, unless they know even less of this row: its
/// operations are under "other" when the kernel's table of histograms was full.
fn source_of(row: &Row, loss: &Loss) -> Source {
    let known = |counts: &Counts| counts.operations().saturating_add(counts.size_queries);
    if loss.records == 0 || known(&row.counted) < known(&row.received) {
        Source::Records
    } else {
        Source::KernelHistogram
    }
}

/// Two counts that are made independently must agree when nothing was lost.
fn contradictions(recording: &Recording) -> Vec<String> {
    let mut warnings = Vec::new();
    let loss = &recording.loss;
    let total = |of: fn(&Row) -> &Counts| {
        recording.rows.iter().map(of).fold(0u64, |sum, counts| {
            sum.saturating_add(counts.operations()).saturating_add(counts.size_queries)
        })
    };
    let (received, counted) = (total(|row| &row.received), total(|row| &row.counted));
    if counted == 0 && received > 0 {
        let text = if loss.records == 0 {
            "The kernel's histograms could not be read, so the counts were not cross-checked."
        } else {
            "The kernel's histograms could not be read: all numbers are of the records received, \
             and the lost ones are missing in them."
        };
        return vec![text.to_owned()];
    }
    if loss.records > 0 {
        for row in &recording.rows {
            if source_of(row, loss) == Source::Records && row.counted != row.received {
                warnings.push(format!(
                    "{} {}: the kernel had no histogram left for it; its numbers are of the \
                     records received, and the lost ones are missing in them.",
                    row.operation, row.algorithm
                ));
            }
        }
    } else if loss.histogram_table_full > 0 {
        // The kernel counted some rows under "other": only the sums can be compared.
        if counted != received {
            warnings.push(format!(
                "The kernel counted {} calls, but {} records arrived although none was reported \
                 lost.",
                grouped(counted),
                grouped(received)
            ));
        }
    } else {
        for row in recording.rows.iter().filter(|row| row.counted != row.received) {
            let sum = |counts: &Counts| counts.operations().saturating_add(counts.size_queries);
            warnings.push(format!(
                "{} {}: the kernel counted {} calls, but {} records arrived although none was \
                 reported lost.",
                row.operation,
                row.algorithm,
                grouped(sum(&row.counted)),
                grouped(sum(&row.received))
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::DenseHistogram;
    use crate::recording::sample::recording;

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

    /// Check that counts that disagree without a loss are said.
    #[test]
    fn disagreement() {
        let mut recording = one_row();
        recording.rows[0].counted.successes = 999;
        let [warning] = &statistics(&recording).warnings[..] else { panic!() };
        assert!(warning.contains("counted 999 calls, but 1,000 records"), "{warning}");
        recording.loss.histogram_table_full = 1;
        assert_eq!(statistics(&recording).warnings.len(), 1);
        recording.rows[0].counted.successes = 0;
        let [warning] = &statistics(&recording).warnings[..] else { panic!() };
        assert!(warning.contains("could not be read"), "{warning}");
    }

    /// Check that a row that the kernel had no histogram for is given from its records.
    #[test]
    fn kernel_knows_less() {
        let mut recording = one_row();
        recording.rows[0].counted.successes = 10;
        let other = Counts { successes: 2000, ..Counts::default() };
        recording.rows.push(Row {
            operation: "sign".into(),
            algorithm: "other".into(),
            counted: other,
            ..Row::default()
        });
        recording.loss = Loss { counted: 2010, received: 1000, records: 1010, ..Loss::default() };
        let statistics = statistics(&recording);
        assert_eq!(statistics.rows[0].source, Source::Records);
        assert_eq!(statistics.rows[1].source, Source::KernelHistogram);
        assert!(statistics.warnings[0].contains("no histogram left"));
    }
}
