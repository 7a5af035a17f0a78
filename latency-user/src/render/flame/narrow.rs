//! Leaving out what would be too narrow to be drawn, before it is made into text: of a hundred thousand
//! stacks, most of the innermost frames are.

/// A frame with less than this share of the whole is not drawn: inferno's `min_width` of 0.01 %.
pub(super) const SHARE: u64 = 10_000;

/// Cuts stacks off before a frame that has less than one in [`SHARE`] of the whole, and makes one of those
/// that are equal then. `stacks` are sorted by frames, the outermost first; so is the result. All
/// frames that are left keep their sums.
pub(super) fn without_narrow(mut stacks: Vec<(Vec<u32>, u64)>) -> Vec<(Vec<u32>, u64)> {
    let whole: u128 = stacks.iter().map(|(_, count)| u128::from(*count)).sum();
    cut(&mut stacks, 0, whole);
    stacks.sort_unstable();
    stacks.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 = kept.1.saturating_add(next.1);
        }
        is_same
    });
    stacks
}

fn cut(stacks: &mut [(Vec<u32>, u64)], depth: usize, whole: u128) {
    let mut at = 0;
    while at < stacks.len() {
        let frame = stacks[at].0.get(depth).copied();
        let same =
            stacks[at..].iter().take_while(|(frames, _)| frames.get(depth).copied() == frame);
        let end = at + same.count();
        let group = &mut stacks[at..end];
        at = end;
        if frame.is_none() {
            continue;
        }
        let sum: u128 = group.iter().map(|(_, count)| u128::from(*count)).sum();
        if sum * u128::from(SHARE) >= whole {
            cut(group, depth + 1, whole);
        } else {
            // A line must have a frame at least.
            group.iter_mut().for_each(|(frames, _)| frames.truncate(depth.max(1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The sum of every frame in its place.
    fn sums(stacks: &[(Vec<u32>, u64)]) -> BTreeMap<&[u32], u128> {
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
        let stacks = vec![
            (vec![1], 5),
            (vec![1, 2], 100_000),
            (vec![1, 3, 4], 6),
            (vec![1, 4], 4),
            (vec![2, 1], 1),
        ];
        let expected = [(vec![1], 15), (vec![1, 2], 100_000), (vec![2], 1)];
        assert_eq!(without_narrow(stacks), expected);
    }

    proptest::proptest! {
        /// Check that frames that are wide enough keep their sums, and that no other is left.
        #[test]
        fn wide_frames_stay(stacks: BTreeMap<Vec<u8>, u32>) {
            let numbered = |(frames, count): (Vec<u8>, u32)| {
                let frames = frames.iter().map(|frame| u32::from(frame % 3)).collect::<Vec<_>>();
                (frames, u64::from(count >> (count % 32)))
            };
            let mut before: Vec<(Vec<u32>, u64)> =
                stacks.into_iter().map(numbered).filter(|(frames, _)| !frames.is_empty()).collect();
            before.sort();
            let after = without_narrow(before.clone());
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
