//! The page for a terminal, at most 100 columns wide.

mod off_cpu;
mod on_cpu;
mod requests;
mod waits;

use std::io::{self, Write};

use super::table::{Cell, Ink, WIDTH, cut, labelled, paint, table};
use super::units::{
    duration, grouped, mebibytes, offset, plural, printable, rate, three_digits, utc,
};
use crate::aggregate::{Latency, Source};
use crate::attach::TrapCost;
use crate::recording::{EndedBy, Outcome, Price, rate_hz};
use crate::report::{Operation, P99_SAMPLES, P999_SAMPLES, Report};

/// So many of the slowest operations are shown.
const SLOWEST: usize = 5;
/// So many of the probed functions that were not called are named.
const SILENT: usize = 8;

/// How the page looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// Whether to use ANSI colours.
    pub colour: bool,
}

impl Style {
    /// No colours.
    pub const PLAIN: Self = Self { colour: false };
    /// ANSI colours.
    pub const COLOUR: Self = Self { colour: true };
}

/// Writes the page.
pub fn write(report: &Report, style: Style, out: &mut impl Write) -> io::Result<()> {
    out.write_all(render(report, style).as_bytes())
}

/// The page.
pub fn render(report: &Report, style: Style) -> String {
    let mut page = head(report, style);
    if let Some(verdict) = &report.verdict {
        let sentence = printable(&verdict.sentence);
        page.push_str(&labelled(style, "Verdict", Ink::Bold, &sentence));
    }
    page.push('\n');
    page.push_str(&operations(report, style));
    page.push_str(&waits::ledgers(report, style));
    page.push_str(&on_cpu::categories(report, style));
    page.push_str(&requests::parts(report, style));
    page.push_str(&waits::locks(report, style));
    page.push_str(&off_cpu::section(report, style));
    page.push_str(&slowest(report, style));
    page.push('\n');
    page.push_str(&foot(report, style));
    page
}

fn head(report: &Report, style: Style) -> String {
    let mut text = String::new();
    let mut line = |label: &str, content: &str| {
        text.push_str(&labelled(style, label, Ink::Bold, &printable(content)));
    };
    let target = &report.target;
    line(
        "Target",
        &format!(
            "{} (pid {}), {}, {}, uid {}",
            target.comm,
            target.pid,
            target.exe,
            plural(target.threads.into(), "thread", "threads"),
            target.uid
        ),
    );
    for library in &report.libraries {
        let version = library.openssl_version.as_deref().unwrap_or("version unknown");
        let deleted = if library.deleted { " (deleted or replaced on disk)" } else { "" };
        let id = library.build_id.as_ref().map(|id| format!(" (build id {})", short_id(id)));
        let id = id.unwrap_or_default();
        line("Library", &format!("{version}{id}, {}{deleted}", library.path));
    }
    let host = &report.host;
    line(
        "Host",
        &format!(
            "Linux {}, {}, {}",
            host.kernel,
            host.arch,
            plural(host.cpus.into(), "CPU", "CPUs")
        ),
    );
    let end = match report.ended_by {
        EndedBy::Duration => "; ended because the duration was over",
        EndedBy::Signal => "; ended because it was interrupted",
        EndedBy::TargetExit => "; ended because the target exited",
        EndedBy::Interim => "; still running",
        EndedBy::Unknown => "; why it ended is not known",
    };
    let duration = duration(report.duration_ns);
    line("Traced", &format!("{duration} from {}{end}", utc(report.started_unix_ns)));
    text
}

/// Enough of a build id to tell builds apart.
fn short_id(id: &str) -> String {
    id.chars().take(12).collect()
}

fn operations(report: &Report, style: Style) -> String {
    let shown: Vec<&Operation> = report.operations.iter().filter(|row| row.count > 0).collect();
    if shown.is_empty() {
        return format!("{}\n", paint(style, Ink::Bold, "No operation completed."));
    }
    let heading =
        ["Operation", "count", "rate", "mean", "P50", "P90", "P99", "P99.9", "max"].into_iter();
    let mut rows = vec![heading.map(|text| Cell::new(text).ink(Ink::Bold)).collect()];
    for operation in &shown {
        let title = printable(&operation.title());
        // A row for the failed ones alone, where nothing succeeded.
        if operation.successes > 0 {
            rows.push(row(&title, report, operation.successes, &operation.latency_ns, Ink::Plain));
        } else {
            rows.push(vec![Cell::new(title)]);
        }
        if let Some(failed) = &operation.failed_latency_ns {
            rows.push(row("  failed", report, operation.failed(), failed, Ink::Red));
        }
    }
    let is_marked = rows.iter().flatten().any(|cell: &Cell| cell.text.ends_with('?'));
    if is_marked {
        align_marks(&mut rows);
    }
    let mut text = table(style, &rows);
    if is_marked {
        let note = format!(
            "? rests on too few calls: P99 on fewer than {}, P99.9 on fewer than {}",
            grouped(P99_SAMPLES),
            grouped(P999_SAMPLES)
        );
        text.push_str(&format!("{}\n", paint(style, Ink::Dim, &note)));
    }
    text
}

