//! Code that has no file: made at run time, or by the kernel.

use std::path::PathBuf;

use super::super::{Module, Origins, PerfMapOf, Symbolizer};
use crate::target::Root;

const CODE: u64 = 0x2000_0000;

fn symbolizer(folder: &std::path::Path, uid: u32) -> Symbolizer {
    let module = |start, end, name: &str| Module {
        start,
        end,
        name: name.into(),
        path: PathBuf::from(name),
        ..Module::default()
    };
    let roots = vec![Root::at(folder).unwrap()];
    let perf_map = Some(PerfMapOf { own_pid: 7, uid });
    Symbolizer::new(
        vec![module(CODE, CODE + 0x1000, ""), module(0x7fff_0000, 0x7fff_1000, "[uprobes]")],
        Origins { roots, perf_map, ..Origins::default() },
    )
}

fn name(symbolizer: &mut Symbolizer, address: u64) -> (Option<String>, String) {
    let frame = symbolizer.resolve(&[super::stack(&[address])]).remove(0).frames.remove(0);
    (frame.function.clone(), frame.module.clone())
}

/// Check that the map in the target's own root names code without a file, as it is at the time of
/// each list of stacks, also where nothing was mapped when the trace began.
#[test]
fn perf_map() {
    let folder = tempfile::tempdir().unwrap();
    let own = std::os::unix::fs::MetadataExt::uid(&folder.path().metadata().unwrap());
    let mut symbolizer = symbolizer(folder.path(), own);
    let jit = |name: &str| (Some(name.to_owned()), "[JIT]".to_owned());
    assert_eq!(name(&mut symbolizer, CODE), (None, String::new()));
    std::fs::create_dir(folder.path().join("tmp")).unwrap();
    let map = folder.path().join("tmp/perf-7.map");
    std::fs::write(&map, "20000000 20 sign v1\n30000000 20 later\n").unwrap();
    assert_eq!(name(&mut symbolizer, CODE + 0x1f), jit("sign v1"));
    assert_eq!(name(&mut symbolizer, CODE + 0x20), (None, String::new()));
    assert_eq!(name(&mut symbolizer, 0x3000_0000), jit("later"));
    std::fs::write(&map, "20000000 20 sign v1\n20000000 40 sign v2\n").unwrap();
    assert_eq!(name(&mut symbolizer, CODE + 0x1f), jit("sign v2"));
    assert_eq!(symbolizer.take_notes(), [""; 0]);
}

/// Check that a map that belongs to somebody else names nothing, and is noted.
#[test]
fn perf_map_of_another_user() {
    let folder = tempfile::tempdir().unwrap();
    let own = std::os::unix::fs::MetadataExt::uid(&folder.path().metadata().unwrap());
    std::fs::create_dir(folder.path().join("tmp")).unwrap();
    let map = folder.path().join("tmp/perf-7.map");
    std::fs::write(&map, "20000000 20 made_up\n").unwrap();
    if own == 0 {
        std::os::unix::fs::chown(&map, Some(65_534), None).unwrap();
    }
    let mut symbolizer = symbolizer(folder.path(), own + 1);
    assert_eq!(name(&mut symbolizer, CODE), (None, String::new()));
    let notes = symbolizer.take_notes();
    assert!(matches!(&notes[..], [note] if note.contains("/tmp/perf-7.map")), "{notes:?}");
}

/// Check that the trampolines of probes are one frame, whatever the address.
#[test]
fn probe_trampolines() {
    let folder = tempfile::tempdir().unwrap();
    let expected = (Some("[uprobes]".to_owned()), "[uprobes]".to_owned());
    assert_eq!(name(&mut symbolizer(folder.path(), 0), 0x7fff_0040), expected);
}
