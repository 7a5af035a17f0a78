//! What `latency record` does with the scheduler's side of the trace: unwind rows for the kernel,
//! stacks and waits from it, and names for both.

use std::cell::RefCell;
use std::collections::HashSet;

use anyhow::Result;
use hashbrown::HashMap;
use latency_common::ledger::off_cpu;
use latency_common::record::{WaitRecord, wait_flag};
use latency_common::unwind::{StackEnd, UnwindCounter};
use latency_common::wait::{self, NO_SYSCALL, futex, futex_command, is_futex_wait, task_state};

use super::args::RecordArgs;
use super::names::Names;
use crate::attach::{self, AttachError, KernelCounts, Session, Settings, UnwindSizes};
use crate::plan::unwind::{Limits, Tables};
use crate::recording::{MAX_STACKS, Recording, RecordingBuilder};
use crate::stream::{Record, Stack};
use crate::symbolize::{KernelSymbols, RawStack};
use crate::target::{Target, WaitingTask, waiting_tasks};

/// Every contended lock's holder is asked for: not each time.
const THREAD_AGE_NS: u64 = 100_000_000;
const MAX_SEEN_THREADS: usize = 16 << 10;

/// Stacks and waits of one trace.
pub struct Scheduler {
    tables: Option<Tables>,
    stacks: HashMap<u64, Stack>,
    /// Stacks beyond [`MAX_STACKS`], each counted at every sight.
    dropped_stacks: u64,
    names: Names,
    pid: u32,
    comm: String,
    /// The threads that the target was seen to have, and when, in nanoseconds.
    seen_threads: RefCell<HashMap<u32, u64>>,
    /// Whether the kernel side follows the scheduler.
    pub has_ledger: bool,
}

impl Scheduler {
    /// Loads the programs, and meanwhile compiles the target's unwind rows, if stacks are wanted.
    /// Holds what names are made of.
    ///
    /// # Errors
    /// The programs cannot be loaded, or the maps not be written; as for [`Names::hold`].
    pub fn load(target: &Target, settings: Settings, args: &RecordArgs) -> Result<(Self, Session)> {
        let names = Names::hold(target, args)?;
        let limits = Limits::default();
        let frequency_hz = args.frequency_hz();
        let sizes = (args.stacks() || frequency_hz > 0).then(|| {
            let cpus = aya::util::online_cpus().map_or(1, |cpus| cpus.len() as u32);
            let words = Tables::estimate_words(target);
            UnwindSizes::for_words(words, limits.rows, frequency_hz.saturating_mul(cpus))
        });
        let mut tables = None;
        let session = std::thread::scope(|scope| {
            let mut compiling = sizes.map(|sizes| {
                scope.spawn(move || Tables::of(target, Limits { rows: sizes.words() }))
            });
            // The rows come before the first switch that is seen: a thread may sleep for long after.
            let mut prepare = |session: &mut Session| {
                if let Some(compiling) = compiling.take() {
                    tables = compiling.join().ok();
                }
                give_rows(tables.as_ref(), session)
            };
            Session::load(Settings { unwind: sizes, ..settings }, &mut prepare)
        })?;
        let scheduler = Self {
            tables: tables.filter(|_| session.has_unwind()),
            stacks: HashMap::new(),
            dropped_stacks: 0,
            names,
            pid: target.pid,
            comm: target.comm.clone(),
            seen_threads: RefCell::default(),
            has_ledger: false,
        };
        Ok((scheduler, session))
    }

    /// Takes note of what the target maps now.
    pub fn see(&mut self, target: &Target) {
        self.names.see(target);
    }

    /// Compiles the rows of what was mapped since, and hands them to the kernel side.
    ///
    /// # Errors
    /// The maps cannot be written.
    pub fn refresh(&mut self, target: &Target, session: &mut Session) -> Result<(), AttachError> {
        let changed = self.tables.as_mut().is_some_and(|tables| tables.refresh(target));
        give_rows(self.tables.as_ref().filter(|_| changed), session)
    }

    /// Takes a record that is no operation.
    pub fn take(&mut self, record: &Record, builder: &mut RecordingBuilder) {
        match record {
            Record::Wait(wait) => {
                let live = |tid| self.has_thread(tid, wait.start_ns);
                builder.wait(wait, &mut |tid| self.name_of(tid), &live);
            }
            Record::Sample(sample) => {
                builder.sample(sample, &mut |tid| self.name_of(tid));
            }
            Record::Stack(stack) if self.stacks.len() < MAX_STACKS => {
                self.stacks.insert(stack.id, stack.clone());
            }
            Record::Stack(stack) if self.stacks.contains_key(&stack.id) => {}
            Record::Stack(_) => self.dropped_stacks += 1,
            Record::Operation(_) | Record::Request(_) | Record::Unknown(_) => {}
        }
    }

    /// Gives the builder the waits that have not ended: of the threads that the kernel side knows,
    /// and of those that did not stir since tracing began, which /proc tells.
    pub fn waits_in_progress(&self, counts: &KernelCounts, builder: &mut RecordingBuilder) {
        if !self.has_ledger {
            return;
        }
        let now_ns = attach::monotonic_ns();
        let known: HashSet<u32> = counts.threads.iter().map(|(_, it)| it.wait.tid).collect();
        let seen = counts.threads.iter().filter_map(|(_, thread)| {
            let off = thread.timeline.in_progress(now_ns)?;
            Some(WaitRecord::new(thread, &off, self.pid))
        });
        let start_ns = builder.start_ns();
        let unseen = waiting_tasks(self.pid)
            .into_iter()
            .filter(|task| !known.contains(&task.tid))
            .map(|task| since_before(&task, start_ns, now_ns));
        for record in seen.chain(unseen) {
            let (mut name, live) = (|tid| self.name_of(tid), |tid| self.has_thread(tid, now_ns));
            builder.wait_in_progress(&record, &mut name, &live);
        }
    }

