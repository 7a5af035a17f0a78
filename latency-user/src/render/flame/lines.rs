//! Stacks as numbers of labels: each once, with the time in it, and in the order of a tree.

use std::hash::BuildHasher as _;
use std::ops::Range;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

/// How many frames the sort looks at at once.
const AT_ONCE: usize = 8;
/// So few stacks are compared as a whole.
const FEW: usize = 16;

/// A stack's frames as numbers of labels, the outermost first, and the time in it.
pub(super) type Line<'a> = (&'a [u32], u64);

/// Distinct stacks, with the time in each.
#[derive(Default)]
pub(super) struct Lines {
    /// Those of all stacks, one after the other.
    frames: Vec<u32>,
    stacks: Vec<(Range<usize>, u64)>,
    /// Places in `stacks`.
    by_frames: HashTable<usize>,
    hasher: DefaultHashBuilder,
}

impl Lines {
    /// Adds time to a stack. No sum may overflow.
    pub fn add(&mut self, frames: &[u32], time_ns: u64) {
        let Self { frames: all, stacks, by_frames, hasher } = self;
        let of = |at: usize| &all[stacks[at].0.clone()];
        match by_frames.entry(
            hasher.hash_one(frames),
            |&at| of(at) == frames,
            |&at| hasher.hash_one(of(at)),
        ) {
            Entry::Occupied(at) => stacks[*at.get()].1 += time_ns,
            Entry::Vacant(free) => {
                free.insert(stacks.len());
                let start = all.len();
                all.extend_from_slice(frames);
                stacks.push((start..all.len(), time_ns));
            }
        }
    }

    /// The stacks as a tree: sorted by the place of each frame's label, the outermost frame first. `places`
    /// has that of each label.
    pub fn sorted(&self, places: &[u32]) -> Vec<Line<'_>> {
        let line =
            |(frames, time_ns): &(Range<usize>, u64)| (&self.frames[frames.clone()], *time_ns);
        let mut lines = self.stacks.iter().map(line).collect::<Vec<_>>();
        sort(&mut lines, 0, places);
        lines
    }
}

/// Sorts lines that have their first `depth` frames in common, by some frames after another: what they have
/// in common is most of a deep one, and comparisons of whole ones would each fetch all of it from memory.
fn sort(lines: &mut [Line<'_>], depth: usize, places: &[u32]) {
    if lines.len() <= FEW {
        return lines.sort_unstable_by(|one, other| {
            places_from(one, depth, places).cmp(places_from(other, depth, places))
        });
    }
    lines.sort_by_cached_key(|line| {
        // One that ends goes before those that do not.
        let mut key = [0; AT_ONCE];
        key.iter_mut()
            .zip(places_from(line, depth, places))
            .for_each(|(key, place)| *key = place + 1);
        key
    });
    let end = depth + AT_ONCE;
    let is_same = |one: &[u32], other: &[u32]| {
        one[depth..end.min(one.len())] == other[depth..end.min(other.len())]
    };
    for same in lines.chunk_by_mut(|(one, _), (other, _)| is_same(one, other)) {
        if same[0].0.len() >= end {
            sort(same, end, places);
        }
    }
}

/// The places of a line's frames from `depth` on.
fn places_from<'a>(
    line: &Line<'a>,
    depth: usize,
    places: &'a [u32],
) -> impl Iterator<Item = u32> + use<'a> {
    line.0[depth..].iter().map(|&label| places[label as usize])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::strategy::Strategy as _;

    use super::*;

    proptest::proptest! {
        /// Check that stacks come out once each, with all their time, in the order of their labels' places:
        /// deep ones with much in common, those that end where others go on, and many of them.
        #[test]
        fn sums_in_order(
            stacks in vec((0..20_usize, vec(0..4_u32, 0..12), 1..1000_u64), 0..300),
            places in proptest::strategy::Just(vec![0, 1, 2, 3]).prop_shuffle(),
        ) {
            let (mut lines, mut naive) = (Lines::default(), BTreeMap::<Vec<u32>, u64>::new());
            for (in_common, rest, time_ns) in stacks {
                let frames = [vec![1; in_common], rest].concat();
                lines.add(&frames, time_ns);
                let by_place = frames.iter().map(|&label| places[label as usize]).collect();
                *naive.entry(by_place).or_default() += time_ns;
            }
            let by_place = |(frames, time_ns): Line<'_>| {
                (frames.iter().map(|&label| places[label as usize]).collect::<Vec<_>>(), time_ns)
            };
            let sorted: Vec<_> = lines.sorted(&places).into_iter().map(by_place).collect();
            proptest::prop_assert_eq!(sorted, naive.into_iter().collect::<Vec<_>>());
        }
    }
}
