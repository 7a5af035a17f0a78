//! What an ELF file says that matters here. The file belongs to the target, so every byte of it may
//! be wrong: what cannot be read becomes a reason, never a panic, and no read is larger than a cap.

use std::collections::BTreeSet;
use std::fs::File;

use object::elf::{self, FileHeader64};
use object::read::elf::{
    Dyn as _, FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym as _,
};
use object::{Endianness, ReadCache, ReadRef};

use super::{Wanted, texts, version};

/// A defined function.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Function {
    /// Its name, without a version.
    pub name: String,
    /// `st_value`: the address as the file counts it.
    pub value: u64,
    /// Length in bytes; 0: the file does not say.
    pub size_bytes: u64,
    /// Whether the symbol names a resolver that returns the function's address.
    pub is_ifunc: bool,
}

/// An executable `PT_LOAD` segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// `p_vaddr`.
    pub virtual_address: u64,
    /// `p_offset`.
    pub file_offset: u64,
    /// `p_filesz`.
    pub size_bytes: u64,
}

/// What was read of an ELF file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ElfFacts {
    /// Why the file, or the rest of it, could not be read.
    pub unreadable: Option<String>,
    /// Whether it is a 32-bit file.
    pub is_32_bit: bool,
    /// The build id, in hexadecimal.
    pub build_id: Option<String>,
    /// The name that a shared library gives itself.
    pub soname: Option<String>,
    /// The libraries it was linked with.
    pub needed: Vec<String>,
    /// The wanted functions it defines, by name and value.
    pub functions: Vec<Function>,
    /// The wanted names it imports.
    pub imports: BTreeSet<String>,
    /// The wanted texts it mentions anywhere, such as names for `dlsym`; `None`: not searched.
    pub texts: Option<BTreeSet<String>>,
    /// A function by which it switches stacks: see [`super::Hazard::StackSwitching`].
    pub stack_switching: Option<String>,
    /// The segments that code is mapped from.
    pub executable_segments: Vec<Segment>,
    /// Whether it holds a Go runtime (`.gopclntab`).
    pub has_go_runtime: bool,
    /// Whether it names any function that it defines.
    pub has_symbols: bool,
    /// The version text of the OpenSSL (or a fork) that it holds, such as
    /// `OpenSSL 3.0.22 25 Aug 2026`; programs that use the library may hold that text, too.
    pub openssl_version: Option<String>,
}

impl ElfFacts {
    /// Whether the file may call, by name, a function whose name is or contains `text`.
    pub fn may_mention(&self, text: &str) -> bool {
        self.texts.as_ref().is_none_or(|texts| texts.contains(text))
    }

    /// The file offset of an address, if it lies in an executable segment.
    pub fn file_offset(&self, value: u64) -> Option<u64> {
        let segment = self.executable_segments.iter().find(|segment| {
            value.checked_sub(segment.virtual_address).is_some_and(|at| at < segment.size_bytes)
        })?;
        (value - segment.virtual_address).checked_add(segment.file_offset)
    }

    /// How many bytes of code lie from a file offset to the end of its executable segment.
    pub fn code_bytes_from(&self, file_offset: u64) -> Option<u64> {
        self.executable_segments.iter().find_map(|segment| {
            let at = file_offset.checked_sub(segment.file_offset)?;
            segment.size_bytes.checked_sub(at).filter(|&left| left > 0)
        })
    }
}

/// No single read is larger: a sparse file with huge sections must not eat the machine's memory.
const READ_CAP_BYTES: u64 = 512 << 20;
const NOTES_CAP_BYTES: u64 = 64 << 10;
const BUILD_ID_CAP_BYTES: usize = 64;
const SEGMENT_CAP: usize = 64;
const SECTION_CAP: usize = 16 << 10;
const NEEDED_CAP: usize = 4096;
const FUNCTION_CAP: usize = 64 << 10;
const NAME_CAP_BYTES: usize = 4096;

/// These never appear in a program that stays on its threads' stacks.
const STACK_SWITCHING: [&str; 6] = [
    "ASYNC_pause_job",
    "ASYNC_start_job",
    "swapcontext",
    "makecontext",
    "jump_fcontext",
    "make_fcontext",
];

