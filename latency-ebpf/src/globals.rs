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

/// Whether to log.
#[inline(always)]
pub fn log() -> bool {
    // SAFETY: as above.
    unsafe { core::ptr::read_volatile(&raw const LOG) != 0 }
}
