//! What a recording holds. This is the file's JSON as well; see docs/recording-format.md.

use crate::attach::TrapCost;
use latency_common::counter::Counter;
use serde::{Deserialize, Serialize};

use super::histogram::SparseHistogram;
use super::in_progress::{MAX_IN_PROGRESS, WaitInProgress, WaitTotal};
use super::ledger::RowLedger;
use super::lock::{Lock, MAX_LOCKS};
use super::off_cpu::{Stack, WaitGroup};
use super::profile::Profile;
use super::request::RowRequest;
use super::waits::MAX_GROUPS;

/// At most this many intervals are kept; see [`Recording::interval_ns`].
pub const MAX_INTERVALS: usize = 600;
/// At most this many slow operations are kept in each row.
pub const MAX_SLOWEST: usize = 100;
/// At most this many algorithms get a row of their own in each operation.
pub const MAX_ALGORITHMS: usize = 64;

/// One row for each of 256 operations, [`MAX_ALGORITHMS`] algorithms and "other".
const MAX_ROWS: usize = 256 * (MAX_ALGORITHMS + 1);
const MAX_LIST: usize = 64 << 10;

/// The result of one run of the tracer, complete in itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Recording {
    /// Version of the tracer that made the recording.
    pub tool_version: String,
    /// The tracer's own command line, program name first.
    #[serde(deserialize_with = "super::capped::vec::<MAX_LIST, _, _>")]
    pub command_line: Vec<String>,
    /// When tracing began, in nanoseconds since 1970-01-01 UTC.
    pub started_unix_ns: u64,
    /// How long tracing lasted, in nanoseconds.
    pub duration_ns: u64,
    /// What ended it.
    pub ended_by: EndedBy,
    /// Exit status of a command that the tracer had started, once it ended; 128 + signal number
    /// if a signal killed it.
    pub exit_status: Option<i32>,
    /// The traced process.
    pub target: Target,
    /// The machine.
    pub host: Host,
    /// The OpenSSL copies found in the process.
    #[serde(deserialize_with = "super::capped::vec::<MAX_LIST, _, _>")]
    pub libraries: Vec<Library>,
    /// The functions probed.
    #[serde(deserialize_with = "super::capped::vec::<MAX_LIST, _, _>")]
    pub probes: Vec<Probe>,
    /// The functions that could have been probed and were not.
    #[serde(deserialize_with = "super::capped::vec::<MAX_LIST, _, _>")]
    pub skipped: Vec<Skipped>,
    /// What was measured, per operation and algorithm.
    #[serde(deserialize_with = "super::capped::vec::<MAX_ROWS, _, _>")]
    pub rows: Vec<Row>,
    /// Width of an interval in nanoseconds: one second, doubled as often as is needed to get along
    /// with [`MAX_INTERVALS`].
    pub interval_ns: u64,
    /// The same measurements over time, from the records received; every interval up to the end.
    #[serde(deserialize_with = "super::capped::vec::<MAX_INTERVALS, _, _>")]
    pub intervals: Vec<Interval>,
    /// What was lost, by cause.
    pub loss: Loss,
    /// Calls whose duration is not known.
    pub incomplete_calls: IncompleteCalls,
    /// Calls of probed functions inside an operation, which are no operations of their own.
    pub nested_calls: u64,
    /// Time off the CPU, largest first; empty where the scheduler was not traced.
    #[serde(default, deserialize_with = "super::capped::vec::<MAX_GROUPS, _, _>")]
    pub waits: Vec<WaitGroup>,
    /// What ran on the CPU; `None` where it was not sampled.
    #[serde(default)]
    pub profile: Option<Profile>,
    /// The stacks that the waits and samples refer to.
    #[serde(default, with = "super::stack_table")]
    pub stacks: Vec<Stack>,
    /// The locks waited for, longest wait first; empty where the scheduler was not traced.
    #[serde(default, deserialize_with = "super::capped::vec::<MAX_LOCKS, _, _>")]
    pub locks: Vec<Lock>,
    /// Waits beyond [`super::MAX_GROUPS`] different ones: of them, `waits` has no more than the
    /// reason and the operation.
    #[serde(default)]
    pub ungrouped_waits: u64,
    /// Waits that the start or the end of the trace cut, longest first.
    #[serde(default, deserialize_with = "super::capped::vec::<MAX_IN_PROGRESS, _, _>")]
    pub waits_in_progress: Vec<WaitInProgress>,
    /// Sums over all times off the CPU, also of those too short for `waits`, longest first.
    #[serde(default, deserialize_with = "super::capped::vec::<MAX_LIST, _, _>")]
    pub wait_totals: Vec<WaitTotal>,
    /// Operations whose ledger does not add up to their duration: an event was missed.
    #[serde(default)]
    pub ledger_mismatches: u64,
    /// What the tracing itself cost.
    pub own_cost: OwnCost,
    /// Warnings given while tracing.
    #[serde(deserialize_with = "super::capped::vec::<MAX_LIST, _, _>")]
    pub warnings: Vec<String>,
}