/// Reads what is wanted of a file. It is read, not mapped: a file cut short while mapped would
/// kill the tracer with SIGBUS.
pub fn read(file: &File, wanted: &Wanted) -> ElfFacts {
    let cache = ReadCache::new(file);
    let mut facts = ElfFacts::default();
    if let Err(reason) = fill(&mut facts, Capped(&cache), &*wanted.is_name) {
        facts.unreadable = Some(reason);
    }
    if facts.unreadable.is_none() {
        facts.openssl_version = version::find(file, &version::ranges(Capped(&cache)));
        facts.texts =
            texts::ranges(Capped(&cache)).and_then(|ranges| wanted.texts.find(file, &ranges));
    }
    facts.functions.sort();
    facts.functions.dedup_by(|a, b| a.name == b.name && a.value == b.value);
    facts
}

/// Refuses reads beyond [`READ_CAP_BYTES`].
#[derive(Clone, Copy)]
pub(super) struct Capped<'data, 'file>(&'data ReadCache<&'file File>);

impl<'data> ReadRef<'data> for Capped<'data, '_> {
    fn len(self) -> Result<u64, ()> {
        self.0.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'data [u8], ()> {
        if size > READ_CAP_BYTES { Err(()) } else { self.0.read_bytes_at(offset, size) }
    }

    fn read_bytes_at_until(
        self,
        range: std::ops::Range<u64>,
        delimiter: u8,
    ) -> Result<&'data [u8], ()> {
        self.0.read_bytes_at_until(range, delimiter)
    }
}

pub(super) type Header = FileHeader64<Endianness>;
type Section = elf::SectionHeader64<Endianness>;
type Sections<'data, 'file> = SectionTable<'data, Header, Capped<'data, 'file>>;

fn fill<'data>(
    facts: &mut ElfFacts,
    data: Capped<'data, '_>,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<(), String> {
    let ident = data.read_bytes_at(0, 16).map_err(|()| "it is too short for an ELF file")?;
    if !ident.starts_with(&elf::ELFMAG) {
        return Err("it is no ELF file".into());
    }
    if ident[4] == elf::ELFCLASS32 {
        facts.is_32_bit = true;
        return Err("it is a 32-bit file, which is not supported".into());
    }
    let text = |error: object::read::Error| error.to_string();
    let header = Header::parse(data).map_err(text)?;
    let endian = header.endian().map_err(text)?;
    let machine = header.e_machine(endian);
    if machine != NATIVE_MACHINE {
        return Err(format!("it is built for another machine (ELF machine {machine})"));
    }
    let segments = header.program_headers(endian, data).map_err(text)?;
    for segment in segments {
        let is_code = segment.p_type(endian) == elf::PT_LOAD
            && segment.p_flags(endian) & elf::PF_X != 0
            && segment.p_filesz(endian) != 0;
        if is_code && facts.executable_segments.len() < SEGMENT_CAP {
            facts.executable_segments.push(Segment {
                virtual_address: segment.p_vaddr(endian),
                file_offset: segment.p_offset(endian),
                size_bytes: segment.p_filesz(endian),
            });
        }
    }
    let notes = segments.iter().filter(|segment| {
        segment.p_type(endian) == elf::PT_NOTE && segment.p_filesz(endian) <= NOTES_CAP_BYTES
    });
    facts.build_id = notes.take(SEGMENT_CAP).find_map(|segment| {
        let mut notes = segment.notes(endian, data).ok()??;
        while let Ok(Some(note)) = notes.next() {
            if note.n_type(endian) == elf::NT_GNU_BUILD_ID && note.name() == elf::ELF_NOTE_GNU {
                let id = note.desc().iter().take(BUILD_ID_CAP_BYTES);
                return Some(id.map(|byte| format!("{byte:02x}")).collect());
            }
        }
        None
    });

    let sections = header.sections(endian, data).map_err(text)?;
    if sections.is_empty() {
        return Err("it has no section headers, so its symbols cannot be found".into());
    }
    if sections.len() > SECTION_CAP {
        return Err(format!("it has {} sections, more than any program", sections.len()));
    }
    facts.has_go_runtime = sections.iter().any(|section| {
        let name = sections.section_name(endian, section).unwrap_or_default();
        name == b".gopclntab" || name == b".data.rel.ro.gopclntab"
    });
    read_dynamic(facts, endian, data, &sections);
    let mut switching = Switching::default();
    let mut is_damaged = false;
    for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
        if let Some(section) = sections.iter().find(|section| section.sh_type(endian) == kind) {
            let table = (section, kind == elf::SHT_DYNSYM);
            is_damaged |=
                read_symbols(facts, &mut switching, endian, data, &sections, table, wanted)
                    .is_none();
        }
    }
    facts.stack_switching = switching.verdict(facts.soname.as_deref());
    if is_damaged { Err("its symbol table is damaged".into()) } else { Ok(()) }
}

