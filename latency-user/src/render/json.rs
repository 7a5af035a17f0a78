//! The report as JSON; docs/report-schema.md describes it.

use std::io::{self, Write};

use crate::report::Report;

/// Writes the report as one JSON object, indented, with a line feed at its end.
pub fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::sample;
    use crate::render::golden;

    /// Check the whole document, and that it reads back as the same report.
    #[test]
    fn document() {
        let report = Report::from(&sample::recording());
        let mut bytes = Vec::new();
        write(&report, &mut bytes).unwrap();
        assert_eq!(serde_json::from_slice::<Report>(&bytes).unwrap(), report);
        golden::check("report.json", &String::from_utf8(bytes).unwrap());
    }
}
