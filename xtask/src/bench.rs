//! `cargo xtask bench`: what the tracer costs and how well it measures, as tables.

mod accuracy;
mod floor;
mod histogram;
mod interval;
mod library;
mod load;
mod machine;
mod nginx;
mod pages;
mod peer;
mod probe_cost;
mod probe_site;
mod scale;
mod service_profile;
mod service_slowdown;
mod settings;
mod spread;
mod stack_cost;
mod start_stop;
mod statistics;
mod stream;
mod switch_cost;
mod table;
mod target;
mod tool;
mod tool_accuracy;
mod tracer;
mod turns;
mod yardstick;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use self::{machine::Machine, pages::Section, settings::Settings, table::Table};
use crate::{debian, process, workload, workspace};

/// Measure the tracer on this machine and print a table for each bench.
///
/// Builds what it needs. Measuring needs root: directly, or through sudo. A row that misses its aim
/// says so and is no failure; the exit status tells only whether everything could be measured.
#[derive(Args)]
pub struct Bench {
    /// Fewer and shorter rounds: to see that it works, not for figures to keep
    #[arg(long)]
    quick: bool,

    /// Write the tables as JSON as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write the tables as markdown as well, such as docs/performance.md; of a file that is there, the
    /// sections of other benches are kept if they are of this machine
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// What to measure [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<Name>,

    /// The programs that were built before, and where to put the results: set for root's part
    #[arg(long, hide = true, value_name = "FOLDER")]
    prepared: Option<PathBuf>,
}

/// A bench, in the order they are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Name {
    /// How soon the tracer sees the first operation, how soon it is gone, and how soon pages are drawn
    StartStop,
    /// The tracer's own CPU time and memory under a stream of operations
    Stream,
    /// Counts and percentiles beside the key service's own
    Accuracy,
    /// The same of the tools that are used today, with lock waits and time off the CPU
    ToolAccuracy,
    /// What a traced call costs the target
    ProbeCost,
    /// What the first instruction of a function costs, and the site that is chosen
    ProbeSite,
    /// What following the scheduler costs other programs
    SwitchCost,
    /// Requests that a service loses while it is traced
    ServiceSlowdown,
    /// What of a service's CPU time the tracer takes, by a profile
    ServiceProfile,
    /// What a stack costs, and perf's beside it
    StackCost,
    /// How all that grows with threads, mappings, probes and stacks
    Scale,
    /// What the library does with one record, stack or address
    Library,
}

impl Name {
    fn measure(self, settings: &Settings) -> Result<Table> {
        match self {
            Self::StartStop => start_stop::measure(settings),
            Self::Stream => stream::measure(settings),
            Self::Accuracy => accuracy::measure(settings),
            Self::ToolAccuracy => tool_accuracy::measure(settings),
            Self::ProbeCost => probe_cost::measure(settings),
            Self::ProbeSite => probe_site::measure(settings),
            Self::SwitchCost => switch_cost::measure(settings),
            Self::ServiceSlowdown => service_slowdown::measure(settings),
            Self::ServiceProfile => service_profile::measure(settings),
            Self::StackCost => stack_cost::measure(settings),
            Self::Scale => scale::measure(settings),
            Self::Library => library::measure(settings),
        }
    }

