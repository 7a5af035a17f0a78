//! Flame graphs of the time on the CPU and off it, as folded stacks and as SVG.

mod diff;
mod fold;
mod lines;
mod narrow;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Write};

use inferno::flamegraph::color::{BasicPalette, MultiPalette, Palette};
use inferno::flamegraph::{self, TextTruncateDirection};

use crate::recording::Recording;
pub use diff::{Side, fold_diff, write_diff};
use fold::Folded;
use narrow::without_narrow;

/// What a flame graph shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// The time on the CPU, by samples: `comm;root;…;leaf`, and above it the kernel's frames, with
    /// `_[k]` behind their names.
    OnCpu,
    /// All time off the CPU: `comm;root;…;leaf;[reason]`. The time that a thread was runnable
    /// after its wait is there as well, under `[run queue]`.
    OffCpu,
    /// The time blocked on futexes: `lock;comm;root;…;leaf`.
    Locks,
    /// The time blocked, with the stack of whoever ended it:
    /// `comm;root;…;leaf;--;waker's leaf;…;waker's root;waker's comm`. Threads that were pushed off
    /// the CPU are left out: nobody woke them.
    Wakers,
}

impl View {
    /// The name that the command line calls it by.
    pub fn name(self) -> &'static str {
        match self {
            Self::OnCpu => "on-cpu",
            Self::OffCpu => "off-cpu",
            Self::Locks => "locks",
            Self::Wakers => "wakers",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::OnCpu => "On-CPU time",
            Self::OffCpu => "Off-CPU time",
            Self::Locks => "Lock waits",
            Self::Wakers => "Blocked time and wakers",
        }
    }

    fn palette(self) -> Palette {
        match self {
            // The kernel's frames in a colour of their own, and C++ and Rust beside C.
            Self::OnCpu => Palette::Multi(MultiPalette::Perl),
            Self::OffCpu | Self::Locks => Palette::Basic(BasicPalette::Io),
            Self::Wakers => Palette::Basic(BasicPalette::Aqua),
        }
    }
}

/// Which waits or samples to draw, and how.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The view.
    pub view: View,
    /// Only what lies inside operations and requests.
    pub in_operation: bool,
    /// Only what lies inside operations or requests of this name.
    pub operation: Option<&'a str>,
    /// Whether frames that differ by the line of source alone are told apart.
    pub with_lines: bool,
    /// Names of futexes by address; one that is not here is shown by its address.
    pub lock_names: &'a BTreeMap<u64, String>,
}

const MICROSECOND_NS: u64 = 1000;

/// Folded stacks, `frame;frame;frame COUNT` a line, the outermost first, counts in microseconds.
///
/// Nanoseconds are summed per stack, and the sums are rounded so that the counts add up to the
/// rounded total (largest remainder); a stack that comes to no microsecond has no line.
pub fn fold(recording: &Recording, options: &Options<'_>) -> String {
    let mut text = String::new();
    let folded = Folded::new(recording, options);
    for (frames, microseconds) in folded.rounded(MICROSECOND_NS) {
        text.push_str(&format!("{} {microseconds}\n", folded.texts(frames).join(";")));
    }
    text
}

/// Writes the flame graph as an SVG that can be zoomed and searched in a browser. The same
/// recording gives the same bytes.
///
/// # Errors
/// `out` cannot be written to.
pub fn write(recording: &Recording, options: &Options<'_>, out: &mut impl Write) -> io::Result<()> {
    write_with(recording, options, true, out)
}

fn write_with(
    recording: &Recording,
    options: &Options<'_>,
    with_script: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let folded = Folded::new(recording, options);
    let title = title(recording, options.view);
    let subtitle = subtitle(recording, &folded, options);
    let lines: Vec<String> = without_narrow(&folded.rounded(MICROSECOND_NS))
        .into_iter()
        .map(|(frames, count)| format!("{} {count}", folded.texts(frames).join(";")))
        .collect();
    // The stacks of a large recording take as much memory as the drawing.
    drop(folded);
    if lines.is_empty() {
        return write_empty(&title, &subtitle, why_empty(recording, options), out);
    }
    let mut settings = flamegraph::Options::default();
    settings.title = title;
    settings.subtitle = Some(subtitle);
    settings.colors = options.view.palette();
    settings.count_name = "us".into();
    settings.no_javascript = !with_script;
    draw(settings, lines, out)
}

