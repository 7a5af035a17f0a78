//! Waits and samples to folded stacks. Frames are escaped here and nowhere else.

use std::collections::{BTreeMap, HashMap};

use super::{Options, View};
use crate::recording::{Frame, Profile, Reason, Recording, Stack, WaitGroup, Waker};

/// Time per stack.
#[derive(Default)]
pub(super) struct Folded {
    /// By frames, the outermost first: sorted as a tree.
    stacks: BTreeMap<Vec<String>, u64>,
    /// Time in all of them, in nanoseconds.
    pub total_ns: u64,
    /// Of this, time in stacks that do not reach the thread's start.
    pub truncated_ns: u64,
    /// Of this, time of which no stack was taken.
    pub no_stack_ns: u64,
    /// Of this, time in whole stacks that were partly found by frame pointers.
    pub frame_pointer_ns: u64,
    /// How many samples they are; 0 for waits.
    pub samples: u64,
}

type Stacks<'a> = HashMap<u64, &'a Stack>;

impl Folded {
    /// Folds the waits, or the samples, that the options select.
    pub fn new(recording: &Recording, options: &Options<'_>) -> Self {
        let stacks: Stacks<'_> = recording.stacks.iter().map(|stack| (stack.id, stack)).collect();
        let mut folded = Self::default();
        if options.view == View::OnCpu {
            if let Some(profile) = &recording.profile {
                folded.samples(profile, &stacks, options);
            }
            return folded;
        }
        for wait in recording.waits.iter().filter(|wait| is_selected(wait, options)) {
            let stack = stacks.get(&wait.stack_id).copied();
            let mut frames = vec![escaped(&wait.comm)];
            push_stack(&mut frames, stack);
            match options.view {
                View::OnCpu => {}
                View::OffCpu => {
                    for (leaf, time_ns) in
                        [(reason(wait.reason), wait.total_ns), ("[run queue]", wait.run_queue_ns)]
                    {
                        let with_leaf = frames.iter().cloned().chain([leaf.to_owned()]).collect();
                        folded.add(with_leaf, stack, time_ns);
                    }
                }
                View::Locks => {
                    frames.insert(0, lock_name(wait, options));
                    folded.add(frames, stack, wait.total_ns);
                }
                View::Wakers => {
                    frames.push("--".into());
                    push_waker(&mut frames, wait, stacks.get(&wait.waker_stack_id).copied());
                    folded.add(frames, stack, wait.total_ns);
                }
            }
        }
        folded
    }

    fn add(&mut self, frames: Vec<String>, stack: Option<&Stack>, time_ns: u64) {
        // Only a made-up recording comes to more than five centuries; no sum may overflow then.
        let time_ns = time_ns.min(u64::MAX - self.total_ns);
        if time_ns == 0 {
            return;
        }
        *self.stacks.entry(frames).or_default() += time_ns;
        self.total_ns += time_ns;
        match stack {
            None => self.no_stack_ns += time_ns,
            Some(stack) if stack.truncated.is_some() => self.truncated_ns += time_ns,
            Some(stack) if stack.used_frame_pointer => self.frame_pointer_ns += time_ns,
            Some(_) => {}
        }
    }

    fn samples(&mut self, profile: &Profile, stacks: &Stacks<'_>, options: &Options<'_>) {
        for group in &profile.groups {
            if !is_inside([group.operation.as_deref()], options) {
                continue;
            }
            let stack = stacks.get(&group.stack_id).copied();
            let mut frames = vec![escaped(&group.comm)];
            push_stack(&mut frames, stack);
            let leaf = stack.and_then(|stack| stack.frames.first()).filter(|_| !group.in_kernel);
            if let (Some(leaf), Some(last)) = (leaf.and_then(module_alone), frames.last_mut()) {
                *last = leaf;
            }
            match stacks.get(&group.kernel_stack_id) {
                Some(kernel) => push_kernel(&mut frames, kernel),
                None if group.in_kernel => frames.push("[kernel]".into()),
                None => {}
            }
            self.samples = self.samples.saturating_add(group.samples);
            self.add(frames, stack, group.samples.saturating_mul(profile.period_ns()));
        }
    }

    /// Stacks in folded form with their time in units of `unit_ns`, in the order of the tree. The
    /// times add up to the rounded total: each is cut to whole units, and those that are missing
    /// then go to the stacks that were cut the most. What comes to no unit is left out.
    pub fn rounded(&self, unit_ns: u64) -> impl Iterator<Item = (&[String], u64)> {
        let unit_ns = unit_ns.max(1);
        let cut_ns = move |time_ns: &u64| time_ns % unit_ns;
        let cut: u128 = self.stacks.values().map(|time_ns| u128::from(cut_ns(time_ns))).sum();
        let missing = (cut + u128::from(unit_ns) / 2) / u128::from(unit_ns);
        let missing = usize::try_from(missing).unwrap_or(usize::MAX);
        let mut by_cut: Vec<(usize, u64)> =
            self.stacks.values().map(cut_ns).enumerate().filter(|(_, cut)| *cut > 0).collect();
        by_cut.sort_by_key(|&(at, cut)| (std::cmp::Reverse(cut), at));
        let mut counts: Vec<u64> = self.stacks.values().map(|time_ns| time_ns / unit_ns).collect();
        for &(at, _) in by_cut.iter().take(missing) {
            counts[at] += 1;
        }
        let stacks = self.stacks.keys().map(Vec::as_slice).zip(counts);
        stacks.filter(|(_, count)| *count > 0)
    }
}

