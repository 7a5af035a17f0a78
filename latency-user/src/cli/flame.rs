//! `latency flame`: a flame graph of a recording.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::args::FlameArgs;
use crate::recording::{self, Recording};
use crate::render::flame::{self, Options};

/// Runs `latency flame`.
///
/// # Errors
/// The recording cannot be read, or has no such operation, or the graph cannot be written.
pub fn run(args: &FlameArgs) -> Result<()> {
    let recording = recording::read(&args.file)?;
    check_operation(args, &recording)?;
    let named = recording.locks.iter();
    let lock_names = named.filter_map(|lock| Some((lock.address, lock.name.clone()?))).collect();
    let options = Options {
        view: args.view.into(),
        in_operation: args.in_operation,
        operation: args.operation.as_deref(),
        lock_names: &lock_names,
    };
    let graph = if args.folded {
        flame::fold(&recording, &options).into_bytes()
    } else {
        let mut svg = Vec::new();
        flame::write(&recording, &options, &mut svg)?;
        svg
    };
    match output(args, &options) {
        None => super::print(&graph),
        Some(path) => {
            write(&path, &graph).with_context(|| {
                format!("cannot write {}; name another file with -o", path.display())
            })?;
            if args.output.is_none() {
                eprintln!("wrote {}", path.display());
            }
            Ok(())
        }
    }
}

/// Where the graph goes; `None`: to standard output.
fn output(args: &FlameArgs, options: &Options<'_>) -> Option<PathBuf> {
    match &args.output {
        Some(path) if path == Path::new("-") => None,
        Some(path) => Some(path.clone()),
        None if args.folded => None,
        None => Some(args.file.with_extension(format!("{}.svg", options.view.name()))),
    }
}

/// A name mistyped must not look like an operation that never waited.
fn check_operation(args: &FlameArgs, recording: &Recording) -> Result<()> {
    let Some(wanted) = &args.operation else { return Ok(()) };
    let measured = recording.rows.iter().map(|row| row.operation.as_str());
    let waited = recording
        .waits
        .iter()
        .flat_map(|wait| [&wait.operation, &wait.request])
        .filter_map(|name| name.as_deref());
    let mut known: Vec<&str> = measured.chain(waited).collect();
    known.sort_unstable();
    known.dedup();
    if known.contains(&wanted.as_str()) {
        return Ok(());
    }
    let file = args.file.display();
    if known.is_empty() {
        bail!("{file} has no operation \"{wanted}\", nor any other; leave out --operation");
    }
    bail!("{file} has no operation \"{wanted}\"; it has {}", known.join(", "));
}

/// Writes a file in one step: under its name there is never half of it. What is no regular file,
/// such as a pipe, is written to, not replaced.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        OpenOptions::new().write(true).open(path)?.write_all(bytes)?;
        return Ok(());
    }
    // Behind a symbolic link, the file is replaced and not the link.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut temporary = tempfile::Builder::new()
        .prefix(".latency-flame")
        // As any new file: what the umask leaves of it.
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .with_context(|| format!("cannot make a file in {}", folder.display()))?;
    temporary.write_all(bytes)?;
    temporary.persist(&path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that a file is replaced as a whole, and a link to it kept.
    #[test]
    fn replaces_files() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("out.svg"), folder.path().join("link.svg"));
        write(&file, b"first").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, b"second").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"second");
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    /// Check that a device stays a device, and that errors name the folder.
    #[test]
    fn awkward_outputs() {
        use std::os::unix::fs::FileTypeExt as _;
        write(Path::new("/dev/null"), b"x").unwrap();
        assert!(Path::new("/dev/null").metadata().unwrap().file_type().is_char_device());
        let error = write(Path::new("/nonexistent/out.svg"), b"x").unwrap_err();
        assert!(format!("{error:#}").contains("/nonexistent"), "{error:#}");
        assert!(write(Path::new("/proc"), b"x").is_err());
    }
}
