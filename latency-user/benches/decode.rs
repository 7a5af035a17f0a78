//! Records from the bytes of the ring buffer.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use latency_common::record::{StackHeader, kind};
use latency_common::unwind::StackEnd;
use latency_user::stream::decode;

#[path = "synthetic/records.rs"]
mod records;

const RECORDS: usize = 10_000;
const FRAMES: u16 = 20;

/// The bytes that the kernel side writes: the struct as it lies in memory.
fn bytes_of<T: Copy>(record: &T) -> Vec<u8> {
    // SAFETY: the records are integers only, without padding (their sizes and their fields' offsets
    // are asserted in the crate).
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast::<u8>(), size_of::<T>()) }
        .to_vec()
}

fn stack(id: u64) -> Vec<u8> {
    let header = StackHeader {
        kind: kind::STACK,
        frames: FRAMES,
        end: StackEnd::Complete as u8,
        flags: 0,
        id,
        tgid: 4242,
        _pad: 0,
    };
    let frames = (0..u64::from(FRAMES)).flat_map(|at| (0x7f00_0000_0000 + id + at).to_ne_bytes());
    bytes_of(&header).into_iter().chain(frames).collect()
}

fn decoding(criterion: &mut Criterion) {
    let inputs: [(&str, Vec<Vec<u8>>); 3] = [
        ("operations", records::operations(RECORDS).iter().map(bytes_of).collect()),
        ("waits", records::waits(RECORDS, 1_000).iter().map(bytes_of).collect()),
        ("stacks of 20 frames", (1..=RECORDS as u64).map(stack).collect()),
    ];
    let mut group = criterion.benchmark_group("decode");
    group.throughput(Throughput::Elements(RECORDS as u64));
    for (name, input) in &inputs {
        group.bench_with_input(BenchmarkId::from_parameter(name), input, |bencher, input| {
            bencher.iter(|| {
                for bytes in input {
                    // Nothing is left out: the record is looked at.
                    let _ = black_box(decode(black_box(bytes)));
                }
            });
        });
    }
}

criterion_group!(benches, decoding);
criterion_main!(benches);
