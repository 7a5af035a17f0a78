//! Leaving out what would be too narrow to be drawn, before it is made into text: of a hundred thousand
//! stacks, most of the innermost frames are.

use super::lines::Line;

/// A frame with less than this share of the whole is not drawn: inferno's `min_width` of 0.01 %.
pub(super) const SHARE: u64 = 10_000;

/// Cuts stacks off before a frame that has less than one in [`SHARE`] of the whole, and makes one of those
/// that are equal then. `stacks` are sorted by frame, and none is of no time; so is the result. All
/// frames that are left keep their sums.
pub(super) fn without_narrow<'a>(stacks: &[Line<'a>]) -> Vec<Line<'a>> {
    let whole = stacks.iter().map(|(_, count)| u128::from(*count)).sum();
    let mut tree = Tree { whole, lines: Vec::new(), open: Vec::new() };
    let mut last: &[u32] = &[];
    for &(frames, count) in stacks {
        let in_common = last.iter().zip(frames).take_while(|(one, other)| one == other).count();
        tree.close(in_common);
        for depth in in_common..frames.len() {
            tree.open.push(Open { at: tree.lines.len(), sum: 0 });
            tree.lines.push((&frames[..=depth], 0));
        }
        if let Some(leaf) = tree.open.last_mut() {
            leaf.sum += u128::from(count);
            tree.lines[leaf.at].1 += count;
        }
        last = frames;
    }
    tree.close(0);
    // Wide frames that are all callees'.
    tree.lines.retain(|(_, count)| *count > 0);
    tree.lines
}

/// What is left so far, with a line for every frame.
struct Tree<'a> {
    whole: u128,
    lines: Vec<Line<'a>>,
    /// The frames that the next stack may have as well, the outermost first.
    open: Vec<Open>,
}

/// A frame of which not all stacks were seen.
struct Open {
    /// Where its line is; those of its callees follow.
    at: usize,
    sum: u128,
}

impl Tree<'_> {
    /// Ends all but the outermost `kept` frames of the last stack.
    fn close(&mut self, kept: usize) {
        while self.open.len() > kept
            && let Some(frame) = self.open.pop()
        {
            // A line must have a frame at least.
            let Some(caller) = self.open.last_mut() else { return };
            caller.sum += frame.sum;
            if frame.sum * u128::from(SHARE) < self.whole {
                // Its callees are narrower still: its own line has all of it.
                self.lines[caller.at].1 += self.lines[frame.at].1;
                self.lines.truncate(frame.at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The sum of every frame in its place.
    fn sums<'a>(stacks: &[Line<'a>]) -> BTreeMap<&'a [u32], u128> {
        let mut sums = BTreeMap::new();
        for (frames, count) in stacks {
            for depth in 0..=frames.len() {
                *sums.entry(&frames[..depth]).or_default() += u128::from(*count);
            }
        }
        sums
    }

    /// Check that narrow siblings become a part of their caller, and a narrow root stays.
    #[test]
    fn siblings() {
        let stacks: [Line<'_>; 5] =
            [(&[1], 5), (&[1, 2], 100_000), (&[1, 3, 4], 6), (&[1, 4], 4), (&[2, 1], 1)];
        let expected: [Line<'_>; 3] = [(&[1], 15), (&[1, 2], 100_000), (&[2], 1)];
        assert_eq!(without_narrow(&stacks), expected);
    }

    proptest::proptest! {
        /// Check that frames that are wide enough keep their sums, and that no other is left.
        #[test]
        fn wide_frames_stay(stacks: BTreeMap<Vec<u8>, u32>) {
            let numbered = |(frames, count): (Vec<u8>, u32)| {
                let frames = frames.iter().map(|frame| u32::from(frame % 3)).collect::<Vec<_>>();
                (frames, u64::from(count >> (count % 32)))
            };
            let mut stacks: Vec<(Vec<u32>, u64)> = stacks.into_iter().map(numbered).collect();
            stacks.retain(|(frames, count)| !frames.is_empty() && *count > 0);
            stacks.sort();
            let before: Vec<_> = stacks.iter().map(|(frames, count)| (&frames[..], *count)).collect();
            let after = without_narrow(&before);
            proptest::prop_assert!(after.is_sorted());
            let (before, after) = (sums(&before), sums(&after));
            let whole = before.get(&[][..]).copied().unwrap_or(0);
            for (frames, sum) in &before {
                if sum * u128::from(SHARE) >= whole || frames.len() <= 1 {
                    proptest::prop_assert_eq!(after.get(frames), Some(sum));
                } else {
                    proptest::prop_assert_eq!(after.get(frames), None);
                }
            }
        }
    }
}
