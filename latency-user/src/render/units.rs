//! Quantities with their units, and text from outside made safe for a terminal.

pub(super) use crate::aggregate::{duration, grouped, plural, three_digits};

/// A point in time since the start, to a millisecond.
pub(super) fn offset(ns: u64) -> String {
    format!("+{}.{:03} s", grouped(ns / 1_000_000_000), ns / 1_000_000 % 1000)
}

/// So many a second.
pub(super) fn rate(hz: f64) -> String {
    format!("{}/s", three_digits(hz))
}

/// Bytes in MiB.
pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", three_digits(bytes as f64 / f64::from(1 << 20)))
}

/// Nanoseconds since 1970-01-01 UTC as a date and time.
pub(super) fn utc(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days to a date of the Gregorian calendar, in years that begin on 1 March:
    // https://howardhinnant.github.io/date_algorithms.html#civil_from_days
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Text from outside (a process chooses its name) without control characters, which a terminal
/// would obey.
pub(super) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() || is_invisible(c) { char::REPLACEMENT_CHARACTER } else { c })
        .collect()
}

/// Characters that turn the direction of the text around them, or have no width.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that points in time have milliseconds.
    #[test]
    fn offsets() {
        assert_eq!(offset(12_345_678_901), "+12.345 s");
    }

    /// Check dates around a leap day and a turn of the year.
    #[test]
    fn dates() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_767_225_599, "2025-12-31 23:59:59 UTC"),
            (1_772_600_767, "2026-03-04 05:06:07 UTC"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000), expected);
        }
        utc(u64::MAX);
    }

    /// Check that no escape sequence gets through.
    #[test]
    fn control_characters() {
        assert_eq!(printable("a\u{1b}[2Jb\nc\u{202e}"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}");
    }
}