/// What ended the tracing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndedBy {
    /// The duration asked for was over.
    Duration,
    /// SIGINT or SIGTERM.
    Signal,
    /// The target exited.
    TargetExit,
    /// Nothing yet: an interim result.
    Interim,
    /// Something that this version does not know.
    #[serde(other)]
    Unknown,
}

/// The traced process.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Target {
    /// Process id, in the tracer's PID namespace.
    pub pid: u32,
    /// Command name, as the kernel keeps it (at most 15 bytes).
    pub comm: String,
    /// Path of the executable, as the target sees it.
    pub exe: String,
    /// Effective user id.
    pub uid: u32,
    /// Number of threads when tracing began.
    pub threads: u32,
    /// Start of the process in clock ticks since boot: with the pid, its identity.
    pub start_time_ticks: u64,
}

/// The machine.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Host {
    /// Kernel release, as `uname -r` says it.
    pub kernel: String,
    /// Architecture, as `uname -m` says it.
    pub arch: String,
    /// Number of CPUs online.
    pub cpus: u32,
}

/// A copy of OpenSSL (or a relative of it) that the target maps.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Library {
    /// Path, as the target sees it.
    pub path: String,
    /// Build id in hexadecimal.
    pub build_id: Option<String>,
    /// The version string found in it.
    pub openssl_version: Option<String>,
    /// Whether the file was deleted or replaced on disk since the target mapped it.
    pub deleted: bool,
}

/// What a probe costs at the place where it sits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Price {
    /// The kernel emulates the instruction: the cheap case, about a microsecond a call.
    Emulated,
    /// The kernel single-steps the instruction: up to twenty times as much in a virtual machine.
    SingleStepped,
    /// Not known.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A probed function.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Probe {
    /// The file it is in, as the target sees it.
    pub file: String,
    /// Name of the function.
    pub symbol: String,
    /// Where the function begins in the file, in bytes.
    pub offset: u64,
    /// Where the entry probe sits in the file, in bytes.
    pub site_offset: u64,
    /// What the entry probe costs.
    pub price: Price,
    /// Name of the operation, or request, that a call of it is.
    pub operation: String,
    /// Whether a call of it is a request: the scope around operations.
    #[serde(default)]
    pub is_request: bool,
    /// How often the function was entered, nested calls included.
    pub hits: u64,
    /// How many program runs the kernel's recursion guard skipped, where the kernel tells.
    pub recursion_misses: Option<u64>,
}

/// A function that was not probed.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Skipped {
    /// The file it is in, as the target sees it.
    pub file: String,
    /// Name of the function.
    pub symbol: String,
    /// Why it was not probed.
    pub reason: String,
}

