//! Libraries built for a test, in a folder that stands for the root of a target.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;

use super::super::image::Image;
use super::super::{Module, Origins, Symbolizer};
use crate::target::Root;

/// Where the library lies, in its root.
pub const LIBRARY: &str = "srv/x.so";

/// A library with a function that is not exported, one that is inlined, and one that calls another
/// file. The numbers of the lines matter.
pub const SOURCE: &str = "\
int puts(const char *text);
static inline __attribute__((always_inline)) int inlined_sign(int a) {
    return puts(\"inlined\") + a;
}
static __attribute__((noinline)) int hidden_sign(int a) {
    return inlined_sign(a) * 3;
}
int exported_sign(int a) {
    return hidden_sign(a) + 1;
}
";

pub struct Workshop {
    folder: TempDir,
}

impl Workshop {
    /// Builds the library with the compiler's `flags`; `None` where there is no compiler.
    pub fn new(flags: &[&str]) -> Option<Self> {
        Self::of(SOURCE, "c", flags)
    }

    /// The same of another source.
    pub fn of(source: &str, ending: &str, flags: &[&str]) -> Option<Self> {
        let workshop = Self { folder: tempfile::tempdir().unwrap() };
        let (source_file, whole) = (format!("x.{ending}"), workshop.path("whole.so"));
        workshop.put(&source_file, source.as_bytes());
        let source_file = workshop.path(&source_file);
        let compiler = if ending == "c" { "cc" } else { "c++" };
        let mut arguments = vec!["-shared", "-fPIC", "-O2", "-fno-semantic-interposition"];
        arguments.extend(flags);
        let files = ["-o", text(&whole), text(&source_file)];
        run(compiler, &[&arguments[..], &files].concat()).then_some(())?;
        workshop.put(LIBRARY, &std::fs::read(&whole).unwrap());
        Some(workshop)
    }

    /// A path in the root, for the tools.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file in the root, with its folders.
    pub fn put(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// `objcopy`, with paths in the root; whether it could.
    pub fn objcopy(&self, options: &[&str], files: &[&str]) -> bool {
        let files: Vec<PathBuf> = files.iter().map(|name| self.path(name)).collect();
        let files = files.iter().map(|path| text(path));
        run("objcopy", &options.iter().copied().chain(files).collect::<Vec<_>>())
    }

    /// Takes the library's symbols and debug information out, to a file of this name.
    pub fn split(&self, debug: &str) {
        self.put(debug, b"");
        assert!(self.objcopy(&["--only-keep-debug"], &["whole.so", debug]));
        assert!(self.objcopy(&["--strip-all"], &["whole.so", LIBRARY]));
    }

    pub fn origins(&self) -> Origins {
        Origins { roots: vec![Root::at(self.folder.path()).unwrap()], ..Origins::default() }
    }

    pub fn library(&self) -> Arc<File> {
        Arc::new(File::open(self.path(LIBRARY)).unwrap())
    }

    /// The library as the symbolizer reads it, and what it noted.
    pub fn image(&self, origins: &mut Origins) -> (Image, Vec<String>) {
        let mut notes = Vec::new();
        let path = Path::new("/").join(LIBRARY);
        (Image::of_file(&self.library(), &path, origins, &mut notes), notes)
    }

    /// Where a function begins, by the symbols of the library as it was built.
    pub fn address_of(&self, name: &str) -> u64 {
        self.range_of(name).0
    }

    /// Where a function begins and ends.
    pub fn range_of(&self, name: &str) -> (u64, u64) {
        let whole = Arc::new(File::open(self.path("whole.so")).unwrap());
        let image = super::image_of(&whole);
        let ranges = image.function_ranges();
        let has_name = |range: &&(u64, u64)| image.function(range.0).as_deref() == Some(name);
        *ranges.iter().find(has_name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// A symbolizer of a process that maps the library as a whole at this address.
    pub fn symbolizer(&self, start: u64, origins: Origins) -> Symbolizer {
        let module = Module {
            start,
            end: start + (1 << 20),
            name: "x.so".into(),
            path: Path::new("/").join(LIBRARY),
            file: Some(self.library()),
            ..Module::default()
        };
        Symbolizer::new(vec![module], origins)
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a program; whether there is one, and it succeeded.
pub fn run(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}
