//! What is read of an ELF file's tables. The file is the target's, so every byte of it may be wrong:
//! what cannot be read is missing, and nothing is read beyond a cap.

use std::fs::File;

use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _};
use object::{Endianness, ReadCache, ReadRef};

use super::index::{Index, Names, Symbol};
use super::read_at::Positioned;

/// A section that is larger is not read: a sparse file must not eat the machine's memory.
pub(super) const SECTION_CAP_BYTES: u64 = 512 << 20;
const NOTES_CAP_BYTES: u64 = 64 << 10;
/// A file name, and a checksum or a build id.
const LINK_CAP_BYTES: u64 = 8 << 10;
/// MiniDebugInfo of the largest programs is some megabytes.
const PACKED_CAP_BYTES: u64 = 64 << 20;
const SEGMENT_CAP: usize = 64;
const SECTION_CAP: usize = 16 << 10;

/// A `PT_LOAD` segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub virtual_address: u64,
    pub file_offset: u64,
    pub file_bytes: u64,
    pub memory_bytes: u64,
}

/// Where a file says that its debug information lies: `.gnu_debuglink`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DebugLink {
    /// A file's name, without a folder.
    pub name: Vec<u8>,
    /// CRC-32 of that file.
    pub crc: u32,
}

/// Which file is being read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// The one that is mapped.
    Mapped,
    /// The one inside it, MiniDebugInfo.
    Embedded,
    /// One beside it, with symbols or debug information only.
    Separate,
}

/// Why a file was not read to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Damaged,
    OtherBuild,
}

impl Fault {
    pub fn text(self) -> &'static str {
        match self {
            Self::Damaged => "it is damaged, or no ELF file",
            Self::OtherBuild => "it belongs to another build (the build ids differ)",
        }
    }
}

/// An image in the making.
#[derive(Default)]
pub(super) struct Parts {
    pub segments: Vec<Segment>,
    pub build_id: Vec<u8>,
    pub debug_link: Option<DebugLink>,
    /// The contents of `.gnu_debugdata`.
    pub packed: Option<Vec<u8>>,
    /// Whether there is a whole `.symtab`.
    pub has_symbols: bool,
    /// Whether the file read last has `.debug_info`.
    pub has_debug_info: bool,
    pub functions: Vec<Symbol>,
    pub objects: Vec<Symbol>,
    pub names: Names,
}

impl Parts {
    pub fn read_file(&mut self, file: &File, role: Role) -> Result<(), Fault> {
        let cache = ReadCache::new(Positioned::new(file));
        self.read(&cache, role)
    }

    /// Adds what a file says. What was read before a failure is kept: it is still right.
    pub fn read<'data, R: ReadRef<'data>>(&mut self, data: R, role: Role) -> Result<(), Fault> {
        let damaged = |_| Fault::Damaged;
        let header = FileHeader64::<Endianness>::parse(data).map_err(damaged)?;
        let endian = header.endian().map_err(damaged)?;
        let mut build_id = Vec::new();
        let segments = header.program_headers(endian, data).map_err(damaged)?;
        for segment in segments.iter().take(SEGMENT_CAP) {
            if segment.p_type(endian) == elf::PT_LOAD && role == Role::Mapped {
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
        match role {
            Role::Mapped => self.build_id = build_id,
            // Symbols of another build would name the wrong functions.
            Role::Separate if self.build_id != build_id => return Err(Fault::OtherBuild),
            Role::Separate | Role::Embedded => {}
        }
        let sections = header.sections(endian, data).map_err(damaged)?;
        self.has_debug_info = false;
        for section in sections.iter().take(SECTION_CAP) {
            let kind = section.sh_type(endian);
            if kind == elf::SHT_SYMTAB || kind == elf::SHT_DYNSYM {
                let strings = sections.section(section.link(endian)).map_err(damaged)?;
                if [section, strings].iter().any(|part| part.sh_size(endian) > SECTION_CAP_BYTES) {
                    continue;
                }
                let symbols: &[elf::Sym64<Endianness>] =
                    section.data_as_array(endian, data).map_err(damaged)?;
                let strings = strings.data(endian, data).map_err(damaged)?;
                let table = self.names.add(strings.to_vec());
                for symbol in symbols {
                    self.keep(symbol, endian, table);
                }
                // MiniDebugInfo has no variables, so that the whole table is still wanted.
                self.has_symbols |= kind == elf::SHT_SYMTAB && role != Role::Embedded;
            }
            if kind != elf::SHT_PROGBITS {
                continue;
            }
            let content = |cap_bytes| {
                let is_small = section.sh_size(endian) <= cap_bytes;
                is_small.then(|| section.data(endian, data).ok()).flatten()
            };
            match sections.section_name(endian, section).unwrap_or_default() {
                b".debug_info" | b".zdebug_info" => self.has_debug_info = true,
                b".gnu_debuglink" if role == Role::Mapped => {
                    self.debug_link = content(LINK_CAP_BYTES).and_then(debug_link);
                }
                b".gnu_debugdata" if role == Role::Mapped => {
                    self.packed = content(PACKED_CAP_BYTES).map(<[u8]>::to_vec);
                }
                _ => {}
            }
        }
        Ok(())
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

    /// The functions and the variables, sorted, with their names.
    pub fn indexed(&mut self) -> (Index, Index, Names) {
        let names = std::mem::take(&mut self.names);
        let functions = Index::new(std::mem::take(&mut self.functions), &names);
        let objects = Index::new(std::mem::take(&mut self.objects), &names);
        (functions, objects, names)
    }
}

/// `.gnu_debuglink`: a name, zeros up to a multiple of four, and a checksum.
fn debug_link(section: &[u8]) -> Option<DebugLink> {
    let name = section.split(|&byte| byte == 0).next()?;
    let at = (name.len() + 1).next_multiple_of(4);
    let crc = u32::from_le_bytes(section.get(at..at + 4)?.try_into().ok()?);
    let is_plain = !name.is_empty() && !name.contains(&b'/') && name != b"." && name != b"..";
    is_plain.then(|| DebugLink { name: name.to_vec(), crc })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that a link is read with its padding, and that one with a folder in it is not followed.
    #[test]
    fn links() {
        let link = |name: &[u8], crc| Some(DebugLink { name: name.to_vec(), crc });
        assert_eq!(debug_link(b"a.debug\0\x78\x56\x34\x12"), link(b"a.debug", 0x1234_5678));
        assert_eq!(debug_link(b"ab\0\0\x01\0\0\0rest"), link(b"ab", 1));
        for bad in [&b"a.debug\0\x78\x56\x34"[..], b"\0\0\0\0\x01\0\0\0", b"../x\0\0\0\0\x01\0\0\0"]
        {
            assert_eq!(debug_link(bad), None, "{bad:?}");
        }
        assert_eq!(debug_link(b"..\0\0\x01\0\0\0"), None);
    }

    proptest::proptest! {
        /// Check that any bytes are read without a panic, also behind a header that is right.
        #[test]
        fn any_bytes(bytes: Vec<u8>, at in 0_usize..256, byte: u8) {
            let _ = Parts::default().read(&bytes[..], Role::Mapped);
            debug_link(&bytes);
            let mut vdso = super::super::modules::own_vdso().map_or(Vec::new(), |image| image.to_vec());
            if let Some(place) = vdso.get_mut(at) {
                *place = byte;
            }
            vdso.truncate(vdso.len().saturating_sub(bytes.len()));
            let mut parts = Parts::default();
            let _ = parts.read(&vdso[..], Role::Mapped);
            let (functions, ..) = parts.indexed();
            functions.covering(u64::from(byte));
        }
    }
}
