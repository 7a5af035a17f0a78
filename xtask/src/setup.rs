//! `cargo xtask setup`: the toolchain that the eBPF object is built with.

use std::process::Command;

use anyhow::{Result, bail};
use clap::Args;

use crate::{
    debian, process,
    toolchain::{self, Compiler},
    workspace,
};

const LLVM: &str = "/usr/lib/llvm-22/bin";

/// Install the eBPF toolchain: only those need it who change the eBPF programs.
///
/// On Debian this installs packages (as root or by sudo) and bpf-linker; elsewhere it says what to
/// install. It is quick when all is there.
#[derive(Args)]
pub struct Setup {}

impl Setup {
    /// Installs what is missing, or says what to install.
    pub fn run(&self) -> Result<()> {
        if Compiler::find().is_none() {
            install_compiler()?;
        }
        if toolchain::linker_version().is_none() {
            install_linker()?;
        }
        let (compiler, linker) = toolchain::require()?;
        println!("eBPF toolchain: {}, {linker}", compiler.version().unwrap_or_default());
        Ok(())
    }
}

fn install_compiler() -> Result<()> {
    let packages = toolchain::DEBIAN_PACKAGES;
    if debian::is_debian() {
        eprintln!("xtask: installing {}", packages.join(", "));
        debian::update()?;
        if debian::available(&packages) {
            return debian::install(&packages);
        }
        eprintln!("xtask: this distribution's archives do not have them");
    }
    bail!("{}", by_hand());
}

/// bpf-linker must be built with the LLVM of the compiler whose output it reads.
fn install_linker() -> Result<()> {
    if Compiler::find() != Some(Compiler::System) || !debian::is_debian() {
        bail!("{}", by_hand());
    }
    if !debian::missing(&toolchain::DEBIAN_PACKAGES).is_empty() {
        install_compiler()?;
    }
    eprintln!("xtask: installing bpf-linker (about a minute)");
    process::run(
        workspace::cargo()
            .args(["install", "bpf-linker", "--version=^0.13", "--locked"])
            .args(["--no-default-features", "--features=llvm-22"])
            .env("PATH", workspace::path_with(&[LLVM.into()])?)
            // Cargo then builds in a folder of its own, and removes it.
            .env_remove("CARGO_TARGET_DIR"),
    )
}

/// What to type where this program does not install by itself.
fn by_hand() -> String {
    let mut lines = vec!["the eBPF toolchain is not complete; install what is missing:".to_owned()];
    if process::probe(Command::new("rustup").arg("--version")).is_none() {
        lines.push("    rustup, from https://rustup.rs".to_owned());
    }
    if Compiler::find().is_none() {
        lines.push("    rustup toolchain install nightly --component rust-src".to_owned());
    }
    if toolchain::linker_version().is_none() {
        lines.push("    cargo install bpf-linker".to_owned());
    }
    if toolchain::llvm("objcopy").is_err() {
        lines.push(
            "    LLVM's tools, for llvm-objcopy (package `llvm` in most distributions)".to_owned(),
        );
    }
    lines.push("then run `cargo xtask setup` again".to_owned());
    lines.join("\n")
}