    fn text(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What root's part leaves in its folder.
const RESULTS: &str = "results.json";

impl Bench {
    /// Builds, measures as root, and writes the files that were asked for.
    pub fn run(&self) -> Result<()> {
        if let Some(folder) = &self.prepared {
            let results = self.measure(folder)?;
            return write(&folder.join(RESULTS), &results.to_string());
        }
        let outputs: Vec<_> = self.json.iter().chain(&self.markdown).collect();
        for path in outputs {
            // Better now than after minutes of measuring.
            let temporary = temporary(path);
            fs::write(&temporary, "").with_context(|| path.display().to_string())?;
            fs::remove_file(&temporary)?;
        }
        let folder = self.prepare()?;
        let results = if process::is_root() {
            self.measure(&folder)?
        } else {
            self.measure_by_sudo(&folder)?
        };
        if let Some(path) = &self.json {
            write(path, &format!("{:#}\n", results["json"]))?;
        }
        if let Some(path) = &self.markdown {
            let sections =
                results["sections"].as_array().context("the results have no sections")?;
            let sections = sections.iter().filter_map(|section| {
                let text = |key: &str| section[key].as_str().map(str::to_owned);
                Some(Section { name: text("name")?, text: text("text")? })
            });
            let text = |key: &str| results[key].as_str().with_context(|| format!("no {key}"));
            let names: Vec<String> =
                Name::value_variants().iter().map(|name| name.text()).collect();
            let old = fs::read_to_string(path).unwrap_or_default();
            let sections = sections.collect();
            write(path, &pages::merged(&old, text("head")?, text("machine")?, sections, &names))?;
        }
        let failed = results["failed"].as_array().map_or(0, Vec::len);
        if failed > 0 {
            bail!("{failed} of the benches could not be measured");
        }
        Ok(())
    }

    /// Builds the tracer, the workloads and, if they are to run, the library's benches; the folder of
    /// all but the tracer.
    fn prepare(&self) -> Result<PathBuf> {
        let folder = workspace::target()?.join("bench");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        process::run(workspace::cargo().args(["build", "--release", "--package", "latency-user"]))?;
        for name in settings::WORKLOADS {
            workload::compile(name, &folder)?;
        }
        if self.chosen().contains(&Name::Library) {
            library::prepare(&folder)?;
        }
        install_peers();
        Ok(folder)
    }

    fn measure_by_sudo(&self, folder: &Path) -> Result<Value> {
        let program = std::env::current_exe().context("the path of this program")?;
        let mut command = process::root_command(program)?;
        command.arg("bench").arg("--prepared").arg(folder);
        if self.quick {
            command.arg("--quick");
        }
        command.args(self.names.iter().map(|name| name.text()));
        process::run(&mut command)?;
        let path = folder.join(RESULTS);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Runs the benches one after another, and prints each table when it is there.
    fn measure(&self, folder: &Path) -> Result<Value> {
        let settings = Settings::new(folder, self.quick)?;
        let machine = Machine::here();
        println!("{}Load average before the first bench: {}.", machine, machine.load());
        let head = format!(
            "# Performance\n\nWritten by `cargo xtask bench --markdown docs/performance.md`{}. Each section is of \
             one run on this machine:\n\n{machine}",
            if self.quick { ", with --quick: not figures to keep" } else { "" }
        );
        let load = machine.load();
        let mut sections = Vec::new();
        let (mut tables, mut failed) = (Vec::new(), Vec::new());
        for name in self.chosen() {
            let text = name.text();
            eprintln!("xtask: measuring {text}");
            match name.measure(&settings) {
                Ok(table) => {
                    print!("\n{text}: {table}");
                    sections.push(json!({
                        "name": text,
                        "text": format!(
                            "## {text}: {}\nLoad average before the run: {load}.\n",
                            table.markdown()
                        ),
                    }));
                    let mut value = table.json();
                    value["name"] = json!(text);
                    tables.push(value);
                }
                Err(err) => {
                    eprintln!("xtask: {text} could not be measured: {err:#}");
                    sections.push(json!({
                        "name": text,
                        "text": format!("## {text}\n\nCould not be measured: {err:#}.\n"),
                    }));
                    failed.push(text);
                }
            }
        }
        let json = json!({
            "schema": "latency.bench/1",
            "quick": self.quick,
            "machine": machine.json(),
            "benches": tables,
            "failed": failed,
        });
        Ok(json!({
            "json": json,
            "head": head,
            "machine": machine.to_string().trim_end(),
            "sections": sections,
            "failed": failed,
        }))
    }

    /// Every bench once, in their order.
    fn chosen(&self) -> Vec<Name> {
        if self.names.is_empty() {
            return Name::value_variants().to_vec();
        }
        let mut names = self.names.clone();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Installs what the tracer is measured beside, where that is easy. What is missing all the same is
/// a row of the table that says so.
fn install_peers() {
    const PROGRAMS: [&str; 2] = ["nginx", "wrk"];
    let mut packages: Vec<&str> = PROGRAMS.to_vec();
    packages.extend(peer::Peer::ALL.map(peer::Peer::package));
    packages.sort_unstable();
    packages.dedup();
    if !debian::is_debian() {
        return;
    }
    let missing = debian::missing(&packages);
    if missing.is_empty() {
        return;
    }
    eprintln!("xtask: installing {} to measure beside them", missing.join(", "));
    if let Err(error) = debian::update().and_then(|()| debian::install(&missing)) {
        eprintln!("xtask: {error:#}");
    }
}

/// Writes a file whole or not at all.
fn write(path: &Path, text: &str) -> Result<()> {
    let temporary = temporary(path);
    fs::write(&temporary, text)
        .and_then(|()| fs::rename(&temporary, path))
        .with_context(|| path.display().to_string())
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// The program of that name, should it be on `PATH`.
fn installed(program: &str) -> bool {
    // Not every tool has a `--version`.
    process::probe(Command::new("sh").args(["-c", "command -v \"$1\"", "sh", program])).is_some()
}
