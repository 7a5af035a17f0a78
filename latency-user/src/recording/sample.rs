//! A small recording, written by hand, for the tests of the stages that read one.

use latency_common::histogram::{BUCKETS, bucket_of};

use latency_common::wait::futex;

use crate::attach::TrapCost;

use super::{
    Counts, DenseHistogram, EndedBy, Frame, HolderShare, Host, IncompleteCalls, InnerOperation,
    Interval, IntervalRow, LedgerSums, Library, Lock, LockClass, Loss, Meanwhile, Outcome, OwnCost,
    Price, Probe, Profile, Reason, Recording, RequestSums, Row, RowLedger, RowRequest, SampleClock,
    SampleGroup, Skipped, SlowOperation, SparseHistogram, Stack, StackShare, Target, WaitEnds,
    WaitGroup, WaitInProgress, WaitTotal, Waker, WakerShare,
};

const MILLISECOND: u64 = 1_000_000;

fn histogram(values: &[u64]) -> SparseHistogram {
    let mut histogram = DenseHistogram::default();
    values.iter().for_each(|&value| histogram.record(value));
    histogram.to_sparse()
}

fn kernel(values: &[u64]) -> SparseHistogram {
    let mut counts = vec![0; BUCKETS];
    values.iter().for_each(|&value| counts[bucket_of(value)] += 1);
    let max_ns = values.iter().copied().max().unwrap_or(0);
    SparseHistogram::from_kernel(values.iter().sum(), max_ns, &counts)
}

fn slow(start_ns: u64, duration_ns: u64, outcome: Outcome, symbol: &str) -> SlowOperation {
    let signature_bytes = if outcome == Outcome::Error { 0 } else { 71 };
    let symbol = symbol.into();
    SlowOperation { start_ns, duration_ns, tid: 4250, outcome, signature_bytes, symbol }
}

fn probe(symbol: &str, operation: &str, offset: u64, price: Price, hits: u64) -> Probe {
    Probe {
        file: "/usr/lib/x86_64-linux-gnu/libcrypto.so.3".into(),
        symbol: symbol.into(),
        offset,
        site_offset: offset + 4,
        price,
        operation: operation.into(),
        is_request: false,
        hits,
        recursion_misses: None,
    }
}

