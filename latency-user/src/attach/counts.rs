//! Reading the kernel side's counts.

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapError, PerCpuArray};
use latency_common::algorithm::AlgorithmId;
use latency_common::counter::Counter;
use latency_common::histogram::{BUCKETS, KernelHistogram};
use latency_common::record::SlotKey;
use latency_common::thread::{ThreadState, WaitTotals};

use super::AttachError;

/// What the kernel side counted, summed over CPUs.
#[derive(Clone, Debug, Default)]
pub struct KernelCounts {
    /// By [`Counter`], in the order of its ids.
    pub counters: [u64; Counter::COUNT as usize],
    /// Entries seen by each probe of the plan.
    pub probe_hits: Vec<u64>,
    /// The histograms in use.
    pub slots: Vec<SlotCounts>,
    /// Calls open now, requests included.
    pub in_progress: u64,
    /// Sums over all times off the CPU, by [`WaitTotals::index`].
    pub wait_totals: [WaitTotals; WaitTotals::ENTRIES as usize],
    /// The threads of the target that had a switch or a call, by their ids in the initial PID
    /// namespace. [`latency_common::ledger::Timeline::in_progress`] tells which of them wait.
    pub threads: Vec<(u32, ThreadState)>,
}

/// One histogram, summed over CPUs.
#[derive(Clone, Debug)]
pub struct SlotCounts {
    /// What it counts.
    pub key: SlotKey,
    /// Sum of the durations in nanoseconds.
    pub sum_ns: u64,
    /// The longest duration in nanoseconds.
    pub max_ns: u64,
    /// Count per bucket; see [`latency_common::histogram`].
    pub buckets: Vec<u64>,
}

impl KernelCounts {
    /// The value of one counter.
    pub const fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }
}

/// The histogram of what found no slot of its own.
const OVERFLOW_SLOT: u32 = 0;

/// The key under which [`OVERFLOW_SLOT`] is reported.
const OVERFLOW_KEY: SlotKey =
    SlotKey { operation: u8::MAX, outcome: 0, algorithm: AlgorithmId::OTHER.0 };

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Histogram(KernelHistogram);
// SAFETY: integers only, without padding, and any bits are valid.
unsafe impl aya::Pod for Histogram {}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Thread(ThreadState);
// SAFETY: integers and named padding only, and any bits are valid.
unsafe impl aya::Pod for Thread {}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Totals(WaitTotals);
// SAFETY: integers only, without padding, and any bits are valid.
unsafe impl aya::Pod for Totals {}

fn broken(name: &str, error: &MapError) -> AttachError {
    AttachError::Object(format!("the map {name} cannot be used: {error}"))
}

macro_rules! open {
    ($type:ident, $ebpf:expr, $name:literal) => {{
        let map = $ebpf
            .map($name)
            .ok_or_else(|| AttachError::Object(concat!("the map ", $name, " is missing").into()))?;
        $type::try_from(map).map_err(|error| broken($name, &error))?
    }};
}

/// Sets the allocators of histograms and of threads. Slot 0 of the histograms is for what finds none
/// of its own; that of the threads is nobody's.
pub fn prepare(ebpf: &mut Ebpf, histograms: u32, threads: u32) -> Result<(), AttachError> {
    for (name, slots) in [("SLOT_ALLOCATOR", histograms), ("USED_SLOTS", threads)] {
        let map = ebpf
            .map_mut(name)
            .ok_or_else(|| AttachError::Object(format!("the map {name} is missing")))?;
        let mut allocator: Array<_, [u32; 2]> =
            Array::try_from(map).map_err(|error| broken(name, &error))?;
        allocator.set(0, [OVERFLOW_SLOT + 1, slots], 0).map_err(|error| broken(name, &error))?;
    }
    Ok(())
}

