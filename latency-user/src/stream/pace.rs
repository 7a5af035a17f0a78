//! How often the ring buffer is looked into: often while much comes, seldom while little does. A look
//! that finds nothing costs as much as one that finds a hundred records.

use std::time::Duration;

/// Between two looks while much comes.
const SHORTEST: Duration = Duration::from_millis(20);
/// Between two looks, however little comes and large the ring buffer is.
const LONGEST: Duration = Duration::from_millis(100);

/// What may begin to come all at once without a loss, in bytes a second: some 600,000 operations.
const BURST_BYTES_PER_SECOND: f64 = 80e6;

/// With more than this share of the ring buffer found full, the next look is soon.
const MUCH: f64 = 1.0 / 16.0;
/// With less than this share, the next one is later than the last.
const LITTLE: f64 = 1.0 / 64.0;

/// Tells when to look again.
pub struct Pace {
    ring_bytes: f64,
    longest: Duration,
    wait: Duration,
}

impl Pace {
    /// For a ring buffer of this size.
    pub fn new(ring_bytes: u32) -> Self {
        let ring_bytes = f64::from(ring_bytes);
        let longest = Duration::from_secs_f64(ring_bytes / BURST_BYTES_PER_SECOND);
        Self { ring_bytes, longest: longest.clamp(SHORTEST, LONGEST), wait: SHORTEST }
    }

    /// How long to wait after a look that found so many bytes.
    pub fn after(&mut self, bytes: usize) -> Duration {
        let share = bytes as f64 / self.ring_bytes;
        if share > MUCH {
            self.wait = SHORTEST;
        } else if share < LITTLE {
            self.wait = (self.wait * 2).min(self.longest);
        }
        self.wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING_BYTES: u32 = 4 << 20;

    /// How long it waits once this much came a second for a while.
    fn steady(bytes_per_second: f64) -> Duration {
        let mut pace = Pace::new(RING_BYTES);
        let mut wait = SHORTEST;
        for _ in 0..100 {
            wait = pace.after((bytes_per_second * wait.as_secs_f64()) as usize);
        }
        wait
    }

    /// Check that an idle target is looked at seldom, and a busy one as often as can be.
    #[test]
    fn follows_the_rate() {
        assert!(steady(0.0) > 2 * SHORTEST);
        assert_eq!(steady(64e6), SHORTEST);
        let mut pace = Pace::new(RING_BYTES);
        assert!(pace.after(0) > SHORTEST);
        assert_eq!(pace.after(RING_BYTES as usize / 2), SHORTEST);
    }

    proptest::proptest! {
        /// Check that no rate that begins all at once, and none that lasts, overflows a ring buffer
        /// that could hold it at the shortest wait.
        #[test]
        fn never_overflows(ring_log in 12_u32..30, bytes_per_second in 0.0..80e6_f64) {
            let ring_bytes = 1_u32 << ring_log;
            proptest::prop_assume!(
                bytes_per_second * SHORTEST.as_secs_f64() <= f64::from(ring_bytes)
            );
            let mut pace = Pace::new(ring_bytes);
            let mut wait = SHORTEST;
            for idle in 0..20 {
                wait = pace.after(0);
                proptest::prop_assert!(wait <= LONGEST && wait >= SHORTEST, "{idle}: {wait:?}");
            }
            for _ in 0..20 {
                let bytes = bytes_per_second * wait.as_secs_f64();
                proptest::prop_assert!(bytes <= f64::from(ring_bytes) + 1.0);
                wait = pace.after(bytes as usize);
            }
        }
    }
}
