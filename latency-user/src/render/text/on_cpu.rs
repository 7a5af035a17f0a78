//! The part of the page on what the time on the CPU went into.

use super::super::table::{Ink, WIDTH, cut, paint};
use super::super::units::{grouped, plural, printable};
use super::Style;
use crate::aggregate::Category;
use crate::recording::SampleClock;
use crate::report::{MIN_SAMPLES, OnCpuCategories, Report};

/// Smaller shares are left out.
const SHOWN_SHARE: f64 = 0.005;

/// A line for each operation that was sampled; empty where nothing was.
pub(super) fn categories(report: &Report, style: Style) -> String {
    let Some(sampling) = &report.sampling else { return String::new() };
    let titled = report.operations.iter().filter(|operation| operation.count > 0);
    let lines: Vec<(String, String)> = titled
        .filter_map(|operation| {
            let categories = operation.on_cpu_categories.as_ref()?;
            Some((printable(&operation.title()), line(categories)))
        })
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    let clock = match sampling.clock {
        SampleClock::Cycles => " by its cycle counter",
        SampleClock::CpuClock | SampleClock::Unknown => "",
    };
    let heading = format!(
        "On the CPU, inside operations (each CPU sampled {} a second{clock})",
        plural(sampling.frequency_hz.into(), "time", "times")
    );
    let mut text = format!("\n{}\n", paint(style, Ink::Bold, &heading));
    let width = lines.iter().map(|(title, _)| title.chars().count()).max().unwrap_or(0);
    for (title, line) in lines {
        text.push_str(&cut(&format!("  {title:<width$}  {}", printable(&line)), WIDTH));
        text.push('\n');
    }
    text
}

fn line(categories: &OnCpuCategories) -> String {
    let samples = plural(categories.samples, "sample", "samples");
    if !categories.is_enough {
        let least = grouped(MIN_SAMPLES);
        return format!("{samples}: too few to tell ({least} are needed)");
    }
    let shares = categories.shares.sorted().into_iter().filter(|(_, share)| *share >= SHOWN_SHARE);
    let shares: Vec<String> = shares
        .map(|(category, share)| {
            let percent = format!("{:.0} % {}", share * 100.0, category.name());
            let tells = matches!(category, Category::Allocator | Category::Locking);
            match categories.function(category).filter(|_| tells) {
                Some(function) => format!("{percent} (in {function})"),
                None => percent,
            }
        })
        .collect();
    // The number first: the end of a long line is cut.
    format!("{samples}: {}", shares.join(", "))
}
