//! The recording as an HdrHistogram interval log (version 1.3), in nanoseconds.
//!
//! Each interval of each operation and algorithm is a line with the tag `operation/algorithm`; its
//! failures and errors have a line of their own, tagged `operation/algorithm/failed`, as they
//! would spoil the percentiles. An interval without operations has no line.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{
    IntervalLogWriterBuilder, IntervalLogWriterError, Tag,
};

use crate::recording::Recording;

/// Writes the log.
pub fn write(recording: &Recording, out: &mut impl Write) -> io::Result<()> {
    let started = UNIX_EPOCH + Duration::from_nanos(recording.started_unix_ns);
    let loss = &recording.loss;
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("[Histogram log format version 1.3]")
        .add_comment(&format!("[Logged with latency {}]", one_line(&recording.tool_version)))
        .add_comment(&format!(
            "Values are nanoseconds. Records lost: {} of {}; they are missing here.",
            loss.records, loss.counted
        ))
        .with_start_time(started)
        .with_base_time(started)
        .begin_log_with(out, &mut serializer)?;
    for interval in &recording.intervals {
        let left_ns = recording.duration_ns.saturating_sub(interval.start_ns);
        let start = Duration::from_nanos(interval.start_ns);
        let length = Duration::from_nanos(recording.interval_ns.min(left_ns));
        for row in &interval.rows {
            let Some(name) = recording.rows.get(row.row) else { continue };
            let name = tag(&format!("{}/{}", name.operation, name.algorithm));
            let failed = format!("{name}/failed");
            for (name, histogram) in [(&name, &row.success), (&failed, &row.failed)] {
                if !histogram.is_empty() {
                    log.write_histogram(&histogram.to_hdr(), start, length, Tag::new(name))
                        .map_err(to_io)?;
                }
            }
        }
    }
    Ok(())
}

/// A name without the characters that a tag must not have.
fn tag(name: &str) -> String {
    name.chars()
        .map(|c| if c == ',' || c.is_whitespace() || c.is_control() { '_' } else { c })
        .collect()
}

/// A text that cannot break out of its comment line.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn to_io<E: std::error::Error + Send + Sync + 'static>(
    error: IntervalLogWriterError<E>,
) -> io::Error {
    match error {
        IntervalLogWriterError::IoError(error) => error,
        IntervalLogWriterError::SerializeError(error) => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;
    use crate::recording::sample;

    fn log_of(recording: &Recording) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(recording, &mut bytes).unwrap();
        bytes
    }

    /// The count in a base64 text of a V2 compressed histogram.
    fn count(encoded: &str) -> u64 {
        let mut bits = 0u32;
        let mut width = 0;
        let mut bytes = Vec::new();
        for c in encoded.bytes().filter(|&c| c != b'=') {
            let digit = match c {
                b'A'..=b'Z' => c - b'A',
                b'a'..=b'z' => c - b'a' + 26,
                b'0'..=b'9' => c - b'0' + 52,
                b'+' => 62,
                _ => 63,
            };
            bits = (bits << 6 | u32::from(digit)) & 0xffff;
            width += 6;
            if width >= 8 {
                width -= 8;
                bytes.push((bits >> width) as u8);
            }
        }
        let histogram: hdrhistogram::Histogram<u64> =
            hdrhistogram::serialization::Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
        histogram.len()
    }

    /// Check that the log reads back, and that each tag's counts sum to the operations.
    #[test]
    fn counts_sum() {
        let mut recording = sample::recording();
        recording.rows[1].algorithm = "unknown (71 bytes), odd".into();
        let bytes = log_of(&recording);
        let mut counts = BTreeMap::<String, u64>::new();
        let (mut starts, mut intervals) = (0, Vec::new());
        for entry in IntervalLogIterator::new(&bytes) {
            match entry.unwrap() {
                LogEntry::StartTime(time) | LogEntry::BaseTime(time) => {
                    assert_eq!(time.as_millis(), 1_772_600_767_500);
                    starts += 1;
                }
                LogEntry::Interval(interval) => {
                    let tag = interval.tag().unwrap().as_str().to_owned();
                    *counts.entry(tag).or_default() += count(interval.encoded_histogram());
                    intervals.push((
                        interval.start_timestamp().as_secs(),
                        interval.duration().as_secs(),
                    ));
                }
            }
        }
        assert_eq!(starts, 2);
        assert_eq!(intervals, [(0, 1), (0, 1), (1, 1), (1, 1)]);
        let expected = [
            ("sign/ecdsa-p256", 1500),
            ("verify/unknown_(71_bytes)__odd", 80),
            ("verify/unknown_(71_bytes)__odd/failed", 2),
        ];
        let counts: Vec<(&str, u64)> = counts.iter().map(|(tag, n)| (&**tag, *n)).collect();
        assert_eq!(counts, expected);
    }

    /// Check that the version and the loss stand at the top.
    #[test]
    fn head() {
        let mut recording = sample::recording();
        recording.intervals.clear();
        (recording.loss.records, recording.loss.received) = (82, 3000);
        let text = String::from_utf8(log_of(&recording)).unwrap();
        assert!(text.starts_with("#[Histogram log format version 1.3]\n"), "{text}");
        assert!(text.contains("Records lost: 82 of 3082"), "{text}");
    }
}