/// Signs and verifies over two seconds; two of them fail, and nothing is lost.
pub(crate) fn recording() -> Recording {
    let first: Vec<u64> = (0..1000).map(|n| 30_000 + n * 7).collect();
    let second: Vec<u64> = (0..499).map(|n| 32_000 + n * 9).chain([104 * MILLISECOND]).collect();
    let sign: Vec<u64> = [&first[..], &second].concat();
    let verify: Vec<u64> = (0..80).map(|n| 90_000 + n * 100).collect();
    let bad = [95_000, 1_200];
    let sign_counts = Counts { successes: 1500, size_queries: 1500, ..Counts::default() };
    let verify_counts = Counts { successes: 80, failures: 1, errors: 1, size_queries: 0 };
    let rows = vec![
        Row {
            operation: "sign".into(),
            algorithm: "ecdsa-p256".into(),
            counted: sign_counts,
            received: sign_counts,
            success: histogram(&sign),
            kernel_success: kernel(&sign),
            slowest: vec![
                slow(1_345 * MILLISECOND, 104 * MILLISECOND, Outcome::Success, "EVP_DigestSign"),
                slow(900 * MILLISECOND, 36_993, Outcome::Success, "EVP_DigestSign"),
            ],
            ..Row::default()
        },
        Row {
            operation: "verify".into(),
            algorithm: "ecdsa-p256".into(),
            counted: verify_counts,
            received: verify_counts,
            success: histogram(&verify),
            failed: histogram(&bad),
            kernel_success: kernel(&verify),
            kernel_failed: kernel(&bad),
            slowest: vec![
                slow(200 * MILLISECOND, 97_900, Outcome::Success, "EVP_DigestVerify"),
                slow(1_500 * MILLISECOND, 95_000, Outcome::Failure, "EVP_DigestVerify"),
                slow(1_600 * MILLISECOND, 1_200, Outcome::Error, "EVP_DigestVerify"),
            ],
            ledger: None,
            request: None,
        },
    ];
    let interval_row = |row, success: &[u64], failed: &[u64]| IntervalRow {
        row,
        success: histogram(success),
        failed: histogram(failed),
    };
    let intervals = vec![
        Interval {
            start_ns: 0,
            rows: vec![interval_row(0, &first, &[]), interval_row(1, &verify, &[])],
        },
        Interval {
            start_ns: 1000 * MILLISECOND,
            rows: vec![interval_row(0, &second, &[]), interval_row(1, &[], &bad)],
        },
    ];
    Recording {
        tool_version: "0.1.0".into(),
        command_line: ["latency", "record", "-p", "4242", "-d", "2s"].map(String::from).into(),
        // 2026-03-04 05:06:07.5 UTC
        started_unix_ns: 1_772_600_767_500_000_000,
        duration_ns: 2000 * MILLISECOND,
        ended_by: EndedBy::Duration,
        exit_status: None,
        target: Target {
            pid: 4242,
            comm: "keyservice".into(),
            exe: "/usr/bin/keyservice".into(),
            uid: 1000,
            threads: 8,
            start_time_ticks: 123_456,
        },
        host: Host { kernel: "6.12.0-1-amd64".into(), arch: "x86_64".into(), cpus: 4 },
        libraries: vec![Library {
            path: "/usr/lib/x86_64-linux-gnu/libcrypto.so.3".into(),
            build_id: Some("8f3b0c6d1e5a49f7a2c4d6e8f0123456789abcde".into()),
            openssl_version: Some("OpenSSL 3.0.19 27 Jan 2026".into()),
            deleted: false,
        }],
        probes: vec![
            probe("EVP_DigestSign", "sign", 0x001c_0a30, Price::Emulated, 3000),
            probe("EVP_DigestVerify", "verify", 0x001c_1230, Price::Emulated, 82),
            probe("RSA_sign", "sign", 0x0022_0100, Price::Unknown, 0),
        ],
        skipped: vec![Skipped {
            file: "/usr/lib/x86_64-linux-gnu/libcrypto.so.3".into(),
            symbol: "EVP_PKEY_verify".into(),
            reason: "EVP_DigestVerify sees the same operations at a lower price".into(),
        }],
        rows,
        interval_ns: 1000 * MILLISECOND,
        intervals,
        loss: Loss { counted: 3082, received: 3082, ..Loss::default() },
        incomplete_calls: IncompleteCalls { in_progress: 1, ..IncompleteCalls::default() },
        nested_calls: 0,
        waits: Vec::new(),
        profile: None,
        stacks: Vec::new(),
        locks: Vec::new(),
        ungrouped_waits: 0,
        waits_in_progress: Vec::new(),
        wait_totals: Vec::new(),
        ledger_mismatches: 0,
        own_cost: OwnCost {
            cpu_ns: 120 * MILLISECOND,
            peak_memory_bytes: 34 << 20,
            program_run_ns: Some(3_300_000),
            program_runs: Some(6164),
            trap: TrapCost {
                hot_outside_ns: 450,
                cold_outside_ns: 2_100,
                hot_pair_ns: 930,
                cold_pair_ns: 4_300,
            },
        },
        warnings: Vec::new(),
    }
}

/// Address of the contended mutex of [`recording_with_waits`].
pub(crate) const MUTEX: u64 = 0x5581_0042_0040;
const CONDVAR: u64 = 0x5581_0042_0080;

/// `count` operations with these parts each, in nanoseconds: on-CPU, run queue, preempted, lock,
/// I/O, sleep, other.
pub(crate) fn sums(count: u64, parts: [u64; 7]) -> LedgerSums {
    let [on_cpu_ns, run_queue_ns, preempted_ns, lock_ns, io_ns, sleep_ns, other_ns] =
        parts.map(|part| part * count);
    let duration_ns = parts.iter().sum::<u64>() * count;
    LedgerSums {
        count,
        duration_ns,
        on_cpu_ns,
        run_queue_ns,
        preempted_ns,
        lock_ns,
        io_ns,
        sleep_ns,
        other_ns,
        switches: count,
    }
}

fn stack(id: u64, frames: &[(&str, &str)]) -> Stack {
    let frames = frames.iter().enumerate().map(|(at, &(function, module))| Frame {
        address: 0x7f00_0000_1000 + at as u64 * 16,
        function: (!function.is_empty()).then(|| function.into()),
        module: module.into(),
        module_address: 0x1000 + at as u64 * 16,
        ..Frame::default()
    });
    Stack { id, frames: frames.map(Into::into).collect(), ..Stack::default() }
}

fn wait(reason: Reason, operation: Option<&str>, stack_id: u64, total_ns: u64) -> WaitGroup {
    WaitGroup {
        reason,
        comm: "worker".into(),
        operation: operation.map(String::from),
        request: None,
        futex_address: 0,
        futex_command: futex::NONE,
        stack_id,
        waker_stack_id: 0,
        waker: Waker::Unknown,
        holder_tid: 0,
        count: 20,
        total_ns,
        run_queue_ns: 40_000,
        max_ns: 4 * MILLISECOND,
    }
}

