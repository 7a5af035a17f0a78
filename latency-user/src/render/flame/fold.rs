//! Waits and samples to folded stacks. Frames are escaped here and nowhere else.

use std::cmp::Reverse;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashMap;

use super::lines::{Line, Lines};
use super::{Options, View};
use crate::recording::{Frame, Profile, Reason, Recording, Stack, WaitGroup, Waker};

/// Time per stack.
#[derive(Default)]
pub(super) struct Folded<'a> {
    labels: Labels<'a>,
    /// By the frames' labels, the outermost first.
    stacks: Lines,
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

/// The frames' texts, each once: a hundred thousand stacks of one program have some hundred texts
/// between them.
#[derive(Default)]
struct Labels<'a> {
    /// Whether they have the lines of source.
    with_lines: bool,
    texts: Vec<Rc<str>>,
    ids: HashMap<Rc<str>, u32>,
    /// Those of the frames of the recording, which are shared between its stacks, by [`Level`].
    of_frames: [HashMap<*const Frame, u32>; 2],
    recording: PhantomData<&'a Recording>,
}

/// Whose frame it is.
#[derive(Clone, Copy)]
enum Level {
    User,
    Kernel,
}

impl<'a> Labels<'a> {
    fn id(&mut self, text: &str) -> u32 {
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        let (id, text) = (self.texts.len() as u32, Rc::from(text));
        self.texts.push(Rc::clone(&text));
        self.ids.insert(text, id);
        id
    }

    /// The place of each label among all, sorted by text: numbers compare faster.
    fn places(&self) -> Vec<u32> {
        let mut in_order: Vec<u32> = (0..self.texts.len() as u32).collect();
        in_order.sort_unstable_by_key(|&id| &self.texts[id as usize]);
        let mut places = vec![0; in_order.len()];
        for (place, id) in (0..).zip(in_order) {
            places[id as usize] = place;
        }
        places
    }

    fn of(&mut self, frame: &'a Arc<Frame>, side: Level) -> u32 {
        // The recording is borrowed for as long as this lives: an address is one frame's.
        let address = Arc::as_ptr(frame);
        if let Some(&id) = self.of_frames[side as usize].get(&address) {
            return id;
        }
        let text = match (side, &frame.function) {
            (Level::User, _) => label(frame, self.with_lines),
            // With the mark that flame graphs know the kernel's frames by.
            (Level::Kernel, Some(function)) => format!("{}_[k]", escaped(function)),
            (Level::Kernel, None) => escaped(&frame.module),
        };
        let id = self.id(&text);
        self.of_frames[side as usize].insert(address, id);
        id
    }

    /// Appends a stack, from the root to the leaf.
    fn push_stack(&mut self, frames: &mut Vec<u32>, stack: Option<&'a Stack>) {
        let Some(stack) = stack else {
            frames.push(self.id("[no stack]"));
            return;
        };
        if let Some(reason) = &stack.truncated {
            frames.push(self.id(&format!("[truncated: {}]", escaped(reason))));
        }
        frames.extend(stack.frames.iter().rev().map(|frame| self.of(frame, Level::User)));
    }

    /// Appends whoever ended a wait: its stack from the leaf to the root, so that both leaves meet.
    fn push_waker(&mut self, frames: &mut Vec<u32>, wait: &WaitGroup, stack: Option<&'a Stack>) {
        match &wait.waker {
            Waker::Thread { comm, .. } => {
                let mut waker = vec![self.id(&escaped(comm))];
                self.push_stack(&mut waker, stack);
                frames.extend(waker.into_iter().rev());
            }
            // The stack would be of whoever was interrupted.
            Waker::Interrupt => frames.push(self.id("[interrupt]")),
            Waker::Unknown => frames.push(self.id("[unknown waker]")),
        }
    }
}

impl<'a> Folded<'a> {
    /// Folds the waits, or the samples, that the options select.
    pub fn new(recording: &'a Recording, options: &Options<'_>) -> Self {
        let stacks: Stacks<'a> = recording.stacks.iter().map(|stack| (stack.id, stack)).collect();
        let mut folded = Self::default();
        folded.labels.with_lines = options.with_lines;
        if options.view == View::OnCpu {
            if let Some(profile) = &recording.profile {
                folded.samples(profile, &stacks, options);
            }
            return folded;
        }
        for wait in recording.waits.iter().filter(|wait| is_selected(wait, options)) {
            let stack = stacks.get(&wait.stack_id).copied();
            let mut frames = vec![folded.labels.id(&escaped(&wait.comm))];
            folded.labels.push_stack(&mut frames, stack);
            match options.view {
                View::OnCpu => {}
                View::OffCpu => {
                    for (leaf, time_ns) in
                        [(reason(wait.reason), wait.total_ns), ("[run queue]", wait.run_queue_ns)]
                    {
                        let leaf = folded.labels.id(leaf);
                        frames.push(leaf);
                        folded.add(&frames, stack, time_ns);
                        frames.pop();
                    }
                }
                View::Locks => {
                    frames.insert(0, folded.labels.id(&lock_name(wait, options)));
                    folded.add(&frames, stack, wait.total_ns);
                }
                View::Wakers => {
                    frames.push(folded.labels.id("--"));
                    let waker = stacks.get(&wait.waker_stack_id).copied();
                    folded.labels.push_waker(&mut frames, wait, waker);
                    folded.add(&frames, stack, wait.total_ns);
                }
            }
        }
        folded
    }

