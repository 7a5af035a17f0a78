//! A small reader of BTF, the kernel's type information (Documentation/bpf/btf.rst): it finds
//! types by name, members' offsets and functions' parameters, and survives any bytes.

use std::ffi::CStr;

use super::FactError;

const MAGIC: u16 = 0xeb9f;

/// Depth to which unnamed structures inside of a structure are searched.
const MAX_DEPTH: u32 = 8;

/// A type's kind, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `struct`.
    Struct,
    /// `union`.
    Union,
    /// `typedef`.
    Typedef,
    /// A pointer.
    Pointer,
    /// A function's type.
    FunctionPrototype,
    /// Anything else.
    Other,
}

/// One type's header, and where what follows it lies.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: Kind,
    kind_flag: bool,
    entries: u32,
    size_or_type: u32,
    /// Offset of the entries in the type section.
    body: usize,
}

/// Parsed type information: ids are indices from 1.
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Offset of each type in the type section; index 0 is type id 1.
    offsets: Vec<u32>,
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let bytes = bytes.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn section(bytes: &[u8], start: u32, length: u32) -> Option<&[u8]> {
    let start = start as usize;
    bytes.get(start..start.checked_add(length as usize)?)
}

impl<'a> Btf<'a> {
    /// Reads the header, and finds where each type starts.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FactError> {
        const TRUNCATED: FactError = FactError::Malformed("it is cut short");
        let magic = bytes.get(..2).ok_or(TRUNCATED)?;
        if magic != MAGIC.to_ne_bytes() {
            return Err(FactError::Malformed("it is no BTF"));
        }
        let field = |index: usize| u32_at(bytes, 4 * index).ok_or(TRUNCATED);
        let data = bytes.get(field(1)? as usize..).ok_or(TRUNCATED)?;
        let types = section(data, field(2)?, field(3)?).ok_or(TRUNCATED)?;
        let strings = section(data, field(4)?, field(5)?).ok_or(TRUNCATED)?;
        let mut offsets = Vec::with_capacity(types.len() / 32);
        let mut next = 0;
        while next < types.len() {
            let (_, end) = header(types, next)?;
            offsets.push(next as u32);
            next = end;
        }
        Ok(Self { types, strings, offsets })
    }

    /// The ids of the first types of these kinds and names.
    pub fn find<const N: usize>(&self, wanted: [(Kind, &[u8]); N]) -> [Option<u32>; N] {
        let mut found = [None; N];
        for (index, offset) in self.offsets.iter().enumerate() {
            let Ok((candidate, _)) = header(self.types, *offset as usize) else { continue };
            if !matches!(candidate.kind, Kind::Struct | Kind::Typedef) {
                continue;
            }
            for (id, (kind, name)) in found.iter_mut().zip(wanted) {
                if id.is_none() && candidate.kind == kind && self.is_named(candidate.name, name) {
                    *id = Some(index as u32 + 1);
                }
            }
        }
        found
    }

    /// The offsets in bytes of a structure's members, those of unnamed structures in it included;
    /// `None` for a missing one, and for a bit field.
    pub fn members<const N: usize>(&self, id: u32, names: [&[u8]; N]) -> [Option<u32>; N] {
        let mut found = [None; N];
        self.collect_members(id, 0, MAX_DEPTH, &names, &mut found);
        found
    }

    fn collect_members(
        &self,
        id: u32,
        base_bits: u32,
        depth: u32,
        names: &[&[u8]],
        found: &mut [Option<u32>],
    ) {
        let Some(structure) = self.get(id) else { return };
        if depth == 0 || !matches!(structure.kind, Kind::Struct | Kind::Union) {
            return;
        }
        for index in 0..structure.entries as usize {
            let entry = structure.body + 12 * index;
            let (Some(name), Some(member), Some(position)) = (
                u32_at(self.types, entry),
                u32_at(self.types, entry + 4),
                u32_at(self.types, entry + 8),
            ) else {
                return;
            };
            let position = if structure.kind_flag { position & 0xff_ffff } else { position };
            let bits = base_bits.saturating_add(position);
            if name == 0 {
                self.collect_members(member, bits, depth - 1, names, found);
                continue;
            }
            for (offset, wanted) in found.iter_mut().zip(names) {
                if offset.is_none() && bits % 8 == 0 && self.is_named(name, wanted) {
                    *offset = Some(bits / 8);
                }
            }
        }
    }

    /// The kinds of the parameters of the function type that a `typedef` names through a pointer.
    pub fn parameters(&self, typedef: u32) -> Option<Vec<Kind>> {
        let pointer = self.get(self.get(typedef)?.size_or_type)?;
        let prototype = self.get(pointer.size_or_type)?;
        if pointer.kind != Kind::Pointer || prototype.kind != Kind::FunctionPrototype {
            return None;
        }
        (0..prototype.entries as usize)
            .map(|index| {
                let id = u32_at(self.types, prototype.body + 8 * index + 4)?;
                Some(self.get(id).map_or(Kind::Other, |parameter| parameter.kind))
            })
            .collect()
    }

    /// Which of these names anything at all has.
    pub fn has_strings<const N: usize>(&self, names: [&[u8]; N]) -> [bool; N] {
        let mut found = [false; N];
        let mut rest = self.strings;
        // `CStr` looks for the end of a string a word at a time: there are 2 MB of them.
        while let Ok(string) = CStr::from_bytes_until_nul(rest) {
            let string = string.to_bytes();
            for (found, name) in found.iter_mut().zip(names) {
                *found |= string == name;
            }
            rest = rest.get(string.len() + 1..).unwrap_or_default();
        }
        found
    }

    fn get(&self, id: u32) -> Option<Type> {
        let offset = *self.offsets.get(id.checked_sub(1)? as usize)?;
        Some(header(self.types, offset as usize).ok()?.0)
    }

    fn is_named(&self, offset: u32, name: &[u8]) -> bool {
        self.strings
            .get(offset as usize..)
            .and_then(|string| string.strip_prefix(name))
            .is_some_and(|rest| rest.first() == Some(&0))
    }
}

