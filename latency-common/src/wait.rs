//! What a thread waits for, told from the system call that it blocked in, and who ended the wait.
//! Numbers are those of x86-64 (arch/x86/entry/syscalls/syscall_64.tbl).

use crate::ledger::off_cpu;

/// `syscall` where the thread was in none: a page fault, or a signal stop.
pub const NO_SYSCALL: i32 = -1;

/// System calls that wait for a futex, or wake its waiters.
pub mod syscall {
    /// `futex(2)`.
    pub const FUTEX: i32 = 202;
    /// `futex_waitv(2)`.
    pub const FUTEX_WAITV: i32 = 449;
    /// `futex_wake` of the futex2 interface.
    pub const FUTEX_WAKE: i32 = 454;
    /// `futex_wait` of the futex2 interface.
    pub const FUTEX_WAIT: i32 = 455;
    /// `exit(2)`: wakes who joins the thread.
    pub const EXIT: i32 = 60;
    /// `exit_group(2)`.
    pub const EXIT_GROUP: i32 = 231;
    /// `kill(2)`.
    pub const KILL: i32 = 62;
    /// `tkill(2)`.
    pub const TKILL: i32 = 200;
    /// `tgkill(2)`.
    pub const TGKILL: i32 = 234;
    /// `rt_sigqueueinfo(2)`.
    pub const RT_SIGQUEUEINFO: i32 = 129;
    /// `rt_tgsigqueueinfo(2)`.
    pub const RT_TGSIGQUEUEINFO: i32 = 297;
    /// `pidfd_send_signal(2)`.
    pub const PIDFD_SEND_SIGNAL: i32 = 424;
}

/// Commands of `futex(2)`, flags masked; see [`futex_command`].
pub mod futex {
    /// `FUTEX_WAIT`.
    pub const WAIT: u32 = 0;
    /// `FUTEX_LOCK_PI`.
    pub const LOCK_PI: u32 = 6;
    /// `FUTEX_WAIT_BITSET`.
    pub const WAIT_BITSET: u32 = 9;
    /// `FUTEX_WAIT_REQUEUE_PI`.
    pub const WAIT_REQUEUE_PI: u32 = 11;
    /// `FUTEX_LOCK_PI2`.
    pub const LOCK_PI2: u32 = 13;
    /// Stands for the calls that have no command of their own: `futex_wait` and `futex_waitv`.
    pub const NONE: u32 = u32::MAX;
}

/// `FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME`.
const FUTEX_FLAGS: u32 = 128 | 256;

/// The command in the second argument of `futex(2)`.
#[inline(always)]
pub const fn futex_command(operation: u64) -> u32 {
    operation as u32 & !FUTEX_FLAGS
}

/// Whether a thread that blocks in `syscall` with this futex command waits for a futex.
#[inline(always)]
pub const fn is_futex_wait(syscall: i32, command: u32) -> bool {
    match syscall {
        syscall::FUTEX => matches!(
            command,
            futex::WAIT
                | futex::LOCK_PI
                | futex::WAIT_BITSET
                | futex::WAIT_REQUEUE_PI
                | futex::LOCK_PI2
        ),
        syscall::FUTEX_WAITV | syscall::FUTEX_WAIT => true,
        _ => false,
    }
}

/// Bits of a task's state (include/linux/sched.h); unchanged since Linux 4.14.
pub mod task_state {
    /// `TASK_INTERRUPTIBLE`.
    pub const INTERRUPTIBLE: u64 = 0x1;
    /// `TASK_UNINTERRUPTIBLE`.
    pub const UNINTERRUPTIBLE: u64 = 0x2;
    /// `TASK_DEAD`: the thread's last switch.
    pub const DEAD: u64 = 0x80;
}

/// Why a thread with this `task_state` leaves the CPU; see [`off_cpu`].
#[inline(always)]
pub const fn reason(preempted: bool, task_state: u64, is_futex_wait: bool) -> u32 {
    if preempted || task_state == 0 {
        off_cpu::PREEMPTED
    } else if task_state & task_state::INTERRUPTIBLE != 0 {
        // A futex wait is interruptible. A thread can also block on the way to it, for the pages
        // of its address: that is no lock wait.
        if is_futex_wait { off_cpu::LOCK } else { off_cpu::SLEEP }
    } else if task_state & task_state::UNINTERRUPTIBLE != 0 {
        off_cpu::IO
    } else {
        off_cpu::OTHER
    }
}

