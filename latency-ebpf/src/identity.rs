//! Who runs: process and thread ids as the tracer's PID namespace numbers them.

use aya_ebpf::bindings::bpf_pidns_info;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_get_ns_current_pid_tgid;

use crate::globals;

/// The current thread, if it belongs to the target.
pub struct Current {
    /// Process id.
    pub tgid: u32,
    /// Thread id.
    pub tid: u32,
}

impl Current {
    /// The current thread, or `None` when the target is another process.
    #[inline(always)]
    pub fn in_target() -> Option<Self> {
        let inode = globals::pid_namespace_inode();
        let (tgid, tid) = if inode == 0 {
            let ids = bpf_get_current_pid_tgid();
            ((ids >> 32) as u32, ids as u32)
        } else {
            let mut info = bpf_pidns_info { pid: 0, tgid: 0 };
            // SAFETY: `info` is a valid buffer of the size given.
            let result = unsafe {
                bpf_get_ns_current_pid_tgid(
                    globals::pid_namespace_device(),
                    inode,
                    &raw mut info,
                    size_of::<bpf_pidns_info>() as u32,
                )
            };
            if result != 0 {
                return None;
            }
            (info.tgid, info.pid)
        };
        (tgid == globals::target_tgid()).then_some(Self { tgid, tid })
    }
}
