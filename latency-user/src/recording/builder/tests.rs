use latency_common::counter::Counter;
use latency_common::histogram::{BUCKETS, bucket_of};
use latency_common::record::{kind, outcome};

use super::*;
use crate::recording::{Counts, EndedBy, Outcome, OwnCost};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 500 * SECOND;
const P256: u32 = AlgorithmId::classify(71, 0).0;

fn builder() -> RecordingBuilder {
    RecordingBuilder::new(Header {
        start_ns: START,
        operations: vec!["sign".into(), "verify".into()],
        probes: vec![Probe { symbol: "EVP_DigestSign".into(), ..Probe::default() }],
        ..Header::default()
    })
}

fn record(end_ns: u64, duration_ns: u64, outcome: u8) -> OperationRecord {
    OperationRecord {
        kind: kind::OPERATION,
        probe: 0,
        operation: 0,
        outcome,
        start_ns: START + end_ns - duration_ns,
        duration_ns,
        tgid: 1,
        tid: 2,
        algorithm: P256,
        signature_bytes: 71,
        ledger: latency_common::ledger::Ledger::untold(duration_ns),
    }
}

fn finish(end_ns: u64, completed: u64) -> Finish {
    let mut counters = [0; Counter::COUNT as usize];
    counters[Counter::Completed as usize] = completed;
    Finish {
        end_ns: START + end_ns,
        ended_by: EndedBy::Duration,
        exit_status: None,
        counters,
        recursion_misses: 0,
        in_progress: 0,
        wait_totals: Default::default(),
        probe_hits: vec![7],
        own_cost: OwnCost::default(),
        warnings: Vec::new(),
    }
}

/// Check that each outcome lands where it belongs, and size queries in no histogram.
#[test]
fn outcomes() {
    let mut builder = builder();
    for (outcome, times) in [
        (outcome::SUCCESS, 5),
        (outcome::FAILURE, 3),
        (outcome::ERROR, 2),
        (outcome::SIZE_QUERY, 4),
        (99, 1),
    ] {
        (0..times).for_each(|_| builder.operation(&record(SECOND / 2, 1000, outcome)));
    }
    let recording = builder.finish(finish(SECOND, 15));
    let [row] = &recording.rows[..] else { panic!("{:?}", recording.rows) };
    assert_eq!((&*row.operation, &*row.algorithm), ("sign", "ecdsa-p256"));
    let expected = Counts { successes: 5, failures: 3, errors: 3, size_queries: 4 };
    assert_eq!(row.received, expected);
    assert_eq!((row.success.count, row.failed.count), (5, 6));
    assert_eq!(row.slowest.len(), 11);
    assert_eq!(recording.loss.records, 0);
    assert_eq!(recording.probes[0].hits, 7);
    recording.validate().unwrap();
}

/// Check that the slowest hundred are kept, slowest first, with names and times.
#[test]
fn slowest() {
    let mut builder = builder();
    for n in (1..=500).rev().chain(501..=1000) {
        builder.operation(&record(SECOND, n, outcome::SUCCESS));
    }
    let slowest = &builder.finish(finish(SECOND, 1000)).rows[0].slowest;
    let durations: Vec<u64> = slowest.iter().map(|slow| slow.duration_ns).collect();
    assert_eq!(durations, (901..=1000).rev().collect::<Vec<_>>());
    assert_eq!(slowest[0].start_ns, SECOND - 1000);
    assert_eq!((&*slowest[0].symbol, slowest[0].outcome), ("EVP_DigestSign", Outcome::Success));
}

/// Check that intervals follow the time of completion, gaps and late records included.
#[test]
fn intervals() {
    let mut builder = builder();
    for end_ns in [1, SECOND - 1, SECOND, 4 * SECOND, SECOND / 2, 2 * SECOND] {
        builder.operation(&record(end_ns, 1, outcome::SUCCESS));
    }
    let recording = builder.finish(finish(7 * SECOND, 6));
    let counts: Vec<u64> = recording
        .intervals
        .iter()
        .map(|interval| interval.rows.iter().map(|row| row.success.count).sum())
        .collect();
    assert_eq!(counts, [3, 1, 1, 0, 1, 0, 0]);
    assert_eq!(recording.rows[0].success.count, 6);
    assert_eq!(recording.intervals[4].start_ns, 4 * SECOND);
}

