//! Time off the CPU: what the threads of the target waited for, and the stacks they waited in.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Why a thread was off the CPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Runnable, but pushed off the CPU, or it yielded.
    Preempted,
    /// It waited for a futex.
    Lock,
    /// It waited uninterruptibly: a disk, mostly.
    Io,
    /// It waited interruptibly: timers, pipes, sockets.
    Sleep,
    /// None of these can be told.
    #[serde(other)]
    Other,
}

/// Who ended a wait.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waker {
    /// A thread.
    Thread {
        /// Its id, in the tracer's PID namespace.
        tid: u32,
        /// Its process.
        pid: u32,
        /// Its name, where it could be read.
        comm: String,
    },
    /// An interrupt: a timer, a device.
    Interrupt,
    /// Nobody was seen.
    Unknown,
}

/// Waits that have everything but their length in common.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WaitGroup {
    /// Why the threads were off the CPU.
    pub reason: Reason,
    /// Name of the thread that waited.
    pub comm: String,
    /// Name of the operation that the wait lies in; `None` outside of operations.
    pub operation: Option<String>,
    /// Name of the request that the wait lies in; `None` outside of requests.
    #[serde(default)]
    pub request: Option<String>,
    /// Address of the futex; 0 when it was no futex wait.
    pub futex_address: u64,
    /// Command of the futex call; see [`latency_common::wait::futex`].
    pub futex_command: u32,
    /// Stack of the thread that waited; 0: none was taken.
    pub stack_id: u64,
    /// Stack of the waker at the wakeup; 0: none was taken.
    pub waker_stack_id: u64,
    /// Who ended the waits.
    pub waker: Waker,
    /// Thread that held the lock when the waits began; 0: not known, or no live thread.
    pub holder_tid: u32,
    /// How many waits.
    pub count: u64,
    /// Time blocked, in nanoseconds; for preempted threads, time runnable without running.
    pub total_ns: u64,
    /// Time runnable without running after that, in nanoseconds.
    pub run_queue_ns: u64,
    /// The longest of these waits, in nanoseconds.
    pub max_ns: u64,
}

/// A user stack, or the kernel's part of one, whose frames are of the module `[kernel]` or of one of
/// the kernel's modules, such as `[ext4]`, and carry no addresses.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Stack {
    /// Under which [`WaitGroup`] and [`super::SampleGroup`] refer to it.
    pub id: u64,
    /// Frames, the innermost first. Many stacks have most of their frames in common.
    pub frames: Vec<Arc<Frame>>,
    /// Why the stack does not reach the thread's start; `None` if it does.
    pub truncated: Option<String>,
    /// Whether frames were found by the frame pointer, where no unwind row was known: they may be
    /// wrong.
    pub used_frame_pointer: bool,
}

/// One frame.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Frame {
    /// The address in the target.
    pub address: u64,
    /// Name of the function, demangled; `None` where no symbol covers the address.
    pub function: Option<String>,
    /// Name of the file it is in, such as `libcrypto.so.3`, or `[vdso]`; empty where nothing is
    /// mapped.
    pub module: String,
    /// The address as the file counts it (its `st_value`s).
    pub module_address: u64,
    /// The source file, where debug information tells and it was wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Whether the function has no frame of its own: it was inlined into the next one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_inlined: bool,
}

impl Frame {
    /// The line of source as `keysvc.c:120`, where it is known.
    pub fn source(&self) -> Option<String> {
        let file = self.file.as_deref()?.rsplit('/').next()?;
        Some(match self.line {
            Some(line) => format!("{file}:{line}"),
            None => file.to_owned(),
        })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(value: &bool) -> bool {
    !value
}
