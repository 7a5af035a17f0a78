//! Embeds the eBPF object, and refuses one that is older than its sources.
//!
//! The object is committed so that this crate builds with stable Rust alone. Should somebody change
//! the sources and forget to rebuild it, the tool would run something else than what is read.

#[path = "ebpf/digest.rs"]
mod digest;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::exit,
};

const OBJECT: &str = "latency-user/ebpf/latency.bpf.o";
const REBUILD: &str = "run `cargo xtask build-ebpf` (once: `cargo xtask setup`)";

fn main() {
    if let Err(message) = embed() {
        println!("cargo::error={message}");
        exit(1);
    }
}

fn embed() -> Result<(), String> {
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let workspace = package.join("..");
    let embedded = Path::new(&variable("OUT_DIR")?).join("latency.bpf.o");

    println!("cargo::rerun-if-env-changed=LATENCY_EBPF_OBJECT");
    let bytes = match env::var_os("LATENCY_EBPF_OBJECT").filter(|value| !value.is_empty()) {
        Some(other) => {
            // The build script runs in the package's folder; people name paths from the workspace.
            let other = workspace.join(other);
            println!("cargo::rerun-if-changed={}", other.display());
            fs::read(&other)
                .map_err(|err| format!("LATENCY_EBPF_OBJECT names {}: {err}", other.display()))?
        }
        None => committed(&package, &workspace)?,
    };

    fs::write(&embedded, &bytes).map_err(|err| format!("{}: {err}", embedded.display()))?;
    println!("cargo::rustc-env=LATENCY_BPF_OBJECT={}", embedded.display());
    println!("cargo::rustc-env=LATENCY_BPF_DIGEST={}", digest::of_object(&bytes));
    Ok(())
}

/// The committed object, once its digest file has been held against it and against the sources.
fn committed(package: &Path, workspace: &Path) -> Result<Vec<u8>, String> {
    let object = package.join("ebpf/latency.bpf.o");
    let digest_file = package.join("ebpf/latency.bpf.digest");
    println!("cargo::rerun-if-changed={}", object.display());
    println!("cargo::rerun-if-changed={}", digest_file.display());

    let bytes = fs::read(&object).map_err(|err| format!("{OBJECT}: {err}; {REBUILD}"))?;
    let digest: digest::Digest = fs::read_to_string(&digest_file)
        .map_err(|err| err.to_string())
        .and_then(|text| text.parse())
        .map_err(|err| format!("latency-user/ebpf/latency.bpf.digest: {err}; {REBUILD}"))?;
    if digest.object != digest::of_object(&bytes) {
        return Err(format!("{OBJECT} is not the file that its digest describes; {REBUILD}"));
    }

    let sources = digest::of_sources(workspace)
        .map_err(|err| format!("the sources of {OBJECT} cannot be read: {err}"))?;
    let Some(sources) = sources else { return Ok(bytes) };
    watch(workspace).map_err(|err| format!("the sources of {OBJECT} cannot be read: {err}"))?;
    if digest.sources != sources {
        return Err(format!("{OBJECT} is older than its sources; {REBUILD}"));
    }
    Ok(bytes)
}

/// Runs this script again when a source changes, comes or goes; never because of the eBPF crate's
/// own target folder, which a watch on the whole crate would include.
fn watch(workspace: &Path) -> std::io::Result<()> {
    for file in digest::source_files(workspace)? {
        println!("cargo::rerun-if-changed={}", workspace.join(file).display());
    }
    for folder in ["latency-common/src", "latency-ebpf/src"] {
        println!("cargo::rerun-if-changed={}", workspace.join(folder).display());
    }
    Ok(())
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|err| format!("{name}: {err}; build scripts are run by cargo"))
}
