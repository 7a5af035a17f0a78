//! `latency report`: a recording, printed again.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};

use super::args::{Format, ReportArgs};
use crate::recording::{self, Recording};
use crate::render;
use crate::render::text::Style;
use crate::report::Report;

/// Runs `latency report`.
///
/// # Errors
/// The recording cannot be read, or the page not be written.
pub fn run(args: &ReportArgs) -> Result<()> {
    let recording = recording::read(&args.file)?;
    match &args.output {
        None => super::print(&render(&recording, args.format, super::colour(&io::stdout()))?),
        Some(path) => std::fs::write(path, render(&recording, args.format, false)?)
            .with_context(|| format!("cannot write {}; name another file with -o", path.display())),
    }
}

/// Renders a recording.
///
/// # Errors
/// The format cannot hold it.
pub fn render(recording: &Recording, format: Format, colour: bool) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    let report = Report::from(recording);
    match format {
        Format::Text => render::text::write(&report, Style { colour }, &mut page)?,
        Format::Json => render::json::write(&report, &mut page)?,
        Format::Csv => render::csv::write(&report, &mut page)?,
        Format::Hlog => render::hlog::write(recording, &mut page)?,
    }
    Ok(page)
}

/// Writes a finished report to standard output, or to standard error where standard output is the
/// traced command's.
///
/// # Errors
/// Nobody reads it.
pub fn write_report(page: &[u8], to_stderr: bool) -> Result<()> {
    if to_stderr {
        let mut stderr = io::stderr().lock();
        stderr.write_all(page)?;
        stderr.flush()?;
        return Ok(());
    }
    super::print(page)
}
