//! Numbers as people read them.

/// A number with a comma between groups of three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with its noun, or with the rest of its sentence.
pub(crate) fn plural(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// A duration in nanoseconds, to three digits, with its unit.
pub(crate) fn duration(ns: u64) -> String {
    if ns < 1000 {
        return format!("{ns} ns");
    }
    for (unit_ns, unit) in [(1e3, "µs"), (1e6, "ms")] {
        let value = ns as f64 / unit_ns;
        // What would be rounded up to 1000 goes to the next unit.
        if value < 999.5 {
            return format!("{} {unit}", three_digits(value));
        }
    }
    format!("{} s", three_digits(ns as f64 / 1e9))
}

/// A value not below 0, to three digits, or all digits before the point if these are more.
pub(crate) fn three_digits(value: f64) -> String {
    if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        grouped(value.round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check where the commas go.
    #[test]
    fn groups() {
        for (number, expected) in
            [(0, "0"), (999, "999"), (1000, "1,000"), (12_345, "12,345"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(number), expected);
        }
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    /// Check that durations have three digits and a unit, also where rounding crosses a unit.
    #[test]
    fn durations() {
        for (ns, expected) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1000, "1.00 µs"),
            (9_994, "9.99 µs"),
            (9_996, "10.0 µs"),
            (99_960, "100 µs"),
            (999_499, "999 µs"),
            (999_500, "1.00 ms"),
            (104_000_000, "104 ms"),
            (12_345_000_000, "12.3 s"),
            (1_234_000_000_000, "1,234 s"),
        ] {
            assert_eq!(duration(ns), expected, "{ns}");
        }
        assert!(duration(u64::MAX).ends_with(" s"));
    }
}