/// Draws lines that are sorted by frame.
fn draw(
    mut settings: flamegraph::Options<'_>,
    mut lines: Vec<String>,
    out: &mut impl Write,
) -> io::Result<()> {
    settings.deterministic = true;
    settings.text_truncate_direction = TextTruncateDirection::Right;
    // inferno sorts whole lines, which tears a frame apart where a sibling's name continues it
    // with a character below `;`: `run`, `run::inner`. Ours are sorted by frame. Only as a "chart"
    // does it take them as they are, from the last to the first.
    settings.flame_chart = true;
    settings.min_width = 100.0 / narrow::SHARE as f64;
    lines.reverse();
    flamegraph::from_lines(&mut settings, lines.iter().map(String::as_str), out)
}

fn title(recording: &Recording, view: View) -> String {
    let target = &recording.target;
    format!("{} of {} (pid {})", view.title(), fold::escaped(&target.comm), target.pid)
}

/// Which part of the run is drawn.
fn scope(options: &Options<'_>) -> String {
    match (options.operation, options.in_operation) {
        (Some(operation), _) => format!("inside {}", fold::escaped(operation)),
        (None, true) => "inside operations and requests".into(),
        (None, false) => "inside and outside of operations".into(),
    }
}

/// Which waits or samples these are, and how far the stacks can be trusted.
fn subtitle(recording: &Recording, folded: &Folded<'_>, options: &Options<'_>) -> String {
    let mut parts = vec![scope(options)];
    if let Some(profile) = recording.profile.as_ref().filter(|_| options.view == View::OnCpu) {
        let (samples, frequency_hz) = (folded.samples, profile.frequency_hz);
        parts.push(format!("{samples} samples, {frequency_hz} a second on each CPU"));
    }
    for (part_ns, what) in [
        (folded.truncated_ns, "in truncated stacks"),
        (folded.no_stack_ns, "without a stack"),
        (folded.frame_pointer_ns, "in stacks found by frame pointers, which may be wrong"),
    ] {
        if part_ns > 0 && folded.total_ns > 0 {
            let percent = part_ns as f64 * 100.0 / folded.total_ns as f64;
            parts.push(format!("{percent:.1} % {what}"));
        }
    }
    parts.join(" · ")
}

fn why_empty(recording: &Recording, options: &Options<'_>) -> &'static str {
    let is_sampled = recording.profile.as_ref().map(|profile| profile.samples > 0);
    match (options.view, is_sampled, recording.waits.is_empty()) {
        (View::OnCpu, None, _) => "no samples: the CPUs were not sampled in this recording",
        (View::OnCpu, Some(false), _) => {
            "no samples: the target did not run, or not for long enough"
        }
        (View::OnCpu, Some(true), _) => {
            "no samples: the recording holds samples, but none that this filter selects"
        }
        (_, _, true) => "no samples: the recording holds no waits",
        (_, _, false) => {
            "no samples: the recording holds waits, but none that this view and filter select"
        }
    }
}

/// inferno refuses to draw nothing, and an empty file would look like a failure.
fn write_empty(title: &str, subtitle: &str, why: &str, out: &mut impl Write) -> io::Result<()> {
    let text = |y: u32, size: u32, text: &str| {
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        format!("<text x=\"600\" y=\"{y}\" font-size=\"{size}\">{text}</text>\n")
    };
    write!(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"no\"?>\n\
         <svg version=\"1.1\" width=\"1200\" height=\"120\" viewBox=\"0 0 1200 120\" \
         xmlns=\"http://www.w3.org/2000/svg\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#f8f8f8\"/>\n\
         <g font-family=\"monospace\" text-anchor=\"middle\" fill=\"#000000\">\n{}{}{}</g>\n</svg>\n",
        text(24, 17, title),
        text(48, 12, subtitle),
        text(84, 14, why),
    )?;
    out.flush()
}
