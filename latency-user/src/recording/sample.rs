//! A small recording, written by hand, for the tests of the stages that read one.

use latency_common::histogram::{BUCKETS, bucket_of};

use super::{
    Counts, DenseHistogram, EndedBy, Host, IncompleteCalls, Interval, IntervalRow, Library, Loss,
    Outcome, OwnCost, Price, Probe, Recording, Row, Skipped, SlowOperation, SparseHistogram,
    Target,
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
        stacks: Vec::new(),
        own_cost: OwnCost {
            cpu_ns: 120 * MILLISECOND,
            peak_memory_bytes: 34 << 20,
            program_run_ns: Some(3_300_000),
            program_runs: Some(6164),
        },
        warnings: Vec::new(),
    }
}
