//! An ELF file's unwind rows, read from the file without mapping it: a file that is truncated
//! meanwhile gives an error, not a signal.

use gimli::{BaseAddresses, DebugFrame, EhFrame, EndianSlice, LittleEndian};
use object::read::{Object as _, ObjectSection as _, ObjectSegment as _, ReadCache, ReadCacheOps};
use object::{Architecture, SectionKind, SegmentFlags};
use thiserror::Error;

use super::rows;

/// Most bytes of call frame information read from one file: of a 300 MB program, it is 20 to 30 MB.
pub const MAX_SECTION_BYTES: u64 = 64 << 20;

/// Most rows of one file: 64 MiB.
pub const MAX_ROWS: usize = 8 << 20;

/// The sections of call frame information, the better one first.
const SECTIONS: [&str; 2] = [".eh_frame", ".debug_frame"];

/// Why a file has no rows.
#[derive(Debug, Error)]
pub enum CompileError {
    /// Not an ELF file, or a broken one.
    #[error("it cannot be read as an ELF file: {0}")]
    Elf(#[from] object::Error),
    /// A file of another architecture.
    #[error("it is for {0:?}, not x86-64")]
    Architecture(Architecture),
    /// No `.eh_frame` and no `.debug_frame`, or empty ones.
    #[error("it has no call frame information (.eh_frame)")]
    NoFrames,
    /// More than [`MAX_SECTION_BYTES`].
    #[error("its call frame information has {0} bytes, more than {MAX_SECTION_BYTES}")]
    TooLarge(u64),
    /// More than [`MAX_ROWS`].
    #[error("it has more than {MAX_ROWS} unwind rows")]
    TooManyRows,
    /// Code further than 4 GiB from the file's link-time base, or none at all.
    #[error("it has no code in the first 4 GiB from its link-time base")]
    NoCode,
}

/// A part of a file as the loader maps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadSegment {
    /// Link-time address.
    pub address: u64,
    /// Offset in the file.
    pub file_offset: u64,
    /// Length in the file, in bytes.
    pub file_bytes: u64,
}

/// The rows of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileRows {
    /// The link-time address that the rows count from.
    pub base: u64,
    /// Packed rows, ascending by program counter.
    pub rows: Vec<u64>,
    /// The executable segments.
    pub code: Vec<LoadSegment>,
    /// Frame description entries that were broken; their range has [`Rule::Unsupported`].
    ///
    /// [`Rule::Unsupported`]: latency_common::unwind::Rule::Unsupported
    pub broken_entries: u64,
}

/// How large a file is, as far as unwinding goes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct FrameSize {
    /// Bytes of call frame information.
    pub frame_bytes: u64,
    /// Bytes of code.
    pub code_bytes: u64,
}

impl FrameSize {
    /// Words that the rows and their index are going to take, at most: a row takes 3 bytes of
    /// call frame information where it takes least (5 in libcrypto), and 4 blocks of code share a
    /// word.
    pub const fn words(self) -> usize {
        (self.frame_bytes / 3 + self.code_bytes / 1024 + 2) as usize
    }
}

/// Looks at a file's headers alone; zeros for a file that cannot be compiled.
pub fn size(file: impl ReadCacheOps) -> FrameSize {
    let cache = ReadCache::new(file);
    let Ok(object) = object::File::parse(&cache) else { return FrameSize::default() };
    let sections = SECTIONS.iter().filter_map(|name| object.section_by_name(name));
    let frame_bytes = sections.map(|section| section.size()).find(|bytes| *bytes > 0);
    let code = object.segments().filter(
        |segment| matches!(segment.flags(), SegmentFlags::Elf { p_flags } if p_flags & object::elf::PF_X != 0),
    );
    FrameSize {
        frame_bytes: frame_bytes.filter(|bytes| *bytes <= MAX_SECTION_BYTES).unwrap_or(0),
        code_bytes: code.map(|segment| segment.file_range().1).sum(),
    }
}

