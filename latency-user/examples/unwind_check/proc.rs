//! What the check needs of `/proc`: executable mappings, and the files behind them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Cursor, Read as _, Seek as _, SeekFrom};

use anyhow::{Context as _, Result};
use latency_user::plan::unwind::{CompileError, FileKey, FileRows, Mapping, compile};

/// A mapping and the name it has.
pub struct Named {
    /// The mapping.
    pub mapping: Mapping,
    /// Path, or `[name]`.
    pub name: String,
}

/// The vdso has no inode.
pub const VDSO: FileKey = FileKey { device: u64::MAX, inode: 0 };

/// The executable mappings of a process.
pub fn executable_mappings(pid: u32) -> Result<Vec<Named>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let mut all = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(6, ' ');
        let mut next = || fields.next().context("a line of maps is too short");
        let (range, rights, offset, device, inode) = (next()?, next()?, next()?, next()?, next()?);
        let name = fields.next().unwrap_or("").trim_start().to_owned();
        if !rights.contains('x') || name == "[uprobes]" || name == "[vsyscall]" {
            continue;
        }
        let (start, end) = range.split_once('-').context("a range without a dash")?;
        let hex = |text| u64::from_str_radix(text, 16);
        let inode: u64 = inode.parse()?;
        let file = match (inode, name.as_str()) {
            (_, "[vdso]") => Some(VDSO),
            (0, _) => None,
            _ => {
                let (major, minor) = device.split_once(':').context("a device without a colon")?;
                Some(FileKey { device: hex(major)? << 32 | hex(minor)?, inode })
            }
        };
        let mapping =
            Mapping { start: hex(start)?, end: hex(end)?, file_offset: hex(offset)?, file };
        all.push(Named { mapping, name });
    }
    Ok(all)
}

/// The bytes of the vdso.
pub fn vdso(pid: u32, mapping: &Mapping) -> Result<Vec<u8>> {
    let mut memory = File::open(format!("/proc/{pid}/mem"))?;
    memory.seek(SeekFrom::Start(mapping.start))?;
    let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
    memory.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Compiles the rows of what is mapped there.
pub fn compile_mapping(pid: u32, mapping: &Mapping) -> Result<Result<FileRows, CompileError>> {
    if mapping.file == Some(VDSO) {
        return Ok(compile(Cursor::new(vdso(pid, mapping)?)));
    }
    let path = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    Ok(compile(File::open(path)?))
}

/// Function names by address: `.symtab` and `.dynsym`, by size.
pub struct Names {
    mappings: Vec<Named>,
    symbols: HashMap<String, Vec<(u64, u64, String)>>,
    segments: HashMap<String, Vec<(u64, u64, u64)>>,
}

impl Names {
    /// Reads the symbols of every mapped file.
    pub fn read(pid: u32) -> Result<Self> {
        use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};
        let mappings = executable_mappings(pid)?;
        let (mut symbols, mut segments) = (HashMap::new(), HashMap::new());
        for named in &mappings {
            if named.mapping.file.is_none() || symbols.contains_key(&named.name) {
                continue;
            }
            let bytes = if named.mapping.file == Some(VDSO) {
                vdso(pid, &named.mapping)?
            } else {
                let Mapping { start, end, .. } = named.mapping;
                std::fs::read(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))?
            };
            let Ok(file) = object::File::parse(bytes.as_slice()) else { continue };
            let mut all: Vec<(u64, u64, String)> = file
                .symbols()
                .chain(file.dynamic_symbols())
                .filter(|symbol| symbol.address() != 0)
                .filter_map(|symbol| {
                    Some((symbol.address(), symbol.size(), symbol.name().ok()?.to_owned()))
                })
                .collect();
            all.sort();
            symbols.insert(named.name.clone(), all);
            let loads = file.segments().map(|segment| {
                let (offset, bytes) = segment.file_range();
                (offset, bytes, segment.address())
            });
            segments.insert(named.name.clone(), loads.collect());
        }
        Ok(Self { mappings, symbols, segments })
    }

    /// `function+0x12`, `[file+0x1234]` or the address.
    pub fn name(&self, address: u64) -> String {
        let Some(Named { mapping, name }) = self
            .mappings
            .iter()
            .find(|named| (named.mapping.start..named.mapping.end).contains(&address))
        else {
            return format!("[{address:#x}]");
        };
        let offset = address - mapping.start + mapping.file_offset;
        let base_name = name.rsplit('/').next().unwrap_or(name);
        let unknown = format!("[{base_name}+{offset:#x}]");
        let Some((file_offset, _, start)) = self.segments.get(name).and_then(|segments| {
            segments.iter().find(|(from, bytes, _)| (*from..from + bytes).contains(&offset))
        }) else {
            return unknown;
        };
        let link_time = offset - file_offset + start;
        let symbols = self.symbols.get(name).map_or(&[][..], Vec::as_slice);
        let after = symbols.partition_point(|(start, _, _)| *start <= link_time);
        symbols[..after]
            .iter()
            .rev()
            .take(8)
            .find(|(start, size, _)| link_time - start < (*size).max(1))
            .map_or(unknown, |(start, _, name)| format!("{name}+{:#x}", link_time - start))
    }
}
