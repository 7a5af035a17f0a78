//! Addresses of this very process into names.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use latency_user::symbolize::{Module, Origins, RawStack, Symbolizer, modules_of};
use latency_user::target::{Root, Target, Wanted};

const ADDRESSES: u64 = 1_000;
const FRAMES: usize = 20;

/// Stacks of addresses that are spread evenly over the code of the mappings that `name` wants.
fn stacks(target: &Target, name: impl Fn(&str) -> bool) -> Vec<RawStack> {
    let code: Vec<(u64, u64)> = target
        .last_mappings
        .iter()
        .filter(|mapping| mapping.is_executable())
        .filter(|mapping| {
            mapping.path.file_name().is_some_and(|file| name(&file.to_string_lossy()))
        })
        .map(|mapping| (mapping.start, mapping.end))
        .collect();
    let bytes: u64 = code.iter().map(|(start, end)| end - start).sum();
    assert!(bytes > 0, "this process does not map what is to be named");
    let address = |at: u64| {
        let mut offset = bytes * at / ADDRESSES;
        for (start, end) in &code {
            if offset < end - start {
                return start + offset;
            }
            offset -= end - start;
        }
        0
    };
    let addresses: Vec<u64> = (0..ADDRESSES).map(address).collect();
    let stack = |(id, frames): (usize, &[u64])| RawStack {
        id: id as u64 + 1,
        frames: frames.to_vec(),
        ..RawStack::default()
    };
    addresses.chunks(FRAMES).enumerate().map(stack).collect()
}

fn symbolizer(modules: &[Module]) -> Symbolizer {
    let roots = vec![Root::own().expect("the root folder can be opened")];
    Symbolizer::new(modules.to_vec(), Origins { roots, ..Origins::default() })
}

fn symbolizing(criterion: &mut Criterion) {
    let wanted = Wanted::new(|_| false, Vec::new());
    let target = Target::open(std::process::id(), wanted).expect("a process can look at itself");
    let modules = modules_of(&target.last_mappings, &target.files);
    let own = target.exe.file_name().expect("a program has a name").to_string_lossy().into_owned();
    let libc = stacks(&target, |file| file.starts_with("libc.so"));
    let program = stacks(&target, |file| file == own);

    let mut group = criterion.benchmark_group("symbolize");
    group.throughput(Throughput::Elements(ADDRESSES)).sample_size(30);
    for (name, stacks) in [("libc", &libc), ("a Rust program", &program)] {
        group.bench_function(format!("addresses of {name}, file not read yet"), |bencher| {
            bencher.iter_batched_ref(
                || symbolizer(&modules),
                |symbolizer| symbolizer.resolve(stacks),
                BatchSize::PerIteration,
            );
        });
        let mut symbolizer = symbolizer(&modules);
        symbolizer.resolve(stacks);
        group.bench_function(format!("addresses of {name}"), |bencher| {
            bencher.iter_with_large_drop(|| {
                // Forgets the names, and keeps the symbols.
                symbolizer.extend(Vec::new());
                symbolizer.resolve(stacks)
            });
        });
        group.bench_function(format!("addresses of {name}, seen before"), |bencher| {
            bencher.iter_with_large_drop(|| symbolizer.resolve(stacks));
        });
    }
}

criterion_group!(benches, symbolizing);
criterion_main!(benches);
