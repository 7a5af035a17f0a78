//! Records into a recording, and a recording into a report.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use latency_user::aggregate::statistics;
use latency_user::report::Report;

#[path = "synthetic/records.rs"]
mod records;
#[path = "synthetic/run.rs"]
mod run;

const RECORDS: usize = 100_000;
/// As a service has that waits for the same locks again and again.
const STACKS: u64 = 20;
/// So many that all groups of waits a recording can have are in use.
const MANY_STACKS: u64 = 10_000;

/// What the tracer does for each record while it records.
fn taking(criterion: &mut Criterion) {
    let operations = records::operations(RECORDS);
    let mut group = criterion.benchmark_group("aggregate");
    group.throughput(Throughput::Elements(RECORDS as u64));
    group.bench_function("operations", |bencher| {
        bencher.iter_batched(
            run::builder,
            |mut builder| {
                operations.iter().for_each(|record| builder.operation(record));
                builder
            },
            BatchSize::PerIteration,
        );
    });
    for (name, stacks) in [("waits", STACKS), ("waits with many stacks", MANY_STACKS)] {
        let waits = records::waits(RECORDS, stacks);
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                run::builder,
                |mut builder| {
                    for record in &waits {
                        builder.wait(record, &mut records::comm_of, &records::is_live);
                    }
                    builder
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.throughput(Throughput::Elements(2 * RECORDS as u64));
    let waits = records::waits(RECORDS, STACKS);
    group.bench_function("operations and waits in turn", |bencher| {
        bencher.iter_batched(
            run::builder,
            |mut builder| {
                for (operation, wait) in operations.iter().zip(&waits) {
                    builder.wait(wait, &mut records::comm_of, &records::is_live);
                    builder.operation(operation);
                }
                builder
            },
            BatchSize::PerIteration,
        );
    });
}

/// What comes after the last record, by the wait groups that it goes through.
fn ending(criterion: &mut Criterion) {
    let mut builder = run::builder();
    for (operation, wait) in
        records::operations(RECORDS).iter().zip(records::waits(RECORDS, MANY_STACKS))
    {
        builder.operation(operation);
        builder.wait(&wait, &mut records::comm_of, &records::is_live);
    }
    let recording = run::recording(RECORDS, MANY_STACKS);
    let mut group = criterion.benchmark_group("aggregate");
    group.throughput(Throughput::Elements(recording.waits.len() as u64));
    group.bench_function("wait groups into a recording", |bencher| {
        bencher.iter_with_large_drop(|| builder.finish(run::finish(RECORDS)));
    });
    group.bench_function("wait groups into a report", |bencher| {
        bencher.iter_with_large_drop(|| Report::from(&recording));
    });
    group.throughput(Throughput::Elements(recording.rows.len() as u64));
    group.bench_function("rows into statistics", |bencher| {
        bencher.iter_with_large_drop(|| statistics(&recording));
    });
}

criterion_group!(benches, taking, ending);
criterion_main!(benches);