/// Check that intervals double in width rather than grow in number, and lose nothing.
#[test]
fn intervals_merge() {
    let mut builder = builder();
    for second in 0..1500 {
        builder.operation(&record(second * SECOND + 1, 1, outcome::SUCCESS));
    }
    builder.operation(&record(SECOND, 1, outcome::FAILURE));
    let recording = builder.finish(finish(1500 * SECOND, 1501));
    assert_eq!(recording.interval_ns, 4 * SECOND);
    assert_eq!(recording.intervals.len(), 375);
    for interval in &recording.intervals {
        assert_eq!(interval.rows[0].success.count, 4, "at {}", interval.start_ns);
    }
    assert_eq!(recording.rows[0].success.count, 1500);
    assert_eq!(recording.intervals[0].rows[0].failed.count, 1);
    // A run without an operation for a year.
    let recording = builder.finish(finish(31_536_000 * SECOND, 1501));
    assert!(recording.intervals.len() <= MAX_INTERVALS);
    assert_eq!(recording.rows[0].success.count, 1500);
}

/// Check that intervals merge early when their histograms take much memory.
#[test]
fn intervals_merge_by_size() {
    let mut builder = builder();
    builder.max_kept_buckets = 1000;
    for second in 0..500 {
        for n in 0..10 {
            builder.operation(&record(second * SECOND + 50, n, outcome::SUCCESS));
        }
    }
    assert!(builder.rows[0].kept_buckets() <= 1000);
    let recording = builder.finish(finish(500 * SECOND, 5000));
    assert_eq!(recording.interval_ns, 8 * SECOND);
    assert_eq!(recording.rows[0].success.count, 5000);
}

/// Check that times which cannot be do no harm.
#[test]
fn absurd_times() {
    let mut builder = builder();
    for (start_ns, duration_ns) in [(0, 0), (0, u64::MAX), (u64::MAX, u64::MAX), (START, 1)] {
        let record = OperationRecord { start_ns, duration_ns, ..record(1, 1, 0) };
        builder.operation(&record);
    }
    let recording = builder.finish(Finish { end_ns: 0, ..finish(0, 4) });
    assert_eq!((recording.duration_ns, recording.rows[0].success.count), (0, 4));
    assert!(recording.intervals.len() <= MAX_INTERVALS);
}

/// Check that an operation with many algorithms folds the rest into "other", of the records received and
/// of the lost ones alike.
#[test]
fn many_algorithms() {
    let mut builder = builder();
    let mut counts = vec![0; BUCKETS];
    counts[bucket_of(1000)] = 1;
    for algorithm in 0..200 {
        builder.operation(&OperationRecord { algorithm, ..record(1000, 1000, outcome::SUCCESS) });
    }
    for algorithm in 0..200 {
        let key = SlotKey { operation: 0, outcome: outcome::SUCCESS, algorithm };
        builder.lost_histogram(key, 1000, 1000, &counts);
    }
    let recording = builder.finish(finish(SECOND, 400));
    assert_eq!(recording.rows.len(), MAX_ALGORITHMS + 1);
    let other = recording.rows.iter().find(|row| row.algorithm == "other").unwrap();
    assert_eq!(other.received.successes, 200 - MAX_ALGORITHMS as u64);
    assert_eq!(other.counted.successes, 2 * other.received.successes);
}

/// Check that histograms of lost operations add up with what was received, over CPUs and outcomes, and
/// can be replaced.
#[test]
fn lost_histograms() {
    let mut builder = builder();
    let received = OperationRecord { operation: 1, ..record(900, 900, outcome::SUCCESS) };
    builder.operation(&received);
    builder.operation(&OperationRecord { algorithm: 0, ..received });
    let mut counts = vec![0; BUCKETS];
    counts[bucket_of(1000)] = 3;
    for _ in 0..2 {
        builder.clear_kernel_state();
        for outcome in [0, 0, 1, 2, 3] {
            let key = SlotKey { operation: 1, outcome, algorithm: P256 };
            builder.lost_histogram(key, 3000, 1001, &counts);
        }
    }
    let recording = builder.finish(finish(SECOND, 17));
    let row = recording.rows.iter().find(|row| row.algorithm == "ecdsa-p256").unwrap();
    assert_eq!(row.counted, Counts { successes: 7, failures: 3, errors: 3, size_queries: 3 });
    assert_eq!((row.kernel_success.count, row.kernel_success.sum_ns), (7, 6900));
    assert_eq!((row.kernel_success.min_ns, row.kernel_success.max_ns), (900, 1001));
    assert_eq!((row.kernel_failed.count, row.kernel_failed.max_ns), (6, 1001));
    assert_eq!((recording.loss.records, recording.loss.unaccounted), (15, 15));
    let other = recording.rows.iter().find(|row| row.algorithm != "ecdsa-p256").unwrap();
    assert_eq!((other.counted, other.kernel_success.is_empty()), (other.received, true));
}

