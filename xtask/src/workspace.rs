//! Where things are.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use anyhow::{Context as _, Result};

use crate::process;

/// The folder of the workspace's `Cargo.toml`.
///
/// Cargo says at run time where this package is. What it said when the package was compiled is kept
/// for runs without cargo only: a target folder shared by two checkouts holds one `xtask`.
pub fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        let package = std::env::var_os("CARGO_MANIFEST_DIR");
        let package = package.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
        package.parent().expect("xtask is a folder of the workspace").to_owned()
    });
    &ROOT
}

/// Cargo's target folder, wherever the environment or a configuration file has put it.
pub fn target() -> Result<PathBuf> {
    let text = process::output(cargo().args([
        "metadata",
        "--format-version=1",
        "--no-deps",
        "--offline",
    ]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&text).context("`cargo metadata` printed no JSON")?;
    let target = metadata["target_directory"].as_str();
    Ok(target.context("`cargo metadata` names no target_directory")?.into())
}

/// The cargo that runs this program, in the workspace's folder.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// Cargo's home: the registry's sources are there, and the programs that `cargo install` puts.
pub fn cargo_home() -> PathBuf {
    match (std::env::var_os("CARGO_HOME"), std::env::home_dir()) {
        (Some(home), _) if !home.is_empty() => home.into(),
        (_, Some(home)) => home.join(".cargo"),
        (_, None) => ".cargo".into(),
    }
}

/// `PATH` with these folders before what it has.
pub fn path_with(folders: &[PathBuf]) -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = folders.iter().cloned().chain(std::env::split_paths(&path));
    std::env::join_paths(all).context("a folder to be put in PATH has a colon in its name")
}

/// A path as people want to read it: from the current folder where it is below that.
pub fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}
