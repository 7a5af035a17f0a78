//! `stack-cost`: what a stack costs, by the kernel's own statistics of the programs, and what perf's
//! cost beside it.

use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use super::{
    installed,
    settings::Settings,
    spread::Spread,
    statistics::{Statistics, scheduler_programs},
    table::{Cell, Table},
    target::{Target, bound, send},
    tracer::Tracer,
};
use crate::process;

/// A stack of 8 frames, and a further frame, in nanoseconds.
const AIM_STACK_NS: f64 = 2_500.0;
const AIM_FRAME_NS: f64 = 250.0;
/// The rows of the C library and libcrypto, in milliseconds.
const AIM_ROWS_MS: f64 = 50.0;

/// Levels of calls that the two stacks that are compared have.
const SHALLOW: u64 = 1;
const DEEP: u64 = 33;

/// What the aim for a whole stack is for.
const FRAMES: f64 = 8.0;

/// How a thread of the workload leaves the CPU.
#[derive(Clone, Copy)]
pub enum Switch {
    /// It sleeps.
    Sleep,
    /// It yields to another.
    Yield,
}

/// Nanoseconds in every round.
#[derive(Default)]
struct Costs {
    stack: Vec<f64>,
    frame: Vec<f64>,
}

/// Measures one after another: sleeping threads, yielding ones, how many stacks are whole, rows, perf.
pub fn measure(settings: &Settings) -> Result<Table> {
    let mut table = Table::new(
        "what a stack costs",
        [
            ("what", "what"),
            ("value", "value"),
            ("unit", "unit"),
            ("aim", "aim"),
            ("verdict", "verdict"),
        ],
    );
    let rounds = settings.either(7, 2);
    {
        let _statistics = Statistics::turn_on()?;
        for (switch, when) in [
            (Switch::Sleep, "a thread that falls asleep"),
            (Switch::Yield, "a thread that yields to another, all in caches"),
        ] {
            let count = match switch {
                Switch::Sleep => settings.either(8_000, 2_000),
                Switch::Yield => settings.either(40_000, 10_000),
            };
            let mut costs = Costs::default();
            for _ in 0..rounds {
                let (stack, frame) = costs_of(settings, switch, count)?;
                costs.stack.push(stack);
                costs.frame.push(frame);
            }
            let rows = [
                (format!("{when}: a stack of {FRAMES} frames"), &costs.stack, AIM_STACK_NS),
                (format!("{when}: each further frame"), &costs.frame, AIM_FRAME_NS),
            ];
            for (what, values, aim) in rows {
                table.row(aimed(what, values, 0, "ns", aim));
            }
        }
    }
    whole_stacks(settings, &mut table)?;
    let target = Target::busy(&mut super::settings::openssl_speed(60))?;
    let rows: Vec<f64> =
        (0..rounds).map(|_| rows_ms(settings, target.pid())).collect::<Result<_>>()?;
    drop(target);
    table.row(aimed(
        "unwind rows of libc, libcrypto and openssl".into(),
        &rows,
        1,
        "ms",
        AIM_ROWS_MS,
    ));
    beside_perf(settings, rounds, &mut table)?;
    table.note(format!(
        "The first rows: `kernel.bpf_stats_enabled`, the time in the scheduler's programs with stacks less \
         that with --no-stacks, for each time off the CPU; between {SHALLOW} and {DEEP} levels of calls, each of \
         another function. {rounds} rounds: median (min – max)."
    ));
    Ok(table)
}

fn aimed(what: String, values: &[f64], digits: usize, unit: &str, aim: f64) -> Vec<Cell> {
    let missed = Spread::of(values).is_none_or(|spread| spread.median > aim);
    vec![
        Cell::Text(what),
        Cell::spread(values, digits),
        Cell::text(unit),
        Cell::text(format!("≤ {aim} {unit}")),
        Cell::verdict(if missed { &[""] } else { &[] }),
    ]
}

