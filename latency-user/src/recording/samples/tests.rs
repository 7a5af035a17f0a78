use super::*;

fn sample(tid: u32, start_ns: u64, stack_id: u64) -> SampleRecord {
    SampleRecord {
        flags: if start_ns == 0 { 0 } else { sample_flag::IN_OPERATION },
        operation: 3,
        operation_start_ns: start_ns,
        tid,
        stack_id,
        ..SampleRecord::default()
    }
}

fn samples() -> Samples {
    Samples { clock: Some((99, SampleClock::CpuClock, 5)), ..Samples::default() }
}

fn add(samples: &mut Samples, record: SampleRecord) {
    samples.add(&record, &mut |tid| format!("t{tid}"));
}

fn profile(samples: &Samples) -> Profile {
    let profile = samples.folded(|operation| format!("o{operation}"), |id| format!("a{id}"));
    let profile = profile.unwrap();
    let sum: u64 = profile.groups.iter().map(|group| group.samples).sum();
    assert_eq!((sum, profile.samples), (samples.received, samples.received));
    profile
}

/// Check that samples get the algorithm and duration of their operation once it completes, and
/// that those outside of operations have neither.
#[test]
fn joins_operations() {
    let mut samples = samples();
    for record in [sample(1, 100, 7), sample(1, 100, 7), sample(1, 0, 8), sample(2, 100, 7)] {
        add(&mut samples, record);
    }
    samples.completed((1, false), 100, 5_000, Some(4));
    let profile = profile(&samples);
    let of = |group: &SampleGroup| {
        let names =
            [&group.operation, &group.algorithm].map(|name| name.clone().unwrap_or_default());
        (group.comm.clone(), names.join(" "), group.duration_log2, group.samples)
    };
    let groups: Vec<_> = profile.groups.iter().map(of).collect();
    assert_eq!(
        groups,
        [
            ("t1".into(), "o3 a4".into(), Some(12), 2),
            ("t1".into(), " ".into(), None, 1),
            ("t2".into(), "o3 ".into(), None, 1),
        ]
    );
}

/// Check that samples of an operation whose record was lost, or that was none, keep their
/// operation, and are not given to the next.
#[test]
fn lost_operations() {
    let mut samples = samples();
    add(&mut samples, sample(1, 100, 7));
    add(&mut samples, sample(1, 200, 7));
    samples.completed((1, false), 200, 1, Some(4));
    add(&mut samples, sample(1, 300, 7));
    samples.completed((1, false), 400, 1, Some(4));
    add(&mut samples, sample(1, 500, 7));
    samples.completed((1, false), 500, 1, None);
    let groups = profile(&samples).groups;
    let counts: Vec<_> = groups.iter().map(|group| (&group.algorithm, group.samples)).collect();
    assert_eq!(counts, [(&None, 3), (&Some("a4".into()), 1)]);
}

/// Check that nothing grows without a bound, and that no sample is lost on the way.
#[test]
fn bounds() {
    let mut samples = samples();
    for n in 0..(MAX_SAMPLE_GROUPS as u64 + 1000) {
        let start_ns = if n % 3 == 0 { 0 } else { 1 + n / 5000 };
        add(&mut samples, sample((n % 2) as u32, start_ns, n));
    }
    for tid in 0..(MAX_PENDING_THREADS as u32 + 10) {
        add(&mut samples, sample(tid + 10, 9, 1));
    }
    assert!(samples.pending.len() <= MAX_PENDING_THREADS);
    let profile = profile(&samples);
    assert!(profile.groups.len() <= MAX_SAMPLE_GROUPS);
    assert!(profile.ungrouped > 0);
}

/// Check that without a clock there is no profile.
#[test]
fn not_sampled() {
    assert_eq!(Samples::default().folded(|_| String::new(), |_| String::new()), None);
}

/// Check that samples around the operations of a request wait for the request, while operations
/// inside it come and go.
#[test]
fn around_operations() {
    let mut samples = Samples { clock: Some((99, SampleClock::CpuClock, 0)), ..Samples::default() };
    let flags = sample_flag::IN_OPERATION;
    let request = SampleRecord {
        tid: 1,
        flags: flags | sample_flag::IN_REQUEST,
        operation: 2,
        operation_start_ns: 100,
        ..SampleRecord::default()
    };
    let inside = SampleRecord { flags, operation: 0, operation_start_ns: 200, ..request };
    for record in [&request, &inside, &request] {
        samples.add(record, &mut |_| "t".into());
    }
    samples.completed((1, false), 200, 50, Some(4));
    samples.completed((1, true), 100, 1_000, Some(0));
    let profile = samples.folded(|it| it.to_string(), |it| it.to_string()).expect("sampled");
    let groups: Vec<_> = profile
        .groups
        .iter()
        .map(|it| (it.operation.as_deref(), it.duration_log2, it.samples))
        .collect();
    assert_eq!(groups, [(Some("2"), Some(9), 2), (Some("0"), Some(5), 1)]);
}
