//! `service-profile`: what of a service's CPU time goes to a tool, by samples and by the kernel's statistics.

use std::{cmp::Ordering, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, bail};

use super::{
    floor::Floor,
    installed,
    interval::Interval,
    load::{Load, SERVICES, Service},
    settings::Settings,
    statistics::{Runs, Statistics, programs_not_on_functions},
    table::{Cell, Table},
    target::bound,
    tool::{Attached, TIMING, Tool},
    turns::there_and_back,
};
use crate::process;

/// Samples of each CPU a second.
const FREQUENCY: &str = "9973";
/// For so long there are samples.
const SAMPLED: Duration = Duration::from_millis(1_500);
/// For so long there are statistics, which are not free.
const COUNTED: Duration = Duration::from_millis(700);
/// So many tell a median within a tenth of a percent.
const ROUNDS: usize = 10;
/// What `service-slowdown` allows for.
const AIM_PERCENT: f64 = 3.0;

/// Profiles each service under each tool in turn.
pub fn measure(settings: &Settings) -> Result<Table> {
    if !installed("perf") {
        bail!("perf is not installed (linux-perf)");
    }
    let mut tools = vec![None];
    tools.extend(Tool::all().into_iter().filter(Tool::has_verdict).map(Some));
    let mut table = Table::new(
        "where a tool's share of a service's CPU time goes",
        [
            ("service", "service"),
            ("tool", "traced by"),
            ("traps_percent", "probes: the kernel, %"),
            ("trap_programs_percent", "probes: programs, %"),
            ("other_programs_percent", "other programs, %"),
            ("processes_percent", "processes, %"),
            ("together_percent", "together, %"),
            ("verdict", "verdict"),
        ],
    );
    for service in SERVICES {
        for row in rows(&tools, &in_turn(settings, service, &tools)?) {
            table.row([Cell::text(service.name())].into_iter().chain(row).collect());
        }
    }
    notes(&mut table, settings);
    Ok(table)
}

/// What each tool took, round by round.
fn in_turn(
    settings: &Settings,
    service: Service,
    tools: &[Option<Tool>],
) -> Result<Vec<Vec<Shares>>> {
    let mut shares = vec![Vec::new(); tools.len()];
    let mut called = Vec::new();
    let load = Load::start(settings, service)?;
    for round in 0..settings.either(ROUNDS, 2) {
        for (tool, shares) in there_and_back(round, tools.iter().zip(&mut shares)) {
            let name = || format!("{}: {}", service.name(), name_of(tool.as_ref()));
            let attach = |tool| Attached::new(settings, load.pid()?, tool, &called);
            let attached = tool.as_ref().map(attach).transpose().with_context(name)?;
            let pids = attached.as_ref().map(Attached::pids).unwrap_or_default();
            std::thread::sleep(Duration::from_millis(200));
            let data = settings.folder.join("profile.data");
            sample(service.cpu(), &data)?;
            let other_programs = other_programs(&pids, cpus_of(service)?)?;
            if let Some(attached) = attached {
                attached.stop(&mut called).with_context(name)?;
            }
            let samples = Samples::read(&samples_of(&data)?, &pids);
            shares.push(Shares::new(samples, other_programs)?);
        }
    }
    Ok(shares)
}

fn name_of(tool: Option<&Tool>) -> String {
    tool.map_or_else(|| "nothing".to_owned(), Tool::name)
}

/// How many CPUs a service runs on.
fn cpus_of(service: Service) -> Result<usize> {
    Ok(if service.cpu().is_some() { 1 } else { std::thread::available_parallelism()?.get() })
}

/// Samples all that runs on a CPU, or on all of them.
fn sample(cpu: Option<&str>, data: &Path) -> Result<()> {
    let mut command = Command::new("perf");
    // No build ids (`-B`), and the stacks of the kernel alone, which are what is asked for.
    command.args(["record", "-q", "-B", "-e", "cpu-clock", "-F", FREQUENCY, "-g"]);
    command.arg("--kernel-callchains");
    match cpu {
        Some(cpu) => command.args(["-C", cpu]),
        None => command.arg("-a"),
    };
    command.arg("-o").arg(data).args(["--", "sleep", &SAMPLED.as_secs_f64().to_string()]);
    process::run(bound(&mut command))
}

/// Samples as text: a line with the process, then one for each frame of the kernel, then an empty one.
fn samples_of(data: &Path) -> Result<String> {
    let mut command = Command::new("perf");
    command.args(["script", "-F", "pid,ip,sym", "-i"]).arg(data);
    let text = process::output(&mut command);
    std::fs::remove_file(data).with_context(|| data.display().to_string())?;
    text
}

