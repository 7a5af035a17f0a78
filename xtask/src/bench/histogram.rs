//! The histograms by powers of two that the peers print.

/// Values from, below, and how many.
pub type Bucket = (f64, f64, u64);

/// The buckets in the output of funclatency (`  1024 -> 2047 : 7 |**|`) and of bpftrace (`[1K, 2K)  7 |@@|`).
pub fn buckets(text: &str) -> Vec<Bucket> {
    let number = |text: &str| {
        let text = text.trim();
        let (digits, factor) = match text.as_bytes().last()? {
            b'K' => (&text[..text.len() - 1], 1024.0),
            b'M' => (&text[..text.len() - 1], 1024.0 * 1024.0),
            b'G' => (&text[..text.len() - 1], 1024.0 * 1024.0 * 1024.0),
            _ => (text, 1.0),
        };
        Some(digits.parse::<f64>().ok()? * factor)
    };
    let bucket = |line: &str| {
        let line = line.split('|').next()?;
        if let Some((range, count)) = line.split_once(':') {
            let (from, to) = range.split_once("->")?;
            return Some((number(from)?, number(to)? + 1.0, count.trim().parse().ok()?));
        }
        let (range, count) = line.trim().strip_prefix('[')?.split_once(')')?;
        let (from, below) = range.split_once(',')?;
        Some((number(from)?, number(below)?, count.trim().parse().ok()?))
    };
    text.lines().filter_map(bucket).collect()
}

/// The value below which this share lies: in its bucket, by proportion.
pub fn percentile(buckets: &[Bucket], share: f64) -> f64 {
    let all: u64 = buckets.iter().map(|bucket| bucket.2).sum();
    let mut left = share * all as f64;
    for (from, below, count) in buckets {
        let count = *count as f64;
        if left <= count && count > 0.0 {
            return from + (below - from) * left / count;
        }
        left -= count;
    }
    buckets.last().map_or(0.0, |bucket| bucket.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check the lines of both tools, and that a percentile is told within its bucket.
    #[test]
    fn histograms() {
        let text = "     nsec                : count    distribution\n\
                    \x20    1024 -> 2047       : 30       |***   |\n     2048 -> 4095       : 10       |*     |\n";
        let funclatency = buckets(text);
        assert_eq!(funclatency, [(1024.0, 2048.0, 30), (2048.0, 4096.0, 10)]);
        let bpftrace = buckets("@:\n[512, 1K)   4 |@@ |\n[64K, 128K)  12 |@@@|\n[1M, 2M)  1 |@|\n");
        assert_eq!(bpftrace[1], (65_536.0, 131_072.0, 12));
        assert_eq!(bpftrace.len(), 3);
        assert_eq!(percentile(&funclatency, 0.5), 1024.0 + 1024.0 * 20.0 / 30.0);
        assert_eq!(percentile(&funclatency, 1.0), 4096.0);
    }
}
