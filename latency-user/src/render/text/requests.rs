//! The part of the page on what requests are made of.

use super::super::table::{Ink, WIDTH, cut, labelled, paint};
use super::super::units::{duration, printable, three_digits};
use super::Style;
use crate::report::{Report, RequestParts};

/// Of a typical and of a slow request, how long the operations inside took, and where the time
/// around them went; empty where no requests were traced.
pub(super) fn parts(report: &Report, style: Style) -> String {
    let mut text = String::new();
    for operation in &report.operations {
        let Some(parts) = operation.parts.as_ref().filter(|parts| parts.total.count > 0) else {
            continue;
        };
        if text.is_empty() {
            text = format!("\n{}\n", paint(style, Ink::Bold, "What requests are made of"));
        }
        text.push_str(&format!("{}\n", cut(&printable(&operation.title()), WIDTH)));
        for (label, parts) in [("  typical", &parts.typical), ("  slow 1 %", &parts.p99)] {
            if let Some(line) = line(parts) {
                text.push_str(&labelled(style, label, Ink::Plain, &line));
            }
        }
    }
    text
}

/// "of 139 µs: sign 28.0 µs, verify 82.0 µs, lock 20.0 µs, on-CPU 9.00 µs", in the mean.
fn line(parts: &RequestParts) -> Option<String> {
    let mean = |ns: u64| ns.checked_div(parts.count);
    let whole = duration(mean(parts.duration_ns)?);
    let mut texts = Vec::new();
    for inner in &parts.operations {
        let calls = inner.count as f64 / parts.count as f64;
        let each = if calls > 1.05 {
            format!(" ({} of them)", three_digits(calls))
        } else {
            String::new()
        };
        let name = printable(&inner.operation);
        texts.push(format!("{name} {}{each}", duration(mean(inner.total_ns)?)));
    }
    let around = &parts.around_ns;
    let mut rest = [
        ("on-CPU", around.on_cpu),
        ("run queue", around.run_queue),
        ("preempted", around.preempted),
        ("lock", around.lock),
        ("I/O", around.io),
        ("sleep", around.sleep),
        ("other", around.other),
    ];
    rest.sort_by_key(|&(_, ns)| std::cmp::Reverse(ns));
    for (name, ns) in rest {
        if let Some(ns) = mean(ns).filter(|ns| *ns > 0) {
            texts.push(format!("{name} {}", duration(ns)));
        }
    }
    Some(format!("of {whole}: {}", texts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::InnerOperation;
    use crate::report::LedgerNs;

    /// Check the line of a worked example, with two signatures in each request.
    #[test]
    fn example() {
        let inner = |operation: &str, count, total_ns| InnerOperation {
            operation: operation.into(),
            count,
            total_ns,
        };
        let parts = RequestParts {
            count: 10,
            duration_ns: 1_390_000,
            operations: vec![inner("sign", 20, 280_000), inner("verify", 10, 820_000)],
            around_ns: LedgerNs { on_cpu: 90_000, lock: 200_000, ..LedgerNs::default() },
        };
        assert_eq!(
            line(&parts).unwrap(),
            "of 139 µs: sign 28.0 µs (2.00 of them), verify 82.0 µs, lock 20.0 µs, on-CPU 9.00 µs"
        );
        assert_eq!(line(&RequestParts::default()), None);
    }
}