fn row(title: &str, report: &Report, count: u64, latency: &Latency, ink: Ink) -> Vec<Cell> {
    let value = |value: Option<u64>| Cell::new(value.map_or_else(|| "-".to_owned(), duration));
    let marked = |percentile: Option<u64>, samples: u64| {
        let cell = value(percentile);
        if count < samples { Cell::new(cell.text + "?").ink(Ink::Dim) } else { cell }
    };
    vec![
        Cell::new(title).ink(ink),
        Cell::new(grouped(count)),
        Cell::new(rate(rate_hz(count, report.duration_ns))),
        value(latency.mean),
        value(latency.p50),
        value(latency.p90),
        marked(latency.p99, P99_SAMPLES),
        marked(latency.p999, P999_SAMPLES),
        value(latency.max),
    ]
}

/// Keeps digits in line where some cells of a column have a mark behind them.
fn align_marks(rows: &mut [Vec<Cell>]) {
    for column in [6, 7] {
        let mut cells: Vec<&mut Cell> =
            rows.iter_mut().filter_map(|row| row.get_mut(column)).collect();
        if cells.iter().any(|cell| cell.text.ends_with('?')) {
            for cell in cells.iter_mut().filter(|cell| !cell.text.ends_with('?')) {
                cell.text.push(' ');
            }
        }
    }
}

fn slowest(report: &Report, style: Style) -> String {
    let mut all: Vec<_> = report
        .operations
        .iter()
        .flat_map(|operation| operation.slowest.iter().map(move |slow| (operation, slow)))
        .collect();
    all.sort_by_key(|(_, slow)| (std::cmp::Reverse(slow.duration_ns), slow.start_ns, slow.tid));
    all.truncate(SLOWEST);
    if all.is_empty() {
        return String::new();
    }
    let durations: Vec<String> = all.iter().map(|(_, slow)| duration(slow.duration_ns)).collect();
    let offsets: Vec<String> = all.iter().map(|(_, slow)| offset(slow.start_ns)).collect();
    let width = |texts: &[String]| texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    let (duration_width, offset_width) = (width(&durations), width(&offsets));
    let mut text = format!("\n{}\n", paint(style, Ink::Bold, "Slowest operations"));
    for (((operation, slow), duration), offset) in all.iter().zip(&durations).zip(&offsets) {
        let outcome = match slow.outcome {
            Outcome::Success => "",
            Outcome::Failure => ", answered \"no\"",
            Outcome::Error => ", error",
        };
        let line = format!(
            "  {duration:>duration_width$}  at {offset:>offset_width$}  thread {:<7}  {} ({}{outcome})",
            slow.tid,
            operation.title(),
            slow.symbol,
        );
        text.push_str(&cut(&printable(&line), WIDTH));
        text.push('\n');
    }
    text
}

fn foot(report: &Report, style: Style) -> String {
    let mut text = String::new();
    let mut line = |label: &str, ink: Ink, content: &str| {
        text.push_str(&labelled(style, label, ink, &printable(content)));
    };
    let failed: Vec<String> = report.operations.iter().filter_map(failures).collect();
    if !failed.is_empty() {
        line("Failed", Ink::Red, &failed.join("; "));
    }
    let queries: Vec<String> = report
        .operations
        .iter()
        .filter(|operation| operation.size_queries > 0)
        .map(|operation| format!("{} {}", operation.title(), grouped(operation.size_queries)))
        .collect();
    if !queries.is_empty() {
        let content = format!(
            "{}: calls that only asked for the signature's size; not counted above",
            queries.join(", ")
        );
        line("Size query", Ink::Bold, &content);
    }
    if !report.probes.is_empty() {
        line("Probes", Ink::Bold, &probes(report));
    }
    let has_loss = report.loss.records > 0 || !other_losses(report).is_empty();
    line("Lost", if has_loss { Ink::Red } else { Ink::Bold }, &lost(report));
    if report.ledger_mismatches > 0 {
        let mismatches = plural(report.ledger_mismatches, "operation", "operations");
        let content = format!("{mismatches} whose parts do not add up to the duration");
        line("Ledger", Ink::Red, &content);
    }
    let incomplete = incomplete(report);
    if !incomplete.is_empty() {
        line("Incomplete", Ink::Bold, &incomplete.join(", "));
    }
    line("Own cost", Ink::Bold, &own_cost(report));
    for warning in &report.warnings {
        line("Warning", Ink::Yellow, warning);
    }
    text
}

