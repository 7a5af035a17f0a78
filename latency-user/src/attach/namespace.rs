//! The tracer's PID namespace, in which the programs report ids.

/// Device and inode of our PID namespace, or zeros for the initial one, where the kernel's own
/// ids are ours.
pub fn pid_namespace() -> (u64, u64) {
    use std::os::linux::fs::MetadataExt as _;
    /// The initial PID namespace's inode, fixed since Linux 3.8 (include/linux/proc_ns.h).
    const INITIAL_INODE: u64 = 0xeffffffc;
    match std::fs::metadata("/proc/self/ns/pid") {
        Ok(metadata) if metadata.st_ino() != INITIAL_INODE => {
            (metadata.st_dev(), metadata.st_ino())
        }
        _ => (0, 0),
    }
}
