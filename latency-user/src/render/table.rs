//! Laying out text: columns, labelled paragraphs, colour.

use super::text::Style;

/// No line is longer.
pub(super) const WIDTH: usize = 100;
/// Where the text beside a label begins.
const LABEL_WIDTH: usize = 12;

/// An ANSI attribute.
#[derive(Clone, Copy)]
pub(super) enum Ink {
    Plain,
    Bold,
    Dim,
    Yellow,
    Red,
}

/// Text in an ink, if the style has colour.
pub(super) fn paint(style: Style, ink: Ink, text: &str) -> String {
    let code = match ink {
        Ink::Bold => "1",
        Ink::Dim => "2",
        Ink::Yellow => "33",
        Ink::Red => "31",
        Ink::Plain => return text.to_owned(),
    };
    if !style.colour || text.is_empty() {
        return text.to_owned();
    }
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

/// A cell of a table.
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) ink: Ink,
}

impl Cell {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ink: Ink::Plain }
    }

    pub(super) fn ink(self, ink: Ink) -> Self {
        Self { ink, ..self }
    }
}

/// A table: the first column is left-aligned, and cut if the line would get too long; the others
/// are right-aligned.
pub(super) fn table(style: Style, rows: &[Vec<Cell>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut widths = vec![0; columns];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.text.chars().count());
        }
    }
    let others: usize = widths.iter().skip(1).map(|width| width + 2).sum();
    if let Some(first) = widths.first_mut() {
        *first = (*first).min(WIDTH.saturating_sub(others).max(8));
    }
    let mut text = String::new();
    for row in rows {
        let mut gap = 0;
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let shown = cut(&cell.text, width);
            let padding = width - shown.chars().count();
            if column > 0 {
                gap += 2 + padding;
            }
            if !shown.is_empty() {
                text.push_str(&" ".repeat(gap));
                text.push_str(&paint(style, cell.ink, &shown));
                gap = 0;
            } else {
                gap += if column > 0 { 0 } else { width };
                continue;
            }
            if column == 0 {
                gap = padding;
            }
        }
        text.push('\n');
    }
    text
}

/// At most `width` characters of a text, the last of them "…" if something is missing.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// A paragraph beside its label.
pub(super) fn labelled(style: Style, label: &str, ink: Ink, paragraph: &str) -> String {
    let mut text = String::new();
    let width = WIDTH - LABEL_WIDTH;
    for (number, line) in wrap(paragraph, width).into_iter().enumerate() {
        let label = if number == 0 { label } else { "" };
        text.push_str(&paint(style, ink, label));
        text.push_str(&" ".repeat(LABEL_WIDTH.saturating_sub(label.chars().count())));
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Breaks a paragraph into lines at spaces; a word longer than a line is broken anywhere.
fn wrap(paragraph: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in paragraph.split(' ').filter(|word| !word.is_empty()) {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(String::new());
            used = 0;
        }
        let separator = usize::from(used > 0);
        for (at, c) in " ".chars().take(separator).chain(word.chars()).enumerate() {
            if used == width && at > 0 {
                lines.push(String::new());
                used = 0;
            }
            if let Some(line) = lines.last_mut() {
                line.push(c);
            }
            used += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that lines break at spaces, and long words anywhere.
    #[test]
    fn wrapping() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("a abcdefghij b", 4), ["a", "abcd", "efgh", "ij b"]);
        assert_eq!(wrap("", 4), [""]);
    }

    /// Check alignment, empty cells and the cut of the first column.
    #[test]
    fn columns() {
        let row = |cells: [&str; 3]| cells.map(Cell::new).into_iter().collect::<Vec<_>>();
        let rows = [row(["name", "a", "bb"]), row(["x", "", "1"]), row(["", "333", ""])];
        assert_eq!(table(Style::PLAIN, &rows), "name    a  bb\nx           1\n      333\n");
        let long = "n".repeat(200);
        let text = table(Style::PLAIN, &[row([&long, "1", "2"])]);
        assert_eq!(text.trim_end().chars().count(), WIDTH);
        assert!(text.contains('…'));
    }
}
