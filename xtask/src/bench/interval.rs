//! How well a median of measurements is known.

use std::cmp::Ordering;

use super::spread::Spread;

/// The median of some measurements, and between which values the true one lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The middle one; of an even number, the mean of the middle two.
    pub median: f64,
    /// The true median is not below this,
    pub low: f64,
    /// nor above this, with 95 % confidence.
    pub high: f64,
    /// False of fewer than six measurements, which cannot give 95 %: `low` and `high` are the
    /// smallest and the largest of them.
    pub is_confident: bool,
}

impl Interval {
    /// `None` of no measurements.
    pub fn of(values: &[f64]) -> Option<Self> {
        let Spread { median, min, max } = Spread::of(values)?;
        let Some(outside) = outside(values.len()) else {
            return Some(Self { median, low: min, high: max, is_confident: false });
        };
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let (low, high) = (sorted[outside], sorted[sorted.len() - 1 - outside]);
        Some(Self { median, low, high, is_confident: true })
    }

    /// On which side of 0 all of it is.
    pub fn side(&self) -> Option<Ordering> {
        let [low, high] = [self.low, self.high].map(|end| end.total_cmp(&0.0));
        (low == high && low != Ordering::Equal).then_some(low)
    }
}

/// How many of so many sorted measurements are left out on either side.
///
/// A measurement lies below the true median or above it as a coin falls, whatever its distribution. So
/// the median is below all but the `n` smallest as rarely as a coin falls to one side at most `n` times.
fn outside(count: usize) -> Option<usize> {
    /// On each side; both make 5 %.
    const MISSED: f64 = 0.025;
    let mut exactly = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut at_most = exactly;
    let mut outside = None;
    for sides in 0..count {
        if at_most > MISSED {
            break;
        }
        outside = Some(sides);
        exactly *= (count - sides) as f64 / (sides + 1) as f64;
        at_most += exactly;
    }
    outside
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check the ranks against a table of the sign test's (n, and the lower rank counted from 1).
    #[test]
    fn ranks() {
        assert_eq!((0..6).find_map(outside), None);
        for (count, rank) in [
            (6, 1),
            (8, 1),
            (9, 2),
            (10, 2),
            (12, 3),
            (15, 4),
            (20, 6),
            (25, 8),
            (40, 14),
            (100, 40),
        ] {
            assert_eq!(outside(count), Some(rank - 1), "{count}");
        }
    }

    /// Check the values at these ranks, in any order of the measurements, and that few give a range.
    #[test]
    fn intervals() {
        let of = |values: &[f64]| Interval::of(values);
        let values: Vec<f64> = [9, 2, 7, 4, 5, 6, 3, 8, 1, 100].map(f64::from).to_vec();
        let known = Interval { median: 5.5, low: 2.0, high: 9.0, is_confident: true };
        assert_eq!(of(&values), Some(known));
        let range = Interval { median: 2.0, low: -1.0, high: 3.0, is_confident: false };
        assert_eq!(of(&[3.0, -1.0, 2.0]), Some(range));
        assert_eq!(of(&[]), None);
    }

    /// Check that a difference counts only where its whole interval is on one side.
    #[test]
    fn sides() {
        let side = |values: &[f64]| Interval::of(values).and_then(|interval| interval.side());
        assert_eq!(side(&[-1.0, -2.0, -3.0]), Some(Ordering::Less));
        assert_eq!(side(&[1.0, 2.0, 3.0]), Some(Ordering::Greater));
        assert_eq!(side(&[-1.0, -2.0, 3.0]), None);
        assert_eq!(side(&[-1.0, 0.0]), None);
    }

    /// Check that as many intervals as they claim hold the true median: of all 2^10 ways in which ten
    /// measurements can lie below or above it.
    #[test]
    fn coverage() {
        let holds = |ways: u32| {
            let values: Vec<f64> = (0..10)
                .map(|bit| {
                    if ways >> bit & 1 == 1 { 1.0 + f64::from(bit) } else { -1.0 - f64::from(bit) }
                })
                .collect();
            Interval::of(&values)
                .is_some_and(|interval| interval.low <= 0.0 && interval.high >= 0.0)
        };
        let held = (0..1024).filter(|ways| holds(*ways)).count();
        // All but none, one, nine or ten of ten on one side.
        assert_eq!(held, 1024 - 2 * (1 + 10));
    }
}
