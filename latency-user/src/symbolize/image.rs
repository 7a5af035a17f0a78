//! What an ELF file says about its addresses. The file is the target's, so every byte of it may be
//! wrong: what cannot be read is missing, and nothing is read beyond a cap.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _};
use object::{Endianness, ReadCache, ReadRef};

use super::index::{Index, Names, Symbol, demangled};

/// Where separate symbols lie by build id, as Debian's `-dbgsym` and Fedora's `-debuginfo` packages
/// put them.
const DEBUG_FOLDER: &str = "/usr/lib/debug/.build-id";
/// A section that is larger is not read: a sparse file must not eat the machine's memory.
const SECTION_CAP_BYTES: u64 = 512 << 20;
const NOTES_CAP_BYTES: u64 = 64 << 10;
const SEGMENT_CAP: usize = 64;
const SECTION_CAP: usize = 16 << 10;
const PAGE_BYTES: u64 = 4096;

/// A `PT_LOAD` segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    virtual_address: u64,
    file_offset: u64,
    file_bytes: u64,
    memory_bytes: u64,
}

/// An ELF file's segments and symbols.
#[derive(Default, Debug)]
pub(super) struct Image {
    segments: Vec<Segment>,
    functions: Index,
    objects: Index,
    names: Names,
}

/// What is read of one file: an image in the making.
#[derive(Default)]
struct Parts {
    segments: Vec<Segment>,
    build_id: Vec<u8>,
    functions: Vec<Symbol>,
    objects: Vec<Symbol>,
    names: Names,
}

impl Image {
    /// Reads a file, and the separate symbols of its build id where they are installed. The file
    /// is read, not mapped: one cut short while mapped would kill the tracer with SIGBUS.
    pub fn of_file(file: &File) -> Self {
        let mut parts = Parts::default();
        let cache = ReadCache::new(Positioned { file, position: 0 });
        // What was read before the failure is still right.
        let _ = parts.read(&cache, true);
        if let Some(path) = debug_path(&parts.build_id)
            && let Ok(separate) = File::open(path)
        {
            parts.read_separate(&separate);
        }
        parts.finish()
    }

    /// Reads an image that lies in memory, as the vdso does.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let mut parts = Parts::default();
        let _ = parts.read(bytes, true);
        parts.finish()
    }

    /// The address, as the file counts it, of a byte of the file.
    pub fn virtual_address(&self, file_offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let at = file_offset.checked_sub(segment.file_offset)?;
            (at < segment.file_bytes).then(|| segment.virtual_address.checked_add(at))?
        })
    }

    /// Where in the file the first page of the image lies, and its address as the file counts it.
    pub fn first_page(&self) -> Option<(u64, u64)> {
        let first = self.segments.iter().min_by_key(|segment| segment.virtual_address)?;
        let page = |address: u64| address / PAGE_BYTES * PAGE_BYTES;
        Some((page(first.file_offset), page(first.virtual_address)))
    }

    /// Whether the image has memory at an address, `.bss` included.
    pub fn holds(&self, virtual_address: u64) -> bool {
        self.segments.iter().any(|segment| {
            virtual_address
                .checked_sub(segment.virtual_address)
                .is_some_and(|at| at < segment.memory_bytes)
        })
    }

    /// The function that covers an address.
    pub fn function(&self, virtual_address: u64) -> Option<String> {
        let symbol = self.functions.covering(virtual_address)?;
        Some(demangled(self.names.get(symbol))).filter(|name| !name.is_empty())
    }

    /// The variable that covers an address, and the offset within it.
    pub fn object(&self, virtual_address: u64) -> Option<(String, u64)> {
        let symbol = self.objects.covering(virtual_address)?;
        let name = demangled(self.names.get(symbol));
        (!name.is_empty()).then(|| (name, virtual_address - symbol.start))
    }

    #[cfg(test)]
    pub fn function_ranges(&self) -> Vec<(u64, u64)> {
        self.functions.symbols().iter().map(|symbol| (symbol.start, symbol.end)).collect()
    }
}

