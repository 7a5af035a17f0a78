//! `start`: how soon the tracer sees the first operation, and how soon it is gone.

use anyhow::{Context as _, Result};

use super::{
    settings::{Settings, openssl_speed},
    spread::Spread,
    table::{Cell, Table},
    target::Target,
    tracer::{Traced, Tracer},
};

/// From the start to the first operation counted.
const AIM_MS: f64 = 500.0;

/// Attaches again and again to a program that signs without a pause.
pub fn measure(settings: &Settings) -> Result<Table> {
    let rounds = settings.either(9, 3);
    let (mut first, mut attached, mut detach) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let target = Target::busy(&mut openssl_speed(60))?;
        let traced = Tracer::attach(settings, target.pid(), &["-d", "200ms"])?.end()?;
        first.push(first_counted_ms(&traced)?);
        attached.push(traced.attached.as_secs_f64() * 1e3);
        detach.push(traced.detach.as_secs_f64() * 1e3);
    }
    let mut table = Table::new(
        "from the start of the tracer to the first operation, and to its end",
        [("what", "what"), ("time_ms", "ms"), ("aim", "aim"), ("verdict", "verdict")],
    );
    let missed = Spread::of(&first).is_none_or(|spread| spread.median >= AIM_MS);
    table.row(vec![
        Cell::text("exec → end of the first operation counted"),
        Cell::spread(&first, 1),
        Cell::text(format!("< {AIM_MS} ms")),
        Cell::verdict(if missed { &[""] } else { &[] }),
    ]);
    table.row(vec![
        Cell::text("exec → \"attached\" on stderr"),
        Cell::spread(&attached, 1),
        Cell::text("none"),
        Cell::text("–"),
    ]);
    table.row(vec![
        Cell::text("last byte of the report → exit (detaching)"),
        Cell::spread(&detach, 1),
        Cell::text("none"),
        Cell::text("–"),
    ]);
    table.note(format!(
        "`latency record -p PID -d 200ms` of a running `openssl speed ecdsap256`; {rounds} rounds: \
         median (min – max)."
    ));
    table.note(
        "The first operation is the earliest of the 100 slowest that a recording names, so the time \
         is an upper bound. The time of the fork before exec is in it.",
    );
    Ok(table)
}

/// From the start of the process to the end of the earliest operation that the recording names.
fn first_counted_ms(traced: &Traced) -> Result<f64> {
    let rows = traced.operations().iter();
    let slowest = rows.filter_map(|row| row["slowest"].as_array()).flatten();
    let end =
        |row: &serde_json::Value| Some(row["start_ns"].as_u64()? + row["duration_ns"].as_u64()?);
    let earliest = slowest.filter_map(end).min().context("no operation was recorded")?;
    let counted = i128::from(traced.number("/started_unix_ns")? + earliest);
    let started = i128::try_from(traced.started_unix.as_nanos())?;
    Ok((counted - started) as f64 / 1e6)
}