/// Check that received and lost always add up to counted, whatever the counters say.
#[test]
fn loss_adds_up() {
    let mut builder = builder();
    (0..10).for_each(|_| builder.operation(&record(1, 1, outcome::SUCCESS)));
    for (completed, ring_full, expected) in
        [(10, 0, (0, 0, 0)), (15, 5, (5, 5, 0)), (15, 3, (5, 3, 2)), (8, 1, (1, 1, 0))]
    {
        let mut finish = finish(SECOND, completed);
        finish.counters[Counter::LostRingFull as usize] = ring_full;
        let loss = builder.finish(finish).loss;
        assert_eq!((loss.records, loss.ring_full, loss.unaccounted), expected);
        assert_eq!(loss.received + loss.records, loss.counted);
    }
}

/// Check that a look at the run shows what came since the look before.
#[test]
fn live() {
    let mut builder = builder();
    assert_eq!(builder.live(START).busiest, None);
    for n in 0..300 {
        builder.operation(&record(n * 10_000_000 + 1000, 1000, outcome::SUCCESS));
    }
    builder.operation(&record(2 * SECOND, 1, outcome::SIZE_QUERY));
    let live = builder.live(START + 3 * SECOND);
    assert_eq!((live.received, live.operations, live.rate_hz), (301, 300, 100.0));
    let busiest = live.busiest.unwrap();
    assert_eq!((&*busiest.operation, &*busiest.algorithm), ("sign", "ecdsa-p256"));
    assert_eq!((busiest.p50_ns, busiest.p99_ns), (Some(1000), Some(1000)));
    assert_eq!(builder.live(START + 4 * SECOND).rate_hz, 0.0);
}

/// Check the price of taking a record; printed, and held to a bound that only a mistake exceeds.
#[test]
fn speed() {
    let mut builder = RecordingBuilder::new(Header { has_ledger: true, ..builder().header });
    let started = std::time::Instant::now();
    let records = 1_000_000u64;
    for n in 0..records {
        let mut record = record(n * 10_000 + 100_000, 30_000 + n % 50_000, outcome::SUCCESS);
        record.operation = (n % 2) as u8;
        builder.operation(&record);
    }
    let rate = records as f64 / started.elapsed().as_secs_f64();
    println!("{:.1} million records a second", rate / 1e6);
    assert!(rate > 100_000.0, "{rate}");
}

/// Check that ledgers come to their row, successes only, that a ledger which does not add up is
/// counted, and that nothing is said of ledgers where there are none.
#[test]
fn ledgers() {
    let mut wrong = record(100, 100, outcome::FAILURE);
    wrong.ledger.other_ns -= 1;
    let size_query = OperationRecord { outcome: outcome::SIZE_QUERY, ..wrong };
    for has_ledger in [true, false] {
        let mut builder = RecordingBuilder::new(Header { has_ledger, ..builder().header });
        for record in [record(100, 100, outcome::SUCCESS), wrong, size_query] {
            builder.operation(&record);
        }
        let recording = builder.finish(finish(SECOND, 3));
        assert_eq!(recording.ledger_mismatches, u64::from(has_ledger));
        let total = recording.rows[0].ledger.map(|ledger| ledger.total);
        let expected = has_ledger.then_some((1, 100, 100));
        assert_eq!(total.map(|sums| (sums.count, sums.duration_ns, sums.other_ns)), expected);
    }
}

/// Check that waits come into the recording with the names of their operations.
#[test]
fn waits() {
    let mut builder = builder();
    let wait = latency_common::record::WaitRecord {
        reason: latency_common::ledger::off_cpu::LOCK as u8,
        flags: latency_common::record::wait_flag::IN_OPERATION,
        operation: 1,
        duration_ns: 9,
        futex_address: 8,
        ..Default::default()
    };
    builder.wait(&wait, &mut |_| "worker".into(), &|_| false);
    let recording = builder.finish(finish(SECOND, 0));
    assert_eq!(recording.waits[0].operation.as_deref(), Some("verify"));
    assert_eq!((recording.locks[0].address, recording.locks[0].total_ns), (8, 9));
    recording.validate().unwrap();
}
