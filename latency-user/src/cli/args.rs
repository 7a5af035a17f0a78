//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::render::flame::View;

/// Tells how long every sign and verify of a running process takes, and where the time goes.
#[derive(Debug, Parser)]
#[command(
    name = "latency",
    version,
    about = "Tells how long every OpenSSL sign and verify of a running process takes",
    after_help = "Examples:\n  \
        sudo latency record -p 4711 -d 30s      attach to process 4711 for half a minute\n  \
        sudo latency record -- openssl speed -seconds 2 ecdsap256\n  \
        latency report latency-keysvc-4711.latency --format json\n  \
        latency flame latency-keysvc-4711.latency --view locks    who waits for which lock\n  \
        latency flame --diff before.latency after.latency --view on-cpu\n  \
        sudo latency doctor -p 4711             what would be probed, and what it would cost",
    max_term_width = 100
)]
pub struct Cli {
    /// Say more; -v also turns on the log of the kernel side
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Trace a process, write a recording and print the report
    Record(RecordArgs),
    /// Print the report of a recording; needs neither root nor the target
    Report(ReportArgs),
    /// Draw a flame graph of the time on or off the CPU in a recording, or of the difference of two
    Flame(FlameArgs),
    /// Check this machine and, with -p, a process: what would be probed, at what price; attaches
    /// nothing
    Doctor(DoctorArgs),
}

/// `latency record`.
#[derive(Debug, Args)]
#[command(after_help = "\
    Tracing ends after -d, on Ctrl-C or SIGTERM, or when the target exits; SIGUSR1 prints an\n\
    interim report. The report goes to standard output; with -- COMMAND, whose standard output\n\
    is its own, to standard error. The exit status of COMMAND is passed through.")]
pub struct RecordArgs {
    /// Process to attach to
    #[arg(short, long, value_name = "PID", required_unless_present = "command")]
    pub pid: Option<u32>,
    /// How long to trace: 10s, 500ms, 2m; a bare number is seconds [default: until it ends]
    #[arg(short, long, value_parser = parse_duration, env = "LATENCY_DURATION")]
    pub duration: Option<Duration>,
    /// How often to print the live line
    #[arg(short, long, value_parser = parse_duration, default_value = "1s", env = "LATENCY_INTERVAL")]
    pub interval: Duration,
    /// Recording to write [default: latency-COMM-PID.latency]
    #[arg(short, long, value_name = "FILE", env = "LATENCY_OUTPUT")]
    pub output: Option<PathBuf>,
    /// Print the report in this format
    #[arg(long, value_enum, default_value_t = Format::Text, env = "LATENCY_FORMAT")]
    pub format: Format,
    /// No live line, no messages but errors and warnings
    #[arg(short, long)]
    pub quiet: bool,
    /// Functions of the user's own.
    #[command(flatten)]
    pub probes: ProbeArgs,
    /// Probe also the functions that are left out by default for their price
    #[arg(long)]
    pub probe_all: bool,
    /// Size of the buffer between kernel and reader: 4KiB and more, rounded up to a power of two
    #[arg(long, value_name = "SIZE", value_parser = parse_ring_size, default_value = "4MiB", env = "LATENCY_RING_SIZE")]
    pub ring_size: u32,
    /// Do not follow the scheduler, and do not sample: percentiles only, at the lowest cost
    #[arg(long)]
    pub no_ledger: bool,
    /// How often a second to look at what runs on each CPU, for the parts of the time on the CPU and for
    /// `latency flame --view on-cpu`; 0 turns it off
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = 99, conflicts_with = "no_ledger",
          value_parser = clap::value_parser!(u32).range(..=MAX_FREQUENCY_HZ))]
    pub frequency: u32,
    /// Do not take the stacks of waits and wakers: `latency flame` then has none to draw
    #[arg(long)]
    pub no_stacks: bool,
    /// What is the default now
    #[arg(long, hide = true, overrides_with = "no_stacks")]
    pub stacks: bool,
    /// Put inlined functions and lines of source into the stacks, from debug information; ending
    /// takes longer, with large programs some seconds
    #[arg(long, conflicts_with = "no_ledger")]
    pub lines: bool,
    /// Ask the servers in DEBUGINFOD_URLS for symbols that are not installed, through the program
    /// debuginfod-find, at the end and for 30 s at most; without this, nothing is ever asked of the
    /// network
    #[arg(long, conflicts_with = "no_ledger")]
    pub debuginfod: bool,
    /// Waits outside of operations, and preemptions, shorter than this are only added up
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10us", env = "LATENCY_MIN_WAIT")]
    pub min_wait: Duration,
    /// Command to start, as the user who called sudo, and to trace from its first operation on
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "pid")]
    pub command: Vec<std::ffi::OsString>,
}

/// The highest `--frequency`: a tick every 100 µs takes about a hundredth of the CPU.
const MAX_FREQUENCY_HZ: i64 = 10_000;

impl RecordArgs {
    /// How often each CPU is sampled, per second; 0: not at all.
    pub fn frequency_hz(&self) -> u32 {
        if self.no_ledger { 0 } else { self.frequency }
    }

    /// Whether waits and wakers are to have stacks: they are the scheduler's.
    pub const fn stacks(&self) -> bool {
        !self.no_stacks && !self.no_ledger
    }
}

