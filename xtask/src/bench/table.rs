//! A bench's result, as text, markdown and JSON.

use std::fmt;

use serde_json::{Map, Value, json};

use super::{interval::Interval, spread::Spread};

/// One table. A cell that could not be measured is there, and says why.
pub struct Table {
    title: String,
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
    notes: Vec<String>,
}

struct Column {
    key: &'static str,
    heading: &'static str,
}

/// A cell.
pub enum Cell {
    /// Words; to the left.
    Text(String),
    /// A whole number.
    Count(u64),
    /// A number, and its digits after the point.
    Number(f64, usize),
    /// Several measurements, and the digits after the point.
    Spread(Option<Spread>, usize),
    /// A median and how well it is known, and the digits after the point.
    Interval(Option<Interval>, usize),
    /// A difference, with its sign, and the digits after the point.
    Difference(f64, usize),
    /// Nothing to say.
    Empty,
}

impl Cell {
    /// Words.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Median, smallest and largest of these.
    pub fn spread(values: &[f64], digits: usize) -> Self {
        Self::Spread(Spread::of(values), digits)
    }

    /// Median of these, and its interval at 95 %; in square brackets, of too few, the smallest and largest.
    pub fn interval(values: &[f64], digits: usize) -> Self {
        Self::Interval(Interval::of(values), digits)
    }