fn failures(operation: &Operation) -> Option<String> {
    let mut parts = Vec::new();
    if operation.failures > 0 {
        parts.push(format!("{} answered \"no\"", grouped(operation.failures)));
    }
    if operation.errors > 0 {
        parts.push(format!("{} ended in an error", grouped(operation.errors)));
    }
    (!parts.is_empty()).then(|| format!("{}: {}", operation.title(), parts.join(", ")))
}

fn probes(report: &Report) -> String {
    let (hit, silent): (Vec<_>, Vec<_>) = report.probes.iter().partition(|probe| probe.hits > 0);
    let parts: Vec<String> = hit
        .iter()
        .map(|probe| {
            let stepped =
                if probe.price == Price::SingleStepped { " (single-stepped)" } else { "" };
            format!("{} {}{stepped}", probe.symbol, plural(probe.hits, "call", "calls"))
        })
        .collect();
    let mut text = parts.join(", ");
    if !silent.is_empty() {
        let names: Vec<&str> =
            silent.iter().take(SILENT).map(|probe| probe.symbol.as_str()).collect();
        let separator = if text.is_empty() { "" } else { "; " };
        text.push_str(&format!("{separator}not called: {}", names.join(", ")));
        if silent.len() > SILENT {
            text.push_str(&format!(" and {} more", silent.len() - SILENT));
        }
    }
    text
}

fn lost(report: &Report) -> String {
    let loss = &report.loss;
    let mut text = if loss.records == 0 {
        let nothing = if other_losses(report).is_empty() { "nothing" } else { "no record" };
        let (received, counted) = (grouped(loss.received), grouped(loss.counted));
        format!("{nothing}; received {received} of {counted} records")
    } else {
        let causes: Vec<String> =
            [(loss.ring_full, "ring buffer full"), (loss.unaccounted, "cause unknown")]
                .into_iter()
                .filter(|(number, _)| *number > 0)
                .map(|(number, cause)| format!("{cause}: {}", grouped(number)))
                .collect();
        format!(
            "{} of {} records ({}); received {}",
            grouped(loss.records),
            grouped(loss.counted),
            causes.join(", "),
            grouped(loss.received)
        )
    };
    for other in other_losses(report) {
        text.push_str("; ");
        text.push_str(&other);
    }
    if report.operations.iter().any(|operation| operation.source == Source::KernelHistogram) {
        text.push_str(
            "; the table has those that found the ring buffer full, as the kernel counted them",
        );
    }
    text
}

/// Losses that are not of records.
fn other_losses(report: &Report) -> Vec<String> {
    let loss = &report.loss;
    [
        (loss.thread_table_full, "call not followed", "calls not followed"),
        (loss.recursion_misses, "probe run skipped", "probe runs skipped"),
        (loss.length_unreadable, "length unreadable", "lengths unreadable"),
        (loss.clock_backwards, "clock reading backwards", "clock readings backwards"),
        (loss.samples, "sample of the CPUs", "samples of the CPUs"),
        (loss.wait_records, "wait not recorded", "waits not recorded"),
        (loss.missed_switches, "switch not seen", "switches not seen"),
    ]
    .into_iter()
    .filter(|(number, ..)| *number > 0)
    .map(|(number, one, many)| plural(number, one, many))
    .collect()
}

fn incomplete(report: &Report) -> Vec<String> {
    let calls = &report.incomplete_calls;
    [
        (calls.in_progress, "still open at the end"),
        (calls.abandoned, "jumped out of"),
        (calls.thread_exited, "cut off by the end of the thread"),
        (calls.unmatched_returns, "already open at the start"),
    ]
    .into_iter()
    .filter(|(number, _)| *number > 0)
    .map(|(number, what)| format!("{} {what}", plural(number, "call", "calls")))
    .collect()
}

fn own_cost(report: &Report) -> String {
    let cost = &report.own_cost;
    let mut text = format!("{} of CPU time", duration(cost.cpu_ns));
    if report.duration_ns > 0 {
        let percent = cost.cpu_ns as f64 / report.duration_ns as f64 * 100.0;
        text.push_str(&format!(" ({} % of one CPU)", three_digits(percent)));
    }
    text.push_str(&format!(", at most {} of memory", mebibytes(cost.peak_memory_bytes)));
    if let (Some(run_ns), Some(runs)) = (cost.program_run_ns, cost.program_runs)
        && let Some(each_ns) = run_ns.checked_div(runs)
    {
        let runs = plural(runs, "probe run", "probe runs");
        text.push_str(&format!("; {runs} in the target, {} each", duration(each_ns)));
    }
    let TrapCost { hot_pair_ns, cold_pair_ns, .. } = cost.trap;
    if cold_pair_ns > 0 {
        text.push_str(&format!(
            "; probing costs each operation {} to {}, which its time includes",
            duration(hot_pair_ns.min(cold_pair_ns)),
            duration(cold_pair_ns.max(hot_pair_ns))
        ));
    }
    text
}

#[cfg(test)]
mod tests;
