//! Tasks as the kernel's tracepoints pass them, and how they came into the kernel.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_task_pt_regs};
use aya_ebpf::programs::BtfTracePointContext;

use crate::globals;

/// A kernel stack's size on x86-64 (`THREAD_SIZE`).
const KERNEL_STACK_BYTES: u64 = 16 << 10;

/// A task of the kernel's, as the tracepoint gives it.
#[derive(Clone, Copy)]
pub struct Task(*const u8);

impl Task {
    /// No task: nothing may be read of it.
    pub const NONE: Self = Self(core::ptr::null());

    /// The task that a tracepoint passes.
    #[inline(always)]
    pub fn new(pointer: *const u8) -> Self {
        Self(pointer)
    }

    /// The running task.
    #[inline(always)]
    pub fn current() -> Self {
        // SAFETY: no preconditions.
        Self(unsafe { bpf_get_current_task_btf() }.cast::<u8>().cast_const())
    }

    /// The running task, or [`Task::NONE`] where the offsets of its fields are not known.
    #[inline(always)]
    pub fn current_or_none() -> Self {
        if globals::task_pid_offset() != 0 { Self::current() } else { Self::NONE }
    }

    /// The field at `offset`, which the loader found.
    #[inline(always)]
    pub fn read(self, offset: u32) -> u32 {
        // SAFETY: the verifier checks that the task's structure has 4 bytes there.
        unsafe { core::ptr::read_volatile(self.0.add(offset as usize).cast::<u32>()) }
    }

    /// Its page faults so far: minor and major; zeros where they are not counted.
    #[inline(always)]
    pub fn faults(self) -> [u32; 2] {
        let (minor, major) = (globals::task_min_flt_offset(), globals::task_maj_flt_offset());
        if minor == 0 || major == 0 {
            return [0; 2];
        }
        // The low halves of 64-bit counts.
        [self.read(minor), self.read(major)]
    }

    /// How long it has waited for a CPU so far, until it came onto one last, in nanoseconds; `None`
    /// where the kernel does not count it.
    #[inline(always)]
    pub fn run_delay_ns(self) -> Option<u64> {
        let offset = globals::task_run_delay_offset();
        // SAFETY: as in `read`; 8 bytes.
        (offset != 0)
            .then(|| unsafe { core::ptr::read_volatile(self.0.add(offset as usize).cast::<u64>()) })
    }

    /// Whether it is a thread of the process `tgid`, in the initial PID namespace.
    #[inline(always)]
    pub fn is_of(self, tgid: u32) -> bool {
        self.read(globals::task_tgid_offset()) == tgid
    }

    /// Its thread id, in the initial PID namespace.
    #[inline(always)]
    pub fn tid(self) -> u32 {
        self.read(globals::task_pid_offset())
    }

    /// The registers that the task entered the kernel with.
    #[inline(always)]
    pub fn registers(self) -> *const pt_regs {
        // SAFETY: a trusted task pointer, as the helper wants it.
        unsafe { bpf_task_pt_regs(self.0.cast_mut().cast()) as *const pt_regs }
    }
}

/// Reads one register.
macro_rules! register {
    ($regs:expr, $name:ident) => {
        // SAFETY: `bpf_task_pt_regs` gives a pointer to a whole `pt_regs`; volatile, so that the
        // compiler keeps the offsets constant.
        unsafe { core::ptr::read_volatile(&raw const (*$regs).$name) }
    };
}
pub(crate) use register;

/// The idle tasks' thread id: they wake no one, only interrupts on top of them do.
pub const IDLE_TID: u32 = 0;

/// How a task came to run in the kernel.
pub enum Entry {
    /// By this system call.
    Syscall(i32),
    /// By an interrupt of its program, or a fault in it.
    Interrupt,
    /// It has no program: a thread of the kernel's.
    None,
}

impl Entry {
    /// Told from the registers on entry: for anything but a system call, the kernel puts -1 where
    /// that would have its number (`ORIG_RAX` in arch/x86/entry/entry_64.S). Threads of the
    /// kernel's have zeros there, and no code segment of user mode.
    #[inline(always)]
    pub fn of(regs: *const pt_regs) -> Self {
        if register!(regs, cs) & 3 != 3 {
            return Self::None;
        }
        match register!(regs, orig_rax) as i32 {
            number @ 0.. => Self::Syscall(number),
            _ => Self::Interrupt,
        }
    }
}

/// Whether this program runs on the stack of a hard or soft interrupt. Interrupts of the kernel
/// have stacks of their own on x86-64 (those of a program run on its task's stack, and show in
/// [`Entry`]), and the tracepoint's arguments lie on the stack in use: if that is the task's, they
/// are below the registers it entered the kernel with, by less than the stack's size. With
/// PREEMPT_RT, soft interrupts are threads, and are seen as such.
#[inline(always)]
pub fn is_interrupt_stack(ctx: &BtfTracePointContext, regs: *const pt_regs) -> bool {
    let mut distance = regs as u64;
    // SAFETY: a subtraction. By hand, since the verifier takes the difference of two pointers for
    // a number, but no other arithmetic with these, such as the compiler might prefer.
    unsafe {
        core::arch::asm!(
            "{0} -= {1}",
            inout(reg) distance,
            in(reg) ctx.as_ptr(),
            options(pure, nomem, nostack),
        );
    }
    distance >= KERNEL_STACK_BYTES
}