impl Parts {
    fn read<'data, R: ReadRef<'data>>(&mut self, data: R, is_main: bool) -> Option<()> {
        let header = FileHeader64::<Endianness>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let mut build_id = Vec::new();
        for segment in header.program_headers(endian, data).ok()?.iter().take(SEGMENT_CAP) {
            if segment.p_type(endian) == elf::PT_LOAD && is_main {
                self.segments.push(Segment {
                    virtual_address: segment.p_vaddr(endian),
                    file_offset: segment.p_offset(endian),
                    file_bytes: segment.p_filesz(endian),
                    memory_bytes: segment.p_memsz(endian),
                });
            }
            if segment.p_type(endian) == elf::PT_NOTE && segment.p_filesz(endian) <= NOTES_CAP_BYTES
            {
                let Ok(Some(mut notes)) = segment.notes(endian, data) else { continue };
                while let Ok(Some(note)) = notes.next() {
                    if note.n_type(endian) == elf::NT_GNU_BUILD_ID
                        && note.name() == elf::ELF_NOTE_GNU
                    {
                        build_id = note.desc().to_vec();
                    }
                }
            }
        }
        if is_main {
            self.build_id = build_id;
        } else if self.build_id != build_id {
            // Symbols of another build would name the wrong functions.
            return None;
        }
        let sections = header.sections(endian, data).ok()?;
        for section in sections.iter().take(SECTION_CAP) {
            if ![elf::SHT_SYMTAB, elf::SHT_DYNSYM].contains(&section.sh_type(endian)) {
                continue;
            }
            let strings = sections.section(section.link(endian)).ok()?;
            if [section, strings].iter().any(|part| part.sh_size(endian) > SECTION_CAP_BYTES) {
                continue;
            }
            let symbols: &[elf::Sym64<Endianness>] = section.data_as_array(endian, data).ok()?;
            let table = self.names.add(strings.data(endian, data).ok()?.to_vec());
            for symbol in symbols {
                self.keep(symbol, endian, table);
            }
        }
        Some(())
    }

    /// Adds a symbol, if it names a function or a variable of a known size. One without a size is
    /// mostly a label within a function, as glibc's `__syscall_cancel_arch_end`.
    fn keep(&mut self, symbol: &elf::Sym64<Endianness>, endian: Endianness, table: u32) {
        let section = symbol.st_shndx(endian);
        if section == elf::SHN_UNDEF || section == elf::SHN_ABS {
            return;
        }
        let start = symbol.st_value(endian);
        let Some(end) = start.checked_add(symbol.st_size(endian)).filter(|&end| end > start) else {
            return;
        };
        let (list, mut rank) = match symbol.st_type() {
            elf::STT_FUNC => (&mut self.functions, 0),
            // Its code is the resolver's.
            elf::STT_GNU_IFUNC => (&mut self.functions, 4),
            // Assembly that does not declare its functions.
            elf::STT_NOTYPE => (&mut self.functions, 8),
            elf::STT_OBJECT | elf::STT_COMMON => (&mut self.objects, 0),
            _ => return,
        };
        rank += match symbol.st_bind() {
            // glibc's public names are weak, and the internal ones beside them global.
            elf::STB_GLOBAL | elf::STB_GNU_UNIQUE | elf::STB_WEAK => 0,
            _ => 1,
        };
        list.push(Symbol { start, end, table, name: symbol.st_name(endian), rank });
    }

    /// Adds the symbols of a separate file, if it belongs to this one.
    fn read_separate(&mut self, file: &File) {
        let cache = ReadCache::new(Positioned { file, position: 0 });
        let _ = self.read(&cache, false);
    }

    fn finish(self) -> Image {
        let Self { segments, functions, objects, names, build_id: _ } = self;
        let functions = Index::new(functions, &names);
        let objects = Index::new(objects, &names);
        Image { segments, functions, objects, names }
    }
}

fn debug_path(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    if rest.is_empty() || rest.len() > 63 {
        return None;
    }
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(Path::new(DEBUG_FOLDER).join(format!("{first:02x}/{rest}.debug")))
}

/// A file that is read at a position of its own: others that hold the same open file may move
/// theirs.
struct Positioned<'file> {
    file: &'file File,
    position: u64,
}

impl Read for Positioned<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read_at(buffer, self.position)?;
        self.position = self.position.saturating_add(length as u64);
        Ok(length)
    }
}

impl Seek for Positioned<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(by) => self.file.metadata()?.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
