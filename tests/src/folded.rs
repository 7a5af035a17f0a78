//! Folded stacks, as `latency flame --folded` prints them.

use std::time::Duration;

use crate::process::Process;
use crate::tracer::{Recorded, latency};

/// Stacks with their times.
pub struct Folded {
    /// Frames, the outermost first, behind the name of the thread; and microseconds.
    pub stacks: Vec<(Vec<String>, u64)>,
}

impl Folded {
    /// The folded stacks of a recording.
    #[track_caller]
    pub fn of(recorded: &Recorded, options: &[&str]) -> Self {
        let mut command = latency(&["flame", "--folded"]);
        command.arg(recorded.path()).args(options);
        let finished = Process::run(&mut command, Duration::from_secs(30));
        assert!(finished.status.success(), "{finished:?}");
        let line = |line: &str| {
            let (frames, time_us) = line.rsplit_once(' ').expect("frames, a space, a time");
            let frames = frames.split(';').map(str::to_owned).collect();
            (frames, time_us.parse().expect("a time"))
        };
        Self { stacks: finished.stdout.lines().map(line).collect() }
    }

    /// Time in the stacks for which this holds, in microseconds.
    pub fn time_us(&self, is_wanted: impl Fn(&[String]) -> bool) -> u64 {
        self.stacks.iter().filter(|(frames, _)| is_wanted(frames)).map(|(_, time)| time).sum()
    }

    /// Time in stacks that have these frames in this order, and reach the thread's start.
    pub fn time_in_us(&self, wanted: &[&str]) -> u64 {
        self.time_us(|frames| {
            let mut left = frames.iter();
            !is_marked(frames)
                && wanted.iter().all(|wanted| left.any(|frame| frame.contains(wanted)))
        })
    }

    /// Fails unless every stack that is not marked as cut short begins where a thread or a program
    /// does, and these are at least `percent` of the time of which stacks were taken.
    #[track_caller]
    pub fn assert_whole(&self, percent: u64) {
        for (frames, _) in self.stacks.iter().filter(|(frames, _)| !is_marked(frames)) {
            // A stripped C library has no name for where its threads begin.
            let starts = ["_start", "clone", "[libc.so.6+"];
            let is_start = starts.iter().any(|start| frames[1].starts_with(start));
            assert!(is_start, "neither whole nor marked: {frames:?}");
        }
        let whole = self.time_us(|frames| !is_marked(frames));
        let cut = self.time_us(|frames| frames[1].starts_with("[truncated"));
        assert!(
            whole * 100 >= (whole + cut) * percent,
            "{whole} µs in whole stacks, {cut} in others"
        );
    }
}

fn is_marked(frames: &[String]) -> bool {
    // Locks have their name before that of the thread.
    let first = frames.iter().skip(1).take(2);
    first.into_iter().any(|frame| frame.starts_with("[truncated") || frame == "[no stack]")
}
