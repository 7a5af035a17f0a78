use std::path::Path;

use super::*;
use crate::target::parse_maps;

mod debug_files;
mod lines;
mod run_time;
mod workshop;

/// A variable with a symbol and an address of its own, in `.bss`.
static TEST_LOCK: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
/// Another one, in `.data`.
static TEST_TABLE: std::sync::Mutex<[u64; 8]> = std::sync::Mutex::new([7; 8]);

#[inline(never)]
fn a_function_to_find(value: u64) -> u64 {
    std::hint::black_box(value).wrapping_mul(3)
}

/// The mappings of the test's own process, with their files.
fn own_modules() -> Vec<Module> {
    let maps = std::fs::read("/proc/self/maps").unwrap();
    let mappings: Vec<_> = parse_maps(&maps).collect();
    let mut modules = modules_of(&mappings, &[]);
    for (module, mapping) in modules.iter_mut().zip(&mappings) {
        module.file = File::open(&mapping.path)
            .ok()
            .filter(|file| file.metadata().is_ok_and(|metadata| metadata.is_file()))
            .map(Arc::new);
    }
    modules
}

fn image_of(file: &Arc<File>) -> Image {
    Image::of_file(file, Path::new("/nowhere/x"), &mut Origins::default(), &mut Vec::new())
}

fn stack(frames: &[u64]) -> RawStack {
    RawStack { id: 7, frames: frames.to_vec(), ..RawStack::default() }
}

/// Check that functions of the program, of the C library and of the vdso get their names, and that
/// the rest of a stack is passed on.
#[test]
fn own_process() {
    let function = a_function_to_find as *const () as u64;
    let getpid = libc::getpid as *const () as u64;
    let raw = RawStack {
        id: 42,
        frames: vec![function, getpid + 1, 0x10],
        truncated: Some("too deep".into()),
        used_frame_pointer: true,
    };
    let stacks = Symbolizer::new(own_modules(), Origins::default()).resolve(&[raw]);
    let [stack] = &stacks[..] else { panic!("{stacks:?}") };
    assert_eq!((stack.id, stack.truncated.as_deref()), (42, Some("too deep")));
    assert!(stack.used_frame_pointer);
    let [own, libc, unmapped] = &stack.frames[..] else { panic!("{stack:?}") };
    assert!(own.function.as_deref().unwrap().ends_with("::a_function_to_find"), "{own:?}");
    assert_eq!(own.address, function);
    assert_eq!(libc.function.as_deref(), Some("getpid"));
    assert!(libc.module.starts_with("libc"), "{libc:?}");
    let nothing = Frame { address: 0x10, module_address: 0x10, ..Frame::default() };
    assert_eq!(**unmapped, nothing);
}

/// Check that a return address is looked up in the call before it, and the innermost address is
/// not.
#[test]
fn return_addresses() {
    let mut symbolizer = Symbolizer::new(own_modules(), Origins::default());
    let start = a_function_to_find as *const () as u64;
    let stacks = symbolizer.resolve(&[stack(&[start, start])]);
    let [inner, outer] = &stacks[0].frames[..] else { panic!("{stacks:?}") };
    assert!(inner.function.as_deref().unwrap().ends_with("a_function_to_find"));
    assert!(!outer.function.as_deref().unwrap_or("").ends_with("a_function_to_find"));
    assert_eq!(inner.module_address, outer.module_address);
    assert_eq!(symbolizer.resolve(&[stack(&[0, 0])])[0].frames[1].address, 0);
}

/// Check that an address between two functions of the C library is none of them.
#[test]
fn between_symbols() {
    let modules = own_modules();
    let of_getpid = |module: &&Module| module.holds(libc::getpid as *const () as u64);
    let module = modules.iter().find(of_getpid).unwrap().clone();
    let image = image_of(module.file.as_ref().unwrap());
    let ranges = image.function_ranges();
    let first = image.virtual_address(module.file_offset).unwrap();
    let last = first + (module.end - module.start) - 1;
    let mut reach = 0;
    let gap = ranges.iter().find_map(|&(start, end)| {
        let gap = (reach > first && reach < start && start < last).then_some(reach);
        reach = reach.max(end);
        gap
    });
    let gap = gap.expect("functions of the C library are aligned");
    let address = module.start + (gap - first);
    let stacks = Symbolizer::new(modules, Origins::default()).resolve(&[stack(&[address])]);
    let frame = &stacks[0].frames[0];
    assert_eq!((frame.function.as_deref(), frame.module_address), (None, gap), "{frame:?}");
    assert!(frame.module.starts_with("libc"), "{frame:?}");
}