/// Reads everything.
pub fn read(ebpf: &Ebpf, slots: u32, probes: u32) -> Result<KernelCounts, AttachError> {
    let mut counts = KernelCounts::default();
    let counters: PerCpuArray<_, u64> = open!(PerCpuArray, ebpf, "COUNTERS");
    for (counter, value) in Counter::ALL.into_iter().zip(&mut counts.counters) {
        *value = sum(&counters, counter as u32, "COUNTERS")?;
    }
    let hits: PerCpuArray<_, u64> = open!(PerCpuArray, ebpf, "PROBE_HITS");
    for probe in 0..probes {
        counts.probe_hits.push(sum(&hits, probe, "PROBE_HITS")?);
    }
    let keys: HashMap<_, u64, u32> = open!(HashMap, ebpf, "HISTOGRAM_SLOTS");
    let mut used = vec![(OVERFLOW_KEY, OVERFLOW_SLOT)];
    for entry in keys.iter() {
        let (key, slot) = entry.map_err(|error| broken("HISTOGRAM_SLOTS", &error))?;
        used.push((SlotKey::unpack(key), slot));
    }
    let histograms: PerCpuArray<_, Histogram> = open!(PerCpuArray, ebpf, "HISTOGRAMS");
    for (key, slot) in used.into_iter().filter(|(_, slot)| *slot < slots) {
        let mut summed = SlotCounts { key, sum_ns: 0, max_ns: 0, buckets: vec![0; BUCKETS] };
        let values = histograms.get(&slot, 0).map_err(|error| broken("HISTOGRAMS", &error))?;
        for Histogram(one) in values.iter() {
            summed.sum_ns = summed.sum_ns.saturating_add(one.sum_ns);
            summed.max_ns = summed.max_ns.max(one.max_ns);
            for (total, count) in summed.buckets.iter_mut().zip(&one.buckets) {
                *total += count;
            }
        }
        if summed.buckets.iter().any(|count| *count != 0) {
            counts.slots.push(summed);
        }
    }
    counts.slots.sort_by_key(|slot| slot.key);
    let slots: HashMap<_, u32, u32> = open!(HashMap, ebpf, "THREAD_SLOTS");
    let threads: Array<_, Thread> = open!(Array, ebpf, "THREADS");
    for (tid, slot) in slots.iter().flatten() {
        // A thread that ends while the table is read leaves a gap, or its slot to another.
        let Thread(thread) = threads.get(&slot, 0).map_err(|error| broken("THREADS", &error))?;
        if thread.owner == tid {
            counts.threads.push((tid, thread));
        }
    }
    counts.threads.sort_unstable_by_key(|(tid, _)| *tid);
    let open = |(_, thread): &(u32, ThreadState)| {
        u64::from(thread.call.start_ns != 0) + u64::from(thread.request.start_ns != 0)
    };
    counts.in_progress = counts.threads.iter().map(open).sum();
    let totals: PerCpuArray<_, Totals> = open!(PerCpuArray, ebpf, "WAIT_TOTALS");
    for (index, sum) in (0..).zip(&mut counts.wait_totals) {
        let values = totals.get(&index, 0).map_err(|error| broken("WAIT_TOTALS", &error))?;
        for Totals(one) in values.iter() {
            sum.count += one.count;
            sum.blocked_ns = sum.blocked_ns.saturating_add(one.blocked_ns);
            sum.runnable_ns = sum.runnable_ns.saturating_add(one.runnable_ns);
        }
    }
    Ok(counts)
}

/// Reads only the completed calls and the lost records.
pub fn completed_and_lost(ebpf: &Ebpf) -> Result<(u64, u64), AttachError> {
    let counters: PerCpuArray<_, u64> = open!(PerCpuArray, ebpf, "COUNTERS");
    Ok((
        sum(&counters, Counter::Completed as u32, "COUNTERS")?,
        sum(&counters, Counter::LostRingFull as u32, "COUNTERS")?,
    ))
}

fn sum<T: std::borrow::Borrow<aya::maps::MapData>>(
    array: &PerCpuArray<T, u64>,
    index: u32,
    name: &str,
) -> Result<u64, AttachError> {
    let values = array.get(&index, 0).map_err(|error| broken(name, &error))?;
    Ok(values.iter().sum())
}
