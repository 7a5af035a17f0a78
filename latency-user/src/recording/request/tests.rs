use latency_common::record::{InnerCalls, OperationRecord, kind};

use super::*;

/// A request with one signature of `sign_ns`, and around it `lock_ns` of lock and 100 ns on the CPU.
fn request(sign_ns: u64, lock_ns: u64) -> RequestRecord {
    let mut parts = [InnerCalls::default(); Inside::SLOTS];
    parts[0] = InnerCalls { count: 1, duration_ns: sign_ns };
    RequestRecord {
        call: OperationRecord {
            kind: kind::REQUEST,
            probe: 1,
            operation: 2,
            outcome: 0,
            start_ns: 5,
            duration_ns: 100 + sign_ns + lock_ns,
            tgid: 1,
            tid: 2,
            algorithm: 0,
            signature_bytes: 0,
            ledger: Ledger { on_cpu_ns: 100 + sign_ns, lock_ns, ..Ledger::default() },
        },
        inside: Inside { parts, ledger: Ledger { on_cpu_ns: sign_ns, ..Ledger::default() } },
    }
}

fn total_ns(sums: &RequestSums) -> u64 {
    sums.operations.iter().map(|it| it.total_ns).sum::<u64>() + sums.around.duration_ns
}

/// Check that operations and the time around them are kept apart, in the typical requests and in
/// the slow ones, and add up to the requests' time.
#[test]
fn parts() {
    let mut requests = Requests::default();
    (0..990).for_each(|_| requests.add(&request(30_000, 0)));
    (0..10).for_each(|_| requests.add(&request(30_000, 4_000_000)));
    let sums = requests.sums(|slot| format!("operation {slot}"));
    let [sign] = &sums.typical.operations[..] else { panic!("{sums:?}") };
    let expected =
        InnerOperation { operation: "operation 0".into(), count: 500, total_ns: 500 * 30_000 };
    assert_eq!(*sign, expected);
    assert_eq!((sums.typical.around.on_cpu_ns, sums.typical.around.lock_ns), (50_000, 0));
    let tail = &sums.tail_p99;
    assert_eq!((tail.operations[0].count, tail.around.count), (10, 10));
    assert_eq!((tail.around.lock_ns, total_ns(tail)), (40_000_000, 10 * 4_030_100));
    assert_eq!(total_ns(&sums.total), 990 * 30_100 + 10 * 4_030_100);
}

/// Check that an operation which calls preempted what the request calls running leaves no
/// negative part, and the same sum.
#[test]
fn preempted_at_entry() {
    let whole = Ledger { on_cpu_ns: 1_000, preempted_ns: 5_000, ..Ledger::default() };
    let inside = Ledger { on_cpu_ns: 200, preempted_ns: 5_300, ..Ledger::default() };
    let left = around(&whole, &inside);
    assert_eq!((left.on_cpu_ns, left.preempted_ns), (500, 0));
    assert_eq!(left.total_ns(), whole.total_ns() - inside.total_ns());
}

proptest::proptest! {
    /// Check that absurd values do no harm.
    #[test]
    fn any_values(values: Vec<(u64, u64, u64)>) {
        let mut requests = Requests::default();
        for (duration_ns, whole_ns, inside_ns) in values {
            let mut record = request(1, 2);
            record.call.duration_ns = duration_ns;
            record.call.ledger.lock_ns = whole_ns;
            record.inside.ledger.lock_ns = inside_ns;
            record.inside.parts[5].duration_ns = inside_ns;
            requests.add(&record);
        }
        requests.sums(|_| String::new());
    }
}