/// Compiles a file's `.eh_frame`, or else its `.debug_frame`.
///
/// # Errors
/// See [`CompileError`]. Broken entries inside a section are no errors; they are counted.
pub fn compile(file: impl ReadCacheOps) -> Result<FileRows, CompileError> {
    let cache = ReadCache::new(file);
    let object = object::File::parse(&cache)?;
    if object.architecture() != Architecture::X86_64 {
        return Err(CompileError::Architecture(object.architecture()));
    }
    let code: Vec<LoadSegment> = object
        .segments()
        .filter(|segment| {
            matches!(segment.flags(), SegmentFlags::Elf { p_flags } if p_flags & object::elf::PF_X != 0)
        })
        .map(|segment| {
            let (file_offset, file_bytes) = segment.file_range();
            LoadSegment { address: segment.address(), file_offset, file_bytes }
        })
        .collect();
    // Mappings start on page boundaries, and so before the first segment's own address.
    let base = code.iter().map(|segment| segment.address & !0xfff).min();
    let base = base.ok_or(CompileError::NoCode)?;
    let ranges: Vec<(u64, u64)> = code
        .iter()
        .map(|segment| (segment.address, segment.address.saturating_add(segment.file_bytes)))
        .collect();
    let address_of = |name| object.section_by_name(name).map_or(0, |section| section.address());
    let bases = BaseAddresses::default()
        .set_eh_frame(address_of(".eh_frame"))
        .set_text(address_of(".text"))
        .set_got(address_of(".got"));
    for name in SECTIONS {
        let Some(section) = object.section_by_name(name) else { continue };
        // A separate debug file has the section's header, but not its contents.
        if section.kind() == SectionKind::UninitializedData || section.size() == 0 {
            continue;
        }
        if section.size() > MAX_SECTION_BYTES {
            return Err(CompileError::TooLarge(section.size()));
        }
        let data = section.data()?;
        let compiled = if name == ".eh_frame" {
            let mut frames = EhFrame::from(EndianSlice::new(data, LittleEndian));
            frames.set_address_size(8);
            rows::compile(&frames, &bases, base, &ranges, MAX_ROWS)
        } else {
            let mut frames = DebugFrame::from(EndianSlice::new(data, LittleEndian));
            frames.set_address_size(8);
            rows::compile(&frames, &bases, base, &ranges, MAX_ROWS)
        };
        let compiled = compiled.ok_or(CompileError::TooManyRows)?;
        if compiled.rows.is_empty() {
            continue;
        }
        let rows::Compiled { rows, broken_entries } = compiled;
        return Ok(FileRows { base, rows, code, broken_entries });
    }
    Err(CompileError::NoFrames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use latency_common::unwind::{Row, Rule};
    use std::fs::File;

    /// Check that the C library compiles to sorted rows, with a signal frame and an outermost
    /// frame, and few that cannot be followed.
    #[test]
    fn c_library() {
        let path = std::fs::read_to_string("/proc/self/maps")
            .ok()
            .and_then(|maps| {
                let line = maps.lines().find(|line| line.ends_with("/libc.so.6"))?;
                Some(line[line.find('/')?..].to_owned())
            })
            .expect("the test program uses libc.so.6");
        let file = compile(File::open(path).unwrap()).unwrap();
        let rows: Vec<Row> = file.rows.iter().map(|bits| Row::unpack(*bits)).collect();
        assert!(rows.len() > 5_000, "{} rows", rows.len());
        assert!(rows.windows(2).all(|pair| pair[0].pc < pair[1].pc));
        assert!(rows.iter().any(|row| row.rule == Rule::Signal));
        assert!(rows.iter().any(|row| row.rule == Rule::End));
        assert!(rows.iter().any(|row| matches!(row.rule, Rule::Plt { .. })));
        let unsupported = rows.iter().filter(|row| row.rule == Rule::Unsupported).count();
        assert!(unsupported * 500 < rows.len(), "{unsupported} of {}", rows.len());
        assert_eq!(file.broken_entries, 0);
    }

    fn own_image() -> Vec<u8> {
        // The vdso: small, and a whole ELF file.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
        let (start, rest) = line.split_once('-').unwrap();
        let (end, _) = rest.split_once(' ').unwrap();
        let parse = |text| usize::from_str_radix(text, 16).unwrap();
        let (start, end) = (parse(start), parse(end));
        // SAFETY: the kernel maps the vdso readable for the life of the process.
        unsafe { std::slice::from_raw_parts(start as *const u8, end - start) }.to_vec()
    }

    /// Check that the vdso compiles.
    #[test]
    fn vdso() {
        let file = compile(std::io::Cursor::new(own_image())).unwrap();
        assert!(file.rows.len() > 10);
        assert_eq!(file.broken_entries, 0);
    }

    proptest::proptest! {
        /// Check that a file with any bytes changed gives rows in order, or an error.
        #[test]
        fn survives_damage(
            damage in proptest::collection::vec((0usize..8192, proptest::num::u8::ANY), 1..40),
            length in 0usize..9000,
        ) {
            let mut image = own_image();
            for (at, byte) in damage {
                if let Some(place) = image.get_mut(at) {
                    *place = byte;
                }
            }
            image.truncate(length);
            if let Ok(file) = compile(std::io::Cursor::new(image)) {
                assert!(file.rows.windows(2).all(|pair| (pair[0] as u32) < pair[1] as u32));
            }
        }
    }
}