/// `latency report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Recording to read
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Format to print
    #[arg(long, value_enum, default_value_t = Format::Text, env = "LATENCY_FORMAT")]
    pub format: Format,
    /// File to write instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `latency flame`.
#[derive(Debug, Args)]
pub struct FlameArgs {
    /// Recording to read
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// What to draw
    #[arg(long, value_enum, default_value_t = FlameView::OffCpu)]
    pub view: FlameView,
    /// Compare with this older recording, per operation: widths are FILE's, colours the difference;
    /// what only OLDER has is drawn under [gone]
    #[arg(long, value_name = "OLDER")]
    pub diff: Option<PathBuf>,
    /// Only what lies inside operations and requests
    #[arg(long)]
    pub in_operation: bool,
    /// Only what lies inside operations or requests of this name, such as sign
    #[arg(long, value_name = "NAME")]
    pub operation: Option<String>,
    /// Tell the lines of source apart, if the recording was made with --lines
    #[arg(long)]
    pub lines: bool,
    /// Folded stacks instead of a graph, with times in microseconds; with --diff, with the
    /// nanoseconds of an operation in OLDER and in FILE
    #[arg(short, long)]
    pub folded: bool,
    /// File to write, - for standard output [default: FILE with the ending .VIEW.svg, or
    /// .VIEW.diff.svg; standard output for folded stacks]
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
}

/// What a flame graph shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum FlameView {
    /// The time on the CPU, by samples
    OnCpu,
    /// All time off the CPU, by stack and reason
    OffCpu,
    /// The time blocked on locks, by lock and stack
    Locks,
    /// The time blocked, with the stacks of those who ended it
    Wakers,
}

impl From<FlameView> for View {
    fn from(view: FlameView) -> Self {
        match view {
            FlameView::OnCpu => Self::OnCpu,
            FlameView::OffCpu => Self::OffCpu,
            FlameView::Locks => Self::Locks,
            FlameView::Wakers => Self::Wakers,
        }
    }
}

/// `latency doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Process to look at
    #[arg(short, long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Functions of the user's own; they are looked for in the process.
    #[command(flatten)]
    pub probes: ProbeArgs,
    /// As for record
    #[arg(long)]
    pub probe_all: bool,
}

/// Functions that are probed besides those of OpenSSL.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Also time this function, as an operation of that name; FILE is a path or file name that the
    /// target maps, SYMBOL a function or a file offset 0x... (repeatable)
    #[arg(long, value_name = "FILE:SYMBOL[=NAME]")]
    pub probe: Vec<String>,
    /// Time this function as a request: what it does around its operations counts too, and the page
    /// says which part of it is signing, verifying, waiting (repeatable)
    #[arg(long, value_name = "FILE:SYMBOL[=NAME]")]
    pub request: Vec<String>,
}

/// A report's format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// A page to read
    Text,
    /// The schema of docs/report-schema.md
    Json,
    /// One line per operation and algorithm
    Csv,
    /// HdrHistogram interval log, one tag per operation and algorithm
    Hlog,
}

/// Parses `10s`, `500ms`, `1.5m`, `2h`, `100us`; a bare number is seconds.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split_unit(text);
    let seconds_per_unit = match unit {
        "" | "s" | "sec" => 1.0,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("not a duration: write 10s, 500ms, 2m or 1h".into()),
    };
    let number: f64 =
        number.parse().map_err(|_| "not a duration: write 10s, 500ms, 2m or 1h".to_string())?;
    match Duration::try_from_secs_f64(number * seconds_per_unit) {
        Ok(duration) if duration.is_zero() => Err("the duration is zero".into()),
        Ok(duration) if duration.as_secs() > 366 * 86_400 => {
            Err("the duration is longer than a year".into())
        }
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses `4KiB`, `1M`, `65536`, and rounds up to a power of two.
fn parse_ring_size(text: &str) -> Result<u32, String> {
    let (number, unit) = split_unit(text);
    let shift = match unit {
        "" | "B" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return Err("not a size: write 64KiB or 4MiB".into()),
    };
    let number: u64 = number.parse().map_err(|_| "not a size: write 64KiB or 4MiB".to_string())?;
    let bytes = number.saturating_mul(1 << shift);
    if !(4096..=1 << 30).contains(&bytes) {
        return Err("the size must be between 4KiB and 1GiB".into());
    }
    Ok((bytes as u32).next_power_of_two())
}

fn split_unit(text: &str) -> (&str, &str) {
    let end = text
        .find(|character: char| !character.is_ascii_digit() && character != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that the command line's definition is consistent.
    #[test]
    fn definition() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    /// Check the units of durations, and that nonsense is refused.
    #[test]
    fn durations() {
        assert_eq!(parse_duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("100us"), Ok(Duration::from_micros(100)));
        for bad in ["", "s", "bogus", "10 parsecs", "-1s", "0", "1e99", "999999h", "1.2.3s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    /// Check the units of sizes, rounding, and the bounds.
    #[test]
    fn ring_sizes() {
        assert_eq!(parse_ring_size("4KiB"), Ok(4096));
        assert_eq!(parse_ring_size("5000"), Ok(8192));
        assert_eq!(parse_ring_size("4MiB"), Ok(4 << 20));
        assert_eq!(parse_ring_size("1G"), Ok(1 << 30));
        for bad in ["5", "", "KiB", "2GiB", "99999999999999999999", "4 parsecs"] {
            assert!(parse_ring_size(bad).is_err(), "{bad}");
        }
    }
}
