//! Inlined functions and lines.

use super::super::Origins;
use super::workshop::{LIBRARY, Workshop, run, text};
use crate::recording::Frame;

/// Name, line, and whether inlined.
type Seen = (String, Option<u32>, bool);

const START: u64 = 0x7f00_0000_0000;

/// The frames of a call from within the inlined function, and what was noted.
fn frames(workshop: &Workshop, origins: Origins) -> (Vec<Seen>, Vec<String>) {
    let mut symbolizer = workshop.symbolizer(START, origins);
    // The inlined call of puts is somewhere in the function.
    let (start, end) = workshop.range_of("hidden_sign");
    let addresses: Vec<u64> = (START + start..START + end).collect();
    let of = |frame: &Frame| {
        let source = frame.source().map(|source| source.starts_with("x.c:"));
        assert_ne!(source, Some(false), "{frame:?}");
        (frame.function.clone().unwrap_or_default(), frame.line, frame.is_inlined)
    };
    let stacks: Vec<_> = addresses.iter().map(|&address| super::stack(&[address])).collect();
    let stacks = symbolizer.resolve(&stacks);
    let deepest = stacks.iter().max_by_key(|stack| stack.frames.len()).unwrap();
    (deepest.frames.iter().map(|frame| of(frame)).collect(), symbolizer.take_notes())
}

fn expected() -> Vec<Seen> {
    vec![("inlined_sign".into(), Some(3), true), ("hidden_sign".into(), Some(6), false)]
}

/// Check that inlined functions and lines come with `lines`, and not without, from sections that
/// are packed in each of the ways, and from a file of its own.
#[test]
fn packed_and_separate() {
    for flags in [&["-g"][..], &["-gdwarf-4"], &["-g", "-gz=zlib"], &["-g", "-gz=zstd"]] {
        let Some(workshop) = Workshop::new(flags) else {
            // Older tools have no zstd.
            println!("SKIPPED packed_and_separate {flags:?}: no compiler that knows this");
            continue;
        };
        let lines = || Origins { lines: true, ..workshop.origins() };
        let (without, notes) = frames(&workshop, workshop.origins());
        assert_eq!((without, notes.len()), (vec![("hidden_sign".into(), None, false)], 0));
        assert_eq!(frames(&workshop, lines()), (expected(), vec![]), "{flags:?}");

        workshop.split("srv/x.so.debug");
        let link = format!("--add-gnu-debuglink={}", text(&workshop.path("srv/x.so.debug")));
        assert!(workshop.objcopy(&[&link], &[LIBRARY]));
        assert_eq!(frames(&workshop, lines()), (expected(), vec![]), "{flags:?}");
    }
}

/// Check that what `dwz` moved to a file that several share is found there.
#[test]
fn shared_parts() {
    let workshop = Workshop::new(&["-gdwarf-4", "-Wl,--build-id"]);
    let Some(workshop) = workshop.filter(|_| run("dwz", &["--version"])) else {
        println!("SKIPPED shared_parts: no C compiler, or no dwz");
        return;
    };
    let library = std::fs::read(workshop.path(LIBRARY)).unwrap();
    workshop.put("srv/y.so", &library);
    let files = [LIBRARY, "srv/y.so"].map(|name| workshop.path(name));
    let shared = workshop.path("srv/shared.debug");
    let arguments = ["-L", "0", "-m", text(&shared), "-M", "shared.debug"];
    if !run("dwz", &[&arguments[..], &files.each_ref().map(|file| text(file))].concat())
        || !shared.exists()
    {
        println!("SKIPPED shared_parts: dwz finds nothing to share");
        return;
    }
    let lines = || Origins { lines: true, ..workshop.origins() };
    assert_eq!(frames(&workshop, lines()), (expected(), vec![]));
    // Without it, no names are made up.
    std::fs::remove_file(shared).unwrap();
    let (alone, _) = frames(&workshop, lines());
    assert!(alone.iter().all(|(name, ..)| name.is_empty() || name.ends_with("_sign")), "{alone:?}");
}

/// Check that damaged debug information leaves the symbols as they are, and is noted.
#[test]
fn damaged() {
    let Some(workshop) = Workshop::new(&["-g"]) else {
        println!("SKIPPED damaged: no C compiler");
        return;
    };
    let sections: Vec<String> = [".debug_abbrev", ".debug_info", ".debug_line"]
        .map(|section| {
            workshop.put("noise", &[0xff; 64]);
            format!("{section}={}", text(&workshop.path("noise")))
        })
        .to_vec();
    for section in &sections {
        workshop.put(LIBRARY, &std::fs::read(workshop.path("whole.so")).unwrap());
        assert!(workshop.objcopy(&["--update-section", section], &[LIBRARY]), "{section}");
        let (found, notes) = frames(&workshop, Origins { lines: true, ..workshop.origins() });
        assert_eq!(found.last().map(|frame| &*frame.0), Some("hidden_sign"), "{section}");
        assert!(notes.iter().all(|note| note.starts_with("/srv/x.so: ")), "{notes:?}");
    }
}

/// Check that debug information with any bytes changed is read without a panic.
#[test]
fn any_damage() {
    use proptest::test_runner::{Config, TestRunner};
    let Some(workshop) = Workshop::new(&["-g"]) else {
        println!("SKIPPED any_damage: no C compiler");
        return;
    };
    let whole = std::fs::read(workshop.path("whole.so")).unwrap();
    let damage = proptest::collection::vec((0..whole.len(), proptest::num::u8::ANY), 1..60);
    let mut runner =
        TestRunner::new(Config { cases: 40, failure_persistence: None, ..Config::default() });
    let survives = runner.run(&damage, |damage| {
        let mut bytes = whole.clone();
        for (at, byte) in damage {
            bytes[at] = byte;
        }
        workshop.put(LIBRARY, &bytes);
        let mut symbolizer =
            workshop.symbolizer(START, Origins { lines: true, ..workshop.origins() });
        let addresses: Vec<u64> = (START..START + 0x2000).step_by(16).collect();
        symbolizer.resolve(&[super::stack(&addresses)]);
        symbolizer.name_data(START + 0x4000);
        Ok(())
    });
    survives.unwrap();
}
