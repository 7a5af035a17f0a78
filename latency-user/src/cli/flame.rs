//! `latency flame`: a flame graph of a recording.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::args::FlameArgs;
use crate::recording::{self, Recording};
use crate::render::flame::{self, Options, Side, View};

/// Runs `latency flame`.
///
/// # Errors
/// A recording cannot be read, or has no such operation, or the graph cannot be written.
pub fn run(args: &FlameArgs) -> Result<()> {
    let recording = recording::read(&args.file)?;
    let mut svg = Vec::new();
    let graph = if let Some(older) = &args.diff {
        let before = recording::read(older)?;
        // An operation may be new, or gone: one of the two has it.
        if check_operation(args, &args.file, &recording).is_err() {
            check_operation(args, older, &before)?;
        }
        let names = [comparable_names(&before), comparable_names(&recording)];
        let sides = [
            Side { recording: &before, options: options(args, &names[0]) },
            Side { recording: &recording, options: options(args, &names[1]) },
        ];
        for (side, file) in sides.iter().zip([older, &args.file]) {
            if side.operations() == 0 {
                bail!(
                    "no operation completed in {}: there is nothing to compare per operation",
                    file.display()
                );
            }
        }
        if args.folded {
            flame::fold_diff(&sides[0], &sides[1]).into_bytes()
        } else {
            flame::write_diff(&sides[0], &sides[1], &mut svg)?;
            svg
        }
    } else {
        check_operation(args, &args.file, &recording)?;
        let names = lock_names(&recording);
        let options = options(args, &names);
        if args.folded {
            flame::fold(&recording, &options).into_bytes()
        } else {
            flame::write(&recording, &options, &mut svg)?;
            svg
        }
    };
    match output(args) {
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

fn options<'a>(args: &'a FlameArgs, lock_names: &'a BTreeMap<u64, String>) -> Options<'a> {
    Options {
        view: args.view.into(),
        in_operation: args.in_operation,
        operation: args.operation.as_deref(),
        with_lines: args.lines,
        lock_names,
    }
}

fn lock_names(recording: &Recording) -> BTreeMap<u64, String> {
    let named = recording.locks.iter();
    named.filter_map(|lock| Some((lock.address, lock.name.clone()?))).collect()
}

/// Names of locks for a comparison: an address means nothing in another process.
fn comparable_names(recording: &Recording) -> BTreeMap<u64, String> {
    let waits = recording.waits.iter().filter(|wait| wait.futex_address != 0);
    let mut names: BTreeMap<u64, String> =
        waits.map(|wait| (wait.futex_address, "[unnamed lock]".to_owned())).collect();
    names.extend(lock_names(recording));
    names
}

/// Where the graph goes; `None`: to standard output.
fn output(args: &FlameArgs) -> Option<PathBuf> {
    match &args.output {
        Some(path) if path == Path::new("-") => None,
        Some(path) => Some(path.clone()),
        None if args.folded => None,
        None => {
            let diff = if args.diff.is_some() { ".diff" } else { "" };
            let view = View::from(args.view).name();
            Some(args.file.with_extension(format!("{view}{diff}.svg")))
        }
    }
}

/// A name mistyped must not look like an operation that never waited.
fn check_operation(args: &FlameArgs, file: &Path, recording: &Recording) -> Result<()> {
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
    let file = file.display();
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
