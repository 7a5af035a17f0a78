//! Follows one process for some seconds and checks what the kernel side says against the kernel's
//! own counts. `ledger_check PID SECONDS FILE:SYMBOL[:sign]…`; `:sign` marks a function with the
//! signature of `EVP_PKEY_sign`, any other is a request of the service's own.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use latency_common::counter::Counter;
use latency_common::ledger::{Ledger, off_cpu};
use latency_common::probe::{LengthSource, NO_ARGUMENT, ProbeCookie, ResultMeaning};
use latency_common::record::wait_flag;
use latency_common::thread::WaitTotals;
use latency_common::wait::{futex_wait_end, waker_flag};
use latency_user::attach::{MIN_WAIT_NS, Mode, Session, Settings, Site};
use latency_user::stream::{Record, Stream};
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};

const REASONS: [&str; off_cpu::COUNT as usize] =
    ["unknown", "on_cpu", "preempted", "lock", "io", "sleep", "other"];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pid, seconds, probes @ ..] = arguments.as_slice() else {
        anyhow::bail!("usage: ledger_check PID SECONDS FILE:SYMBOL[:sign]…");
    };
    let (pid, seconds): (u32, f64) = (pid.parse()?, seconds.parse()?);
    let begin = Instant::now();
    println!("{:?}", latency_user::plan::kernel::KernelFacts::read()?);
    println!("facts in {:?}", begin.elapsed());
    let mut session = Session::load(Settings {
        pid,
        ring_bytes: 32 << 20,
        log: false,
        threads: 64,
        modes: Mode::ALL.to_vec(),
        ledger: std::env::var_os("NO_LEDGER").is_none(),
        min_wait_ns: MIN_WAIT_NS,
    })?;
    println!("loaded in {:?}; ledger refused: {:?}", begin.elapsed(), session.ledger_refusal());
    for (index, probe) in probes.iter().enumerate() {
        let mut parts = probe.split(':');
        let path = parts.next().context("a file")?;
        let offset = offset_of(path, parts.next().context("a symbol")?)?;
        let cookie = cookie(index as u16, parts.next().is_some());
        session.attach(&File::open(path)?, &[Site { offset, cookie }])?;
    }
    let mut stream = Stream::new(session.take_ring()?);
    let before = switches(pid)?;
    let counts_before = session.counts(probes.len())?;
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    let mut seen = Seen::default();
    while Instant::now() < deadline {
        if stream.drain(100_000, |record| seen.take(record)) == 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let counts = session.counts(probes.len())?;
    let after = switches(pid).unwrap_or(before);
    while stream.drain(100_000, |record| seen.take(record)) > 0 {}
    seen.print();
    println!(
        "operations {}, waits {}, mismatches {}, undecodable {}",
        stream.received(),
        stream.waits_received(),
        stream.ledger_mismatches(),
        stream.undecodable()
    );
    let mut switched = [0; 2];
    for reason in 0..off_cpu::COUNT {
        for in_operation in [false, true] {
            let index = WaitTotals::index(reason, in_operation) as usize;
            let totals = counts.wait_totals[index];
            if totals.count > 0 {
                println!(
                    "totals {} in_operation {in_operation}: {totals:?}",
                    REASONS[reason as usize]
                );
            }
            switched[usize::from(reason == off_cpu::PREEMPTED)] +=
                totals.count - counts_before.wait_totals[index].count;
        }
    }
    println!(
        "switches: voluntary {} of {}, involuntary {} of {}",
        switched[0],
        after.0 - before.0,
        switched[1],
        after.1 - before.1
    );
    for counter in Counter::ALL {
        if counts.get(counter) > 0 {
            println!("{counter:?}: {}", counts.get(counter));
        }
    }
    for (tid, thread) in counts.threads.iter().take(12) {
        println!(
            "thread {tid}: {} in_operation {}",
            REASONS[thread.timeline.state.min(6) as usize],
            thread.call.start_ns != 0
        );
    }
    for name in ["sched_switch", "sched_waking", "call_session"] {
        let runs = session.runs_of(name);
        if runs.run_count > 0 {
            println!(
                "{name}: {} runs, {:.1} ns each, {} missed",
                runs.run_count,
                runs.run_time_ns as f64 / runs.run_count as f64,
                runs.recursion_misses
            );
        }
    }
    Ok(())
}

fn cookie(probe: u16, signs: bool) -> u64 {
    ProbeCookie {
        probe,
        operation: probe as u8,
        signature_argument: if signs { 1 } else { NO_ARGUMENT },
        length_argument: if signs { 2 } else { NO_ARGUMENT },
        length: if signs { LengthSource::PointerToU64 } else { LengthSource::None },
        result: if signs { ResultMeaning::OneIsSuccess } else { ResultMeaning::Ignored },
        family: 0,
        has_algorithm: signs,
    }
    .pack()
}