    /// The name of a thread: one that is gone had, most likely, its process's.
    fn name_of(&self, tid: u32) -> String {
        comm_of(self.pid, tid).unwrap_or_else(|| self.comm.clone())
    }

    /// Whether the target has such a thread at `now_ns`, or had it less than [`THREAD_AGE_NS`] ago.
    fn has_thread(&self, tid: u32, now_ns: u64) -> bool {
        let mut seen = self.seen_threads.borrow_mut();
        if seen.get(&tid).is_some_and(|seen_ns| now_ns.saturating_sub(*seen_ns) < THREAD_AGE_NS) {
            return true;
        }
        let exists = std::path::Path::new(&format!("/proc/{}/task/{tid}", self.pid)).exists();
        if exists {
            if seen.len() >= MAX_SEEN_THREADS {
                seen.clear();
            }
            seen.insert(tid, now_ns);
        }
        exists
    }

    /// Puts the stacks that the recording's waits and samples refer to into it, with names, and names its
    /// locks.
    pub fn finish(&mut self, target: &Target, recording: &mut Recording) {
        let mut wanted: Vec<u64> = recording
            .waits
            .iter()
            .flat_map(|wait| [wait.stack_id, wait.waker_stack_id])
            .chain(
                recording
                    .profile
                    .iter()
                    .flat_map(|profile| &profile.groups)
                    .flat_map(|group| [group.stack_id, group.kernel_stack_id]),
            )
            .chain(recording.waits_in_progress.iter().map(|wait| wait.stack_id))
            .filter(|id| *id != 0)
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        let wanted = wanted.iter().filter_map(|id| self.stacks.get(id));
        let (kernel, user): (Vec<&Stack>, Vec<&Stack>) = wanted.partition(|stack| stack.is_kernel);
        let user: Vec<RawStack> = user.into_iter().map(raw).collect();
        self.names.give(target, &user, recording);
        if !kernel.is_empty() {
            let symbols = KernelSymbols::read();
            recording.stacks.extend(kernel.into_iter().map(|stack| symbols.resolve(&raw(stack))));
        }
        recording.classify_locks();
    }

    /// What was lost of stacks.
    pub fn losses(&self, session: &Session) -> Vec<String> {
        let mut losses = Vec::new();
        if self.tables.is_some()
            && let Ok(unwound) = session.unwind_counts()
        {
            let lost = unwound.get(UnwindCounter::LostRingFull);
            if lost > 0 {
                losses.push(format!(
                    "{lost} stacks could not be recorded (ring buffer full): their waits and \
                     samples are under [no stack]"
                ));
            }
        }
        if self.dropped_stacks > 0 {
            losses.push(format!(
                "there were more than {MAX_STACKS} different stacks: {} later ones are under [no stack]",
                self.dropped_stacks
            ));
        }
        losses
    }

    /// What the user should know.
    pub fn warnings(&self) -> &[String] {
        self.tables.as_ref().map_or(&[], |tables| &tables.warnings)
    }
}

/// Hands rows to the kernel side, if there are any.
fn give_rows(tables: Option<&Tables>, session: &mut Session) -> Result<(), AttachError> {
    tables.map_or(Ok(()), |tables| session.set_unwind(&tables.store, &tables.table))
}

/// The wait of a thread that has waited since before the trace.
fn since_before(task: &WaitingTask, start_ns: u64, now_ns: u64) -> WaitRecord {
    let (syscall, [address, operation]) = task.syscall.unwrap_or((NO_SYSCALL, [0; 2]));
    let is_futex_call = syscall == latency_common::wait::syscall::FUTEX;
    let command = if is_futex_call { futex_command(operation) } else { futex::NONE };
    let state = match task.state {
        b'S' => task_state::INTERRUPTIBLE,
        b'D' => task_state::UNINTERRUPTIBLE,
        // Stopped, traced, idle: none of the others.
        _ => 0x4,
    };
    let reason = wait::reason(false, state, is_futex_wait(syscall, command));
    let is_lock = reason == off_cpu::LOCK;
    WaitRecord {
        reason: reason as u8,
        flags: wait_flag::BEGAN_BEFORE_TRACE,
        start_ns,
        duration_ns: now_ns.saturating_sub(start_ns),
        tid: task.tid,
        syscall,
        // The argument of futex_waitv is a list.
        futex_address: if is_lock && syscall != wait::syscall::FUTEX_WAITV { address } else { 0 },
        futex_command: command,
        ..WaitRecord::default()
    }
}

fn raw(stack: &Stack) -> RawStack {
    RawStack {
        id: stack.id,
        frames: stack.frames.clone(),
        truncated: match stack.end {
            Some(StackEnd::Complete) => None,
            Some(end) => Some(end.reason().to_owned()),
            None => Some("unknown".to_owned()),
        },
        used_frame_pointer: stack.used_frame_pointer,
    }
}

/// The name of a thread; `None` if it is gone.
fn comm_of(pid: u32, tid: u32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    // Any bytes are a name to the kernel.
    let text = String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes));
    Some(text.into_owned())
}