fn is_selected(wait: &WaitGroup, options: &Options<'_>) -> bool {
    let of_view = match options.view {
        View::OnCpu => false,
        View::OffCpu => true,
        View::Locks => wait.reason == Reason::Lock,
        View::Wakers => wait.reason != Reason::Preempted,
    };
    of_view && is_inside([wait.operation.as_deref(), wait.request.as_deref()], options)
}

/// Whether what lies inside these operations and requests is to be drawn.
fn is_inside<const N: usize>(scopes: [Option<&str>; N], options: &Options<'_>) -> bool {
    match options.operation {
        Some(wanted) => scopes.contains(&Some(wanted)),
        None => !options.in_operation || scopes.iter().any(Option::is_some),
    }
}

fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Preempted => "[preempted]",
        Reason::Lock => "[lock]",
        Reason::Io => "[I/O]",
        Reason::Sleep => "[sleep]",
        Reason::Other => "[other]",
    }
}

fn lock_name(wait: &WaitGroup, options: &Options<'_>) -> String {
    match (options.lock_names.get(&wait.futex_address), wait.futex_address) {
        (Some(name), _) => escaped(name),
        (None, 0) => "[unknown lock]".into(),
        (None, address) => format!("{address:#x}"),
    }
}

/// Appends a stack, from the root to the leaf.
fn push_stack(frames: &mut Vec<String>, stack: Option<&Stack>) {
    let Some(stack) = stack else {
        frames.push("[no stack]".into());
        return;
    };
    if let Some(reason) = &stack.truncated {
        frames.push(format!("[truncated: {}]", escaped(reason)));
    }
    frames.extend(stack.frames.iter().rev().map(label));
}

/// A frame without a name as its module. Where a thread was interrupted, the address is another
/// with almost each sample, and says nothing: a graph of them is a comb.
fn module_alone(frame: &Frame) -> Option<String> {
    let module = frame.module.trim_start_matches('[').trim_end_matches(']');
    (frame.function.is_none() && !module.is_empty()).then(|| format!("[{}]", escaped(module)))
}

/// Appends the kernel's part of a stack, with the mark that flame graphs know it by.
fn push_kernel(frames: &mut Vec<String>, stack: &Stack) {
    frames.extend(stack.frames.iter().rev().map(|frame| match &frame.function {
        Some(function) => format!("{}_[k]", escaped(function)),
        None => escaped(&frame.module),
    }));
}

/// Appends whoever ended a wait: its stack from the leaf to the root, so that both leaves meet.
fn push_waker(frames: &mut Vec<String>, wait: &WaitGroup, stack: Option<&Stack>) {
    match &wait.waker {
        Waker::Thread { comm, .. } => {
            let mut waker = vec![escaped(comm)];
            push_stack(&mut waker, stack);
            frames.extend(waker.into_iter().rev());
        }
        // The stack would be of whoever was interrupted.
        Waker::Interrupt => frames.push("[interrupt]".into()),
        Waker::Unknown => frames.push("[unknown waker]".into()),
    }
}

fn label(frame: &Frame) -> String {
    match &frame.function {
        Some(function) => match frame.source() {
            Some(source) => escaped(&format!("{function} ({source})")),
            None => escaped(function),
        },
        // Addresses that are nowhere say nothing, and would make a frame for each.
        None if frame.module.is_empty() => "[unknown]".into(),
        None => {
            // `[vdso]` has brackets already.
            let module = frame.module.trim_start_matches('[').trim_end_matches(']');
            format!("[{}+{:#x}]", escaped(module), frame.module_address)
        }
    }
}

/// A frame as the folded format and inferno can take it.
///
/// `;` would begin the next frame, and control characters are no text in XML. Spaces stay, save
/// where inferno would read on from one: before a number at the end (a second count) and behind `#`
/// at the start (a comment); spaces at the ends would be cut there, so they are cut here.
pub(super) fn escaped(text: &str) -> String {
    let mut frame: String = text
        .trim()
        .chars()
        .map(|character| match character {
            ';' => ':',
            // Two that are no characters, and XML allows them nowhere.
            '\u{fffe}' | '\u{ffff}' => '?',
            '\u{2028}' | '\u{2029}' => '?',
            control if control.is_control() => '?',
            other => other,
        })
        .collect();
    let is_count = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if let Some(at) = frame.rfind(' ').filter(|&at| is_count(&frame[at + 1..])) {
        frame.replace_range(at..=at, "_");
    }
    if frame.starts_with("# ") {
        frame.replace_range(1..2, "_");
    }
    if frame.is_empty() { "[unnamed]".into() } else { frame }
}
