//! The stubs through which a file calls functions of others. They have no symbols: each jumps through
//! a slot, and the slot's relocation has the name.

use std::collections::{HashMap, HashSet};
use std::fs::File;

use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, Rela as _, SectionHeader as _, Sym as _};
use object::{Endianness, ReadCache, ReadRef};

use super::index::demangled;
use super::parts::SECTION_CAP_BYTES;
use super::read_at::Positioned;

/// The smallest stub, as in `.plt.got`.
const STUB_BYTES: u64 = 8;
const STUB_CAP: usize = 64 << 10;
const SECTION_CAP: usize = 16 << 10;

/// Stubs by address.
#[derive(Default, Debug)]
pub(super) struct Stubs {
    /// Start and end of each section of stubs.
    sections: Vec<(u64, u64)>,
    /// The jump of each stub, by address, and the name behind it where there is one.
    jumps: Vec<(u64, Option<String>)>,
}

impl Stubs {
    /// Reads a file's stubs; none where anything about them is wrong.
    pub fn of_file(file: &File) -> Self {
        let cache = ReadCache::new(Positioned::new(file));
        Self::of(&cache).unwrap_or_default()
    }

    fn of<'data, R: ReadRef<'data>>(data: R) -> Option<Self> {
        let header = FileHeader64::<Endianness>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        if header.e_machine(endian) != elf::EM_X86_64 {
            return None;
        }
        let sections = header.sections(endian, data).ok()?;
        let mut stubs = Self::default();
        let mut jumps: Vec<(u64, u64)> = Vec::new();
        let mut slots: HashMap<u64, String> = HashMap::new();
        for section in sections.iter().take(SECTION_CAP) {
            if section.sh_size(endian) > SECTION_CAP_BYTES {
                continue;
            }
            let name = sections.section_name(endian, section).unwrap_or_default();
            if matches!(name, b".plt" | b".plt.sec" | b".plt.got") {
                let start = section.sh_addr(endian);
                let code = section.data(endian, data).ok()?;
                stubs.sections.push((start, start.checked_add(code.len() as u64)?));
                jumps.extend(jumps_in(start, code));
            }
        }
        if jumps.is_empty() {
            return Some(stubs);
        }
        let wanted: HashSet<u64> = jumps.iter().map(|jump| jump.1).collect();
        for section in sections.iter().take(SECTION_CAP) {
            let is_large = section.sh_size(endian) > SECTION_CAP_BYTES;
            let Ok(Some((relocations, link))) = section.rela(endian, data) else { continue };
            let Ok(symbols) = sections.symbol_table_by_index(endian, data, link) else { continue };
            for relocation in relocations.iter().filter(|_| !is_large) {
                let slot = relocation.r_offset(endian);
                let Some(symbol) = relocation.symbol(endian, false) else { continue };
                if !wanted.contains(&slot) {
                    continue;
                }
                let symbol = symbols.symbol(symbol).ok();
                let name = symbol.and_then(|it| it.name(endian, symbols.strings()).ok());
                let name = name.filter(|name| !name.is_empty());
                slots.extend(name.map(|name| (slot, format!("{}@plt", demangled(name)))));
            }
        }
        stubs.jumps = jumps.into_iter().map(|(at, slot)| (at, slots.get(&slot).cloned())).collect();
        stubs.jumps.sort_unstable();
        Some(stubs)
    }

    /// The name of the stub that covers an address.
    pub fn name(&self, address: u64) -> Option<String> {
        let of_section = |&&(start, end): &&(u64, u64)| (start..end).contains(&address);
        let &(start, _) = self.sections.iter().find(of_section)?;
        // A stub has eight bytes, or sixteen with its jump in the first half.
        let part = |size_bytes: u64| address - (address - start) % size_bytes;
        let (half, whole) = (part(STUB_BYTES), part(2 * STUB_BYTES));
        self.jump(half).or_else(|| self.jump(whole))?.clone()
    }

    fn jump(&self, from: u64) -> Option<&Option<String>> {
        let at = self.jumps.partition_point(|(jump, _)| *jump < from);
        let (jump, name) = self.jumps.get(at)?;
        (jump - from < STUB_BYTES).then_some(name)
    }
}

/// The indirect jumps in a section of stubs: where each is, and the slot it jumps through.
fn jumps_in(start: u64, code: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    code.windows(6)
        .enumerate()
        .filter_map(move |(at, bytes)| {
            // `jmp *disp(%rip)`; `.plt` begins with one through a slot that has no relocation.
            let &[0xff, 0x25, a, b, c, d] = bytes else { return None };
            let jump = start.checked_add(at as u64)?;
            let distance = i32::from_le_bytes([a, b, c, d]);
            Some((jump, jump.checked_add(6)?.checked_add_signed(i64::from(distance))?))
        })
        .take(STUB_CAP)
}
