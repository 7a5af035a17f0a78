//! The part of the page on where the time goes: ledgers and locks.

use super::super::table::{Cell, Ink, WIDTH, cut, paint, table};
use super::super::units::{duration, grouped, plural, printable};
use super::Style;
use crate::recording::{LockClass, Meanwhile};
use crate::report::{LedgerTotals, LockSummary, Report};

/// So many locks are shown.
const LOCKS: usize = 10;

/// The mean ledger of typical and of slow operations; empty where the scheduler was not traced.
pub(super) fn ledgers(report: &Report, style: Style) -> String {
    let heading =
        ["Where the time goes", "mean", "on-CPU", "run queue", "preempted", "lock", "I/O", "sleep"]
            .into_iter()
            .chain(["other"]);
    let mut rows: Vec<Vec<Cell>> =
        vec![heading.map(|text| Cell::new(text).ink(Ink::Bold)).collect()];
    for operation in &report.operations {
        let (Some(typical), Some(tail)) = (&operation.typical, &operation.tail) else { continue };
        if typical.count == 0 {
            continue;
        }
        rows.push(vec![Cell::new(printable(&operation.title()))]);
        rows.push(means("  middle half", typical));
        rows.push(means("  slowest 1 %", &tail.p99));
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", table(style, &rows)) }
}

fn means(title: &str, totals: &LedgerTotals) -> Vec<Cell> {
    let mean = |ns: u64| match ns.checked_div(totals.count) {
        Some(0) | None => Cell::new("0").ink(Ink::Dim),
        Some(ns) => Cell::new(duration(ns)),
    };
    let ledger = &totals.ledger_ns;
    let parts = [
        ledger.on_cpu,
        ledger.run_queue,
        ledger.preempted,
        ledger.lock,
        ledger.io,
        ledger.sleep,
        ledger.other,
    ];
    let title = format!("{title} ({})", grouped(totals.count));
    let mut row = vec![Cell::new(title), mean(totals.duration_ns)];
    row.extend(parts.map(mean));
    row
}

/// The contended locks, and a line on the idle ones; empty where nothing waited.
pub(super) fn locks(report: &Report, style: Style) -> String {
    let mut text = String::new();
    let contended: Vec<&LockSummary> = report.locks.iter().filter(|lock| !lock.is_idle).collect();
    let shown = &contended[..contended.len().min(LOCKS)];
    if !shown.is_empty() {
        let heading = ["Locks", "class", "waits", "total", "P50", "P99", "max"].into_iter();
        let mut rows: Vec<Vec<Cell>> =
            vec![heading.map(|text| Cell::new(text).ink(Ink::Bold)).collect()];
        rows.extend(shown.iter().map(|lock| row(lock)));
        text.push('\n');
        for (at, line) in table(style, &rows).lines().enumerate() {
            text.push_str(line);
            text.push('\n');
            let lock = at.checked_sub(1).and_then(|at| shown.get(at));
            let lines = lock.into_iter().flat_map(|lock| [details(lock), meanwhile(lock)]);
            for details in lines.flatten() {
                let details = cut(&format!("    {}", printable(&details)), WIDTH);
                text.push_str(&format!("{}\n", paint(style, Ink::Dim, &details)));
            }
        }
        if contended.len() > shown.len() {
            let more = contended.len() - shown.len();
            text.push_str(&format!("and {}\n", plural(more as u64, "more lock", "more locks")));
        }
    }
    let idle = idle(report);
    if !idle.is_empty() {
        let gap = if shown.is_empty() { "\n" } else { "" };
        let line = format!("Idle, not contention: {}", idle.join("; "));
        text.push_str(&format!("{gap}{}\n", cut(&line, WIDTH)));
    }
    text
}

fn row(lock: &LockSummary) -> Vec<Cell> {
    let value = |ns: Option<u64>| Cell::new(ns.map_or_else(|| "-".to_owned(), duration));
    vec![
        Cell::new(printable(&lock.title())),
        Cell::new(lock.class.name()),
        Cell::new(grouped(lock.waits)),
        Cell::new(duration(lock.total_ns)),
        value(lock.p50_ns),
        value(lock.p99_ns),
        Cell::new(duration(lock.max_ns)),
    ]
}

/// Who waits for a lock and who keeps it, as far as it is known.
fn details(lock: &LockSummary) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(function) = &lock.waited_in {
        parts.push(format!("waited for in {function}"));
    }
    if let Some(holder) = lock.holders.first() {
        let percent = holder.total_ns as f64 / lock.total_ns.max(1) as f64 * 100.0;
        let comm = if holder.comm.is_empty() { String::new() } else { format!(" {}", holder.comm) };
        parts.push(format!("held by thread {}{comm} ({percent:.0} %)", holder.tid));
    }
    if let Some(function) = &lock.released_in {
        parts.push(format!("released in {function}"));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// What the holder did meanwhile, and who waits still.
fn meanwhile(lock: &LockSummary) -> Option<String> {
    let holder = lock.holders.first();
    let mut parts: Vec<String> =
        holder.and_then(|holder| did(&holder.meanwhile)).into_iter().collect();
    if lock.in_progress > 0 {
        let threads = plural(lock.in_progress, "thread waits", "threads wait");
        parts.push(format!("{threads} at the end, {} so far", duration(lock.in_progress_ns)));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// What the holder did in most of the time.
fn did(meanwhile: &Meanwhile) -> Option<String> {
    let parts = [
        (meanwhile.ran_ns, "ran"),
        (meanwhile.runnable_ns, "waited for a CPU"),
        (meanwhile.lock_ns, "waited for a lock"),
        (meanwhile.io_ns, "waited for I/O"),
        (meanwhile.sleep_ns, "slept"),
    ];
    let whole = parts.iter().fold(meanwhile.other_ns, |sum, part| sum.saturating_add(part.0));
    let (most, what) = parts.into_iter().max()?;
    (most > 0 && most >= whole / 2).then(|| {
        format!("the holder {what} {:.0} % of that time", most as f64 / whole.max(1) as f64 * 100.0)
    })
}

/// The waits of each idle class together.
fn idle(report: &Report) -> Vec<String> {
    let classes =
        [LockClass::Condvar, LockClass::Semaphore, LockClass::Join, LockClass::Park].into_iter();
    classes
        .filter_map(|class| {
            let locks = report.locks.iter().filter(|lock| lock.class == class);
            let (waits, total_ns) = locks.fold((0u64, 0u64), |(waits, total_ns), lock| {
                (waits.saturating_add(lock.waits), total_ns.saturating_add(lock.total_ns))
            });
            let waits_text = plural(waits, "wait", "waits");
            (waits > 0).then(|| format!("{} {waits_text}, {}", class.name(), duration(total_ns)))
        })
        .collect()
}
