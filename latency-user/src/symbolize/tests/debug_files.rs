//! Names from debug information that is not in the mapped file's own tables.

use super::super::image::Image;
use super::super::separate::build_id_path;
use super::workshop::{LIBRARY, Workshop, run, text};

const NO_TOOLS: &str = "no C compiler, or no objcopy";

/// The names at the function that is exported, and at the one that is not.
fn names(workshop: &Workshop, image: &Image) -> (Option<String>, Option<String>) {
    let name = |function| image.function(workshop.address_of(function));
    (name("exported_sign"), name("hidden_sign"))
}

fn some(name: &str) -> Option<String> {
    Some(name.to_owned())
}

/// Check that a function that is in MiniDebugInfo only is named, and that without it, it is not
/// called after its neighbour; what is damaged is noted with the file's name.
#[test]
fn mini_debug_info() {
    let Some(workshop) = Workshop::new(&["-g"]) else {
        println!("SKIPPED mini_debug_info: {NO_TOOLS}");
        return;
    };
    let keep = ["--strip-all", "--keep-symbol=hidden_sign"];
    if !workshop.objcopy(&keep, &["whole.so", "mini"])
        || !run("xz", &["--keep", text(&workshop.path("mini"))])
    {
        println!("SKIPPED mini_debug_info: no objcopy, or no xz");
        return;
    }
    assert!(workshop.objcopy(&["--strip-all"], &["whole.so", LIBRARY]));
    let (image, notes) = workshop.image(&mut workshop.origins());
    assert_eq!(names(&workshop, &image), (some("exported_sign"), None));
    assert_eq!(notes, [""; 0]);

    let packed = format!(".gnu_debugdata={}", text(&workshop.path("mini.xz")));
    assert!(workshop.objcopy(&["--add-section", &packed], &[LIBRARY]));
    let (image, notes) = workshop.image(&mut workshop.origins());
    assert_eq!(names(&workshop, &image), (some("exported_sign"), some("hidden_sign")));
    assert_eq!(notes, [""; 0]);

    let mut damaged = std::fs::read(workshop.path("mini.xz")).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0xff;
    workshop.put("damaged", &damaged);
    let packed = format!(".gnu_debugdata={}", text(&workshop.path("damaged")));
    assert!(workshop.objcopy(&["--update-section", &packed], &[LIBRARY]));
    let (image, notes) = workshop.image(&mut workshop.origins());
    assert_eq!(names(&workshop, &image), (some("exported_sign"), None));
    assert!(matches!(&notes[..], [note] if note.starts_with("/srv/x.so: ")), "{notes:?}");
}

/// Check that a linked file is found in all three places, that the first one right is taken, and
/// that one with another checksum is not used, and noted.
#[test]
fn debug_link() {
    let Some(workshop) = Workshop::new(&["-g", "-Wl,--build-id=none"]) else {
        println!("SKIPPED debug_link: {NO_TOOLS}");
        return;
    };
    workshop.split("x.so.debug");
    let link = format!("--add-gnu-debuglink={}", text(&workshop.path("x.so.debug")));
    assert!(workshop.objcopy(&[&link], &[LIBRARY]));
    let debug = std::fs::read(workshop.path("x.so.debug")).unwrap();
    let damaged = [&debug[..], b"x"].concat();

    let (image, notes) = workshop.image(&mut workshop.origins());
    assert_eq!(names(&workshop, &image), (some("exported_sign"), None));
    assert_eq!(notes, [""; 0]);
    let places = ["srv/x.so.debug", "srv/.debug/x.so.debug", "usr/lib/debug/srv/x.so.debug"];
    for (damaged_before, place) in places.into_iter().enumerate() {
        workshop.put(place, &debug);
        let (image, notes) = workshop.image(&mut workshop.origins());
        assert_eq!(names(&workshop, &image).1, some("hidden_sign"), "{place}");
        assert_eq!(notes.len(), damaged_before, "{place}: {notes:?}");

        workshop.put(place, &damaged);
        let (image, notes) = workshop.image(&mut workshop.origins());
        assert_eq!(names(&workshop, &image), (some("exported_sign"), None), "{place}");
        let is_noted = notes.iter().any(|note| note.starts_with(&format!("/{place} is not used")));
        assert!(is_noted, "{place}: {notes:?}");
    }
}

