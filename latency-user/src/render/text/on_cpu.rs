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
    let lines: Vec<(String, Vec<String>)> = titled
        .filter_map(|operation| {
            let categories = operation.on_cpu_categories.as_ref()?;
            Some((printable(&operation.title()), parts(categories, operation.is_request)))
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
    for (title, parts) in lines {
        text.push_str(&wrapped(&format!("  {title:<width$} "), &parts));
    }
    text
}

/// The parts of a line behind its beginning, and below one another where they are too long.
fn wrapped(beginning: &str, parts: &[String]) -> String {
    let indent = beginning.chars().count();
    let mut text = String::new();
    let mut line = beginning.to_owned();
    for (at, part) in parts.iter().enumerate() {
        let part = format!("{}{}", printable(part), if at + 1 < parts.len() { "," } else { "" });
        let is_first = line.chars().count() <= indent;
        if !is_first && line.chars().count() + 1 + part.chars().count() > WIDTH {
            text.push_str(&format!("{}\n", cut(&line, WIDTH)));
            line = " ".repeat(indent);
        }
        line.push_str(&format!(" {part}"));
    }
    text.push_str(&format!("{}\n", cut(&line, WIDTH)));
    text
}

/// How the samples of an operation divide, the largest share first.
fn parts(categories: &OnCpuCategories, is_request: bool) -> Vec<String> {
    let mut samples = plural(categories.samples, "sample", "samples");
    if is_request {
        samples.push_str(" around its operations");
    }
    if !categories.is_enough {
        let least = grouped(MIN_SAMPLES);
        return vec![format!("{samples}: too few to tell ({least} are needed)")];
    }
    let shares = categories.shares.sorted().into_iter().filter(|(_, share)| *share >= SHOWN_SHARE);
    let mut parts: Vec<String> = shares
        .map(|(category, share)| {
            let percent = format!("{:.0} % {}", share * 100.0, category.name());
            let tells = matches!(category, Category::Allocator | Category::Locking);
            match categories.function(category).filter(|_| tells) {
                Some(function) => format!("{percent} (in {function})"),
                None => percent,
            }
        })
        .collect();
    if let Some(first) = parts.first_mut() {
        *first = format!("{samples}: {first}");
    }
    parts
}
