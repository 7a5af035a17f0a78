//! `start-stop`: how soon the tracer sees the first operation, how soon it is gone, and how soon a large
//! recording is written, printed and drawn.

use std::{fs, path::Path, process::Command, time::Instant};

use anyhow::{Context as _, Result, bail};

use super::{
    settings::{Settings, openssl_speed},
    spread::Spread,
    table::{Cell, Table},
    target::{Target, bound},
    tracer::{Traced, Tracer},
};
use crate::process;

/// From the start to the first operation counted.
const AIM_START_MS: f64 = 300.0;
/// From the report to the end of the process.
const AIM_DETACH_MS: f64 = 200.0;
/// A page, or a graph, of ten million operations and a hundred thousand stacks.
const AIM_PAGE_MS: f64 = 2_000.0;
const STACKS: u64 = 100_000;
const CALLS_A_STACK: u64 = 100;

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
    let large = Large::measure(settings)?;
    let mut table = Table::new(
        "from the start of the tracer to the first operation, and to its end",
        [("what", "what"), ("time_ms", "ms"), ("aim", "aim"), ("verdict", "verdict")],
    );
    let mut row = |what: String, values: &[f64], aim: Option<f64>| {
        let is_missed =
            Spread::of(values).is_none_or(|spread| spread.median > aim.unwrap_or(f64::MAX));
        table.row(vec![
            Cell::Text(what),
            Cell::spread(values, 1),
            Cell::Text(aim.map_or("none".into(), |aim| format!("≤ {aim} ms"))),
            aim.map_or(Cell::text("–"), |_| Cell::verdict(if is_missed { &[""] } else { &[] })),
        ]);
    };
    row("exec → end of the first operation counted".into(), &first, Some(AIM_START_MS));
    row("exec → \"attached\" on stderr".into(), &attached, None);
    row("last byte of the report → exit (detaching)".into(), &detach, Some(AIM_DETACH_MS));
    row(format!("{}: Ctrl-C → exit, the recording written", large.what), &[large.end_ms], None);
    row("latency report of that recording".into(), &large.report_ms, Some(AIM_PAGE_MS));
    row("latency flame of that recording".into(), &large.flame_ms, Some(AIM_PAGE_MS));
    table.note(format!(
        "`latency record -p PID -d 200ms` of a running `openssl speed ecdsap256`; {rounds} rounds: \
         median (min – max)."
    ));
    table.note(
        "The first operation is the earliest of the 100 slowest that a recording names, so the time \
         is an upper bound. The time of the fork before exec is in it.",
    );
    table.note(format!(
        "The large recording has {} MiB; its stacks have 43 frames each.",
        large.bytes.div_ceil(1 << 20)
    ));
    Ok(table)
}

/// A large recording, and how long is worked at it.
struct Large {
    what: String,
    bytes: u64,
    end_ms: f64,
    report_ms: Vec<f64>,
    flame_ms: Vec<f64>,
}

impl Large {
    fn measure(settings: &Settings) -> Result<Self> {
        let stacks = settings.either(STACKS, STACKS / 10);
        let mut target = Target::ready(&mut settings.paths(stacks, CALLS_A_STACK))?;
        let tracer = Tracer::attach(settings, target.pid(), &["--probe", "paths:empty"])?;
        target.go()?;
        target.result()?;
        let rounds = settings.either(5, 1);
        let run = |verb: &str, path: &Path| -> Result<Vec<f64>> {
            let mut times = Vec::new();
            for _ in 0..rounds {
                let mut command = Command::new(&settings.latency);
                command.arg(verb).arg(path).current_dir(&settings.folder);
                if verb == "flame" {
                    command.args(["-o", "large.svg"]);
                }
                let begun = Instant::now();
                process::output(bound(&mut command))?;
                times.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            Ok(times)
        };
        let (traced, (bytes, report_ms, flame_ms)) = tracer.stop_and(|path| {
            Ok((fs::metadata(path)?.len(), run("report", path)?, run("flame", path)?))
        })?;
        let _ = fs::remove_file(settings.folder.join("large.svg"));
        let counted = traced.count();
        if counted != stacks * CALLS_A_STACK {
            bail!("the tracer counted {counted} of {} calls", stacks * CALLS_A_STACK);
        }
        let what = format!("{counted} operations, {stacks} different stacks");
        let end_ms = traced.end.as_secs_f64() * 1e3;
        Ok(Self { what, bytes, end_ms, report_ms, flame_ms })
    }
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
