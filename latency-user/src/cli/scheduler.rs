//! What `latency record` does with the scheduler's side of the trace: unwind rows for the kernel,
//! stacks and waits from it, and names for both.

use std::collections::{HashMap, HashSet};

use latency_common::ledger::off_cpu;
use latency_common::record::{WaitRecord, wait_flag};
use latency_common::unwind::{StackEnd, UnwindCounter};
use latency_common::wait::{self, NO_SYSCALL, futex, futex_command, is_futex_wait, task_state};

use crate::attach::{self, AttachError, KernelCounts, Session, UnwindSizes};
use crate::plan::unwind::Tables;
use crate::recording::{Recording, RecordingBuilder};
use crate::stream::{Record, Stack};
use crate::symbolize::{RawStack, Symbolizer, modules_of};
use crate::target::{Mapping, Target, WaitingTask, waiting_tasks};

/// Most distinct stacks that are kept; the kernel side sends each once.
const MAX_STACKS: usize = 65_536;

/// Stacks and waits of one trace.
pub struct Scheduler {
    tables: Option<Tables>,
    stacks: HashMap<u64, Stack>,
    /// Where the target maps what, when tracing began.
    mappings: Vec<Mapping>,
    pid: u32,
    comm: String,
    /// Whether the kernel side follows the scheduler.
    pub has_ledger: bool,
}

impl Scheduler {
    /// Compiles the target's unwind rows, if stacks are wanted.
    pub fn prepare(target: &Target, stacks: bool) -> Self {
        let tables = stacks.then(|| Tables::of(target));
        Self {
            tables,
            stacks: HashMap::new(),
            // A target that is gone already has nothing to name.
            mappings: target.mappings().unwrap_or_default(),
            pid: target.pid,
            comm: target.comm.clone(),
            has_ledger: false,
        }
    }

    /// How much room the kernel side needs for the rows.
    pub fn sizes(&self) -> Option<UnwindSizes> {
        self.tables.as_ref().map(|tables| UnwindSizes::for_store(&tables.store, 1))
    }

    /// Hands the rows to the kernel side.
    ///
    /// # Errors
    /// The maps cannot be written.
    pub fn give_rows(&self, session: &mut Session) -> Result<(), AttachError> {
        match &self.tables {
            Some(tables) => session.set_unwind(&tables.store, &tables.table),
            None => Ok(()),
        }
    }

    /// Does it again for files that were mapped since.
    ///
    /// # Errors
    /// As for [`Self::give_rows`].
    pub fn refresh(&mut self, target: &Target, session: &mut Session) -> Result<(), AttachError> {
        if let Some(tables) = &mut self.tables {
            tables.refresh(target);
        }
        self.give_rows(session)
    }

    /// Takes a record that is no operation.
    pub fn take(&mut self, record: &Record, builder: &mut RecordingBuilder) {
        match record {
            Record::Wait(wait) => {
                let pid = self.pid;
                // A thread that is gone had, most likely, its process's name.
                let mut name = |tid| comm_of(pid, tid).unwrap_or_else(|| self.comm.clone());
                builder.wait(wait, &mut name, &|tid| is_thread_of(pid, tid));
            }
            Record::Stack(stack) if self.stacks.len() < MAX_STACKS => {
                self.stacks.insert(stack.id, stack.clone());
            }
            Record::Stack(_) | Record::Operation(_) | Record::Request(_) | Record::Unknown(_) => {}
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
        let pid = self.pid;
        for record in seen.chain(unseen).collect::<Vec<_>>() {
            let mut name = |tid| comm_of(pid, tid).unwrap_or_else(|| self.comm.clone());
            builder.wait_in_progress(&record, &mut name, &|tid| is_thread_of(pid, tid));
        }
    }

    /// Puts the stacks that the recording's waits refer to into it, with names, and names its
    /// locks.
    pub fn finish(&self, target: &Target, recording: &mut Recording) {
        // Without unwind rows there are no stacks, but the locks still have names.
        let mappings = match &self.tables {
            Some(tables) => tables.mappings.clone(),
            None => self.mappings.clone(),
        };
        let mut symbolizer = Symbolizer::new(modules_of(&mappings, &target.files));
        let mut wanted: Vec<u64> = recording
            .waits
            .iter()
            .flat_map(|wait| [wait.stack_id, wait.waker_stack_id])
            .chain(recording.waits_in_progress.iter().map(|wait| wait.stack_id))
            .filter(|id| *id != 0)
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        let raw: Vec<RawStack> =
            wanted.iter().filter_map(|id| self.stacks.get(id)).map(raw).collect();
        recording.stacks = symbolizer.resolve(&raw);
        for lock in &mut recording.locks {
            lock.name = symbolizer.name_data(lock.address);
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
                    "{lost} stacks could not be recorded (ring buffer full): their waits are under \
                     [no stack]"
                ));
            }
        }
        losses
    }

    /// What the user should know.
    pub fn warnings(&self) -> &[String] {
        self.tables.as_ref().map_or(&[], |tables| &tables.warnings)
    }
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
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(text.trim_end().to_owned())
}

fn is_thread_of(pid: u32, tid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}
