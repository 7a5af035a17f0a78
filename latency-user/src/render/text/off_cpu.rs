//! The part of the page on all time off the CPU, and on waits that the trace cut.

use super::super::table::{Ink, labelled, paint};
use super::super::units::{duration, grouped, plural, printable};
use super::Style;
use crate::recording::{Reason, WaitTotal};
use crate::report::{InProgress, Report};

/// So many waits in progress are named.
const NAMED: usize = 3;

/// The sums over all waits, and the waits in progress; empty where the scheduler was not traced.
pub(super) fn section(report: &Report, style: Style) -> String {
    let mut lines = String::new();
    for (label, in_operation) in [("  inside", true), ("  outside", false)] {
        let of = |total: &&WaitTotal| total.in_operation == in_operation;
        let sums: Vec<String> = report.off_cpu_totals.iter().filter(of).map(sum).collect();
        if !sums.is_empty() {
            lines.push_str(&labelled(style, label, Ink::Plain, &sums.join(", ")));
        }
    }
    for (label, at_end) in [("  at start", false), ("  at end", true)] {
        let mut cut: Vec<&InProgress> = report
            .in_progress
            .iter()
            .filter(|wait| if at_end { wait.at_end } else { wait.at_start })
            .collect();
        // A thread that sleeps has nothing to do, mostly.
        cut.sort_by_key(|wait| wait.reason == Reason::Sleep);
        if let Some(text) = in_progress(&cut) {
            lines.push_str(&labelled(style, label, Ink::Plain, &printable(&text)));
        }
    }
    if lines.is_empty() {
        return lines;
    }
    format!(
        "\n{}\n{lines}",
        paint(style, Ink::Bold, "Off the CPU, inside and outside of operations")
    )
}

fn name(reason: Reason) -> &'static str {
    match reason {
        Reason::Preempted => "preempted",
        Reason::Lock => "lock",
        Reason::Io => "I/O",
        Reason::Sleep => "sleep",
        Reason::Other => "other",
    }
}

fn sum(total: &WaitTotal) -> String {
    let queue = match total.run_queue_ns {
        0 => String::new(),
        ns => format!(" + run queue {}", duration(ns)),
    };
    let times = grouped(total.count);
    format!("{} {}{queue} ({times})", name(total.reason), duration(total.total_ns))
}

/// "9 waits in progress: lock keysvc:g_lock 1.20 s (thread 12), …".
fn in_progress(waits: &[&InProgress]) -> Option<String> {
    let named: Vec<String> = waits
        .iter()
        .take(NAMED)
        .map(|wait| {
            let lock = wait.lock.as_ref().map(|lock| format!(" {lock}")).unwrap_or_default();
            let lasted = duration(wait.duration_ns);
            format!("{}{lock} for {lasted} (thread {})", name(wait.reason), wait.tid)
        })
        .collect();
    let more = match waits.len().checked_sub(NAMED) {
        Some(more) if more > 0 => format!(" and {} more", grouped(more as u64)),
        _ => String::new(),
    };
    let count = plural(waits.len() as u64, "wait", "waits");
    (!waits.is_empty()).then(|| format!("{count} in progress: {}{more}", named.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check the words of both kinds of lines.
    #[test]
    fn words() {
        let total = WaitTotal {
            reason: Reason::Lock,
            in_operation: true,
            count: 1_234,
            total_ns: 5_000_000,
            run_queue_ns: 70_000,
        };
        assert_eq!(sum(&total), "lock 5.00 ms + run queue 70.0 µs (1,234)");
        let wait = InProgress {
            tid: 12,
            comm: "worker".into(),
            reason: Reason::Lock,
            operation: None,
            request: None,
            lock: Some("keysvc:g_lock".into()),
            holder: None,
            start_ns: None,
            duration_ns: 1_200_000_000,
            at_start: true,
            at_end: true,
            frames: Vec::new(),
        };
        assert_eq!(
            in_progress(&[&wait]).unwrap(),
            "1 wait in progress: lock keysvc:g_lock for 1.20 s (thread 12)"
        );
        let many = in_progress(&[&wait; 5]).unwrap();
        assert!(
            many.starts_with("5 waits in progress: ") && many.ends_with(" and 2 more"),
            "{many}"
        );
        assert_eq!(in_progress(&[]), None);
    }
}