    /// Whether an aim is met; with what missed it.
    pub fn verdict(missed: &[&str]) -> Self {
        match missed {
            [] => Self::text("met"),
            [""] => Self::text("missed"),
            some => Self::Text(format!("missed: {}", some.join(", "))),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => grouped(&count.to_string()),
            Self::Number(value, digits) => number(*value, *digits),
            Self::Difference(value, digits) => {
                let text = number(*value, *digits);
                let positive = *value > 0.0 && text.bytes().any(|byte| matches!(byte, b'1'..=b'9'));
                if positive { format!("+{text}") } else { text }
            }
            Self::Spread(Some(Spread { median, min, max }), digits) => format!(
                "{} ({} – {})",
                number(*median, *digits),
                number(*min, *digits),
                number(*max, *digits)
            ),
            Self::Interval(Some(interval), digits) => {
                let [median, low, high] = [interval.median, interval.low, interval.high]
                    .map(|value| number(value, *digits));
                if interval.is_confident {
                    format!("{median} ({low} – {high})")
                } else if interval.low < interval.high {
                    format!("{median} [{low} – {high}]")
                } else {
                    median
                }
            }
            Self::Spread(None, _) | Self::Interval(None, _) | Self::Empty => "–".to_owned(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Count(count) => json!(count),
            Self::Number(value, _) | Self::Difference(value, _) => json!(value),
            Self::Spread(Some(Spread { median, min, max }), _) => {
                json!({ "median": median, "min": min, "max": max })
            }
            Self::Interval(Some(Interval { median, low, high, is_confident: true }), _) => {
                json!({ "median": median, "low": low, "high": high })
            }
            Self::Interval(Some(Interval { median, low, high, is_confident: false }), _) => {
                json!({ "median": median, "min": low, "max": high })
            }
            Self::Spread(None, _) | Self::Interval(None, _) | Self::Empty => Value::Null,
        }
    }

    fn is_text(&self) -> bool {
        matches!(self, Self::Text(_))
    }
}

/// With commas between groups of three digits.
fn grouped(digits: &str) -> String {
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn number(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let sign =
        if value < 0.0 && text.bytes().any(|byte| matches!(byte, b'1'..=b'9')) { "-" } else { "" };
    format!("{sign}{}{rest}", grouped(whole))
}

impl Table {
    /// An empty table. A column has a key for JSON, which names the unit, and a heading for people.
    pub fn new(
        title: impl Into<String>,
        columns: impl IntoIterator<Item = (&'static str, &'static str)>,
    ) -> Self {
        let columns = columns.into_iter().map(|(key, heading)| Column { key, heading }).collect();
        Self { title: title.into(), columns, rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds a row; cells that are missing at its end are empty.
    pub fn row(&mut self, mut cells: Vec<Cell>) {
        cells.resize_with(self.columns.len(), || Cell::Empty);
        self.rows.push(cells);
    }

    /// Adds a sentence below the table: how it was measured, or what to make of it.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// The bench as an object: rows are objects with the columns' keys.
    pub fn json(&self) -> Value {
        let row = |cells: &Vec<Cell>| {
            let pairs = self.columns.iter().zip(cells);
            pairs.map(|(column, cell)| (column.key.to_owned(), cell.json())).collect::<Map<_, _>>()
        };
        let rows: Vec<_> = self.rows.iter().map(row).collect();
        json!({ "title": self.title, "rows": rows, "notes": self.notes })
    }

    /// The title, for a heading that was begun; then table and notes.
    pub fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | ").replace('\n', " "));
        let headings = self.columns.iter().map(|column| column.heading.to_owned()).collect();
        let rule = (0..self.columns.len())
            .map(|index| if self.is_text(index) { "---" } else { "---:" }.to_owned());
        let mut out = format!("{}\n\n{}{}", self.title, line(headings), line(rule.collect()));
        for row in &self.rows {
            out += &line(row.iter().map(|cell| cell.shown().replace('|', "\\|")).collect());
        }
        for note in &self.notes {
            out += &format!("\n{note}\n");
        }
        out
    }

    fn is_text(&self, column: usize) -> bool {
        self.rows.iter().any(|row| row[column].is_text())
    }
}

/// Title, aligned columns, notes.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        let headings = self.columns.iter().map(|column| column.heading.to_owned()).collect();
        let mut lines: Vec<Vec<String>> = vec![headings];
        lines.extend(self.rows.iter().map(|row| row.iter().map(Cell::shown).collect()));
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
            .collect();
        for cells in &lines {
            let mut line = String::new();
            for (column, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
                let separator = if column == 0 { "  " } else { "   " };
                line += separator;
                line += &if self.is_text(column) {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        if !self.notes.is_empty() {
            writeln!(f)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new("A title", [("what", "what"), ("cost_ns", "cost, ns")]);
        table.row(vec![Cell::text("nothing"), Cell::spread(&[1200.04, 7.0, 20_000.0], 1)]);
        table.row(vec![Cell::text("missing")]);
        table.note("A note.");
        table
    }

    /// Check that columns are aligned, and a missing cell is shown.
    #[test]
    fn text() {
        let expected = "A title\n\n\x20 what                      cost, ns\n\
                        \x20 nothing   1,200.0 (7.0 – 20,000.0)\n\
                        \x20 missing                          –\n\n\x20 A note.\n";
        assert_eq!(table().to_string(), expected);
    }

    /// Check that markdown has the same cells, numbers to the right.
    #[test]
    fn markdown() {
        let expected = "A title\n\n| what | cost, ns |\n| --- | ---: |\n\
                        | nothing | 1,200.0 (7.0 – 20,000.0) |\n| missing | – |\n\nA note.\n";
        assert_eq!(table().markdown(), expected);
    }

    /// Check that JSON has the numbers unrounded, and null for what is missing.
    #[test]
    fn json_rows() {
        let json = table().json();
        assert_eq!(json["rows"][0]["cost_ns"]["median"], 1200.04);
        assert_eq!(json["rows"][1]["cost_ns"], Value::Null);
    }

    /// Check that an interval at 95 % is told from the range of too few measurements.
    #[test]
    fn intervals() {
        let interval = Cell::interval(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.04], 1);
        assert_eq!(interval.shown(), "3.5 (1.0 – 6.0)");
        assert_eq!(interval.json(), json!({ "median": 3.5, "low": 1.0, "high": 6.04 }));
        let range = Cell::interval(&[-1.0, 2.0], 1);
        assert_eq!(range.shown(), "0.5 [-1.0 – 2.0]");
        assert_eq!(range.json(), json!({ "median": 0.5, "min": -1.0, "max": 2.0 }));
        assert_eq!(Cell::interval(&[7.0], 1).shown(), "7.0");
        assert_eq!(Cell::interval(&[], 1).shown(), "–");
    }

    /// Check signs, also of what rounds to nothing.
    #[test]
    fn numbers() {
        assert_eq!(Cell::Count(1_234_567).shown(), "1,234,567");
        assert_eq!(Cell::Difference(-1234.56, 1).shown(), "-1,234.6");
        assert_eq!(Cell::Difference(12.0, 0).shown(), "+12");
        assert_eq!(Cell::Difference(-0.04, 1).shown(), "0.0");
        assert_eq!(Cell::Difference(0.04, 1).shown(), "0.0");
    }
}
