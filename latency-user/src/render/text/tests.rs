use super::*;
use crate::recording::{Recording, SparseHistogram, sample};
use crate::render::golden;

fn page_of(change: impl FnOnce(&mut Recording)) -> String {
    page_from(sample::recording(), change)
}

fn page_from(mut recording: Recording, change: impl FnOnce(&mut Recording)) -> String {
    change(&mut recording);
    let page = render(&Report::from(&recording), Style::PLAIN);
    for line in page.lines() {
        assert!(line.chars().count() <= WIDTH, "{line}");
        assert_eq!(line.trim_end(), line, "no space at the end");
    }
    page
}

/// Check the page of a run without trouble.
#[test]
fn page() {
    golden::check("page.txt", &page_of(|_| ()));
}

/// Check the page of a run that lost records and more.
#[test]
fn page_with_loss() {
    let page = page_of(|recording| {
        recording.ended_by = EndedBy::TargetExit;
        recording.libraries[0].deleted = true;
        recording.probes[1].price = Price::SingleStepped;
        recording.rows[0].received.successes -= 1200;
        let loss = &mut recording.loss;
        (loss.received, loss.records) = (1882, 1200);
        (loss.ring_full, loss.unaccounted) = (1190, 10);
        loss.recursion_misses = 3;
        loss.length_unreadable = 1;
        recording.incomplete_calls.abandoned = 2;
        recording.incomplete_calls.unmatched_returns = 1;
        recording.own_cost.program_runs = None;
        recording.own_cost.program_run_ns = None;
    });
    golden::check("page-loss.txt", &page);
}

/// Check the page of a run with the CPUs sampled.
#[test]
fn page_with_samples() {
    golden::check("page-samples.txt", &page_from(sample::recording_with_samples(), |_| ()));
}

/// Check the page of a run with the scheduler traced.
#[test]
fn page_with_waits() {
    golden::check("page-waits.txt", &page_from(sample::recording_with_waits(), |_| ()));
}

/// Check that many locks, with names and numbers of any size, stay within the page, and that
/// mismatches are shown.
#[test]
fn many_locks() {
    let page = page_from(sample::recording_with_waits(), |recording| {
        recording.ledger_mismatches = 3;
        recording.ungrouped_waits = 1;
        for n in 0..20 {
            let mut lock = recording.locks[1].clone();
            lock.name = Some("\u{1b}name".repeat(30));
            (lock.address, lock.total_ns, lock.max_ns) = (n, u64::MAX - n, u64::MAX);
            lock.holders[0].comm = "\n".repeat(15);
            recording.locks.push(lock);
        }
        std::sync::Arc::make_mut(&mut recording.stacks[0].frames[2]).function =
            Some("f".repeat(300));
    });
    assert!(page.contains("\nand 11 more locks\n"), "{page}");
    assert!(page.contains("3 operations whose parts do not add up"), "{page}");
    assert!(page.contains("1 wait is counted only by reason"), "{page}");
    assert!(!page.contains('\u{1b}'), "{page}");
}

/// Check that idle waits alone make no table of locks.
#[test]
fn only_idle() {
    let page = page_from(sample::recording_with_waits(), |recording| {
        recording.locks.truncate(1);
    });
    assert!(page.contains("\n\nIdle, not contention: condvar 20 waits, 9.00 s\n"), "{page}");
    assert!(!page.contains("Locks"), "{page}");
}

/// Check the page of a run in which nothing was called.
#[test]
fn page_without_operations() {
    let page = page_of(|recording| {
        recording.rows.clear();
        recording.intervals.clear();
        recording.probes.iter_mut().for_each(|probe| probe.hits = 0);
        recording.loss.counted = 0;
        recording.loss.received = 0;
        recording.ended_by = EndedBy::Signal;
    });
    golden::check("page-empty.txt", &page);
}

/// Check the colours.
#[test]
fn page_in_colour() {
    let page = render(&Report::from(&sample::recording()), Style::COLOUR);
    golden::check("page-colour.txt", &page);
}

/// Check that names chosen by the target can neither steer the terminal nor stretch the page.
#[test]
fn hostile_names() {
    let page = page_of(|recording| {
        recording.target.comm = "\u{1b}]0;x\u{7}".into();
        recording.target.exe = "/very/long".repeat(100);
        recording.libraries[0].path = "/a b\n".repeat(50);
        recording.rows[0].operation = "n".repeat(300);
        recording.rows[0].slowest[0].symbol = "s".repeat(300);
        recording.warnings.push("w".repeat(300));
    });
    assert!(!page.contains(['\u{1b}', '\u{7}']), "{page}");
}

/// Check that an operation that only failed is shown.
#[test]
fn only_failures() {
    let page = page_of(|recording| {
        let row = &mut recording.rows[1];
        (row.received.successes, row.counted.successes) = (0, 0);
        (row.success, row.kernel_success) =
            (SparseHistogram::default(), SparseHistogram::default());
    });
    assert!(page.contains("\nverify ecdsa-p256\n  failed"), "{page}");
}

/// Check that the numbers of a day at ten million operations a second fit.
#[test]
fn widest() {
    page_of(|recording| {
        let row = &mut recording.rows[0];
        row.received.successes = 864_000_000_000;
        row.success.max_ns = 86_400_000_000_000;
        recording.duration_ns = 86_400_000_000_000;
    });
}

/// Check the page of a run with requests, and with a wait in progress at the end.
#[test]
fn page_with_requests() {
    golden::check("page-requests.txt", &page_from(sample::recording_with_requests(), |_| ()));
}
