//! The `latency` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    latency_user::cli::main()
}