/// A stack of 8 frames and a further frame, in nanoseconds.
fn costs_of(settings: &Settings, switch: Switch, count: u64) -> Result<(f64, f64)> {
    let stack = |levels| -> Result<(f64, f64)> {
        let (with, frames) = program_ns(settings, switch, levels, count, &[])?;
        let (without, _) = program_ns(settings, switch, levels, count, &["--no-stacks"])?;
        Ok((with - without, frames))
    };
    let ((shallow, shallow_frames), (deep, deep_frames)) = (stack(SHALLOW)?, stack(DEEP)?);
    if deep_frames <= shallow_frames {
        bail!("stacks of {shallow_frames} and {deep_frames} frames cannot be compared");
    }
    let frame = (deep - shallow) / (deep_frames - shallow_frames);
    Ok((shallow + (FRAMES - shallow_frames) * frame, frame))
}

/// Time in the scheduler's programs for each time off the CPU, in nanoseconds, and the number of frames.
pub fn program_ns(
    settings: &Settings,
    switch: Switch,
    levels: u64,
    count: u64,
    options: &[&str],
) -> Result<(f64, f64)> {
    let mut target = Target::ready(&mut depth(settings, switch, levels, count))?;
    let tracer = Tracer::attach(settings, target.pid(), &traced(options))?;
    let before = scheduler_programs(tracer.pid())?;
    target.go()?;
    let (_, result) = target.result()?;
    let spent = scheduler_programs(tracer.pid())?.since(before);
    let switches = result["switches"].as_u64().filter(|count| *count > 0).context("switches")?;
    let folded = tracer.stop_folded()?;
    Ok((spent.time_ns as f64 / switches as f64, frames(&folded)))
}

fn traced<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&["--probe", "depth:finish"], options].concat()
}

fn depth(settings: &Settings, switch: Switch, levels: u64, count: u64) -> Command {
    let mut command = Command::new(settings.program("depth"));
    command.args([levels.to_string(), count.to_string()]);
    if matches!(switch, Switch::Yield) {
        command.arg("yield");
    }
    command
}

/// Frames of the stack with most of the time; 0 without one. A line is the thread's name, the frames,
/// the reason and the time.
fn frames(folded: &str) -> f64 {
    let time =
        |line: &str| line.rsplit(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0);
    let stacks = folded.lines().filter(|line| line.contains(";leave_cpu;"));
    let longest = stacks.max_by(|left, right| f64::total_cmp(&time(left), &time(right)));
    longest.map_or(0.0, |line| line.split(';').count() as f64 - 2.0)
}

/// The share of the time off the CPU of a contended key service that has whole stacks.
fn whole_stacks(settings: &Settings, table: &mut Table) -> Result<()> {
    let options = ["--threads", "4", "--hold-us", "200", "--seconds", settings.either("5", "2")];
    let mut target = Target::ready(&mut settings.key_service(&options))?;
    let tracer = Tracer::attach(settings, target.pid(), &[])?;
    target.go()?;
    target.result()?;
    let folded = tracer.stop_folded()?;
    let (mut whole, mut all) = (0.0, 0.0);
    for line in folded.lines() {
        let (stack, time) = line.rsplit_once(' ').context("a folded stack has no time")?;
        let time: f64 = time.parse().context("a folded stack's time")?;
        all += time;
        if !stack.contains(";[truncated") && !stack.contains(";[no stack]") {
            whole += time;
        }
    }
    if all <= 0.0 {
        bail!("the key service was never off the CPU");
    }
    let percent = 100.0 * whole / all;
    table.row(vec![
        Cell::text("time off the CPU of the key service with whole stacks"),
        Cell::Number(percent, 2),
        Cell::text("%"),
        Cell::text("≥ 99 %"),
        Cell::verdict(if percent >= 99.0 { &[] } else { &[""] }),
    ]);
    Ok(())
}

