//! What the committed eBPF object was built from.
//!
//! The one source of this algorithm: `build.rs` of `latency-user` checks with it that the object is
//! not older than its sources, and `cargo xtask build-ebpf` writes with it. It stands beside the
//! object so that a packaged `latency-user` carries it.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use sha2::{Digest as _, Sha256};

/// The contents of `latency.bpf.digest`: one `key value` pair a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    /// SHA-256 over the paths and contents of every source file, in hex.
    pub sources: String,
    /// SHA-256 of the object file, in hex.
    pub object: String,
    /// The compiler and linker that built the object, for people to read.
    pub toolchain: String,
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "sources {}", self.sources)?;
        writeln!(f, "object {}", self.object)?;
        writeln!(f, "toolchain {}", self.toolchain)
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
                .map(str::to_owned)
                .ok_or_else(|| format!("it has no line `{key} …`"))
        };
        Ok(Self {
            sources: value("sources")?,
            object: value("object")?,
            toolchain: value("toolchain")?,
        })
    }
}

/// The SHA-256 of an object file's bytes, in hex.
pub fn of_object(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes).as_slice())
}

/// The SHA-256 over all that the eBPF object is built from, in hex; `None` where the sources are not
/// there, as in a packaged crate.
pub fn of_sources(workspace: &Path) -> io::Result<Option<String>> {
    if !workspace.join("latency-ebpf/Cargo.toml").is_file() {
        return Ok(None);
    }
    let mut hash = Sha256::new();
    for relative in source_files(workspace)? {
        let content = fs::read(workspace.join(&relative))?;
        // Lengths first, so that no two lists of files can give the same stream of bytes.
        let name = relative.to_string_lossy().into_owned();
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
        hash.update((content.len() as u64).to_le_bytes());
        hash.update(&content);
    }
    Ok(Some(hex(hash.finalize().as_slice())))
}

/// The files that the object is built from, relative to the workspace and sorted.
pub fn source_files(workspace: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = vec![PathBuf::from("latency-common/Cargo.toml")];
    walk(workspace, Path::new("latency-common/src"), &mut files)?;
    walk(workspace, Path::new("latency-ebpf"), &mut files)?;
    files.sort();
    Ok(files)
}

fn walk(workspace: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(workspace.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if path != Path::new("latency-ebpf/target") {
                walk(workspace, &path, files)?;
            }
        } else if is_source(&path) {
            files.push(path);
        }
    }
    Ok(())
}

/// Editors leave files beside the sources; only what cargo and rustc read counts.
fn is_source(path: &Path) -> bool {
    let hidden = path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
    let extension = path.extension().and_then(|extension| extension.to_str());
    !hidden && matches!(extension, Some("rs" | "toml" | "lock"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace() -> PathBuf {
        let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("tests are run by cargo");
        PathBuf::from(package).join("..")
    }

    /// Check that what is written is what is read.
    #[test]
    fn round_trip() {
        let digest = Digest {
            sources: "01ab".to_owned(),
            object: "cd23".to_owned(),
            toolchain: "rustc 1.96.0 (x), bpf-linker 0.13.0".to_owned(),
        };
        assert_eq!(digest.to_string().parse(), Ok(digest));
    }

    /// Check that a digest file with a line missing is refused by the line's name.
    #[test]
    fn missing_line() {
        let error = "sources 01\ntoolchain x\n".parse::<Digest>().unwrap_err();
        assert!(error.contains("object"), "{error}");
    }

    /// Check that a folder without the eBPF sources is not an error: a packaged crate has none.
    #[test]
    fn no_sources() {
        assert_eq!(of_sources(Path::new("/nonexistent")).unwrap(), None);
    }

    /// Check that one changed byte, one moved byte and one renamed file each change the digest.
    #[test]
    fn every_change_counts() {
        let folder = std::env::temp_dir().join(format!("latency-digest-{}", std::process::id()));
        let write = |name: &str, content: &str| {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        write("latency-common/Cargo.toml", "c");
        write("latency-common/src/lib.rs", "ab");
        write("latency-ebpf/Cargo.toml", "e");
        write("latency-ebpf/src/main.rs", "cd");
        let first = of_sources(&folder).unwrap();

        write("latency-ebpf/target/debug/build.rs", "built");
        write("latency-ebpf/src/.main.rs.swp", "editor");
        assert_eq!(of_sources(&folder).unwrap(), first, "files that are no source");

        write("latency-common/src/lib.rs", "abc");
        write("latency-ebpf/src/main.rs", "d");
        let moved = of_sources(&folder).unwrap();
        assert_ne!(moved, first, "a byte moved from one file to another");

        fs::rename(folder.join("latency-ebpf/src/main.rs"), folder.join("latency-ebpf/src/a.rs"))
            .unwrap();
        assert_ne!(of_sources(&folder).unwrap(), moved, "a renamed file");
        fs::remove_dir_all(folder).unwrap();
    }

    /// Check that the workspace's own list holds the shared crate and no built file.
    #[test]
    fn own_list() {
        if of_sources(&workspace()).unwrap().is_none() {
            return;
        }
        let files = source_files(&workspace()).unwrap();
        assert!(files.contains(&PathBuf::from("latency-common/src/lib.rs")));
        assert!(files.iter().all(|file| !file.starts_with("latency-ebpf/target")));
    }
}