/// The same run with the scheduler traced: the slow signs wait for a mutex, under which another
/// thread writes an audit log, beside a pool of idle threads.
pub(crate) fn recording_with_waits() -> Recording {
    let mut recording = recording();
    let sign = &mut recording.rows[0];
    // Every fiftieth is slow.
    let durations: Vec<u64> =
        (0..1500).map(|n| if n % 50 == 0 { 3_900_000 } else { 28_000 + n }).collect();
    (sign.success, sign.kernel_success) = (histogram(&durations), kernel(&durations));
    sign.slowest = vec![slow(1_345 * MILLISECOND, 3_900_000, Outcome::Success, "EVP_DigestSign")];
    sign.ledger = Some(RowLedger {
        total: sums(1500, [28_000, 2_000, 100, 76_000, 0, 0, 0]),
        typical: sums(750, [28_000, 0, 0, 0, 0, 0, 0]),
        tail_p99: sums(15, [31_000, 120_000, 4_000, 3_745_000, 0, 0, 0]),
        tail_p999: sums(2, [31_000, 122_000, 4_000, 3_743_000, 0, 0, 0]),
    });
    let verify = &mut recording.rows[1];
    verify.ledger = Some(RowLedger {
        total: sums(80, [93_000, 1_000, 0, 0, 0, 0, 0]),
        typical: sums(40, [94_000, 0, 0, 0, 0, 0, 0]),
        tail_p99: sums(1, [96_000, 1_900, 0, 0, 0, 0, 0]),
        tail_p999: sums(1, [96_000, 1_900, 0, 0, 0, 0, 0]),
    });
    recording.stacks = vec![
        stack(1, &[("", "libc.so.6"), ("pthread_mutex_lock", "libc.so.6"), ("key_find", "keysvc")]),
        stack(2, &[("pthread_mutex_unlock", "libc.so.6"), ("audit_log_write", "keysvc")]),
        stack(3, &[("", "libc.so.6"), ("pthread_cond_wait", "libc.so.6"), ("pool_run", "keysvc")]),
        stack(4, &[("ossl_bn_mul", "libcrypto.so.3"), ("handle_sign", "keysvc")]),
    ];
    let auditor = Waker::Thread { tid: 4711, pid: 4242, comm: "auditor".into() };
    let contended = WaitGroup {
        futex_address: MUTEX,
        futex_command: futex::WAIT,
        waker_stack_id: 2,
        waker: auditor.clone(),
        holder_tid: 4711,
        ..wait(Reason::Lock, Some("sign"), 1, 112 * MILLISECOND)
    };
    let idle = WaitGroup {
        futex_address: CONDVAR,
        futex_command: futex::WAIT_BITSET,
        waker: Waker::Interrupt,
        ..wait(Reason::Lock, None, 3, 9_000 * MILLISECOND)
    };
    recording.waits =
        vec![idle, contended, wait(Reason::Preempted, Some("sign"), 4, 2 * MILLISECOND)];
    let share = |stack_id, waits, total_ns| StackShare { stack_id, waits, total_ns };
    let (total_ns, mutex_waits) = (112 * MILLISECOND, [5_600_000; 20]);
    recording.locks = vec![
        Lock {
            address: CONDVAR,
            class: LockClass::Condvar,
            command: futex::WAIT_BITSET,
            waits: 20,
            total_ns: 9_000 * MILLISECOND,
            histogram: kernel(&[450 * MILLISECOND; 20]),
            max_ns: 450 * MILLISECOND,
            ends: WaitEnds { timed_out: 20, ..WaitEnds::default() },
            wakers: vec![WakerShare {
                waker: Waker::Interrupt,
                waits: 20,
                total_ns: 9_000 * MILLISECOND,
            }],
            stacks: vec![share(3, 20, 9_000 * MILLISECOND)],
            ..Lock::default()
        },
        Lock {
            address: MUTEX,
            name: Some("keysvc:g_keystore_lock".into()),
            class: LockClass::Mutex,
            command: futex::WAIT,
            waits: 20,
            total_ns,
            histogram: kernel(&mutex_waits),
            max_ns: 5_600_000,
            ends: WaitEnds { woken: 20, ..WaitEnds::default() },
            in_progress: 0,
            in_progress_ns: 0,
            holders: vec![HolderShare {
                tid: 4711,
                comm: "auditor".into(),
                waits: 19,
                total_ns: 107 * MILLISECOND,
                meanwhile: Meanwhile {
                    sleep_ns: 102 * MILLISECOND,
                    ran_ns: 5 * MILLISECOND,
                    ..Meanwhile::default()
                },
            }],
            wakers: vec![WakerShare { waker: auditor, waits: 20, total_ns }],
            stacks: vec![share(1, 20, total_ns)],
            waker_stacks: vec![share(2, 20, total_ns)],
        },
    ];
    recording
}

