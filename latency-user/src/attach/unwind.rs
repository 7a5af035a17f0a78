//! Filling the kernel's unwind maps, and reading the unwinder's counters.

use aya::maps::{Array, MapError, PerCpuArray};
use aya::{Ebpf, EbpfLoader};
use latency_common::unwind::{
    CHUNK_WORDS, Chunk, SegmentTable, StackEnd, UNWIND_COUNTERS, UnwindCounter,
};

use super::AttachError;
use crate::plan::unwind::{ProcessTable, RowStore};

#[derive(Clone, Copy)]
#[repr(transparent)]
struct PodChunk(Chunk);
// SAFETY: integers only, and any bits are valid.
unsafe impl aya::Pod for PodChunk {}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct PodTable(SegmentTable);
// SAFETY: integers and named padding only, and any bits are valid.
unsafe impl aya::Pod for PodTable {}

/// Sizes of the unwind maps, which are fixed when they are created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnwindSizes {
    /// Chunks of rows, of 256 KiB each.
    pub chunks: u32,
    /// Distinct stacks, of about 64 bytes each; beyond, they are sent at each sight.
    pub stacks: u32,
}

impl UnwindSizes {
    /// Room for `words` words of rows, and for libraries opened later: as much again, at least 8
    /// chunks (2 MiB, 250,000 rows) and at most 64; in all, at most `limit` words. `samples_hz` is how
    /// many samples of all CPUs are going to be taken a second: few of them have a stack in common.
    pub fn for_words(words: usize, limit: usize, samples_hz: u32) -> Self {
        const SAMPLED_SECONDS: u32 = 60;
        // Each file's rows may leave a part of a chunk unused, in all less than one more.
        let chunks = words.div_ceil(CHUNK_WORDS) + 1;
        let chunks = (chunks + chunks.clamp(8, 64)).min(limit.div_ceil(CHUNK_WORDS));
        let sampled = samples_hz.saturating_mul(SAMPLED_SECONDS).min(1 << 18);
        Self { chunks: chunks as u32, stacks: 16_384 + sampled }
    }

    /// Words that fit.
    pub const fn words(self) -> usize {
        self.chunks as usize * CHUNK_WORDS
    }

    /// Sets the sizes before the maps are created.
    pub fn apply(self, loader: &mut EbpfLoader<'_>) {
        loader
            .map_max_entries("UNWIND_ROWS", self.chunks.max(1))
            .map_max_entries("STACKS_SEEN", self.stacks.max(1));
    }
}

/// Tables are told apart by 16 bits; after so many, what the kernel side has kept of the first ones
/// is long replaced.
const MAX_GENERATION: u32 = 0xffff;

/// What was written so far.
#[derive(Debug, Default)]
pub struct UnwindMaps {
    words: usize,
    /// Of the table written last.
    generation: u32,
    /// Where the one in use is.
    index: u32,
}

fn broken(name: &str, error: &MapError) -> AttachError {
    AttachError::Object(format!("the map {name} cannot be used: {error}"))
}

macro_rules! open {
    ($type:ident, $ebpf:expr, $name:literal) => {{
        let map = $ebpf
            .map_mut($name)
            .ok_or_else(|| AttachError::Object(concat!("the map ", $name, " is missing").into()))?;
        $type::try_from(map).map_err(|error| broken($name, &error))?
    }};
}

impl UnwindMaps {
    /// Writes the rows added to `store` since the last call.
    ///
    /// # Errors
    /// There are more chunks than the map was made for, or it cannot be written.
    pub fn write_rows(&mut self, ebpf: &mut Ebpf, store: &RowStore) -> Result<(), AttachError> {
        let mut map: Array<_, PodChunk> = open!(Array, ebpf, "UNWIND_ROWS");
        let mut chunk = Box::new(PodChunk(Chunk { words: [0; CHUNK_WORDS] }));
        // Words are only ever appended: those before stay as they are.
        for index in self.words / CHUNK_WORDS..store.chunks() {
            let words = store.chunk(index);
            chunk.0.words[..words.len()].copy_from_slice(words);
            chunk.0.words[words.len()..].fill(0);
            map.set(index as u32, chunk.as_ref(), 0)
                .map_err(|error| broken("UNWIND_ROWS", &error))?;
        }
        self.words = store.words();
        Ok(())
    }

    /// Sets or replaces the target's table. The rows it refers to must have been written.
    ///
    /// # Errors
    /// The maps cannot be written.
    pub fn set_table(&mut self, ebpf: &mut Ebpf, table: &ProcessTable) -> Result<(), AttachError> {
        self.generation = if self.generation >= MAX_GENERATION { 1 } else { self.generation + 1 };
        // Not the one in use, in which walks may still be.
        let index = self.index ^ 1;
        let mut written = PodTable(*table.table);
        written.0.generation = self.generation;
        let mut tables: Array<_, PodTable> = open!(Array, ebpf, "UNWIND_TABLES");
        tables.set(index, written, 0).map_err(|error| broken("UNWIND_TABLES", &error))?;
        let mut in_use: Array<_, u32> = open!(Array, ebpf, "UNWIND_TABLE_IN_USE");
        in_use.set(0, index + 1, 0).map_err(|error| broken("UNWIND_TABLE_IN_USE", &error))?;
        self.index = index;
        Ok(())
    }
}

/// What the unwinder counted, summed over CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnwindCounts {
    values: Vec<u64>,
}

impl UnwindCounts {
    /// Reads the counters.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn read(ebpf: &Ebpf) -> Result<Self, AttachError> {
        const NAME: &str = "UNWIND_COUNTERS_BY_ID";
        let map = ebpf
            .map(NAME)
            .ok_or_else(|| AttachError::Object(format!("the map {NAME} is missing")))?;
        let map: PerCpuArray<_, u64> =
            PerCpuArray::try_from(map).map_err(|error| broken(NAME, &error))?;
        let values = (0..UNWIND_COUNTERS)
            .map(|id| Ok(map.get(&id, 0)?.iter().sum()))
            .collect::<Result<_, _>>()
            .map_err(|error| broken(NAME, &error))?;
        Ok(Self { values })
    }

    /// Stacks that ended so.
    pub fn ended(&self, end: StackEnd) -> u64 {
        self.values.get(end as usize).copied().unwrap_or(0)
    }

    /// Another counter.
    pub fn get(&self, counter: UnwindCounter) -> u64 {
        self.values.get(counter as usize).copied().unwrap_or(0)
    }
}