/// The share of so many CPUs' time that the programs of these processes run which are on no functions, in
/// percent.
fn other_programs(pids: &[u32], cpus: usize) -> Result<f64> {
    let runs = || {
        pids.iter().try_fold(0, |time_ns, pid| {
            let Runs { time_ns: more, .. } = programs_not_on_functions(*pid)?;
            anyhow::Ok(time_ns + more)
        })
    };
    let _statistics = Statistics::turn_on()?;
    let started = std::time::Instant::now();
    let before = runs()?;
    std::thread::sleep(COUNTED);
    let spent = runs()? - before;
    Ok(spent as f64 / (started.elapsed().as_nanos() as f64 * cpus as f64) * 100.0)
}

/// How many samples lie where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Samples {
    all: u64,
    /// In the kernel on behalf of a probe, but in no program.
    traps: u64,
    /// In a probe's program, or in what that calls.
    trap_programs: u64,
    /// In the tool's processes.
    processes: u64,
}

impl Samples {
    /// Counts them in what [`samples_of`] gives; the tool's processes are `pids`.
    fn read(text: &str, pids: &[u32]) -> Self {
        let mut counted = Self::default();
        for sample in text.split("\n\n") {
            let mut lines = sample.lines().map(str::trim).filter(|line| !line.is_empty());
            let Some(pid) = lines.next() else { continue };
            counted.all += 1;
            let (mut is_probe, mut is_program, mut is_switch) = (false, false, false);
            for symbol in lines.filter_map(|line| line.split_whitespace().nth(1)) {
                // A breakpoint, the step over its instruction, the system call of a return probe.
                is_probe |= ["asm_exc_int3", "asm_exc_debug"].contains(&symbol)
                    || symbol.contains("uprobe")
                    || symbol.contains("uretprobe");
                is_program |= symbol.contains("bpf_prog_");
                // Another thread ran in between.
                is_switch |= symbol == "schedule";
            }
            if is_probe && !is_switch {
                let place =
                    if is_program { &mut counted.trap_programs } else { &mut counted.traps };
                *place += 1;
            } else if pid.parse().is_ok_and(|pid| pids.contains(&pid)) {
                counted.processes += 1;
            }
        }
        counted
    }
}

/// What a tool took while it was attached once, in percent of the CPU time.
#[derive(Clone, Copy)]
struct Shares {
    traps: f64,
    trap_programs: f64,
    other_programs: f64,
    processes: f64,
}

impl Shares {
    fn new(samples: Samples, other_programs: f64) -> Result<Self> {
        if samples.all == 0 {
            bail!("perf took no samples");
        }
        let percent = |count: u64| count as f64 / samples.all as f64 * 100.0;
        Ok(Self {
            traps: percent(samples.traps),
            trap_programs: percent(samples.trap_programs),
            other_programs,
            processes: percent(samples.processes),
        })
    }

    fn together(&self) -> f64 {
        self.traps + self.trap_programs + self.other_programs + self.processes
    }
}

/// A service's rows, without its name.
fn rows(tools: &[Option<Tool>], shares: &[Vec<Shares>]) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    for (tool, shares) in tools.iter().zip(shares) {
        let verdict = match tool {
            Some(Tool::Floor(_)) => floor_verdict(&of(shares, Shares::together)),
            _ => Cell::Empty,
        };
        rows.push(row(&name_of(tool.as_ref()), |share| of(shares, share), verdict));
    }
    let find = |wanted: fn(&Tool) -> bool| {
        let mut both = tools.iter().zip(shares);
        both.find_map(|(tool, shares)| wanted(tool.as_ref()?).then_some(shares))
    };
    let latency = find(|tool| matches!(tool, Tool::Latency));
    let timing = find(|tool| matches!(tool, Tool::Floor(Floor::Identified)));
    let chain = find(|tool| matches!(tool, Tool::Chain(_)));
    let beside = [(format!("the {TIMING}"), timing), ("the tools together".to_owned(), chain)];
    for (what, other) in beside {
        let (Some(latency), Some(other)) = (latency, other) else { continue };
        let difference = |share: Share| {
            let pairs = of(latency, share).into_iter().zip(of(other, share));
            pairs.map(|(own, other)| own - other).collect::<Vec<f64>>()
        };
        let verdict = Cell::text(beside_verdict(&difference(Shares::together)));
        rows.push(row(&format!("latency record, beside {what}"), difference, verdict));
    }
    rows
}

type Share = fn(&Shares) -> f64;

fn of(shares: &[Shares], share: Share) -> Vec<f64> {
    shares.iter().map(share).collect()
}

fn row(name: &str, values: impl Fn(Share) -> Vec<f64>, verdict: Cell) -> Vec<Cell> {
    let columns: [Share; 5] = [
        |shares| shares.traps,
        |shares| shares.trap_programs,
        |shares| shares.other_programs,
        |shares| shares.processes,
        Shares::together,
    ];
    let cells = columns.into_iter().map(|share| Cell::interval(&values(share), 2));
    [Cell::text(name)].into_iter().chain(cells).chain([verdict]).collect()
}

