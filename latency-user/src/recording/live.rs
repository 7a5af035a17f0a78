//! What is shown while a recording is made.

/// A look at a run in progress.
#[derive(Clone, PartialEq, Debug)]
pub struct Live {
    /// Records received so far, size queries included.
    pub received: u64,
    /// Operations received so far.
    pub operations: u64,
    /// Operations per second since the look before (or since the start).
    pub rate_hz: f64,
    /// The row with most operations.
    pub busiest: Option<LiveRow>,
}

/// The busiest row of a run in progress.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveRow {
    /// Name of the operation.
    pub operation: String,
    /// Name of the algorithm.
    pub algorithm: String,
    /// Median of the successful operations in the last second or two, in nanoseconds.
    pub p50_ns: Option<u64>,
    /// 99th percentile of the same, in nanoseconds.
    pub p99_ns: Option<u64>,
}

impl LiveRow {
    /// Operation and algorithm as a reader would say them: "sign ecdsa-p256".
    pub fn title(&self) -> String {
        if self.algorithm == "-" {
            self.operation.clone()
        } else {
            format!("{} {}", self.operation, self.algorithm)
        }
    }
}