/// What was measured of one operation with one algorithm.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Name of the operation, such as "sign".
    pub operation: String,
    /// Name of the algorithm, such as "ecdsa-p256"; "-" for functions that have none.
    pub algorithm: String,
    /// How many there were: those received, and those whose records the kernel counted as lost.
    pub counted: Counts,
    /// How many there were, as records received: what [`Recording::loss`] says is missing.
    pub received: Counts,
    /// Durations of the successful operations, from the records received.
    pub success: SparseHistogram,
    /// Durations of the operations that failed or ended in an error, from the records received.
    pub failed: SparseHistogram,
    /// Durations of the successful operations, with those whose records were lost; empty when none
    /// was.
    pub kernel_success: SparseHistogram,
    /// The same of the operations that failed or ended in an error.
    pub kernel_failed: SparseHistogram,
    /// The slowest operations, slowest first.
    #[serde(deserialize_with = "super::capped::vec::<MAX_SLOWEST, _, _>")]
    pub slowest: Vec<SlowOperation>,
    /// Where the time of the successful operations went; `None` where the scheduler was not traced.
    #[serde(default)]
    pub ledger: Option<RowLedger>,
    /// What requests are made of; `None` for operations.
    #[serde(default)]
    pub request: Option<RowRequest>,
}

/// Numbers of calls by how they ended.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Counts {
    /// Operations that did what they were asked to.
    pub successes: u64,
    /// Operations that answered "no": for a verify, the signature does not match.
    pub failures: u64,
    /// Operations that could not do their work.
    pub errors: u64,
    /// Calls that only asked for the signature's size: no operations.
    pub size_queries: u64,
}

impl Counts {
    /// Completed operations, however they ended.
    pub fn operations(&self) -> u64 {
        self.successes.saturating_add(self.failed())
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            successes: self.successes.saturating_add(other.successes),
            failures: self.failures.saturating_add(other.failures),
            errors: self.errors.saturating_add(other.errors),
            size_queries: self.size_queries.saturating_add(other.size_queries),
        }
    }

    /// Operations that failed or ended in an error.
    pub fn failed(&self) -> u64 {
        self.failures.saturating_add(self.errors)
    }
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It did what it was asked to.
    Success,
    /// It answered "no".
    Failure,
    /// It could not do its work.
    #[serde(other)]
    Error,
}

/// One of the slowest operations.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlowOperation {
    /// Time of entry since tracing began, in nanoseconds.
    pub start_ns: u64,
    /// Wall time from entry to return, in nanoseconds.
    pub duration_ns: u64,
    /// Thread, in the tracer's PID namespace.
    pub tid: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Length of the signature in bytes; 0 when not visible.
    pub signature_bytes: u32,
    /// The probed function.
    pub symbol: String,
}

/// What completed in one interval of time.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Interval {
    /// Start since tracing began, in nanoseconds.
    pub start_ns: u64,
    /// The rows in which operations completed.
    #[serde(deserialize_with = "super::capped::vec::<MAX_ROWS, _, _>")]
    pub rows: Vec<IntervalRow>,
}

/// What completed in one interval of one row.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IntervalRow {
    /// Index into [`Recording::rows`].
    pub row: usize,
    /// Durations of the successful operations.
    pub success: SparseHistogram,
    /// Durations of the operations that failed or ended in an error.
    pub failed: SparseHistogram,
}

/// What was lost, by cause. Always `received + records == counted`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Loss {
    /// Completed calls, size queries included, as the kernel counted them.
    pub counted: u64,
    /// Records of them that arrived.
    pub received: u64,
    /// Records of them that did not arrive.
    pub records: u64,
    /// Of these: the ring buffer was full.
    pub ring_full: u64,
    /// Of these: the cause is not known.
    pub unaccounted: u64,
    /// Calls not followed at all: the table of threads was full.
    pub thread_table_full: u64,
    /// Lost records whose operation the kernel counted under "other": the table of histograms was full.
    pub histogram_table_full: u64,
    /// Program runs that the kernel's recursion guard skipped: entries or returns not seen.
    pub recursion_misses: u64,
    /// Signature lengths that could not be read: the algorithm may be wrong.
    pub length_unreadable: u64,
    /// Clock readings that ran backwards: the duration was taken as 0.
    pub clock_backwards: u64,
    /// Samples of threads on the CPU that did not arrive: the ring buffer was full.
    #[serde(default)]
    pub samples: u64,
    /// Times off the CPU whose record did not arrive, since the ring buffer was full; their sums
    /// are in [`Recording::wait_totals`].
    #[serde(default)]
    pub wait_records: u64,
    /// Switches of a thread that were not seen: time that cannot be told.
    #[serde(default)]
    pub missed_switches: u64,
}

