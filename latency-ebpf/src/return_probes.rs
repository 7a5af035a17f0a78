//! Return addresses that the kernel replaced: while a function with a return probe runs, its stack
//! slot holds the address of a trampoline, and the kernel keeps the original in a list of the
//! task's.

use core::ffi::c_void;

use aya_ebpf::helpers::bpf_get_current_task;
use aya_ebpf::helpers::bpf_probe_read_kernel;

/// Field offsets in bytes, from the kernel's BTF: `task_struct.utask`, and 0 where the kernel has
/// none or the loader could not tell.
#[unsafe(no_mangle)]
static TASK_UTASK: u32 = 0;
/// `uprobe_task.return_instances`.
#[unsafe(no_mangle)]
static UTASK_RETURN_INSTANCES: u32 = 0;
/// `return_instance.stack`.
#[unsafe(no_mangle)]
static RETURN_INSTANCE_STACK: u32 = 0;
/// `return_instance.orig_ret_vaddr`.
#[unsafe(no_mangle)]
static RETURN_INSTANCE_ORIGINAL: u32 = 0;
/// `return_instance.next`.
#[unsafe(no_mangle)]
static RETURN_INSTANCE_NEXT: u32 = 0;

/// Most return probes looked at; the kernel allows 64 open ones a task.
const MAX_OPEN: usize = 8;

/// The original return address of the stack slot at `slot`, if a return probe replaced it; else 0.
///
/// The list starts with the innermost call. Calls that were jumped out of can still be in it; the
/// slot's address tells which entry is meant.
///
/// Not inlined: it has several callers, and the verifier's work would multiply.
#[inline(never)]
pub fn original(slot: u64) -> u64 {
    find(slot).unwrap_or(0)
}

/// The slot and the original return address when a thread is in the trampoline itself, with its
/// stack pointer at `rsp`: a function with a return probe has returned, and the kernel has not yet
/// sent the thread on to its caller.
#[inline(always)]
pub fn in_trampoline(rsp: u64) -> Option<(u64, u64)> {
    // The trampoline that ends in a system call has pushed three registers; the one that ends in a
    // breakpoint, none:
    // <https://github.com/torvalds/linux/blob/v6.11/arch/x86/kernel/uprobes.c#L314>.
    for slot in [rsp.wrapping_add(16), rsp.wrapping_sub(8)] {
        let address = original(slot);
        if address != 0 {
            return Some((slot, address));
        }
    }
    None
}

/// The same once the kernel has written the original return address to the stack, where the
/// trampoline's last instructions are about to take it from: two pops and the return, after a
/// system call, as of Linux 6.11. `rip` is the thread's; the slot alone.
#[inline(always)]
pub fn leaving_trampoline(rip: u64, rsp: u64) -> Option<u64> {
    // <https://github.com/torvalds/linux/blob/v6.11/arch/x86/kernel/uprobes.c#L314>
    const AFTER_SYSCALL: u64 = 13;
    match rip & 0xfff {
        AFTER_SYSCALL => Some(rsp.wrapping_add(16)),
        // `pop %r11` has two bytes, `pop %rcx` has one.
        0x0f => Some(rsp.wrapping_add(8)),
        0x10 => Some(rsp),
        _ => None,
    }
}

#[inline(always)]
fn find(slot: u64) -> Option<u64> {
    macro_rules! offset {
        ($name:ident) => {
            // SAFETY: a plain integer in .rodata; volatile, since the loader changes it.
            u64::from(unsafe { core::ptr::read_volatile(&raw const $name) })
        };
    }
    if offset!(TASK_UTASK) == 0 {
        return None;
    }
    // SAFETY: no preconditions.
    let task = unsafe { bpf_get_current_task() };
    let utask = read_kernel(task + offset!(TASK_UTASK))?;
    if utask == 0 {
        return None;
    }
    let mut instance = read_kernel(utask + offset!(UTASK_RETURN_INSTANCES))?;
    for _ in 0..MAX_OPEN {
        if instance == 0 {
            return None;
        }
        if read_kernel(instance + offset!(RETURN_INSTANCE_STACK))? == slot {
            return read_kernel(instance + offset!(RETURN_INSTANCE_ORIGINAL));
        }
        instance = read_kernel(instance + offset!(RETURN_INSTANCE_NEXT))?;
    }
    None
}

#[inline(always)]
fn read_kernel(address: u64) -> Option<u64> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel((address as *const c_void).cast::<u64>()) }.ok()
}