/// The same run with the CPUs sampled: the slow signs spin, the others do cryptography, and the
/// verifies are too few to tell.
pub(crate) fn recording_with_samples() -> Recording {
    let mut recording = recording_with_waits();
    recording.stacks.extend([
        stack(5, &[("", "libc.so.6"), ("malloc", "libc.so.6"), ("key_find", "keysvc")]),
        stack(6, &[("spin_wait", "keysvc"), ("key_find", "keysvc")]),
        stack(7, &[("clear_page_erms", "[kernel]"), ("asm_exc_page_fault", "[kernel]")]),
    ]);
    let group = |name: &str, duration_log2, stack_id, samples| SampleGroup {
        comm: "worker".into(),
        operation: Some(name.into()),
        algorithm: Some("ecdsa-p256".into()),
        duration_log2: Some(duration_log2),
        stack_id,
        samples,
        ..SampleGroup::default()
    };
    let groups = vec![
        group("sign", 14, 4, 142),
        group("sign", 21, 6, 36),
        SampleGroup {
            operation: None,
            algorithm: None,
            duration_log2: None,
            ..group("", 0, 1, 20)
        },
        group("sign", 14, 5, 14),
        SampleGroup { in_kernel: true, kernel_stack_id: 7, ..group("sign", 14, 4, 6) },
        group("sign", 21, 4, 2),
        group("verify", 16, 4, 7),
    ];
    recording.profile = Some(Profile {
        frequency_hz: 99,
        clock: SampleClock::CpuClock,
        start_ns: 100 * MILLISECOND,
        samples: groups.iter().map(|group| group.samples).sum(),
        ungrouped: 0,
        groups,
    });
    recording
}

/// That recording, with the lock waited for in requests around the signatures.
pub(crate) fn recording_with_requests() -> Recording {
    let mut recording = recording_with_waits();
    let inner = |operation: &str, count, each_ns| InnerOperation {
        operation: operation.into(),
        count,
        total_ns: count * each_ns,
    };
    let parts = |count, lock_ns| RequestSums {
        operations: vec![inner("sign", count, 28_000), inner("verify", count, 82_000)],
        around: sums(count, [9_000, 0, 0, lock_ns, 0, 0, 0]),
    };
    let whole = |count, lock_ns| sums(count, [119_000, 0, 0, lock_ns, 0, 0, 0]);
    let durations = [&[139_000; 1480][..], &[5_719_000; 20]].concat();
    let counts = Counts { successes: 1500, ..Counts::default() };
    recording.rows.push(Row {
        operation: "handle_request".into(),
        algorithm: "-".into(),
        counted: counts,
        received: counts,
        success: histogram(&durations),
        kernel_success: kernel(&durations),
        ledger: Some(RowLedger {
            total: whole(1500, 94_400),
            typical: whole(750, 20_000),
            tail_p99: whole(15, 5_600_000),
            tail_p999: whole(2, 5_600_000),
        }),
        request: Some(RowRequest {
            total: parts(1500, 94_400),
            typical: parts(750, 20_000),
            tail_p99: parts(15, 5_600_000),
            tail_p999: parts(2, 5_600_000),
        }),
        ..Row::default()
    });
    for wait in &mut recording.waits {
        wait.request = wait.operation.take().map(|_| "handle_request".into());
    }
    recording.waits_in_progress = vec![WaitInProgress {
        tid: 4260,
        comm: "worker".into(),
        reason: Reason::Lock,
        operation: None,
        request: Some("handle_request".into()),
        futex_address: MUTEX,
        futex_command: futex::WAIT,
        stack_id: 1,
        holder_tid: 4711,
        start_ns: 1_998 * MILLISECOND,
        duration_ns: 2 * MILLISECOND,
        at_start: false,
        at_end: true,
    }];
    recording.wait_totals = vec![WaitTotal {
        reason: Reason::Lock,
        in_operation: true,
        count: 21,
        total_ns: 112 * MILLISECOND,
        run_queue_ns: 40_000,
    }];
    recording.locks[1].in_progress = 1;
    recording.locks[1].in_progress_ns = 2 * MILLISECOND;
    recording.loss.counted += 1500;
    recording.loss.received += 1500;
    recording
}
