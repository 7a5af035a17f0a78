//! Differential flame graphs: one recording against an older one, per operation, so that runs of
//! different length and load compare.
//!
//! The width of a frame is what an operation of the newer recording spends there. A stack that the newer
//! one no longer has would have no width and so not be seen: it is drawn once more, with the width that
//! it had, under a root of its own.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::rc::Rc;

use inferno::flamegraph;

use super::fold::{self, Folded};
use super::{Options, View, draw, scope, write_empty};
use crate::aggregate::duration;
use crate::recording::Recording;

/// The root of the stacks that only the older recording has.
const GONE: &str = "[gone]";

/// One of two recordings to compare.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The recording.
    pub recording: &'a Recording,
    /// What to take of it. The view and the filter are to be the same on both sides.
    pub options: Options<'a>,
}

impl Side<'_> {
    /// How many operations completed, of those that the options select.
    pub fn operations(&self) -> u64 {
        let rows = self.recording.rows.iter();
        let wanted = |name: &str| self.options.operation.is_none_or(|operation| operation == name);
        rows.filter(|row| wanted(&row.operation))
            // Where records were lost, the kernel counted them nevertheless.
            .map(|row| row.counted.operations().max(row.received.operations()))
            .fold(0, u64::saturating_add)
    }

    /// How many of them completed while what is drawn was recorded: the sampling begins a moment
    /// after the tracing. At least one.
    fn divisor(&self) -> u64 {
        let profile = self.recording.profile.as_ref();
        let missed_ns = match (self.options.view, profile) {
            (View::OnCpu, Some(profile)) => profile.start_ns,
            _ => 0,
        };
        let whole_ns = self.recording.duration_ns.max(1);
        let sampled = whole_ns.saturating_sub(missed_ns) as f64 / whole_ns as f64;
        ((self.operations() as f64 * sampled).round() as u64).max(1)
    }
}

/// By stack, the outermost frame first: nanoseconds an operation, before and after.
type Differences = BTreeMap<Vec<Rc<str>>, (u64, u64)>;

fn differences(before: &Side<'_>, after: &Side<'_>) -> Differences {
    let mut differences = Differences::new();
    for (side, is_after) in [(before, false), (after, true)] {
        let folded = Folded::new(side.recording, &side.options);
        for (frames, count) in folded.rounded(side.divisor()) {
            let counts = differences.entry(folded.texts(frames)).or_default();
            *(if is_after { &mut counts.1 } else { &mut counts.0 }) = count;
        }
    }
    differences
}

/// Folded stacks with two counts, `frame;frame;frame BEFORE AFTER` a line, the outermost first, in
/// nanoseconds an operation.
pub fn fold_diff(before: &Side<'_>, after: &Side<'_>) -> String {
    let mut text = String::new();
    for (stack, (before, after)) in differences(before, after) {
        text.push_str(&format!("{} {before} {after}\n", stack.join(";")));
    }
    text
}

/// Writes the differential flame graph as an SVG.
///
/// # Errors
/// `out` cannot be written to.
pub fn write_diff(before: &Side<'_>, after: &Side<'_>, out: &mut impl Write) -> io::Result<()> {
    write_diff_with(before, after, true, out)
}

pub(super) fn write_diff_with(
    before: &Side<'_>,
    after: &Side<'_>,
    with_script: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let differences = differences(before, after);
    let name = |side: &Side<'_>| {
        let target = &side.recording.target;
        format!("{} (pid {})", fold::escaped(&target.comm), target.pid)
    };
    let view = after.options.view;
    let title = format!("{} per operation: {} against {}", view.title(), name(after), name(before));
    let sum =
        |of: fn(&(u64, u64)) -> u64| differences.values().map(of).fold(0, u64::saturating_add);
    let subtitle = format!(
        "{} · {} an operation before, {} now · width: now; red grew, blue shrank · {GONE}: only \
         before, at its width then",
        scope(&after.options),
        duration(sum(|counts| counts.0)),
        duration(sum(|counts| counts.1))
    );
    if differences.is_empty() {
        let why = "no samples: neither recording holds any that this view and filter select";
        return write_empty(&title, &subtitle, why, out);
    }
    let mut settings = flamegraph::Options::default();
    settings.title = title;
    settings.subtitle = Some(subtitle);
    settings.count_name = "ns an operation".into();
    settings.no_javascript = !with_script;
    draw(settings, lines(&differences), out)
}

/// What is drawn: a line for each stack, the gone ones last.
fn lines(differences: &Differences) -> Vec<String> {
    let mut lines = Vec::new();
    for (stack, (before, after)) in differences.iter().filter(|(_, counts)| counts.1 > 0) {
        lines.push(format!("{} {before} {after}", stack.join(";")));
    }
    for (stack, (before, _)) in differences.iter().filter(|(_, counts)| counts.1 == 0) {
        // The second count is the width, and the difference the colour: as much less as there was.
        let twice = before.saturating_mul(2);
        lines.push(format!("{GONE};{} {twice} {before}", stack.join(";")));
    }
    lines
}
