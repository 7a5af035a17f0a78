//! Functions inlined into others, and lines of source, from DWARF.
//!
//! The addresses of one file are looked up together, and the debug information is given back after
//! that: it is the largest part of a file by far.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;

use addr2line::Context;
use gimli::{EndianSlice, RunTimeEndian, SectionId};
use object::read::elf::ElfFile64;
use object::{CompressionFormat, Object as _, ObjectSection as _, ReadCache, ReadRef};

use super::index::demangled;
use super::read_at::Positioned;

/// Sections of debug information are read up to this size in all; what is larger is not used.
const DEBUG_CAP_BYTES: u64 = 2 << 30;
/// Functions inlined into each other nest no deeper than some dozens.
const INLINED_CAP: usize = 64;

/// A function, or a part of one that was inlined, at an address.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Source {
    pub function: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
}

/// The functions at an address, the innermost first; the last is the one that the others were
/// inlined into.
pub(super) type Sources = HashMap<u64, Vec<Source>>;

type Reader<'data> = EndianSlice<'data, RunTimeEndian>;

/// Looks up addresses, as the file counts them, in a file's debug information; `supplement` is the
/// file that several share parts of theirs in (`dwz`).
///
/// # Errors
/// Why there is nothing to look up.
pub(super) fn look_up(
    file: &File,
    supplement: Option<&File>,
    addresses: &[u64],
) -> Result<Sources, String> {
    let cache = ReadCache::new(Positioned::new(file));
    let object = parse(&cache)?;
    let shared_cache;
    let shared = match supplement {
        Some(file) => {
            shared_cache = ReadCache::new(Positioned::new(file));
            Some(parse(&shared_cache)?)
        }
        None => None,
    };
    let own = Sections::of(&object)?;
    let shared = shared.as_ref().map(Sections::of).transpose()?;
    let mut dwarf = gimli::Dwarf::load(|id| Ok::<_, gimli::Error>(own.section(id)))
        .map_err(|error| error.to_string())?;
    if let Some(shared) = &shared {
        dwarf
            .load_sup(|id| Ok::<_, gimli::Error>(shared.section(id)))
            .map_err(|error| error.to_string())?;
    }
    let context = Context::from_dwarf(dwarf).map_err(|error| error.to_string())?;
    Ok(addresses.iter().filter_map(|&address| Some((address, at(&context, address)?))).collect())
}

/// What lies at one address; `None` where the debug information does not say, or is damaged.
fn at(context: &Context<Reader<'_>>, address: u64) -> Option<Vec<Source>> {
    let mut frames = context.find_frames(address).skip_all_loads().ok()?;
    let mut sources = Vec::new();
    while let Ok(Some(frame)) = frames.next() {
        let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
        let (file, line) = frame.location.map_or((None, None), |at| (at.file, at.line));
        sources.push(Source {
            function: name.map(|name| demangled(name.as_bytes())).filter(|name| !name.is_empty()),
            file: file.map(str::to_owned),
            line: line.filter(|&line| line > 0),
        });
        if sources.len() == INLINED_CAP {
            break;
        }
    }
    (!sources.is_empty()).then_some(sources)
}

fn parse<'data, R: ReadRef<'data>>(
    data: R,
) -> Result<ElfFile64<'data, object::Endianness, R>, String> {
    ElfFile64::parse(data).map_err(|error| error.to_string())
}

/// The sections that hold debug information, unpacked.
struct Sections<'data> {
    endian: RunTimeEndian,
    sections: HashMap<&'static str, Cow<'data, [u8]>>,
}

impl<'data> Sections<'data> {
    fn of<R: ReadRef<'data>>(
        object: &ElfFile64<'data, object::Endianness, R>,
    ) -> Result<Self, String> {
        const WANTED: [SectionId; 11] = [
            SectionId::DebugAbbrev,
            SectionId::DebugAddr,
            SectionId::DebugAranges,
            SectionId::DebugInfo,
            SectionId::DebugLine,
            SectionId::DebugLineStr,
            SectionId::DebugRanges,
            SectionId::DebugRngLists,
            SectionId::DebugStr,
            SectionId::DebugStrOffsets,
            SectionId::DebugTypes,
        ];
        let mut left_bytes = DEBUG_CAP_BYTES;
        let mut sections = HashMap::new();
        for id in WANTED {
            let Some(section) = object.section_by_name(id.name()) else { continue };
            let packed = section.compressed_file_range().map_err(|error| error.to_string())?;
            let size_bytes = match packed.format {
                CompressionFormat::None => section.size(),
                // The size unpacked is what the file says, and room is made for it at once.
                _ => packed.uncompressed_size.max(packed.compressed_size),
            };
            left_bytes = left_bytes.checked_sub(size_bytes).ok_or_else(|| {
                format!("its debug information is larger than {} GiB", DEBUG_CAP_BYTES >> 30)
            })?;
            let data = section.uncompressed_data().map_err(|error| error.to_string())?;
            sections.insert(id.name(), data);
        }
        let endian = match object.endianness() {
            object::Endianness::Little => RunTimeEndian::Little,
            object::Endianness::Big => RunTimeEndian::Big,
        };
        Ok(Self { endian, sections })
    }

    fn section(&self, id: SectionId) -> Reader<'_> {
        EndianSlice::new(self.sections.get(id.name()).map_or(&[], |data| data), self.endian)
    }
}

/// The file that a file with debug information shares parts of it with: its path, and its build id.
pub(super) fn supplement(file: &File) -> Option<(Vec<u8>, Vec<u8>)> {
    let cache = ReadCache::new(Positioned::new(file));
    let object = parse(&cache).ok()?;
    let (path, build_id) = object.gnu_debugaltlink().ok()??;
    Some((path.to_vec(), build_id.to_vec()))
}

/// A file's build id.
pub(super) fn build_id(file: &File) -> Option<Vec<u8>> {
    let cache = ReadCache::new(Positioned::new(file));
    parse(&cache).ok()?.build_id().ok()?.map(<[u8]>::to_vec)
}
