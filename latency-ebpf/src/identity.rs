//! Who runs: process and thread ids as the tracer's PID namespace numbers them, and as the kernel
//! does in the initial one.

use aya_ebpf::bindings::bpf_pidns_info;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_get_ns_current_pid_tgid;
use aya_ebpf::macros::map;
use aya_ebpf::maps::Array;

use crate::globals;
use crate::task::Task;

/// `[0]`: the target's process id in the initial PID namespace, as its first probe hit told; for
/// a tracer in another namespace, which cannot know it.
#[map]
static TARGET_KERNEL_TGID: Array<u32> = Array::with_max_entries(1, 0);

/// The current thread.
pub struct Current {
    /// Its task; [`Task::NONE`] where the offsets of its fields are not known.
    pub task: Task,
    /// Process id.
    pub tgid: u32,
    /// Thread id.
    pub tid: u32,
}

impl Current {
    /// The current thread, or `None` when the target is another process.
    #[inline(always)]
    pub fn in_target() -> Option<Self> {
        let current = Self::any();
        (current.tgid == globals::target_tgid()).then_some(current)
    }

    /// The current thread, whosever it is; zeros outside the tracer's PID namespace.
    #[inline(always)]
    pub fn any() -> Self {
        let task = Task::current_or_none();
        let inode = globals::pid_namespace_inode();
        if inode != 0 {
            let mut info = bpf_pidns_info { pid: 0, tgid: 0 };
            // SAFETY: `info` is a valid buffer of the size given. On failure it is zeroed.
            unsafe {
                bpf_get_ns_current_pid_tgid(
                    globals::pid_namespace_device(),
                    inode,
                    &raw mut info,
                    size_of::<bpf_pidns_info>() as u32,
                )
            };
            return Self { task, tgid: info.tgid, tid: info.pid };
        }
        if globals::task_pid_offset() != 0 {
            return Self { task, tgid: task.read(globals::task_tgid_offset()), tid: task.tid() };
        }
        let ids = bpf_get_current_pid_tgid();
        Self { task, tgid: (ids >> 32) as u32, tid: ids as u32 }
    }

    /// This thread's id in the initial PID namespace, under which its state is kept: the
    /// scheduler's tracepoints know no other.
    #[inline(always)]
    pub fn kernel_tid(&self) -> u32 {
        if globals::pid_namespace_inode() == 0 {
            self.tid
        } else {
            bpf_get_current_pid_tgid() as u32
        }
    }

    /// Notes the target's process id in the initial PID namespace; this thread is the target's.
    #[inline(always)]
    pub fn note_kernel_tgid(&self) {
        if globals::pid_namespace_inode() != 0
            && let Some(tgid) = TARGET_KERNEL_TGID.get_ptr_mut(0)
        {
            // SAFETY: a map value; every writer writes the same.
            unsafe { *tgid = (bpf_get_current_pid_tgid() >> 32) as u32 };
        }
    }
}

/// The current thread's id, in the tracer's PID namespace.
#[inline(always)]
pub fn current_tid() -> u32 {
    Current::any().tid
}

/// The target's process id in the initial PID namespace, once known.
#[inline(always)]
pub fn target_kernel_tgid() -> Option<u32> {
    if globals::pid_namespace_inode() == 0 {
        return Some(globals::target_tgid());
    }
    // 0 would be the idle tasks.
    TARGET_KERNEL_TGID.get(0).copied().filter(|tgid| *tgid != 0)
}
