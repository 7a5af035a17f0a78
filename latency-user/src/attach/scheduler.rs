//! Following the scheduler: facts of the kernel into the programs' globals, and the programs onto
//! their tracepoints. All of it is optional: what is missing is kept as a refusal.

use std::os::fd::OwnedFd;

use super::object::{Kind, Programs};
use super::syscalls::{self, Purpose};
use super::{AttachError, Settings};
use crate::plan::kernel::{FactError, KernelFacts};

/// The scheduler's programs, and their links while they are attached.
#[derive(Default)]
pub struct Scheduler {
    facts: Option<KernelFacts>,
    refusal: Option<AttachError>,
    links: Vec<OwnedFd>,
}

impl Scheduler {
    /// Finds the kernel's facts, if the settings ask for a ledger.
    pub fn prepare(settings: &Settings) -> Self {
        if !settings.ledger {
            return Self::default();
        }
        match KernelFacts::read() {
            Ok(facts) => Self { facts: Some(facts), ..Self::default() },
            Err(error) => Self { refusal: Some(error.into()), ..Self::default() },
        }
    }

    /// The globals that the programs get. Without facts they stay as they are: no ledger.
    pub fn globals(&self) -> Vec<(&'static str, u32)> {
        let Some(facts) = self.facts else { return Vec::new() };
        let [minor, major] = facts.task_faults.unwrap_or_default();
        let replaced = facts.return_probes;
        vec![
            ("LEDGER", 1),
            ("TASK_UTASK", replaced.utask),
            ("UTASK_RETURN_INSTANCES", replaced.return_instances),
            ("RETURN_INSTANCE_STACK", replaced.stack),
            ("RETURN_INSTANCE_ORIGINAL", replaced.original),
            ("RETURN_INSTANCE_NEXT", replaced.next),
            ("TASK_PID_OFFSET", facts.task_pid),
            ("TASK_TGID_OFFSET", facts.task_tgid),
            ("TASK_STATE_OFFSET", facts.task_state),
            ("TASK_ON_CPU_OFFSET", facts.task_on_cpu),
            ("TASK_RUN_DELAY_OFFSET", facts.task_run_delay),
            ("TASK_MIN_FLT_OFFSET", minor),
            ("TASK_MAJ_FLT_OFFSET", major),
            ("SWITCH_HAS_PREV_STATE", facts.switch_has_prev_state.into()),
            ("HAS_TASK_PT_REGS", facts.has_task_pt_regs.into()),
        ]
    }

    /// What stacks need and the kernel lacks.
    pub fn stacks_refusal(&self) -> Option<AttachError> {
        let facts = self.facts?;
        let lacks = if !facts.has_task_pt_regs {
            "the helper bpf_task_pt_regs (Linux 5.15)"
        } else if !facts.has_loop {
            "the helper bpf_loop (Linux 5.17)"
        } else {
            return None;
        };
        Some(FactError::Missing(lacks).into())
    }

    /// Whether stacks can be taken.
    pub fn has_stacks(&self) -> bool {
        self.facts.is_some_and(|facts| facts.has_task_pt_regs && facts.has_loop)
    }

    /// The programs to load.
    pub fn programs(&self) -> Vec<Kind> {
        let Some(facts) = self.facts else { return Vec::new() };
        [("sched_waking", facts.sched_waking), ("sched_switch", facts.sched_switch)]
            .map(|(name, type_id)| Kind {
                name,
                purpose: Purpose::Tracepoint(type_id),
                is_return: false,
            })
            .into()
    }

    /// Attaches the programs. Wakeups first: a switch that blocks a thread is followed by one.
    pub fn attach(&mut self, programs: &mut Programs) {
        for kind in self.programs() {
            let attached = programs
                .load(kind)
                .and_then(|program| syscalls::attach_tracepoint(kind.name, program));
            match attached {
                Ok(link) => self.links.push(link),
                Err(error) => {
                    self.links.clear();
                    self.refusal = Some(error);
                    return;
                }
            }
        }
    }

    /// The same, when nothing else is wanted any more.
    pub fn into_refusal(self) -> Option<AttachError> {
        self.refusal
    }

    /// Why there is no ledger, though one was asked for.
    pub const fn refusal(&self) -> Option<&AttachError> {
        self.refusal.as_ref()
    }
}

/// The time on the clock that the programs read, `CLOCK_MONOTONIC`, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid buffer. The clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
