//! `probe-site`: what the first instruction of a function makes a probe cost, and the site that the tracer
//! chooses instead.

use anyhow::{Context as _, Result};

use super::{
    floor::{self, Floor},
    probe_cost::call_ns,
    settings::Settings,
    spread::Spread,
    table::{Cell, Table},
    target::Target,
    tracer::Tracer,
};

/// Functions of `hot`, how they begin, and whether the kernel can emulate an instruction before the return
/// address is no longer on top of the stack.
const FUNCTIONS: [(&str, &str, bool); 5] = [
    ("site_nop", "nop", true),
    ("site_push", "push %rbp", true),
    ("site_endbr_push", "endbr64; push %rbp", true),
    ("site_mov_je", "mov; test; je", true),
    ("site_sub_rsp", "sub $24, %rsp", false),
];

/// Nanoseconds in every round, and the site chosen.
#[derive(Default)]
struct Case {
    nothing: Vec<f64>,
    naive: Vec<f64>,
    chosen: Vec<f64>,
    site: u64,
    price: String,
}

/// Calls each function without a probe, with an empty pair on its first byte, and under the tracer.
pub fn measure(settings: &Settings) -> Result<Table> {
    let (rounds, calls) = (settings.either(5, 2), settings.either(50_000, 10_000));
    let mut cases: [Case; FUNCTIONS.len()] = std::array::from_fn(|_| Case::default());
    for _ in 0..rounds {
        for ((function, _, _), case) in FUNCTIONS.iter().zip(&mut cases) {
            once(settings, function, calls, case).context(*function)?;
        }
    }
    let mut table = Table::new(
        "what a probe costs by the instruction that it sits on",
        [
            ("begins", "function begins with"),
            ("naive_ns", "empty pair on its first byte, ns"),
            ("site", "site chosen"),
            ("price", "which the kernel"),
            ("chosen_ns", "latency record, ns"),
            ("to_naive", "to the empty pair"),
            ("verdict", "verdict"),
        ],
    );
    for ((_, begins, can_be_emulated), case) in FUNCTIONS.iter().zip(&cases) {
        let median = |values: &[f64]| Spread::of(values).map_or(0.0, |spread| spread.median);
        let is_emulated = case.price == "emulated";
        let verdict = match (is_emulated, can_be_emulated) {
            (true, _) => Cell::verdict(&[]),
            (false, true) => Cell::verdict(&["single-stepped where it need not be"]),
            (false, false) => Cell::text("no other site; doctor names it"),
        };
        table.row(vec![
            Cell::text(format!("`{begins}`")),
            Cell::spread(&case.naive, 0),
            Cell::text(format!("+{}", case.site)),
            Cell::text(if is_emulated { "emulates" } else { "single-steps" }),
            Cell::spread(&case.chosen, 0),
            Cell::Number(median(&case.chosen) / median(&case.naive).max(1.0), 2),
            verdict,
        ]);
    }
    table.note(format!(
        "{calls} calls in a loop, {rounds} rounds in turn: what is added to a call without a probe, median (min \
         – max). The empty pair does nothing; the tracer does all that it does."
    ));
    Ok(table)
}

fn once(settings: &Settings, function: &str, calls: u64, case: &mut Case) -> Result<()> {
    let ready = || Target::ready(&mut settings.hot(function, calls, &[]));
    let nothing = call_ns(&mut ready()?, calls)?;
    case.nothing.push(nothing);

    let mut target = ready()?;
    let offset = floor::offset_of(settings, function)?;
    let pair = Floor::Pair.attach(settings, target.pid(), &settings.program("hot"), &[offset])?;
    case.naive.push(call_ns(&mut target, calls)? - nothing);
    pair.stop(libc::SIGINT)?;

    let mut target = ready()?;
    let probe = format!("hot:{function}");
    let tracer = Tracer::attach(settings, target.pid(), &["--probe", &probe])?;
    case.chosen.push(call_ns(&mut target, calls)? - nothing);
    let traced = tracer.stop()?;
    let number = |key: &str| traced.report["probes"][0][key].as_u64();
    let (site, offset) = number("site_offset").zip(number("offset")).context("no probe")?;
    case.site = site - offset;
    case.price =
        traced.report["probes"][0]["price"].as_str().map(str::to_owned).unwrap_or_default();
    Ok(())
}
