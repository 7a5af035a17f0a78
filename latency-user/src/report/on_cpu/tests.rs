use super::*;
use crate::recording::sample::{recording, recording_with_samples, sums};
use crate::report::{Basis, Cause, Report};

fn sign(recording: &Recording) -> OnCpuCategories {
    Report::from(recording).operations[0].on_cpu_categories.clone().unwrap()
}

/// Check the shares of all operations and of the slow ones, worked out by hand.
#[test]
fn shares() {
    let categories = sign(&recording_with_samples());
    assert_eq!((categories.samples, categories.is_enough), (200, true));
    let expected = CategoryShares {
        crypto: 0.72,
        allocator: 0.07,
        locking: 0.18,
        kernel: 0.03,
        ..CategoryShares::default()
    };
    assert_eq!(categories.shares, expected);
    assert_eq!(categories.largest(), Some((Category::Crypto, 0.72)));
    let slow = categories.slow.as_deref().unwrap();
    assert_eq!((slow.samples, slow.shares.locking), (38, 36.0 / 38.0));
    assert_eq!(slow.function(Category::Locking), Some("spin_wait"));
    assert_eq!(categories.function(Category::Allocator), Some("key_find"));
}

/// Check that nothing is said from too few samples, or without any.
#[test]
fn too_few() {
    let mut recording = recording_with_samples();
    let report = Report::from(&recording);
    let verify = report.operations[1].on_cpu_categories.as_ref().unwrap();
    assert_eq!((verify.samples, verify.is_enough, verify.largest()), (7, false, None));
    recording.profile = None;
    let report = Report::from(&recording);
    assert_eq!((report.sampling, &report.operations[0].on_cpu_categories), (None, &None));
}

/// Check that the verdict names what the slow operations do on the CPU, and where.
#[test]
fn verdict_on_the_tail() {
    let mut recording = recording_with_samples();
    let set_tail = |recording: &mut Recording, on_cpu_ns| {
        let ledger = recording.rows[0].ledger.as_mut().unwrap();
        ledger.tail_p99 = sums(15, [on_cpu_ns, 0, 0, 100_000, 0, 0, 0]);
    };
    set_tail(&mut recording, 3_800_000);
    let verdict = Report::from(&recording).verdict.unwrap();
    assert_eq!((verdict.cause, verdict.basis), (Cause::OnCpu, Basis::Excess));
    assert_eq!(verdict.category, Some(Category::Locking));
    assert_eq!(verdict.function.as_deref(), Some("spin_wait"));
    let end = ": 97 % of the excess is time on the CPU, 95 % of which is locking or spinning in \
               spin_wait (from 38 samples of slow operations)";
    assert!(verdict.sentence.ends_with(end), "{}", verdict.sentence);
    // Another cause: the samples have no say.
    set_tail(&mut recording, 28_000);
    let verdict = Report::from(&recording).verdict.unwrap();
    assert_eq!((verdict.cause, verdict.category), (Cause::Lock, None));
}

/// Check that without a slow tail the typical operations have a verdict, if what they spend most time
/// on is not their own work.
#[test]
fn verdict_on_typical() {
    let mut recording = recording_with_samples();
    // About as long as the verifies, all of them.
    recording.rows[0].success = recording.rows[1].success.clone();
    recording.rows[0].ledger.as_mut().unwrap().typical = sums(750, [94_000, 0, 0, 0, 0, 0, 0]);
    assert_eq!(Report::from(&recording).verdict, None, "it is crypto");
    recording.profile.as_mut().unwrap().groups[0].stack_id = 5;
    let verdict = Report::from(&recording).verdict.unwrap();
    assert_eq!((verdict.cause, verdict.basis), (Cause::OnCpu, Basis::Typical));
    assert_eq!(
        verdict.sentence,
        "sign ecdsa-p256 typically takes 94.0 µs: 100 % of it is time on the CPU, 78 % of which is \
         allocating memory in key_find (from 200 samples of all operations)"
    );
    recording.rows[0].ledger.as_mut().unwrap().typical = sums(750, [40_000, 0, 0, 0, 0, 54_000, 0]);
    assert_eq!(Report::from(&recording).verdict, None, "it is mostly off the CPU");
}

/// Check that a recording without samples is read as before.
#[test]
fn without_samples() {
    assert_eq!(Report::from(&recording()).sampling, None);
}
