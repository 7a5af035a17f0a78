//! `cargo xtask build-ebpf`: the eBPF object from its sources.

use std::{ffi::OsString, fs, path::Path};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{
    digest::{self, Digest},
    process,
    toolchain::{self, Compiler},
    workspace,
};

const OBJECT: &str = "latency-user/ebpf/latency.bpf.o";
const DIGEST: &str = "latency-user/ebpf/latency.bpf.digest";
const TRIPLE: &str = "bpfel-unknown-none";

/// Build the eBPF object from latency-ebpf and put it where it is committed.
///
/// Needs the toolchain of `cargo xtask setup`. The committed object comes with a digest of its
/// sources; `latency` does not build with an object that is older than them.
#[derive(Args)]
pub struct BuildEbpf {
    /// Leave the committed object alone: fail if it is older than its sources, and build
    /// target/ebpf/latency.bpf.o to compare it with
    #[arg(long)]
    check: bool,
}

impl BuildEbpf {
    /// Builds, and writes or compares.
    pub fn run(&self) -> Result<()> {
        let committed = if self.check { Some(check_committed()?) } else { None };
        let (compiler, linker) = toolchain::require()?;
        let toolchain = format!("{}, {linker}", compiler.version().unwrap_or_default());
        eprintln!("xtask: building the eBPF object with {toolchain}");

        let target = workspace::target()?.join("ebpf");
        let built = build(compiler, &target, self.check)?;
        let fresh = target.join("latency.bpf.o");
        fs::write(&fresh, &built).with_context(|| fresh.display().to_string())?;

        match committed {
            Some(committed) => compare(&committed, &built, &toolchain, &fresh),
            None => return commit(&built, toolchain),
        }
        Ok(())
    }
}

/// Compiles and links; the result carries no path of this machine.
///
/// BTF is made from the compiler's debug information, which is then dropped: the kernel and the
/// loader read BTF only, and it is nine tenths of the file. So are BTF's lines (see [`without_lines`]).
/// With it, and with the hashes in symbols, goes what depends on where the workspace is: cargo hashes the absolute path of `latency-common`,
/// which is outside the crate's own workspace.
fn build(compiler: Compiler, target: &Path, locked: bool) -> Result<Vec<u8>> {
    let manifest = workspace::root().join("latency-ebpf/Cargo.toml");
    if !manifest.is_file() {
        bail!("latency-ebpf/Cargo.toml is not there: the sources of the eBPF object are missing");
    }
    let lock: &[&str] = if locked { &["--locked"] } else { &[] };
    // The registry's folders must be there before their names can be replaced.
    process::run(
        compiler.cargo().args(["fetch", "--quiet", "--manifest-path"]).arg(&manifest).args(lock),
    )?;

    let remapped = toolchain::remapped_paths(compiler)?;
    let mut flags: Vec<String> = [
        "--cfg=bpf_target_arch=\"x86_64\"",
        "-Clinker=bpf-linker",
        // Atomic operations that give the old value; in every kernel since 5.12.
        "-Ctarget-cpu=v3",
        "-Cdebuginfo=2",
        "-Clink-arg=--btf",
    ]
    .map(str::to_owned)
    .into();
    for (from, to) in &remapped {
        flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    }
    let build_folder = target.join("build");
    process::run(
        compiler
            .cargo()
            .args(["build", "--release", "--target", TRIPLE, "-Zbuild-std=core"])
            .args(lock)
            .arg("--target-dir")
            .arg(&build_folder)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
            .env("PATH", toolchain::path()?)
            .current_dir(workspace::root().join("latency-ebpf")),
    )?;

    let linked = build_folder.join(TRIPLE).join("release/latency-ebpf");
    let path = linked.with_extension("stripped");
    let symbols = process::output(toolchain::llvm("nm")?.arg("-j").arg(&linked))?;
    let mut strip = toolchain::llvm("objcopy")?;
    strip.arg("-g");
    for (old, new) in symbols.lines().filter_map(|name| Some((name, without_hashes(name)?))) {
        strip.arg(format!("--redefine-sym={old}={new}"));
    }
    let ext_path = linked.with_extension("btf-ext");
    process::run(strip.arg(dump_or_update("dump", &ext_path)).arg(&linked).arg(&path))?;
    let ext = fs::read(&ext_path).with_context(|| ext_path.display().to_string())?;
    fs::write(&ext_path, without_lines(&ext)?).with_context(|| ext_path.display().to_string())?;
    process::run(
        toolchain::llvm("objcopy")?
            .arg("--remove-section=.rel.BTF.ext")
            .arg(dump_or_update("update", &ext_path))
            .arg(&path),
    )?;
    let object = fs::read(&path).with_context(|| path.display().to_string())?;
    let home = workspace::cargo_home();
    let mut folders = vec![home.as_path(), target];
    folders.extend(remapped.iter().map(|(from, _)| from.as_path()));
    if let Some(folder) = toolchain::leaked(&object, &folders) {
        bail!(
            "the eBPF object would carry the path {}: add it to the remapped ones",
            folder.display()
        );
    }
    Ok(object)
}

/// objcopy's option that takes `.BTF.ext` out of an object to a file, or in from there.
fn dump_or_update(what: &str, path: &Path) -> OsString {
    let mut option = OsString::from(format!("--{what}-section=.BTF.ext="));
    option.push(path);
    option
}

