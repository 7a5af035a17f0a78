//! Running other programs, with errors that name what was run.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Runs a command to its end; anything but success is an error that shows the command.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("`{}` cannot run", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", shown(command));
    }
    Ok(())
}

/// What a command prints on stdout; its stderr stays on the terminal.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("`{}` cannot run", shown(command)))?;
    if !output.status.success() {
        bail!("`{}` failed: {}", shown(command), output.status);
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("`{}` printed something that is not UTF-8", shown(command)))
}

/// What a command prints, should it be there and succeed: for asking whether something is there.
pub fn probe(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether this process is root.
pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// The words to put before a command so that root runs it: none when this process is root already.
///
/// `PATH` is passed through `env` because sudoers' `secure_path` overrules `--preserve-env`.
pub fn as_root() -> Result<Vec<String>> {
    if is_root() {
        return Ok(Vec::new());
    }
    if probe(Command::new("sudo").arg("--version")).is_none() {
        bail!("this needs root: run it as root, or install sudo");
    }
    let path = std::env::var("PATH").context("PATH")?;
    Ok(vec!["sudo".into(), "-E".into(), "env".into(), format!("PATH={path}")])
}

/// A command that root runs, by `sudo` unless this process is root already.
pub fn root_command(program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
    let prefix = as_root()?;
    let Some((first, rest)) = prefix.split_first() else { return Ok(Command::new(program)) };
    let mut command = Command::new(first);
    command.args(rest).arg(program);
    Ok(command)
}

/// A command as one would type it, without the environment.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
