//! The line that shows how the tracing goes.

use std::io::Write as _;
use std::time::Duration;

/// What the live line shows.
pub struct Live<'a> {
    /// Time since tracing began.
    pub elapsed: Duration,
    /// Operations completed so far.
    pub operations: u64,
    /// Operations a second, over the last interval.
    pub rate_hz: f64,
    /// The busiest operation so far: its name, and P50 and P99 in nanoseconds.
    pub busiest: Option<(&'a str, u64, u64)>,
    /// Records lost so far.
    pub lost: u64,
}

/// Prints the live line to standard error: over itself on a terminal, else one below the other.
pub struct Printer {
    terminal: bool,
    quiet: bool,
    live: bool,
    shown: bool,
}

impl Printer {
    /// A printer that prints nothing if `quiet`. `shared`: a command writes to standard error
    /// too; there the line shows on a terminal only, where it can be wiped away again.
    pub fn new(quiet: bool, shared: bool) -> Self {
        let terminal = super::stderr_is_terminal();
        Self { terminal, quiet, live: terminal || !shared, shown: false }
    }

    /// Shows the line.
    pub fn show(&mut self, live: &Live<'_>) {
        if self.quiet || !self.live {
            return;
        }
        let line = line(live);
        let mut stderr = std::io::stderr().lock();
        // Nothing is to be done where messages cannot be written.
        let _ = if self.terminal {
            write!(stderr, "\r\x1b[2K{line}").and_then(|()| stderr.flush())
        } else {
            writeln!(stderr, "{line}")
        };
        self.shown = true;
    }

    /// Prints a message on a line of its own.
    pub fn message(&mut self, text: &str) {
        if self.quiet {
            return;
        }
        self.clear();
        eprintln!("{text}");
    }

    /// Prints a warning, also when quiet.
    pub fn warn(&mut self, text: &str) {
        self.clear();
        eprintln!("warning: {text}");
    }

    /// Takes the live line away.
    pub fn clear(&mut self) {
        if self.shown && self.terminal {
            eprint!("\r\x1b[2K");
        }
        self.shown = false;
    }
}

fn line(live: &Live<'_>) -> String {
    let mut line = format!(
        "{:.0}s  {} operations  {:.0}/s",
        live.elapsed.as_secs_f64(),
        live.operations,
        live.rate_hz
    );
    if let Some((name, p50_ns, p99_ns)) = live.busiest {
        line += &format!("  {name}: P50 {}  P99 {}", micros(p50_ns), micros(p99_ns));
    }
    line += &format!("  lost {}", live.lost);
    line
}

fn micros(ns: u64) -> String {
    if ns < 10_000_000 {
        format!("{:.1} µs", ns as f64 / 1e3)
    } else {
        format!("{:.1} ms", ns as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that the line says everything, with units.
    #[test]
    fn says_everything() {
        let live = Live {
            elapsed: Duration::from_millis(3100),
            operations: 61_204,
            rate_hz: 20_401.4,
            busiest: Some(("sign ecdsa-p256", 28_312, 39_000_000)),
            lost: 0,
        };
        assert_eq!(
            line(&live),
            "3s  61204 operations  20401/s  sign ecdsa-p256: P50 28.3 µs  P99 39.0 ms  lost 0"
        );
    }
}