/// How long the rows of a process's files take, as `latency doctor` tells.
fn rows_ms(settings: &Settings, pid: u32) -> Result<f64> {
    let page = process::output(
        Command::new(&settings.latency)
            .args(["doctor", "-p", &pid.to_string()])
            .env("NO_COLOR", "1"),
    )?;
    let line = page.lines().find(|line| line.contains("unwind rows"));
    let line = line.context("`latency doctor` tells of no unwind rows")?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| word.starts_with("ms")).filter(|at| *at > 0);
    let number = at.and_then(|at| words[at - 1].parse().ok());
    number.with_context(|| format!("no milliseconds in: {line}"))
}

/// What the target pays for each time off the CPU: by this tracer, and by perf, which copies 8 KiB of stack.
fn beside_perf(settings: &Settings, rounds: usize, table: &mut Table) -> Result<()> {
    let count = settings.either(8_000, 2_000);
    let has_perf = installed("perf");
    let (mut ours, mut perfs) = (Vec::new(), Vec::new());
    let (mut script, mut bytes) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let alone = target_cpu_ns(settings, count, |_| Ok(()), |()| Ok(()))?;
        let traced = target_cpu_ns(
            settings,
            count,
            |pid| Tracer::attach(settings, pid, &traced(&[])),
            |tracer| tracer.stop().map(drop),
        )?;
        ours.push(traced - alone);
        if has_perf {
            let data = settings.folder.join("perf.data");
            let by_perf = target_cpu_ns(
                settings,
                count,
                |pid| {
                    let mut perf = Command::new("perf");
                    perf.args([
                        "record",
                        "-q",
                        "-e",
                        "context-switches",
                        "-c",
                        "1",
                        "--call-graph",
                    ]);
                    perf.args(["dwarf", "-p", &pid.to_string(), "-o"]).arg(&data);
                    let perf = bound(perf.stdin(Stdio::null()).stderr(Stdio::null())).spawn()?;
                    std::thread::sleep(Duration::from_millis(700));
                    Ok(perf)
                },
                |mut perf| {
                    send(perf.id(), libc::SIGINT);
                    perf.wait()?;
                    Ok(())
                },
            )?;
            perfs.push(by_perf - alone);
            bytes.push(fs::metadata(&data).context("perf.data")?.len() as f64 / count as f64);
            let begun = std::time::Instant::now();
            process::output(
                Command::new("perf").args(["script", "-F", "ip,sym", "-i"]).arg(&data),
            )?;
            script.push(begun.elapsed().as_nanos() as f64 / count as f64);
            fs::remove_file(&data)?;
        }
    }
    let mut row = |what: &str, values: &[f64], unit: &str| {
        table.row(vec![
            Cell::text(what),
            Cell::spread(values, 0),
            Cell::text(unit),
            Cell::text("none"),
            Cell::text("–"),
        ]);
    };
    row("latency record: CPU time that the target pays for each time off the CPU", &ours, "ns");
    if has_perf {
        row("perf record --call-graph dwarf: the same", &perfs, "ns");
        row("perf.data for each", &bytes, "bytes");
        row("perf script: time to unwind each afterwards", &script, "ns");
    } else {
        row("perf is not installed", &[], "");
    }
    Ok(())
}

/// CPU time of the target's thread for each time off the CPU, in nanoseconds, under a tracer.
fn target_cpu_ns<T>(
    settings: &Settings,
    count: u64,
    attach: impl FnOnce(u32) -> Result<T>,
    detach: impl FnOnce(T) -> Result<()>,
) -> Result<f64> {
    let mut target = Target::ready(&mut depth(settings, Switch::Sleep, SHALLOW, count))?;
    let tracer = attach(target.pid())?;
    let before = target.cpu_ns()?;
    target.go()?;
    target.result()?;
    let after = target.cpu_ns()?;
    detach(tracer)?;
    Ok((after - before) as f64 / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that the frames of the longest stack are counted, without thread and reason.
    #[test]
    fn frames_of_folded() {
        let folded = "depth;_start;main;leave_cpu;clock_nanosleep;[sleep] 900.5\n\
                      depth;_start;main;x;leave_cpu;clock_nanosleep;[sleep] 20\n\
                      depth;_start;main;read;[sleep] 5000\n";
        assert_eq!(frames(folded), 4.0);
        assert_eq!(frames(""), 0.0);
    }
}