/// Whether what a floor takes leaves room for the aim of `service-slowdown`.
fn floor_verdict(together: &[f64]) -> Cell {
    match Interval::of(together) {
        Some(floor) if floor.low > AIM_PERCENT => {
            Cell::text(format!("no tracer that does so much can lose only {AIM_PERCENT} %"))
        }
        _ => Cell::Empty,
    }
}

/// Which of two takes more, as far as that is shown.
fn beside_verdict(differences: &[f64]) -> &'static str {
    match Interval::of(differences).and_then(|interval| interval.side()) {
        Some(Ordering::Less) => "less",
        Some(_) => "more",
        None => "alike",
    }
}

fn notes(table: &mut Table, settings: &Settings) {
    table.note(format!(
        "{} rounds, the tools in turn, there and back, attached to one and the same process. In each, `perf record \
         -e cpu-clock -F {FREQUENCY} -g` of all that runs on the service's CPUs for {} ms; then the run times that \
         the kernel tells of the tool's programs, `kernel.bpf_stats_enabled`, for {} ms. Medians (low – high, with \
         95 % confidence); [smallest – largest] of fewer than six. All are percent of the CPU time there is.",
        settings.either(ROUNDS, 2),
        SAMPLED.as_millis(),
        COUNTED.as_millis(),
    ));
    table.note(
        "Probes: samples in the breakpoint of a probe, in the step over its instruction or in the system call of \
         a return probe: in its program and what that calls, or in the kernel around that. Other programs: those \
         at switches, wakeups and ticks, by the run times, since interrupts are off there and no sample falls \
         into them; nginx has one CPU, and what they run on the other is counted with it. Processes: samples in \
         the tool's own.",
    );
    table.note(
        "The tools time EVP_DigestSign and EVP_DigestVerify alone. In nginx the tracer and the floors are on \
         EVP_DigestSignFinal too, which libssl may call itself; here EVP_DigestSign calls it, and each such call \
         is one trap more. Alike: the interval of the difference has 0 in it.",
    );
    table.note(format!(
        "So much is gone for sure, and what is lost of the requests of a busy service is no less: not in it are \
         the first and last instructions of a trap, the interrupts that a sampler takes itself, and what the service \
         finds displaced from its caches. Where what a floor takes is more than {AIM_PERCENT} % by its whole interval, \
         no tracer that does so much can meet that aim of `service-slowdown`."
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that samples are told apart by the frames of the kernel, and by the process.
    #[test]
    fn samples() {
        let text = "\
    7 \n\tffff1 bpf_prog_e4bebf9999cbe471_call_session\n\tffff2 handler_chain\n\
    \tffff3 uprobe_notify_resume\n\tffff4 asm_exc_int3\n\n\
    7 \n\tffff1 irqentry_exit_to_user_mode\n\tffff2 asm_exc_int3\n\n\
    7 \n\tffff1 uprobe_handle_trampoline\n\tffff2 __x64_sys_uretprobe\n\n\
    7 \n\tffff1 finish_task_switch.isra.0\n\tffff2 schedule\n\tffff3 asm_exc_int3\n\n\
    7 \n\tffff1 bpf_prog_e4bebf9999cbe471_switch\n\n\
    8 \n\n\
    9 \n\tffff1 do_sys_poll\n\n\
    7 \n\n";
        let counted = Samples { all: 8, traps: 2, trap_programs: 1, processes: 2 };
        assert_eq!(Samples::read(text, &[8, 9]), counted);
        let nothing = Samples { processes: 0, ..counted };
        assert_eq!(Samples::read(text, &[]), nothing);
        assert_eq!(Samples::read("", &[8]), Samples::default());
    }

    /// Check the percents, and that no samples are an error.
    #[test]
    fn shares() {
        let samples = Samples { all: 200, traps: 4, trap_programs: 1, processes: 2 };
        let shares = Shares::new(samples, 0.25).unwrap();
        assert!((shares.traps - 2.0).abs() < 1e-9);
        assert!((shares.together() - 3.75).abs() < 1e-9);
        assert!(Shares::new(Samples::default(), 0.0).is_err());
    }

    /// Check that a floor decides only by its whole interval.
    #[test]
    fn floors() {
        assert!(matches!(floor_verdict(&[3.1, 3.2, 3.3]), Cell::Text(_)));
        assert!(matches!(floor_verdict(&[2.9, 3.2, 3.3]), Cell::Empty));
        assert!(matches!(floor_verdict(&[]), Cell::Empty));
    }
}