impl Loss {
    /// From the records received, the kernel side's counters by [`Counter`], and the program runs
    /// skipped.
    pub(super) fn new(
        received: u64,
        counters: &[u64; Counter::COUNT as usize],
        recursion_misses: u64,
    ) -> Self {
        let counter = |counter: Counter| counters[counter as usize];
        // A counter read too early must not make the loss negative, or hide a part of it.
        let at_least = received.saturating_add(counter(Counter::LostRingFull));
        let counted = counter(Counter::Completed).max(at_least);
        let records = counted - received;
        let ring_full = counter(Counter::LostRingFull).min(records);
        Self {
            counted,
            received,
            records,
            ring_full,
            unaccounted: records - ring_full,
            thread_table_full: counter(Counter::ThreadTableFull),
            histogram_table_full: counter(Counter::HistogramTableFull),
            recursion_misses,
            length_unreadable: counter(Counter::LengthUnreadable),
            clock_backwards: counter(Counter::ClockBackwards),
            samples: counter(Counter::LostSampleRecords),
            wait_records: counter(Counter::LostWaitRecords),
            missed_switches: counter(Counter::MissedSwitch),
        }
    }
}

/// Calls whose duration is not known.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IncompleteCalls {
    /// The thread jumped out of the call (`longjmp`, an exception).
    pub abandoned: u64,
    /// The thread ended inside the call.
    pub thread_exited: u64,
    /// The call was still open when tracing ended.
    pub in_progress: u64,
    /// Returns of calls that had been entered before tracing began.
    pub unmatched_returns: u64,
}

/// What the tracing itself cost.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OwnCost {
    /// CPU time of the tracer's process, in nanoseconds.
    pub cpu_ns: u64,
    /// The most memory it had, in bytes.
    pub peak_memory_bytes: u64,
    /// Time inside the eBPF programs, in nanoseconds, where the kernel counts it.
    pub program_run_ns: Option<u64>,
    /// Runs of the eBPF programs, where the kernel counts them.
    pub program_runs: Option<u64>,
    /// What the probes of an operation cost its caller, measured when tracing began. Durations
    /// are the caller's: they have this in them. Zeroes: not measured, and not in them.
    #[serde(default)]
    pub trap: TrapCost,
}

impl Recording {
    /// Checks what the types alone do not say.
    pub(super) fn validate(&self) -> Result<(), &'static str> {
        if self.interval_ns == 0 {
            return Err("the intervals have no width");
        }
        let rows = self.rows.len();
        if self.intervals.iter().flat_map(|interval| &interval.rows).any(|row| row.row >= rows) {
            return Err("an interval names a row that does not exist");
        }
        if self.loss.received.checked_add(self.loss.records) != Some(self.loss.counted) {
            return Err("the records received and lost do not add up to those counted");
        }
        if self.locks.iter().any(|lock| lock.waits != lock.histogram.count) {
            return Err("the waits of a lock contradict its histogram");
        }
        if let Some(profile) = &self.profile {
            let groups = profile.groups.iter();
            let sum = groups.fold(0u64, |sum, group| sum.saturating_add(group.samples));
            if sum != profile.samples || profile.frequency_hz == 0 {
                return Err("the samples contradict their number, or have no frequency");
            }
        }
        Ok(())
    }
}

/// How many a second; 0 for no time at all.
pub(crate) fn rate_hz(count: u64, duration_ns: u64) -> f64 {
    if duration_ns == 0 { 0.0 } else { count as f64 * 1e9 / duration_ns as f64 }
}
