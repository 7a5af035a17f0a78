//! The C programs of `tests/workloads`, which are traced.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::{debian, process, workspace};

/// Compiles `tests/workloads/NAME.c` to a program in `folder`, as distributions compile: without
/// frame pointers. Where compiler or headers are missing they are installed, or named.
pub fn compile(name: &str, folder: &Path) -> Result<PathBuf> {
    let purpose = "the programs that are traced";
    debian::require(&["gcc", "libc6-dev", "libssl-dev"], &debian::C_PROBES, purpose)?;
    let program = folder.join(name);
    process::run(
        Command::new("cc")
            .args(["-O2", "-g", "-fomit-frame-pointer", "-pthread", "-o"])
            .arg(&program)
            .arg(workspace::root().join("tests/workloads").join(name).with_extension("c"))
            .arg("-lcrypto"),
    )?;
    Ok(program)
}
