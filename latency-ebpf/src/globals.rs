//! Settings that the loader writes before the programs are verified: the verifier sees constants
//! and drops the branches not taken.

/// The target process, in the tracer's PID namespace.
#[unsafe(no_mangle)]
static TARGET_TGID: u32 = 0;

/// Device number of the tracer's PID namespace; 0 with [`PID_NAMESPACE_INODE`] 0: the initial one.
#[unsafe(no_mangle)]
static PID_NAMESPACE_DEVICE: u64 = 0;

/// Inode of the tracer's PID namespace; 0: the initial one.
#[unsafe(no_mangle)]
static PID_NAMESPACE_INODE: u64 = 0;

/// 1 to log to the tracer (`-v`).
#[unsafe(no_mangle)]
static LOG: u32 = 0;

/// 1 to follow the scheduler: operations carry a ledger, and waits are recorded.
#[unsafe(no_mangle)]
static LEDGER: u32 = 0;

/// Waits outside of operations, and preemptions, shorter than this are only added up; nanoseconds.
#[unsafe(no_mangle)]
static MIN_WAIT_NS: u64 = 0;

/// Offset of `pid` (the thread's id) in the kernel's `task_struct`.
#[unsafe(no_mangle)]
static TASK_PID_OFFSET: u32 = 0;

/// Offset of `tgid` (the process's id) in `task_struct`.
#[unsafe(no_mangle)]
static TASK_TGID_OFFSET: u32 = 0;

/// Offset of `__state`, or `state`, in `task_struct`.
#[unsafe(no_mangle)]
static TASK_STATE_OFFSET: u32 = 0;

/// Offset of `min_flt` in `task_struct`; 0: page faults are not counted.
#[unsafe(no_mangle)]
static TASK_MIN_FLT_OFFSET: u32 = 0;

/// Offset of `maj_flt` in `task_struct`; 0 likewise.
#[unsafe(no_mangle)]
static TASK_MAJ_FLT_OFFSET: u32 = 0;

/// 1 if the kernel passes the state of the task that leaves to `sched_switch`.
#[unsafe(no_mangle)]
static SWITCH_HAS_PREV_STATE: u32 = 0;

/// Offset of `task_struct.on_cpu`, in bytes; 0: there is none.
#[unsafe(no_mangle)]
static TASK_ON_CPU_OFFSET: u32 = 0;

/// Offset of `sched_info.run_delay` in `task_struct`; 0: the kernel does not keep it.
#[unsafe(no_mangle)]
static TASK_RUN_DELAY_OFFSET: u32 = 0;

/// 1 if the kernel has the helper `bpf_task_pt_regs`.
#[unsafe(no_mangle)]
static HAS_TASK_PT_REGS: u32 = 0;

/// 1 when there are unwind rows, so that stacks can be taken at all.
#[unsafe(no_mangle)]
static UNWIND: u32 = 0;

/// 1 to take stacks of waits and wakers.
#[unsafe(no_mangle)]
static STACKS: u32 = 0;

/// 1 if some probes time requests.
#[unsafe(no_mangle)]
static REQUESTS: u32 = 0;

macro_rules! read {
    ($name:ident, $function:ident, $type:ty, $doc:literal) => {
        #[doc = $doc]
        #[inline(always)]
        pub fn $function() -> $type {
            // SAFETY: a plain integer in .rodata; volatile, since the loader changes it.
            unsafe { core::ptr::read_volatile(&raw const $name) }
        }
    };
}

read!(TARGET_TGID, target_tgid, u32, "See [`TARGET_TGID`].");
read!(PID_NAMESPACE_DEVICE, pid_namespace_device, u64, "See [`PID_NAMESPACE_DEVICE`].");
read!(PID_NAMESPACE_INODE, pid_namespace_inode, u64, "See [`PID_NAMESPACE_INODE`].");

read!(MIN_WAIT_NS, min_wait_ns, u64, "See [`MIN_WAIT_NS`].");
read!(TASK_PID_OFFSET, task_pid_offset, u32, "See [`TASK_PID_OFFSET`].");
read!(TASK_TGID_OFFSET, task_tgid_offset, u32, "See [`TASK_TGID_OFFSET`].");
read!(TASK_STATE_OFFSET, task_state_offset, u32, "See [`TASK_STATE_OFFSET`].");
read!(TASK_ON_CPU_OFFSET, task_on_cpu_offset, u32, "See [`TASK_ON_CPU_OFFSET`].");
read!(TASK_RUN_DELAY_OFFSET, task_run_delay_offset, u32, "See [`TASK_RUN_DELAY_OFFSET`].");
read!(TASK_MIN_FLT_OFFSET, task_min_flt_offset, u32, "See [`TASK_MIN_FLT_OFFSET`].");
read!(TASK_MAJ_FLT_OFFSET, task_maj_flt_offset, u32, "See [`TASK_MAJ_FLT_OFFSET`].");

macro_rules! is_set {
    ($name:ident, $function:ident, $doc:literal) => {
        #[doc = $doc]
        #[inline(always)]
        pub fn $function() -> bool {
            // SAFETY: as above.
            unsafe { core::ptr::read_volatile(&raw const $name) != 0 }
        }
    };
}

is_set!(LOG, log, "Whether to log.");
is_set!(LEDGER, ledger, "Whether to follow the scheduler.");
is_set!(SWITCH_HAS_PREV_STATE, switch_has_prev_state, "See [`SWITCH_HAS_PREV_STATE`].");
is_set!(HAS_TASK_PT_REGS, has_task_pt_regs, "See [`HAS_TASK_PT_REGS`].");
is_set!(UNWIND, unwind, "Whether there are unwind rows.");
is_set!(STACKS, stacks, "Whether to take stacks of waits and wakers.");
is_set!(REQUESTS, requests, "See [`REQUESTS`].");