    fn add(&mut self, frames: &[u32], stack: Option<&Stack>, time_ns: u64) {
        // Only a made-up recording comes to more than five centuries; no sum may overflow then.
        let time_ns = time_ns.min(u64::MAX - self.total_ns);
        if time_ns == 0 {
            return;
        }
        self.stacks.add(frames, time_ns);
        self.total_ns += time_ns;
        match stack {
            None => self.no_stack_ns += time_ns,
            Some(stack) if stack.truncated.is_some() => self.truncated_ns += time_ns,
            Some(stack) if stack.used_frame_pointer => self.frame_pointer_ns += time_ns,
            Some(_) => {}
        }
    }

    fn samples(&mut self, profile: &Profile, stacks: &Stacks<'a>, options: &Options<'_>) {
        for group in &profile.groups {
            if !is_inside([group.operation.as_deref()], options) {
                continue;
            }
            let stack = stacks.get(&group.stack_id).copied();
            let mut frames = vec![self.labels.id(&escaped(&group.comm))];
            self.labels.push_stack(&mut frames, stack);
            let leaf = stack.and_then(|stack| stack.frames.first()).filter(|_| !group.in_kernel);
            if let (Some(leaf), Some(last)) =
                (leaf.and_then(|frame| module_alone(frame)), frames.last_mut())
            {
                *last = self.labels.id(&leaf);
            }
            match stacks.get(&group.kernel_stack_id) {
                Some(kernel) => {
                    let inwards = kernel.frames.iter().rev();
                    frames.extend(inwards.map(|frame| self.labels.of(frame, Level::Kernel)));
                }
                None if group.in_kernel => frames.push(self.labels.id("[kernel]")),
                None => {}
            }
            self.samples = self.samples.saturating_add(group.samples);
            self.add(&frames, stack, group.samples.saturating_mul(profile.period_ns()));
        }
    }

    /// Stacks with their time in units of `unit_ns`, sorted by frame, as a tree. The times add up to the
    /// rounded total: each is cut to whole units, and those that are missing then go to the stacks
    /// that were cut the most, the first ones of those cut alike. What comes to no unit is left out.
    pub fn rounded(&self, unit_ns: u64) -> Vec<Line<'_>> {
        let mut stacks = self.stacks.sorted(&self.labels.places());
        let unit_ns = unit_ns.max(1);
        let cuts = stacks.iter().map(|(_, time_ns)| Reverse(time_ns % unit_ns)).zip(0..);
        let mut by_cut: Vec<(Reverse<u64>, usize)> = cuts.filter(|(cut, _)| cut.0 > 0).collect();
        let cut: u128 = by_cut.iter().map(|(cut, _)| u128::from(cut.0)).sum();
        let missing = (cut + u128::from(unit_ns) / 2) / u128::from(unit_ns);
        let missing = usize::try_from(missing).unwrap_or(usize::MAX);
        if missing < by_cut.len() {
            by_cut.select_nth_unstable(missing);
        }
        for (_, time_ns) in &mut stacks {
            *time_ns /= unit_ns;
        }
        for &(_, at) in by_cut.iter().take(missing) {
            stacks[at].1 += 1;
        }
        stacks.retain(|(_, count)| *count > 0);
        stacks
    }

    /// The texts of a stack's frames.
    pub fn texts(&self, frames: &[u32]) -> Vec<Rc<str>> {
        frames.iter().map(|&id| Rc::clone(&self.labels.texts[id as usize])).collect()
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

/// A frame without a name as its module. Where a thread was interrupted, the address is another
/// with almost each sample, and says nothing: a graph of them is a comb.
fn module_alone(frame: &Frame) -> Option<String> {
    let module = frame.module.trim_start_matches('[').trim_end_matches(']');
    (frame.function.is_none() && !module.is_empty()).then(|| format!("[{}]", escaped(module)))
}

fn label(frame: &Frame, with_lines: bool) -> String {
    match &frame.function {
        Some(function) => match frame.source().filter(|_| with_lines) {
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