/// The type at `offset`, and where the next one starts.
fn header(types: &[u8], offset: usize) -> Result<(Type, usize), FactError> {
    const TRUNCATED: FactError = FactError::Malformed("a type is cut short");
    let field = |index: usize| u32_at(types, offset + 4 * index).ok_or(TRUNCATED);
    let (name, info, size_or_type) = (field(0)?, field(1)?, field(2)?);
    let entries = info & 0xffff;
    // include/uapi/linux/btf.h: the kinds by number, and the bytes of what follows the header.
    let (kind, entry_bytes, fixed_bytes) = match info >> 24 & 0x1f {
        1 | 14 | 17 => (Kind::Other, 0, 4),
        2 => (Kind::Pointer, 0, 0),
        3 => (Kind::Other, 0, 12),
        4 => (Kind::Struct, 12, 0),
        5 => (Kind::Union, 12, 0),
        6 => (Kind::Other, 8, 0),
        8 => (Kind::Typedef, 0, 0),
        7 | 9..=12 | 16 | 18 => (Kind::Other, 0, 0),
        13 => (Kind::FunctionPrototype, 8, 0),
        15 | 19 => (Kind::Other, 12, 0),
        _ => return Err(FactError::Malformed("a type is of an unknown kind")),
    };
    let body = offset + 12;
    let end = body + entry_bytes * entries as usize + fixed_bytes;
    if end > types.len() {
        return Err(TRUNCATED);
    }
    let kind_flag = info >> 31 != 0;
    Ok((Type { name, kind, kind_flag, entries, size_or_type, body }, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct s { int a; struct { int b; }; int c : 3; }`, and a function type of two parameters.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0s\0a\0b\0c\0trace\0";
        let name = |wanted: &[u8]| {
            let position = strings.windows(wanted.len()).position(|bytes| bytes == wanted);
            position.unwrap() as u32 + 1
        };
        let kind = |kind: u32, entries: u32, flag: u32| flag << 31 | kind << 24 | entries;
        let types: Vec<u32> = [
            vec![name(b"\0int\0"), kind(1, 0, 0), 4, 32],
            vec![name(b"\0s\0"), kind(4, 3, 1), 16],
            vec![name(b"\0a\0"), 1, 0],
            vec![0, 3, 64],
            vec![name(b"\0c\0"), 1, 3 << 24 | 97],
            vec![0, kind(4, 1, 0), 8],
            vec![name(b"\0b\0"), 1, 32],
            vec![0, kind(2, 0, 0), 2],
            vec![0, kind(13, 2, 0), 0],
            vec![0, 4, 0, 1],
            vec![0, kind(2, 0, 0), 5],
            vec![name(b"\0trace\0"), kind(8, 0, 0), 6],
        ]
        .concat();
        let types_length = 4 * types.len() as u32;
        let header = [0x1_eb9f_u32, 24, 0, types_length, types_length, strings.len() as u32];
        let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(types.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(strings);
        bytes
    }

    /// Check members, those of an unnamed structure, bit fields, and parameters.
    #[test]
    fn lookups() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).unwrap();
        let found =
            btf.find([(Kind::Struct, b"s"), (Kind::Typedef, b"trace"), (Kind::Struct, b"trace")]);
        assert_eq!(found, [Some(2), Some(7), None]);
        assert_eq!(btf.members(2, [b"a", b"b", b"c", b"d"]), [Some(0), Some(12), None, None]);
        assert_eq!(btf.parameters(7), Some(vec![Kind::Pointer, Kind::Other]));
        assert_eq!(btf.parameters(2), None);
        assert_eq!(btf.has_strings([b"trace", b"trac"]), [true, false]);
    }

    proptest::proptest! {
        /// Check that no damage to good bytes leads to a panic or an endless search.
        #[test]
        fn total(at in 0_usize..200, value: u8, length in 0_usize..250) {
            let mut bytes = sample();
            bytes.truncate(length);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            if let Ok(btf) = Btf::parse(&bytes) {
                btf.find([(Kind::Struct, b"s")]);
                for id in 0..10 {
                    btf.members(id, [b"a", b"b"]);
                    btf.parameters(id);
                }
            }
        }
    }
}
