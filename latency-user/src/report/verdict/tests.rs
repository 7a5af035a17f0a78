use crate::recording::sample::{
    MUTEX, recording, recording_with_requests, recording_with_waits, sums,
};
use crate::recording::{Recording, RowLedger};
use crate::report::{Cause, Report, Verdict};

fn verdict(change: impl FnOnce(&mut Recording)) -> Option<Verdict> {
    let mut recording = recording_with_waits();
    change(&mut recording);
    Report::from(&recording).verdict
}

/// The verdict where the slowest operations have these parts, in nanoseconds: on-CPU, run queue,
/// preempted, lock, I/O, sleep, other.
fn tail(parts: [u64; 7]) -> Verdict {
    let change = |recording: &mut Recording| {
        if let Some(ledger) = &mut recording.rows[0].ledger {
            ledger.tail_p99 = sums(15, parts);
        }
    };
    verdict(change).unwrap()
}

/// Check the sentence about a lock, and its figures.
#[test]
fn lock() {
    let verdict = verdict(|_| ()).unwrap();
    assert_eq!(
        verdict.sentence,
        "P99 sign ecdsa-p256 is 3.90 ms against 28.0 µs typical: 97 % of the excess is lock wait on \
         `keysvc:g_keystore_lock` (holder: thread 4711 in audit_log_write)"
    );
    assert_eq!(
        (verdict.cause, verdict.typical_ns, verdict.p99_ns),
        (Cause::Lock, 28_000, 3_900_000)
    );
    assert!((verdict.share - 3_745.0 / 3_872.0).abs() < 1e-9, "{}", verdict.share);
    assert_eq!(
        (verdict.lock.as_deref(), verdict.holder),
        (Some("keysvc:g_keystore_lock"), Some(4711))
    );
    assert_eq!(verdict.function.as_deref(), Some("audit_log_write"));
}

/// Check the other causes, and that without a single one the parts are listed.
#[test]
fn causes() {
    for (parts, cause, expected) in [
        (
            [28_000, 60_000, 30_000, 10_000, 0, 0, 0],
            Cause::CpuWait,
            "90 % of the excess is waiting for a CPU (run queue 60 %, preempted 30 %)",
        ),
        (
            [68_000, 0, 21_000, 35_000, 4_000, 0, 0],
            Cause::None,
            "no single cause: on-CPU 40 %, lock 35 %, preempted 21 %",
        ),
        ([128_000, 0, 0, 0, 0, 0, 0], Cause::OnCpu, "100 % of the excess is time on the CPU"),
        ([28_000, 0, 0, 0, 60, 40, 0], Cause::Io, "60 % of the excess is I/O"),
        ([28_000, 0, 0, 0, 0, 70, 30], Cause::Sleep, "70 % of the excess is sleep"),
        ([28_000, 0, 0, 0, 0, 0, 9], Cause::Other, "100 % of the excess cannot be told"),
    ] {
        let verdict = tail(parts);
        assert_eq!(verdict.cause, cause, "{}", verdict.sentence);
        let (_, end) = verdict.sentence.split_once("typical: ").unwrap();
        assert!(end.starts_with(expected), "{end}");
        assert_eq!((verdict.lock, verdict.holder), (None, None));
    }
}

/// Check that nothing is claimed of who held the lock, or which it was, beyond what is known.
#[test]
fn less_is_known() {
    let sentence = |change: fn(&mut Recording)| verdict(change).unwrap().sentence;
    let text = sentence(|recording| recording.waits[1].holder_tid = 0);
    assert!(text.ends_with("g_keystore_lock` (released mostly in audit_log_write)"), "{text}");
    let text = sentence(|recording| recording.stacks.clear());
    assert!(text.ends_with("(holder: thread 4711)"), "{text}");
    let text = sentence(|recording| {
        for holder_tid in [1, 2, 3] {
            let more = crate::recording::WaitGroup { holder_tid, ..recording.waits[1].clone() };
            recording.waits.push(more);
        }
    });
    assert!(text.ends_with("(4 holders, released mostly in audit_log_write)"), "{text}");
    let text = sentence(|recording| recording.locks[1].name = None);
    assert!(text.contains(&format!("lock wait on `0x{MUTEX:x}`")), "{text}");
    let text = sentence(|recording| {
        let mut other = recording.waits[1].clone();
        other.futex_address += 8;
        recording.waits.push(other);
    });
    assert!(text.ends_with("is lock wait, on several locks"), "{text}");
    let text = sentence(|recording| recording.waits.clear());
    assert!(text.ends_with("97 % of the excess is lock wait"), "{text}");
}

/// Check that the operation with most time in excess is the one spoken of.
#[test]
fn largest_excess() {
    let verdict = verdict(|recording| {
        let mut other = recording.rows[0].clone();
        other.algorithm = "rsa-2048".into();
        if let Some(ledger) = &mut other.ledger {
            ledger.tail_p99 = sums(16, [31_000, 120_000, 4_000, 3_745_000, 0, 0, 0]);
        }
        recording.rows.push(other);
    });
    assert_eq!(verdict.unwrap().algorithm, "rsa-2048");
}

/// Check that there is no verdict without a ledger, with few operations, or without a slow tail.
#[test]
fn none() {
    assert_eq!(Report::from(&recording()).verdict, None);
    let few = |recording: &mut Recording| {
        if let Some(ledger) = &mut recording.rows[0].ledger {
            ledger.total.count = 99;
        }
    };
    assert_eq!(verdict(few), None);
    let even = |recording: &mut Recording| {
        if let Some(ledger) = &mut recording.rows[0].ledger {
            ledger.typical = sums(750, [1_960_000, 0, 0, 0, 0, 0, 0]);
        }
    };
    assert_eq!(verdict(even), None);
    let empty = |recording: &mut Recording| recording.rows[0].ledger = Some(RowLedger::default());
    assert_eq!(verdict(empty), None);
}

/// Check that of a request and an operation that are both slow the request is spoken of, and the
/// lock that it waits for outside of operations.
#[test]
fn requests_first() {
    let verdict = Report::from(&recording_with_requests()).verdict.unwrap();
    assert_eq!(
        verdict.sentence,
        "P99 handle_request is 5.72 ms against 139 µs typical: 100 % of the excess is lock wait on \
         `keysvc:g_keystore_lock` (holder: thread 4711 in audit_log_write)"
    );
}