#[cfg(target_arch = "x86_64")]
const NATIVE_MACHINE: u16 = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const NATIVE_MACHINE: u16 = elf::EM_AARCH64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const NATIVE_MACHINE: u16 = elf::EM_NONE;

/// `DT_SONAME` and `DT_NEEDED`.
fn read_dynamic<'data, 'file>(
    facts: &mut ElfFacts,
    endian: Endianness,
    data: Capped<'data, 'file>,
    sections: &Sections<'data, 'file>,
) {
    let Ok(Some((entries, strings))) = sections.dynamic(endian, data) else { return };
    let strings = sections.section(strings).ok().and_then(|it| it.data(endian, data).ok());
    let Some(strings) = strings else { return };
    for entry in entries {
        let name = || {
            let at = usize::try_from(entry.d_val(endian)).ok()?;
            Some(String::from_utf8_lossy(string_at(strings, at)?).into_owned())
        };
        match entry.d_tag(endian) as u32 {
            elf::DT_NULL => break,
            elf::DT_SONAME => facts.soname = name(),
            elf::DT_NEEDED if facts.needed.len() < NEEDED_CAP => facts.needed.extend(name()),
            _ => {}
        }
    }
}

/// How a file stands to switching stacks.
#[derive(Default)]
struct Switching {
    used: Option<String>,
    is_libcrypto: bool,
}

impl Switching {
    /// libcrypto brings the ASYNC functions and libssl offers them; neither uses them unasked.
    fn verdict(self, soname: Option<&str>) -> Option<String> {
        let is_libssl = soname.is_some_and(|name| name.starts_with("libssl.so"));
        if self.is_libcrypto || is_libssl { None } else { self.used }
    }
}

/// Reads one symbol table; `None` if it does not fit its file. The table and its names are read in
/// one piece each, since a read for each name would be slow, and freed with the cache.
fn read_symbols<'data, 'file>(
    facts: &mut ElfFacts,
    switching: &mut Switching,
    endian: Endianness,
    data: Capped<'data, 'file>,
    sections: &Sections<'data, 'file>,
    (table, is_dynamic): (&Section, bool),
    wanted: &dyn Fn(&str) -> bool,
) -> Option<()> {
    if table.sh_size(endian) == 0 {
        return Some(());
    }
    let symbols: &[elf::Sym64<Endianness>] = table.data_as_array(endian, data).ok()?;
    let strings = sections.section(table.link(endian)).ok()?.data(endian, data).ok()?;
    for symbol in symbols {
        let kind = symbol.st_type();
        let is_function = kind == elf::STT_FUNC || kind == elf::STT_GNU_IFUNC;
        let is_undefined = symbol.st_shndx(endian) == elf::SHN_UNDEF;
        // An undefined symbol may be of no type.
        if !is_function && !is_undefined {
            continue;
        }
        let name = usize::try_from(symbol.st_name(endian)).ok();
        let Some(name) = name.and_then(|at| string_at(strings, at)) else { continue };
        let Ok(name) = str::from_utf8(name) else { continue };
        let name = name.split('@').next().unwrap_or(name);
        if name.is_empty() {
            continue;
        }
        if is_undefined {
            if is_dynamic && STACK_SWITCHING.contains(&name) {
                switching.used.get_or_insert_with(|| name.to_owned());
            }
            if is_dynamic && wanted(name) {
                facts.imports.insert(name.to_owned());
            }
            continue;
        }
        facts.has_symbols = true;
        match name {
            "EVP_DigestSign" | "EVP_DigestSignFinal" => switching.is_libcrypto = true,
            // Boost.Context is mostly linked in statically; libc's swapcontext always is there.
            "jump_fcontext" | "make_fcontext" => {
                switching.used.get_or_insert_with(|| name.to_owned());
            }
            _ => {}
        }
        let value = symbol.st_value(endian);
        if value != 0 && wanted(name) && facts.functions.len() < FUNCTION_CAP {
            facts.functions.push(Function {
                name: name.to_owned(),
                value,
                size_bytes: symbol.st_size(endian),
                is_ifunc: kind == elf::STT_GNU_IFUNC,
            });
        }
    }
    Some(())
}

/// The bytes up to a NUL.
fn string_at(strings: &[u8], at: usize) -> Option<&[u8]> {
    let rest = strings.get(at..)?;
    let rest = rest.get(..NAME_CAP_BYTES).unwrap_or(rest);
    rest.get(..rest.iter().position(|&byte| byte == 0)?)
}

#[cfg(test)]
#[path = "elf_tests.rs"]
mod tests;
