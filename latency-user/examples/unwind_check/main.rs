//! Checks the unwinder on a running process: unwinds each of its threads whenever it leaves the
//! CPU, and prints the last stack of each, how stacks ended, and what the walks cost.
//!
//! ```text
//! cargo run --release --example unwind_check -- PID [SECONDS [all]]
//! ```
//!
//! With `all`, every distinct stack is printed, not only the last of each thread.

mod btf;
mod proc;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use aya::maps::RingBuf;
use aya::programs::BtfTracePoint;
use aya::{Btf, EbpfLoader};
use latency_common::unwind::{StackEnd, UnwindCounter};
use latency_user::attach::unwind::{UnwindCounts, UnwindMaps, UnwindSizes};
use latency_user::attach::{OBJECT, program_runs};
use latency_user::plan::unwind::{Limits, RowStore};
use latency_user::stream::{Stack, decode_stack};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let pid: u32 = arguments.next().context("usage: unwind_check PID [SECONDS]")?.parse()?;
    let seconds: f64 = arguments.next().map_or(Ok(2.0), |text| text.parse())?;
    let all = arguments.next().is_some_and(|text| text == "all");

    let mappings = proc::executable_mappings(pid)?;
    let mut store = RowStore::new(Limits::default());
    let started = Instant::now();
    for named in &mappings {
        let Some(file) = named.mapping.file else { continue };
        if store.contains(file) {
            continue;
        }
        let one = Instant::now();
        match proc::compile_mapping(pid, &named.mapping)? {
            Ok(compiled) => {
                let (rows, broken) = (compiled.rows.len(), compiled.broken_entries);
                println!(
                    "{:>8} rows {:>8.2?} {} ({broken} broken)",
                    rows,
                    one.elapsed(),
                    named.name
                );
                if let Err(error) = store.add(file, compiled) {
                    println!("{}: {error}", named.name);
                }
            }
            Err(error) => println!("{}: {error}", named.name),
        }
    }
    let table =
        store.process_table(&mappings.iter().map(|named| named.mapping).collect::<Vec<_>>());
    println!(
        "{} words, {} chunks, {} segments, in {:.2?}",
        store.words(),
        store.chunks(),
        table.table.count,
        started.elapsed()
    );

    let offsets = btf::return_probe_offsets()?;
    let mut loader = EbpfLoader::new();
    loader.btf(None).override_global("TARGET_TGID", &pid, true);
    offsets.apply(&mut loader);
    UnwindSizes::for_store(&store, 1).apply(&mut loader);
    let mut ebpf = loader.load(OBJECT)?;
    let mut maps = UnwindMaps::default();
    let writing = Instant::now();
    maps.write_rows(&mut ebpf, &store)?;
    maps.set_process(&mut ebpf, pid, &table)?;
    println!("maps written in {:.2?}", writing.elapsed());

    let program: &mut BtfTracePoint =
        ebpf.program_mut("unwind_check").context("program")?.try_into()?;
    program.load("sched_switch", &Btf::from_sys_fs()?)?;
    let link = program.attach()?;
    let fd = program.fd()?.try_clone()?;

    let mut ring = RingBuf::try_from(ebpf.take_map("RECORDS").context("RECORDS")?)?;
    let mut stacks: HashMap<u64, Stack> = HashMap::new();
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        while let Some(record) = ring.next() {
            if let Ok(stack) = decode_stack(&record) {
                stacks.insert(stack.id, stack);
            }
        }
    }

    let program: &mut BtfTracePoint =
        ebpf.program_mut("unwind_check").context("program")?.try_into()?;
    program.detach(link)?;
    while let Some(record) = ring.next() {
        if let Ok(stack) = decode_stack(&record) {
            stacks.insert(stack.id, stack);
        }
    }

    let names = proc::Names::read(pid)?;
    let last: aya::maps::HashMap<_, u32, u64> =
        aya::maps::HashMap::try_from(ebpf.map("UNWIND_CHECK").context("UNWIND_CHECK")?)?;
    for (tid, id) in last.iter().collect::<Result<BTreeMap<_, _>, _>>()? {
        let Some(stack) = stacks.get(&id) else {
            println!("thread {tid}: stack {id:#x} was not received");
            continue;
        };
        print(&names, tid, stack);
    }
    if all {
        for stack in stacks.values() {
            print(&names, 0, stack);
        }
    }
    println!("{} distinct stacks", stacks.len());
    for end in StackEnd::ALL.into_iter().skip(1) {
        if let Some((id, stack)) = stacks.iter().find(|(_, stack)| stack.end == Some(end)) {
            print!("an example of [{}], {id:#x}: ", end.reason());
            print(&names, 0, stack);
        }
    }
    let counts = UnwindCounts::read(&ebpf)?;
    let total = counts.get(UnwindCounter::Stacks);
    for end in StackEnd::ALL {
        if counts.ended(end) != 0 {
            let share = 100.0 * counts.ended(end) as f64 / total as f64;
            println!("{:>10} {share:6.2} % {}", counts.ended(end), end.reason());
        }
    }
    println!(
        "{total} stacks, {:.1} frames each; {} with frame pointers; {} sent, {} lost, {} resent; \
         {} return addresses restored",
        counts.get(UnwindCounter::Frames) as f64 / total as f64,
        counts.get(UnwindCounter::FramePointerStacks),
        counts.get(UnwindCounter::StacksSent),
        counts.get(UnwindCounter::LostRingFull),
        counts.get(UnwindCounter::SeenTableFull),
        counts.get(UnwindCounter::ReturnProbeFrames),
    );
    let times: aya::maps::Array<_, u64> =
        aya::maps::Array::try_from(ebpf.map("UNWIND_CHECK_NS").context("UNWIND_CHECK_NS")?)?;
    let times = times.iter().collect::<Result<Vec<_>, _>>()?;
    for percent in [1, 10, 50, 90, 99] {
        let mut below = 0;
        let bucket = times.iter().position(|count| {
            below += count;
            below * 100 >= total * percent
        });
        println!("P{percent:<2} {:>6} ns a capture", bucket.unwrap_or(0) * 16);
    }
    let runs = program_runs(&fd);
    if runs.run_count != 0 {
        // The program also runs, and ends at once, for every other process.
        println!(
            "{} runs, {} ns in all; {:.0} ns per stack of the target's if the other runs cost \
             nothing",
            runs.run_count,
            runs.run_time_ns,
            runs.run_time_ns as f64 / total as f64
        );
    }
    Ok(())
}

fn print(names: &proc::Names, tid: u32, stack: &Stack) {
    let end = stack.end.map_or("unknown", StackEnd::reason);
    let doubtful = if stack.used_frame_pointer { ", by frame pointer" } else { "" };
    println!("thread {tid}: {} frames, {end}{doubtful}", stack.frames.len());
    for (index, frame) in stack.frames.iter().enumerate() {
        println!("  #{index:<3} {frame:#018x} {}", names.name(*frame));
    }
}
