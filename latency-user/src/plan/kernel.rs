//! Facts of the running kernel that the programs need: where fields lie, and what the tracepoints
//! pass. They come from the kernel's own type information, or from the `format` files of tracefs;
//! never from a version number, which distributions and real-time patches make meaningless.

mod btf;
mod format;
mod source;

use std::io;
use std::path::Path;

use thiserror::Error;

use btf::{Btf, Kind};
pub use format::SwitchFormat;

/// The kernel's type information.
const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";

/// What the kernel counts of this process.
const SCHEDSTAT_PATH: &str = "/proc/self/schedstat";

/// Why a fact is not to be had.
#[derive(Debug, Error)]
pub enum FactError {
    /// There is no type information.
    #[error(
        "{path} cannot be read ({source}): the kernel must be built with CONFIG_DEBUG_INFO_BTF \
         to follow the scheduler"
    )]
    Unreadable {
        /// The file.
        path: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The bytes are no type information.
    #[error("the kernel's type information is not understood: {0}")]
    Malformed(&'static str),
    /// The kernel has no such thing.
    #[error("the kernel's type information lacks {0}")]
    Missing(&'static str),
    /// A tracepoint passes other things than the programs take.
    #[error("the kernel's tracepoint {0} has unexpected arguments")]
    Arguments(&'static str),
}

/// Where the fields of `task_struct` lie, and what the scheduler's tracepoints are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelFacts {
    /// Offset of `pid`, in bytes, as are the others.
    pub task_pid: u32,
    /// Offset of `tgid`.
    pub task_tgid: u32,
    /// Offset of `__state`, or of `state` in older kernels.
    pub task_state: u32,
    /// Offset of `on_cpu`; 0 where there is none.
    pub task_on_cpu: u32,
    /// Offsets of `min_flt` and `maj_flt`; `None` where page faults cannot be counted.
    pub task_faults: Option<[u32; 2]>,
    /// Offset of `sched_info.run_delay`; 0 where the kernel does not keep it.
    pub task_run_delay: u32,
    /// Type id of the tracepoint `sched_switch`.
    pub sched_switch: u32,
    /// Whether `sched_switch` passes the state of the task that leaves.
    pub switch_has_prev_state: bool,
    /// Type id of the tracepoint `sched_waking`.
    pub sched_waking: u32,
    /// Whether there are the helpers `bpf_get_current_task_btf` and `bpf_task_pt_regs`.
    pub has_task_pt_regs: bool,
    /// Whether there is the helper `bpf_loop`, without which no stack is walked.
    pub has_loop: bool,
    /// Where the kernel keeps return addresses that return probes replaced; zeros where it does
    /// so otherwise: then a stack ends at such a frame.
    pub return_probes: ReturnProbeOffsets,
}

/// Offsets of the kernel's list of replaced return addresses, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ReturnProbeOffsets {
    /// `task_struct.utask`.
    pub utask: u32,
    /// `uprobe_task.return_instances`.
    pub return_instances: u32,
    /// `return_instance.stack`.
    pub stack: u32,
    /// `return_instance.orig_ret_vaddr`.
    pub original: u32,
    /// `return_instance.next`.
    pub next: u32,
}

impl KernelFacts {
    /// Reads the running kernel's.
    ///
    /// # Errors
    /// There is no type information, or it lacks what the programs cannot do without.
    pub fn read() -> Result<Self, FactError> {
        Self::read_from(Path::new(BTF_PATH))
    }

    fn read_from(path: &Path) -> Result<Self, FactError> {
        let bytes = source::Source::open(path)
            .map_err(|source| FactError::Unreadable { path: path.display().to_string(), source })?;
        let mut facts = Self::parse(&bytes)?;
        if !keeps_run_delay(&std::fs::read_to_string(SCHEDSTAT_PATH).unwrap_or_default()) {
            facts.task_run_delay = 0;
        }
        Ok(facts)
    }

    /// Finds the facts in a kernel's type information.
    ///
    /// # Errors
    /// As for [`KernelFacts::read`]; any bytes give facts or an error.
    pub fn parse(bytes: &[u8]) -> Result<Self, FactError> {
        let btf = Btf::parse(bytes)?;
        let [task, sched_info, utask, instance, switch, waking] = btf.find([
            (Kind::Struct, b"task_struct"),
            (Kind::Struct, b"sched_info"),
            (Kind::Struct, b"uprobe_task"),
            (Kind::Struct, b"return_instance"),
            (Kind::Typedef, b"btf_trace_sched_switch"),
            (Kind::Typedef, b"btf_trace_sched_waking"),
        ]);
        let task = task.ok_or(FactError::Missing("struct task_struct"))?;
        let switch = switch.ok_or(FactError::Missing("the tracepoint sched_switch"))?;
        let waking = waking.ok_or(FactError::Missing("the tracepoint sched_waking"))?;
        let [pid, tgid, new_state, old_state, min_flt, maj_flt, on_cpu] = btf.members(
            task,
            [b"pid", b"tgid", b"__state", b"state", b"min_flt", b"maj_flt", b"on_cpu"],
        );
        let run_delay = sched_info.and_then(|sched_info| {
            let [info] = btf.members(task, [b"sched_info"]);
            let [run_delay] = btf.members(sched_info, [b"run_delay"]);
            Some(info? + run_delay?)
        });
        let return_probes = utask.zip(instance).and_then(|(utask, instance)| {
            let [field] = btf.members(task, [b"utask"]);
            let [return_instances] = btf.members(utask, [b"return_instances"]);
            let [stack, original, next] =
                btf.members(instance, [b"stack", b"orig_ret_vaddr", b"next"]);
            Some(ReturnProbeOffsets {
                utask: field?,
                return_instances: return_instances?,
                stack: stack?,
                original: original?,
                next: next?,
            })
        });
        // The first parameter is the tracepoint's own data.
        let switch_has_prev_state = match btf.parameters(switch).as_deref() {
            Some([_, preempt, Kind::Pointer, Kind::Pointer, rest @ ..])
                if *preempt != Kind::Pointer && !rest.starts_with(&[Kind::Pointer]) =>
            {
                !rest.is_empty()
            }
            _ => return Err(FactError::Arguments("sched_switch")),
        };
        if !matches!(btf.parameters(waking).as_deref(), Some([_, Kind::Pointer, ..])) {
            return Err(FactError::Arguments("sched_waking"));
        }
        let [has_current_task, has_registers, has_loop] = btf.has_strings([
            b"BPF_FUNC_get_current_task_btf",
            b"BPF_FUNC_task_pt_regs",
            b"BPF_FUNC_loop",
        ]);
        Ok(Self {
            task_pid: pid.ok_or(FactError::Missing("task_struct.pid"))?,
            task_tgid: tgid.ok_or(FactError::Missing("task_struct.tgid"))?,
            task_state: new_state.or(old_state).ok_or(FactError::Missing("task_struct.__state"))?,
            task_on_cpu: on_cpu.unwrap_or(0),
            task_faults: min_flt
                .zip(maj_flt)
                .filter(|_| has_current_task)
                .map(|(minor, major)| [minor, major]),
            task_run_delay: run_delay.filter(|_| has_current_task).unwrap_or(0),
            sched_switch: switch,
            switch_has_prev_state,
            sched_waking: waking,
            has_task_pt_regs: has_current_task && has_registers,
            has_loop,
            return_probes: return_probes.unwrap_or_default(),
        })
    }
}

/// Whether a task's `schedstat` file, "RAN_NS WAITED_NS TIMES", shows that the kernel counts what
/// tasks wait for a CPU. Older ones may have the field and not count: then the file of a task that
/// does run has zeros.
fn keeps_run_delay(schedstat: &str) -> bool {
    schedstat.split_whitespace().nth(2).is_some_and(|times| times.parse().is_ok_and(|n: u64| n > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that zeros, nothing, and anything else mean that the kernel does not count.
    #[test]
    fn run_delay_kept() {
        assert!(keeps_run_delay("0 98895 1\n"));
        for schedstat in ["0 0 0\n", "1 2", "", "a b c"] {
            assert!(!keeps_run_delay(schedstat), "{schedstat:?}");
        }
    }

    /// Check that this kernel's facts are found, and are plausible; skipped without type
    /// information.
    #[test]
    fn running_kernel() {
        if !Path::new(BTF_PATH).exists() {
            eprintln!("skipped: {BTF_PATH} does not exist");
            return;
        }
        let facts = KernelFacts::read().unwrap();
        assert_eq!(facts.task_tgid, facts.task_pid + 4, "they stand side by side");
        assert!(facts.task_state < facts.task_pid);
        assert_ne!(facts.sched_switch, facts.sched_waking);
        assert_ne!(facts.return_probes, ReturnProbeOffsets::default());
    }

    /// Check that the facts are found fast enough to be looked for at every start: 15 ms in a
    /// release build, which is measured; here, only that they are not far from it.
    #[test]
    fn fast() {
        let Ok(bytes) = std::fs::read(BTF_PATH) else {
            eprintln!("skipped: {BTF_PATH} cannot be read");
            return;
        };
        let begin = std::time::Instant::now();
        KernelFacts::parse(&bytes).unwrap();
        let taken = begin.elapsed();
        eprintln!("{} bytes in {taken:?}", bytes.len());
        assert!(taken < std::time::Duration::from_millis(500), "{taken:?}");
    }

    /// Check that a missing file is told with what it needs.
    #[test]
    fn no_btf() {
        let error = KernelFacts::read_from(Path::new("/nonexistent")).unwrap_err();
        assert!(error.to_string().contains("CONFIG_DEBUG_INFO_BTF"), "{error}");
    }

    proptest::proptest! {
        /// Check that any bytes are refused without a panic.
        #[test]
        fn total(bytes: Vec<u8>) {
            assert!(KernelFacts::parse(&bytes).is_err());
        }
    }
}
