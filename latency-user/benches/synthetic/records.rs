//! Records as the kernel side of a busy service sends them: 16 threads that sign and verify, and
//! wait for eight locks, timers and disks in between. The same ones in each run.

#![allow(dead_code, reason = "each bench uses a part of it")]

use latency_common::algorithm::{AlgorithmId, family};
use latency_common::ledger::{Ledger, off_cpu};
use latency_common::record::{OperationRecord, WaitRecord, kind, outcome, wait_flag};
use latency_common::wait::{NO_SYSCALL, futex, syscall, waker_flag};

/// When tracing begins, `CLOCK_MONOTONIC`, in nanoseconds.
pub const START_NS: u64 = 500_000_000_000;
/// From one record to the next, in nanoseconds: 100,000 of each kind a second.
pub const APART_NS: u64 = 10_000;

const PID: u32 = 4242;
const THREADS: u64 = 16;
const LOCKS: u64 = 8;

/// Numbers that look random, and are the same in each run: SplitMix64
/// (<https://prng.di.unimi.it/splitmix64.c>).
pub struct Numbers(pub u64);

impl Numbers {
    /// The next number, below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// Operations in the order in which they end. Two of three sign, with P-256 and RSA-2048; one of a
/// hundred fails, one of fifty waits for a lock.
pub fn operations(count: usize) -> Vec<OperationRecord> {
    let mut numbers = Numbers(1);
    let operation = |at: usize| {
        let is_rsa = numbers.below(8) == 0;
        let operation = u8::from(numbers.below(3) == 0);
        let typical_ns = [[28_000, 82_000], [650_000, 25_000]][usize::from(is_rsa)];
        let on_cpu_ns = typical_ns[usize::from(operation)] + numbers.below(8_000);
        let lock_ns = if numbers.below(50) == 0 { numbers.below(4_000_000) } else { 0 };
        let duration_ns = on_cpu_ns + lock_ns;
        let (signature_bytes, families) =
            if is_rsa { (256, family::RSA) } else { (71, family::ECDSA) };
        OperationRecord {
            kind: kind::OPERATION,
            probe: u16::from(operation),
            operation,
            outcome: if numbers.below(100) == 0 { outcome::FAILURE } else { outcome::SUCCESS },
            start_ns: START_NS + 10_000_000 + at as u64 * APART_NS - duration_ns,
            duration_ns,
            tgid: PID,
            tid: thread(numbers.below(THREADS)),
            algorithm: AlgorithmId::classify(signature_bytes, families).0,
            signature_bytes,
            ledger: Ledger {
                on_cpu_ns,
                lock_ns,
                voluntary_switches: u32::from(lock_ns > 0),
                ..Ledger::default()
            },
        }
    };
    (0..count).map(operation).collect()
}

/// Times off the CPU, each with one of `stacks` stacks, whose ids begin with 1: most wait for a lock
/// that another thread holds and releases. Each stack has one, and few have most.
pub fn waits(count: usize, stacks: u64) -> Vec<WaitRecord> {
    let mut numbers = Numbers(2);
    let wait = |at: u64| {
        let reason = match numbers.below(10) {
            0..6 => off_cpu::LOCK,
            6..8 => off_cpu::SLEEP,
            8 => off_cpu::IO,
            _ => off_cpu::PREEMPTED,
        };
        let own = numbers.below(THREADS);
        let other = thread((own + 1 + numbers.below(THREADS - 1)) % THREADS);
        let blocked_ns = 1_000 + numbers.below(2_000_000);
        let record = WaitRecord {
            kind: kind::WAIT,
            reason: reason as u8,
            start_ns: START_NS + 10_000_000 + at * APART_NS - blocked_ns,
            duration_ns: blocked_ns,
            run_queue_ns: numbers.below(50_000),
            tgid: PID,
            tid: thread(own),
            waker_syscall: NO_SYSCALL,
            syscall: NO_SYSCALL,
            stack_id: if at < stacks { at + 1 } else { skewed(&mut numbers, stacks) },
            ..WaitRecord::default()
        };
        match reason {
            off_cpu::LOCK => WaitRecord {
                flags: wait_flag::IN_OPERATION | wait_flag::VALUE_READ | wait_flag::OWNER_READ,
                waker_flags: waker_flag::SEEN,
                waker_tgid: PID,
                waker_tid: other,
                waker_syscall: syscall::FUTEX,
                syscall: syscall::FUTEX,
                futex_address: 0x5581_0042_0000 + 64 * numbers.below(LOCKS),
                futex_command: futex::WAIT,
                futex_value: 2,
                futex_owner: other,
                waker_stack_id: 1 + numbers.below(stacks.min(4)),
                ..record
            },
            off_cpu::PREEMPTED => WaitRecord { duration_ns: 0, run_queue_ns: blocked_ns, ..record },
            _ => WaitRecord { waker_flags: waker_flag::SEEN | waker_flag::INTERRUPT, ..record },
        }
    };
    (0..count as u64).map(wait).collect()
}

/// One of the first stacks mostly: two times of three, one of the first eighth.
fn skewed(numbers: &mut Numbers, stacks: u64) -> u64 {
    let even = numbers.below(stacks) + 1;
    1 + numbers.below(even) * even / stacks.max(1) * even / stacks.max(1)
}

fn thread(number: u64) -> u32 {
    PID + number as u32
}

/// The name of a thread.
pub fn comm_of(tid: u32) -> String {
    format!("worker-{}", tid.wrapping_sub(PID) / 4)
}

/// Whether a thread is the service's.
pub fn is_live(tid: u32) -> bool {
    (PID..PID + THREADS as u32).contains(&tid)
}
