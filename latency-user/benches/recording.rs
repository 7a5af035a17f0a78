//! A recording into its file, and back. Elements are what most of it is made of: wait groups and stacks.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use latency_user::recording::{RecordingFile, read};

#[path = "synthetic/records.rs"]
mod records;
#[path = "synthetic/run.rs"]
mod run;

const RECORDS: usize = 20_000;
const STACKS: u64 = 2_000;

fn files(criterion: &mut Criterion) {
    let recording = run::recording(RECORDS, STACKS);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let path = folder.path().join("bench.latency");
    let write = || {
        let file = RecordingFile::create(&path).expect("the file can be created");
        file.commit(&recording).expect("the file can be written");
    };
    write();
    assert!(read(&path).is_ok_and(|again| again == recording), "what is read is what was written");

    let mut group = criterion.benchmark_group("recording");
    let elements = recording.waits.len() + recording.stacks.len();
    group.throughput(Throughput::Elements(elements as u64)).sample_size(20);
    group.bench_function("wait groups and stacks into a file", |bencher| bencher.iter(write));
    group.bench_function("wait groups and stacks from a file", |bencher| {
        bencher.iter_with_large_drop(|| read(&path));
    });
}

criterion_group!(benches, files);
criterion_main!(benches);
