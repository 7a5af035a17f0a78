//! Build, test and demonstration commands of `latency`.

mod bench;
mod build_ebpf;
mod debian;
mod demo;
#[path = "../../latency-user/ebpf/digest.rs"]
mod digest;
mod lint;
mod process;
mod setup;
mod test;
mod toolchain;
mod workload;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Build, test and demonstration commands of `latency`.
///
/// New here? `cargo xtask demo` shows the tool at work on a sample key service, and `cargo xtask
/// test` runs every test. Neither needs `setup`: the eBPF object is committed.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Demo),
    Test(test::Test),
    Bench(bench::Bench),
    Lint(lint::Lint),
    Setup(setup::Setup),
    BuildEbpf(build_ebpf::BuildEbpf),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Demo(demo) => demo.run(),
        Command::Test(test) => test.run(),
        Command::Bench(bench) => bench.run(),
        Command::Lint(lint) => lint.run(),
        Command::Setup(setup) => setup.run(),
        Command::BuildEbpf(build) => build.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("xtask: {err:#}");
            ExitCode::FAILURE
        }
    }
}
