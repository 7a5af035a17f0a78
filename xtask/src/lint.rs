//! `cargo xtask lint`: the rules of this project that no other tool checks.

mod layers;
mod rules;
mod tokens;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::workspace;

/// Folders that hold Rust sources.
const FOLDERS: [&str; 5] = ["latency-common", "latency-ebpf", "latency-user", "xtask", "tests"];

/// Check the order of the layers, file lengths and other rules of this project.
#[derive(Args)]
pub struct Lint {}

/// Something that breaks a rule, at a place.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    /// Relative to the workspace.
    file: PathBuf,
    /// From 1.
    line: u32,
    severity: Severity,
    message: String,
}

/// Whether a finding fails the lint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Severity {
    Warning,
    Error,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{}:{}: {severity}: {}", self.file.display(), self.line, self.message)
    }
}

impl Lint {
    /// Prints every finding, and fails if one is an error.
    pub fn run(&self) -> Result<()> {
        let files = sources(workspace::root())?;
        let mut findings: Vec<_> =
            files.iter().flat_map(|file| rules::check(&file.path, &file.text)).collect();
        findings.extend(layers::check(&files));

        for finding in &findings {
            println!("{finding}");
        }
        let errors = findings.iter().filter(|f| f.severity == Severity::Error).count();
        if errors > 0 {
            bail!("{errors} lint errors in {} files", files.len());
        }
        println!("{} files keep the rules", files.len());
        Ok(())
    }
}

/// A source file.
struct Source {
    /// Relative to the workspace.
    path: PathBuf,
    text: String,
}

fn sources(root: &Path) -> Result<Vec<Source>> {
    let mut paths = Vec::new();
    for folder in FOLDERS {
        walk(root, Path::new(folder), &mut paths)?;
    }
    paths.sort();
    let read = |path: PathBuf| {
        let text =
            fs::read_to_string(root.join(&path)).with_context(|| path.display().to_string())?;
        Ok(Source { path, text })
    };
    paths.into_iter().map(read).collect()
}

fn walk(root: &Path, folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    if !root.join(folder).is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(root.join(folder)).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "target" || path.components().count() > 2 {
                walk(root, &path, paths)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
    Ok(())
}
