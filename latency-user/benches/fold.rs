//! Stacks into folded lines and flame graphs.

use std::collections::BTreeMap;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use latency_user::render::flame::{Options, View, fold, write};

#[path = "synthetic/records.rs"]
mod records;
#[path = "synthetic/run.rs"]
mod run;

const WAITS: usize = 30_000;
const STACKS: u64 = 10_000;

fn folding(criterion: &mut Criterion) {
    let recording = run::recording(WAITS, STACKS);
    let lock_names = BTreeMap::new();
    let options = |view| Options {
        view,
        in_operation: false,
        operation: None,
        with_lines: false,
        lock_names: &lock_names,
    };
    let mut group = criterion.benchmark_group("fold");
    group.throughput(Throughput::Elements(STACKS)).sample_size(20);
    for view in [View::OffCpu, View::Locks, View::Wakers] {
        group.bench_function(BenchmarkId::new("stacks into lines", view.name()), |bencher| {
            bencher.iter_with_large_drop(|| fold(&recording, &options(view)));
        });
    }
    group.bench_function("stacks into a flame graph", |bencher| {
        bencher.iter_with_large_drop(|| {
            let mut page = Vec::new();
            let written = write(&recording, &options(View::OffCpu), &mut page);
            written.expect("memory can be written to");
            page
        });
    });
}

criterion_group!(benches, folding);
criterion_main!(benches);
