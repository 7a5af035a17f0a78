//! The command line: drives the other modules, prints what they say, sets the exit status.

mod alarm;
mod args;
mod command;
mod describe;
mod doctor;
mod flame;
mod live;
mod names;
mod own;
mod profile;
mod record;
mod report;
mod scheduler;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;

use args::{Cli, Command};

/// Runs the command line of this process. Every failure ends here: it is printed in one line, and
/// the exit status is not 0.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    logger::start(cli.verbose);
    let result = match &cli.command {
        Command::Record(args) => record::run(args, cli.verbose > 0),
        Command::Report(args) => report::run(args).map(|()| 0),
        Command::Flame(args) => flame::run(args).map(|()| 0),
        Command::Doctor(args) => doctor::run(args).map(u8::from),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the reader of our output went away, as `latency report … | head` makes it.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Writes a whole page to standard output.
fn print(page: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(page)?;
    out.flush()?;
    Ok(())
}

/// Whether to colour what goes to `stream`: not where it is no terminal, and not where
/// `NO_COLOR` asks for none (<https://no-color.org>).
fn colour(stream: &impl io::IsTerminal) -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    stream.is_terminal() && !no_color && !dumb
}

/// Whether standard error is a terminal, where a line can be written over.
fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

mod logger {
    //! The `log` crate's messages, and through it the kernel side's, on standard error.

    use log::{LevelFilter, Log, Metadata, Record};

    struct Stderr;

    impl Log for Stderr {
        fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &Record<'_>) {
            eprintln!("[{}] {}", record.target(), record.args());
        }

        fn flush(&self) {}
    }

    /// Starts logging: nothing without -v, and with it what the programs and the loader do.
    pub fn start(verbose: u8) {
        let level = match verbose {
            0 => LevelFilter::Off,
            1 => LevelFilter::Debug,
            _ => LevelFilter::Trace,
        };
        if log::set_logger(&Stderr).is_ok() {
            log::set_max_level(level);
        }
    }
}
