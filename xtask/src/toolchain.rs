//! The toolchain that compiles for the BPF target: a compiler that accepts unstable options, its
//! library source, and bpf-linker.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use crate::{process, workspace};

/// Packages of Debian that make a compiler for the BPF target.
pub const DEBIAN_PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", "llvm-22-dev"];

/// The oldest compiler that edition 2024 and the eBPF crates build with.
const OLDEST_MINOR: u32 = 95;

/// A compiler for the BPF target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compiler {
    /// The distribution's own in `/usr/bin`, told by `RUSTC_BOOTSTRAP` to accept unstable options.
    System,
    /// rustup's `nightly`.
    Nightly,
}

impl Compiler {
    /// The one that is there and has its library source, Debian's first: it is the one that the
    /// committed object is built with.
    pub fn find() -> Option<Self> {
        [Self::System, Self::Nightly].into_iter().find(|compiler| compiler.is_usable())
    }

    fn is_usable(self) -> bool {
        let new_enough = self.version().as_deref().and_then(minor) >= Some(OLDEST_MINOR);
        new_enough && self.library_source().is_some_and(|folder| folder.join("core").is_dir())
    }

    /// `rustc -V`.
    pub fn version(self) -> Option<String> {
        Some(process::probe(self.rustc().arg("-V"))?.trim().to_owned())
    }

    /// The folder of `core`'s and `std`'s crates.
    fn library_source(self) -> Option<PathBuf> {
        Some(self.sysroot()?.join("lib/rustlib/src/rust/library"))
    }

    /// Where the compiler's own files are.
    pub fn sysroot(self) -> Option<PathBuf> {
        Some(process::probe(self.rustc().args(["--print", "sysroot"]))?.trim().into())
    }

    fn rustc(self) -> Command {
        match self {
            Self::System => Command::new("/usr/bin/rustc"),
            Self::Nightly => rustup("rustc"),
        }
    }

    /// Its cargo, rid of what the cargo that started this program has put in the environment.
    pub fn cargo(self) -> Command {
        let mut cargo = match self {
            Self::System => {
                let mut cargo = Command::new("/usr/bin/cargo");
                cargo.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1");
                cargo
            }
            Self::Nightly => {
                let mut cargo = rustup("cargo");
                cargo.env_remove("RUSTC");
                cargo
            }
        };
        // A wrapper or a profile meant for the host's programs would change the object.
        for name in ["CARGO", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_TARGET_DIR"] {
            cargo.env_remove(name);
        }
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CARGO_PROFILE_") {
                cargo.env_remove(name);
            }
        }
        cargo
    }
}

fn rustup(program: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", program]).env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// The `N` of `rustc 1.N.…`.
fn minor(version: &str) -> Option<u32> {
    version.strip_prefix("rustc 1.")?.split('.').next()?.parse().ok()
}

/// `bpf-linker X.Y.Z`, should it be installed and able to run.
pub fn linker_version() -> Option<String> {
    let mut linker = Command::new("bpf-linker");
    linker.arg("--version").env("PATH", path().ok()?);
    Some(process::probe(&mut linker)?.trim().to_owned())
}

/// One of LLVM's tools for object files; those of binutils do not know BPF.
pub fn llvm(tool: &str) -> Result<Command> {
    let name = format!("llvm-{tool}");
    let found = [format!("/usr/lib/llvm-22/bin/{name}"), name.clone()]
        .into_iter()
        .find(|program| process::probe(Command::new(program).arg("--version")).is_some());
    let Some(program) = found else { bail!("no {name}: install LLVM's tools (package `llvm`)") };
    Ok(Command::new(program))
}

/// `PATH` with the folder that `cargo install` writes to, which need not be in it.
pub fn path() -> Result<std::ffi::OsString> {
    workspace::path_with(&[workspace::cargo_home().join("bin")])
}

/// What is there, or an error that says what to run.
pub fn require() -> Result<(Compiler, String)> {
    llvm("objcopy")?;
    match (Compiler::find(), linker_version()) {
        (Some(compiler), Some(linker)) => Ok((compiler, linker)),
        (None, _) => bail!("no Rust compiler for the BPF target: run `cargo xtask setup`"),
        (_, None) => bail!("no bpf-linker: run `cargo xtask setup`"),
    }
}

/// Paths of this machine that would get into the object, each with what stands for it there.
pub fn remapped_paths(compiler: Compiler) -> Result<Vec<(PathBuf, String)>> {
    let mut paths = vec![(workspace::root().to_owned(), "/latency".to_owned())];
    let registries = workspace::cargo_home().join("registry/src");
    for registry in std::fs::read_dir(&registries).into_iter().flatten() {
        paths.push((registry?.path(), "/registry".to_owned()));
    }
    if let Some(sysroot) = compiler.sysroot() {
        // Debian has a link there: the compiler may name the link or what it stands for.
        let source = sysroot.join("lib/rustlib/src/rust");
        if let Ok(real) = source.canonicalize() {
            paths.push((real, "/rust".to_owned()));
        }
        paths.push((source, "/rust".to_owned()));
    }
    Ok(paths)
}

/// The first of these folders whose name stands in the object, with which it would tell where, and
/// under whose name, it was built.
pub fn leaked<'a>(object: &[u8], folders: &[&'a Path]) -> Option<&'a Path> {
    folders.iter().copied().find(|folder| {
        let name = folder.as_os_str().as_encoded_bytes();
        name.len() > 1 && object.windows(name.len()).any(|window| window == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that versions are read as compilers print them, and others are none.
    #[test]
    fn compiler_versions() {
        assert_eq!(minor("rustc 1.96.0 (ac68faa20 2026-05-25)"), Some(96));
        assert_eq!(minor("rustc 1.97.0-nightly (e50aa6fba 2026-05-19)"), Some(97));
        assert_eq!(minor("rustc 1.63.0"), Some(63));
        assert_eq!(minor("cargo 1.96.0"), None);
        assert!(None < Some(OLDEST_MINOR), "no compiler is no new one");
    }

    /// Check that a folder's name is found wherever it stands, and the root folder is no leak.
    #[test]
    fn leaks() {
        let home = Path::new("/home/somebody");
        assert_eq!(leaked(b"\0/home/somebody/x.rs\0", &[Path::new("/"), home]), Some(home));
        assert_eq!(leaked(b"\0/latency/x.rs\0", &[Path::new("/"), home]), None);
    }
}