/// Bits of `waker_flags`.
pub mod waker_flag {
    /// The wakeup came from a hard or soft interrupt: the interrupted thread is not to blame.
    pub const INTERRUPT: u8 = 1;
    /// A waker was seen at all.
    pub const SEEN: u8 = 2;
}

/// How a wait ended, as far as the waker shows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WaitEnd {
    /// Nothing tells.
    Unknown,
    /// Another thread released or signalled it.
    Woken,
    /// The timer ran out: nothing else wakes a futex from an interrupt.
    TimedOut,
    /// A signal arrived.
    Signal,
}

/// How a futex wait ended: from where the wakeup came.
pub const fn futex_wait_end(waker_flags: u8, waker_syscall: i32) -> WaitEnd {
    if waker_flags & waker_flag::SEEN == 0 {
        return WaitEnd::Unknown;
    }
    if waker_flags & waker_flag::INTERRUPT != 0 {
        return WaitEnd::TimedOut;
    }
    match waker_syscall {
        syscall::FUTEX | syscall::FUTEX_WAKE | syscall::EXIT | syscall::EXIT_GROUP => {
            WaitEnd::Woken
        }
        syscall::KILL
        | syscall::TKILL
        | syscall::TGKILL
        | syscall::RT_SIGQUEUEINFO
        | syscall::RT_TGSIGQUEUEINFO
        | syscall::PIDFD_SEND_SIGNAL => WaitEnd::Signal,
        _ => WaitEnd::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that every futex command that waits is told with any flags, and no other.
    #[test]
    fn futex_waits() {
        for flags in [0, 128, 256, 384] {
            let waits: Vec<u64> = (0..16)
                .filter(|command| is_futex_wait(syscall::FUTEX, futex_command(command | flags)))
                .collect();
            assert_eq!(waits, [0, 6, 9, 11, 13]);
        }
        assert!(is_futex_wait(syscall::FUTEX_WAITV, futex::NONE));
        assert!(is_futex_wait(syscall::FUTEX_WAIT, futex::NONE));
        assert!(!is_futex_wait(syscall::FUTEX_WAKE, futex::NONE));
        assert!(!is_futex_wait(NO_SYSCALL, futex::WAIT));
    }

    /// Check the states of include/linux/sched.h, and that a preempted thread is never blocked.
    #[test]
    fn reasons() {
        assert_eq!(reason(false, 0, true), off_cpu::PREEMPTED, "yielded");
        assert_eq!(reason(true, 1, true), off_cpu::PREEMPTED, "on its way to a wait");
        assert_eq!(reason(false, 1, true), off_cpu::LOCK);
        assert_eq!(reason(false, 0x2001, true), off_cpu::LOCK, "freezable");
        assert_eq!(reason(false, 1, false), off_cpu::SLEEP);
        assert_eq!(reason(false, 2, true), off_cpu::IO, "a page fault on the futex's address");
        assert_eq!(reason(false, 0x102, false), off_cpu::IO, "killable");
        assert_eq!(reason(false, 4, false), off_cpu::OTHER, "stopped");
        assert_eq!(reason(false, 0x1000, false), off_cpu::OTHER, "a spin lock on RT");
    }

    /// Check how each kind of waker ends a futex wait.
    #[test]
    fn wait_ends() {
        use waker_flag::{INTERRUPT, SEEN};
        assert_eq!(futex_wait_end(0, syscall::FUTEX), WaitEnd::Unknown);
        assert_eq!(futex_wait_end(SEEN, syscall::FUTEX), WaitEnd::Woken);
        assert_eq!(futex_wait_end(SEEN | INTERRUPT, syscall::FUTEX), WaitEnd::TimedOut);
        assert_eq!(futex_wait_end(SEEN, syscall::TGKILL), WaitEnd::Signal);
        assert_eq!(futex_wait_end(SEEN, syscall::EXIT), WaitEnd::Woken);
        assert_eq!(futex_wait_end(SEEN, 0), WaitEnd::Unknown);
    }
}