/// The section `.BTF.ext` with the types of functions, and without the lines of the source: they are half
/// of the object, and aya 0.14 puts those of a function that it links to a program at wrong places
/// where the function's first line is not at its first instruction, such that kernels refuse the
/// program.
fn without_lines(ext: &[u8]) -> Result<Vec<u8>> {
    // `struct btf_ext_header` of Linux, in words: what the section is, the header's length, then the
    // offset from the header's end and the length of the functions, the lines, and the relocations.
    let word = |index: usize| -> Result<u32> {
        let bytes =
            ext.get(4 * index..4 * index + 4).context("the object's .BTF.ext is cut off")?;
        Ok(u32::from_le_bytes(bytes.try_into()?))
    };
    let (header_bytes, functions_at, functions_bytes) = (word(1)?, word(2)?, word(3)?);
    if header_bytes != 32 || functions_at != 0 || word(7)? != 0 {
        bail!("the object's .BTF.ext has another layout than bpf-linker is known to give it");
    }
    let kept = ext.get(..(header_bytes + functions_bytes) as usize);
    let mut kept = kept.context("the object's .BTF.ext is cut off")?.to_vec();
    for (index, value) in [(4, functions_bytes), (5, 0), (6, functions_bytes)] {
        kept[4 * index..4 * index + 4].copy_from_slice(&u32::to_le_bytes(value));
    }
    Ok(kept)
}

/// A mangled name without the hashes of crates (`Cs…_` before a crate's name); `None` for others.
fn without_hashes(name: &str) -> Option<String> {
    let mut rest = name.strip_prefix("_R")?;
    let mut short = "_R".to_owned();
    while let Some(at) = rest.find("Cs") {
        let (before, hash) = (&rest[..=at], &rest[at + 2..]);
        short.push_str(before);
        rest = match hash.split_once('_') {
            Some((digits, after))
                if digits.bytes().all(|byte| byte.is_ascii_alphanumeric())
                    && after.starts_with(|c: char| c.is_ascii_digit()) =>
            {
                after
            }
            _ => &rest[at + 1..],
        };
    }
    Some(short + rest)
}

/// The committed object and its digest, provided that it is as new as its sources.
fn check_committed() -> Result<(Vec<u8>, Digest)> {
    let root = workspace::root();
    let object = fs::read(root.join(OBJECT)).context(OBJECT)?;
    let digest: Digest = fs::read_to_string(root.join(DIGEST))
        .context(DIGEST)?
        .parse()
        .map_err(|err| anyhow::anyhow!("{DIGEST}: {err}"))?;
    if digest.object != digest::of_object(&object) {
        bail!("{OBJECT} is not the file that its digest describes; run `cargo xtask build-ebpf`");
    }
    if Some(&digest.sources) != sources()?.as_ref() {
        bail!("{OBJECT} is older than its sources; run `cargo xtask build-ebpf`");
    }
    Ok((object, digest))
}

fn sources() -> Result<Option<String>> {
    digest::of_sources(workspace::root()).context("the sources of the eBPF object")
}

/// Says whether the committed object came out again. Another compiler gives other instructions for
/// the same sources, so a difference is no failure: the tests are run on both.
fn compare((old, digest): &(Vec<u8>, Digest), new: &[u8], toolchain: &str, fresh: &Path) {
    let fresh = workspace::shown(fresh);
    if old == new {
        println!("{fresh} is byte for byte the committed object");
    } else {
        println!(
            "{fresh} ({} bytes) differs from the committed object ({} bytes)",
            new.len(),
            old.len()
        );
        println!("  committed: {}", digest.toolchain);
        println!("  here:      {toolchain}");
    }
}

/// Writes the object and its digest where they are committed.
fn commit(object: &[u8], toolchain: String) -> Result<()> {
    let digest = Digest {
        // After the build, which may have written the lock file.
        sources: sources()?.context("latency-ebpf went away during the build")?,
        object: digest::of_object(object),
        toolchain,
    };
    replace(OBJECT, object)?;
    replace(DIGEST, digest.to_string().as_bytes())?;
    println!("{OBJECT}: {} bytes, sha256 {}", object.len(), digest.object);
    Ok(())
}

/// Writes a file whole or not at all.
fn replace(name: &str, content: &[u8]) -> Result<()> {
    let path = workspace::root().join(name);
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, content)
        .and_then(|()| fs::rename(&temporary, &path))
        .with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that the lines go, and the functions stay as they are.
    #[test]
    fn lines_go() {
        let words =
            |words: &[u32]| words.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<_>>();
        let ext = words(&[0x1_eb9f, 32, 0, 8, 8, 12, 20, 0, 71, 72, 81, 82, 83]);
        let kept = words(&[0x1_eb9f, 32, 0, 8, 8, 0, 8, 0, 71, 72]);
        assert_eq!(without_lines(&ext).unwrap(), kept);
        assert!(without_lines(&ext[..36]).is_err(), "cut off inside the functions");
        assert!(without_lines(&words(&[0x1_eb9f, 24, 0, 8, 8, 12, 20, 0, 71, 72])).is_err());
    }

    /// Check that hashes of crates go, and nothing else does.
    #[test]
    fn hashes_of_crates() {
        let name =
            "_RNCINvNtCseHV8ngBj0m2_12latency_ebpf5calls5enterNtCse2PK4nGYbwf_8aya_ebpf5proc";
        let short = "_RNCINvNtC12latency_ebpf5calls5enterNtC8aya_ebpf5proc";
        assert_eq!(without_hashes(name).as_deref(), Some(short));
        assert_eq!(without_hashes("_RNvCs_Csx").as_deref(), Some("_RNvCs_Csx"));
        assert_eq!(without_hashes("call_entry"), None);
    }
}