/// Check that a function whose symbol was taken out is not called after its neighbours, in a file
/// deleted since.
#[test]
fn stripped_middle_function() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("three.c"), folder.path().join("three.so"));
    let text = "int first(int a) { return a * 3; }\n\
                int middle(int a) { return a * 5 + first(a); }\n\
                int last(int a) { return a * 7; }\n\
                int zeroed[32]; int filled[4] = {1, 2, 3, 4};\n";
    std::fs::write(&source, text).unwrap();
    let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
        std::process::Command::new(program).args(arguments).status().is_ok_and(|it| it.success())
    };
    let (o, path) = (std::ffi::OsStr::new, library.as_os_str());
    let flags = ["-shared", "-fPIC", "-O1", "-fno-inline", "-o"].map(o);
    if !run("cc", &[&flags[..], &[path, source.as_os_str()]].concat()) {
        println!("SKIPPED stripped_middle_function: no C compiler");
        return;
    }
    let whole = image_of(&Arc::new(File::open(&library).unwrap()));
    let ranges = whole.function_ranges();
    let named = |name: &str| {
        let has_name = |range: &&(u64, u64)| whole.function(range.0).as_deref() == Some(name);
        *ranges.iter().find(has_name).unwrap()
    };
    let (first, middle) = (named("first"), named("middle"));
    // The dynamic table cannot be edited, so only the other one is left.
    if !run("objcopy", &[o("-N"), o("middle"), o("-R"), o(".dynsym"), path])
        && !run("objcopy", &[o("-N"), o("middle"), path])
    {
        println!("SKIPPED stripped_middle_function: no objcopy");
        return;
    }
    let file = Arc::new(File::open(&library).unwrap());
    drop(folder);
    let image = image_of(&file);
    println!("{:x?} {:x?}", ranges, image.function_ranges());
    assert_eq!(image.function(first.1 - 1).as_deref(), Some("first"));
    if image.function(middle.0).as_deref() == Some("middle") {
        println!("SKIPPED stripped_middle_function: objcopy keeps .dynsym");
        return;
    }
    assert_eq!(image.function(middle.0), None);
    assert_eq!(image.function(middle.1 - 1), None);
}

/// Check that variables get their names, with and without an offset, in `.data` and `.bss`, and
/// that other memory is named by its mapping.
#[test]
fn data() {
    TEST_LOCK.store(1, std::sync::atomic::Ordering::Relaxed);
    let heap = Box::new(0_u64);
    let on_stack = 0_u64;
    let mut symbolizer = Symbolizer::new(own_modules(), Origins::default());
    let lock = &raw const TEST_LOCK as u64;
    let name = symbolizer.name_data(lock).unwrap();
    assert!(name.starts_with("latency_user-"), "{name}");
    assert!(name.ends_with("::TEST_LOCK"), "{name}");
    let table = &raw const TEST_TABLE as u64;
    let name = symbolizer.name_data(table + 16).unwrap();
    assert!(name.ends_with("::TEST_TABLE+0x10"), "{name}");
    // The heap and the stack of a test's thread are memory without a name.
    for address in [&raw const *heap as u64, &raw const on_stack as u64] {
        let name = symbolizer.name_data(address).unwrap_or_default();
        assert!(name.is_empty() || name.starts_with("[heap]+0x"), "{name}");
    }
    assert_eq!(symbolizer.name_data(0x10), None);
    assert_eq!(symbolizer.name_data(u64::MAX), None);
}

/// Check that a function of the vdso is named from the image in memory.
#[test]
fn vdso() {
    let modules = own_modules();
    let Some(module) = modules.iter().find(|module| module.name == "[vdso]").cloned() else {
        println!("SKIPPED vdso: this kernel maps none");
        return;
    };
    let image = Image::of_bytes(module.bytes.as_ref().unwrap());
    let named = |range: &(u64, u64)| image.function(range.0).is_some_and(|it| it.contains("time"));
    let clock = image.function_ranges().into_iter().find(named).unwrap();
    let stacks =
        Symbolizer::new(modules, Origins::default()).resolve(&[stack(&[module.start + clock.0])]);
    let frame = &stacks[0].frames[0];
    assert_eq!(frame.module, "[vdso]");
    assert_eq!(frame.function, image.function(clock.0));
}

/// Check that a mapping made later takes the place of what it overlaps.
#[test]
fn remapped() {
    let module =
        |start, end, name: &str| Module { start, end, name: name.into(), ..Module::default() };
    let mut symbolizer = Symbolizer::new(
        vec![module(0x3000, 0x5000, "b"), module(0x1000, 0x3000, "a")],
        Origins::default(),
    );
    let names = |symbolizer: &mut Symbolizer| {
        let frames =
            symbolizer.resolve(&[stack(&[0x1000, 0x2800, 0x3800, 0x4801])]).remove(0).frames;
        frames.into_iter().map(|frame| frame.module.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&mut symbolizer), ["a", "a", "b", "b"]);
    symbolizer.extend(vec![module(0x2000, 0x4000, "c"), module(9, 9, "empty")]);
    assert_eq!(names(&mut symbolizer), ["", "c", "c", ""]);
}

/// Check that damaged files give fewer names and no panic.
#[test]
fn damaged_files() {
    let bytes = std::fs::read("/proc/self/exe").unwrap();
    let header = &bytes[..4096.min(bytes.len())];
    for cut in [0, 1, 4, 16, 63, 64, 100, header.len()] {
        Image::of_bytes(&header[..cut]).function(0x1000);
    }
    for at in 0..256 {
        let mut damaged = header.to_vec();
        damaged[at] ^= 0xff;
        Image::of_bytes(&damaged).object(0x1000);
    }
}