/// Check that a file of the same build id is found through the target's root, or else through the
/// second one, and that one of another build, or no ELF file, is not used, and noted.
#[test]
fn build_id() {
    let flags = |id| ["-g".to_owned(), format!("-Wl,--build-id=0x{id}")];
    let build = |id| {
        let flags = flags(id);
        Workshop::new(&flags.each_ref().map(String::as_str))
    };
    let (Some(workshop), Some(other)) = (build("ab00000000000001"), build("cd00000000000002"))
    else {
        println!("SKIPPED build_id: {NO_TOOLS}");
        return;
    };
    let path = build_id_path(&[0xab, 0, 0, 0, 0, 0, 0, 1]).unwrap();
    let place = text(path.strip_prefix("/").unwrap()).to_owned();
    workshop.split("debug");
    other.split("debug");
    let read = |file: &Workshop| std::fs::read(file.path("debug")).unwrap();

    let (image, _) = workshop.image(&mut workshop.origins());
    assert_eq!(names(&workshop, &image).1, None);
    for (content, why) in [(read(&other), "another build"), (b"no ELF file".to_vec(), "damaged")] {
        workshop.put(&place, &content);
        let (image, notes) = workshop.image(&mut workshop.origins());
        assert_eq!(names(&workshop, &image), (some("exported_sign"), None));
        let [note] = &notes[..] else { panic!("{notes:?}") };
        assert!(note.starts_with(&format!("/{place} is not used")) && note.contains(why), "{note}");
    }
    other.put(&place, &read(&workshop));
    let mut origins = workshop.origins();
    origins.roots.extend(other.origins().roots);
    let (image, notes) = workshop.image(&mut origins);
    assert_eq!((names(&workshop, &image).1, notes.len()), (some("hidden_sign"), 1));
    workshop.put(&place, &read(&workshop));
    let (image, notes) = workshop.image(&mut workshop.origins());
    assert_eq!((names(&workshop, &image).1, notes.len()), (some("hidden_sign"), 0));
}

/// Check that C++ variables have the names people write.
#[test]
fn cpp_statics() {
    let source = "namespace keys { static int store[4]; int *table() { return store; } \
                  struct Vault { static long lock; }; long Vault::lock = 1; }";
    let Some(workshop) = Workshop::of(source, "cc", &[]) else {
        println!("SKIPPED cpp_statics: no C++ compiler");
        return;
    };
    let (image, _) = workshop.image(&mut workshop.origins());
    let found: Vec<String> = image.object_names();
    for name in ["keys::store", "keys::Vault::lock"] {
        assert!(found.iter().any(|found| found == name), "no {name} in {found:?}");
    }
}

/// Check that stubs are called after the function behind them, as objdump does, for each of the
/// ways to make them.
#[test]
fn stubs() {
    for flags in [&[][..], &["-fcf-protection=none", "-Wl,-z,lazy"], &["-Wl,-z,ibtplt"]] {
        let Some(workshop) = Workshop::new(flags) else {
            println!("SKIPPED stubs: {NO_TOOLS}");
            return;
        };
        let objdump = std::process::Command::new("objdump")
            .args(["-d", text(&workshop.path(LIBRARY))])
            .output();
        let Ok(objdump) = objdump else {
            println!("SKIPPED stubs: no objdump");
            return;
        };
        let listing = String::from_utf8(objdump.stdout).unwrap();
        let labels = listing.lines().filter_map(|line| {
            let (address, label) = line.split_once(" <")?;
            let name = label.strip_suffix(">:").filter(|name| name.ends_with("@plt"))?;
            Some((u64::from_str_radix(address, 16).ok()?, name))
        });
        let (image, _) = workshop.image(&mut workshop.origins());
        let labels: Vec<(u64, &str)> = labels.collect();
        assert!(labels.iter().any(|(_, name)| *name == "puts@plt"), "{flags:?}: {listing}");
        // With two sections of stubs, the first holds what is behind the second.
        let last = labels.iter().map(|&(address, name)| (name, address));
        let last: std::collections::BTreeMap<&str, u64> = last.collect();
        for (name, address) in last {
            for at in [address, address + 4, address + 7] {
                assert_eq!(image.function(at).as_deref(), Some(name), "{flags:?} {at:#x}");
            }
        }
    }
}