fn offset_of(path: &str, symbol: &str) -> Result<u64> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {path}"))?;
    let file = object::File::parse(bytes.as_slice())?;
    let address = file
        .symbols()
        .chain(file.dynamic_symbols())
        .find(|candidate| candidate.name() == Ok(symbol) && candidate.address() != 0)
        .with_context(|| format!("{symbol} in {path}"))?
        .address();
    let segment = file
        .segments()
        .find(|segment| (segment.address()..segment.address() + segment.size()).contains(&address))
        .context("the symbol lies in no segment")?;
    Ok(address - segment.address() + segment.file_range().0)
}

/// Voluntary and involuntary switches of all threads, as the kernel counts them.
fn switches(pid: u32) -> Result<(u64, u64)> {
    let mut sums = (0, 0);
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = std::fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        let value = |key: &str| {
            status.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok())
        };
        sums.0 += value("voluntary_ctxt_switches:").unwrap_or(0);
        sums.1 += value("nonvoluntary_ctxt_switches:").unwrap_or(0);
    }
    Ok(sums)
}

#[derive(Default)]
struct Seen {
    /// By probe: number, wall time, and the sum of all ledgers.
    operations: BTreeMap<u16, (u64, u64, Ledger)>,
    /// By futex: number, total, waits with each owner, wakers, ends.
    locks: BTreeMap<u64, Lock>,
    interrupts: u64,
    clipped: u64,
    syscalls: BTreeMap<(u8, i32), (u64, u64)>,
}

#[derive(Default)]
struct Lock {
    waits: u64,
    blocked_ns: u64,
    commands: BTreeMap<u32, u64>,
    owners: BTreeMap<u32, u64>,
    wakers: BTreeMap<u32, u64>,
    owner_is_waker: u64,
    ends: BTreeMap<String, u64>,
}

impl Seen {
    fn take(&mut self, record: &Record) {
        match record {
            Record::Operation(operation) => {
                let (count, wall_ns, sum) = self.operations.entry(operation.probe).or_default();
                *count += 1;
                *wall_ns += operation.duration_ns;
                let ledger = &operation.ledger;
                sum.on_cpu_ns += ledger.on_cpu_ns;
                sum.run_queue_ns += ledger.run_queue_ns;
                sum.preempted_ns += ledger.preempted_ns;
                sum.lock_ns += ledger.lock_ns;
                sum.io_ns += ledger.io_ns;
                sum.sleep_ns += ledger.sleep_ns;
                sum.other_ns += ledger.other_ns;
                sum.voluntary_switches += ledger.voluntary_switches;
                sum.involuntary_switches += ledger.involuntary_switches;
                sum.migrations += ledger.migrations;
                sum.minor_faults += ledger.minor_faults;
                sum.major_faults += ledger.major_faults;
            }
            Record::Wait(wait) => {
                self.interrupts += u64::from(wait.waker_flags & waker_flag::INTERRUPT);
                self.clipped += u64::from(wait.flags & wait_flag::BEGAN_BEFORE_TRACE != 0);
                let syscall = self.syscalls.entry((wait.reason, wait.syscall)).or_default();
                syscall.0 += 1;
                syscall.1 += wait.duration_ns + wait.run_queue_ns;
                if wait.futex_address != 0 {
                    let lock = self.locks.entry(wait.futex_address).or_default();
                    lock.waits += 1;
                    lock.blocked_ns += wait.duration_ns;
                    *lock.commands.entry(wait.futex_command).or_default() += 1;
                    *lock.owners.entry(wait.futex_owner).or_default() += 1;
                    *lock.wakers.entry(wait.waker_tid).or_default() += 1;
                    lock.owner_is_waker += u64::from(wait.futex_owner == wait.waker_tid);
                    let end = futex_wait_end(wait.waker_flags, wait.waker_syscall);
                    *lock.ends.entry(format!("{end:?}")).or_default() += 1;
                }
            }
            Record::Unknown(_) => {}
        }
    }

    fn print(&self) {
        for (probe, (count, wall_ns, sum)) in &self.operations {
            println!("probe {probe}: {count} operations, {wall_ns} ns\n  {sum:?}");
        }
        for (address, lock) in self.locks.iter().take(12) {
            println!(
                "lock {address:#x}: {} waits, {} ns, commands {:?}, owner is waker {}, ends {:?}",
                lock.waits, lock.blocked_ns, lock.commands, lock.owner_is_waker, lock.ends
            );
            println!("  owners {:?}, wakers {:?}", lock.owners, lock.wakers);
        }
        for ((reason, syscall), (count, ns)) in &self.syscalls {
            println!("{} in syscall {syscall}: {count}, {ns} ns", REASONS[usize::from(*reason)]);
        }
        println!(
            "woken by interrupts {}, began before the trace {}",
            self.interrupts, self.clipped
        );
    }
}
