//! Symbols by address: the one that covers an address, or none.

use std::cmp::Reverse;

/// A symbol that has a size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// First address, as the file counts it.
    pub start: u64,
    /// Address after the last; always above `start`.
    pub end: u64,
    /// Which of [`Names`]'s tables its name is in.
    pub table: u32,
    /// Where in that table.
    pub name: u32,
    /// Among symbols of one range, the lowest rank is shown.
    pub rank: u8,
}

/// The string tables that names are in.
#[derive(Default, Debug)]
pub(super) struct Names(Vec<Vec<u8>>);

impl Names {
    /// Adds a string table and returns its number.
    pub fn add(&mut self, strings: Vec<u8>) -> u32 {
        self.0.push(strings);
        // There are four tables at most.
        (self.0.len() - 1) as u32
    }

    /// The name of a symbol without its version; empty if it has none.
    pub fn get(&self, symbol: &Symbol) -> &[u8] {
        let table = self.0.get(symbol.table as usize).map_or(&[][..], |table| &table[..]);
        let name = table.get(symbol.name as usize..).unwrap_or_default();
        let name = &name[..name.iter().take(NAME_CAP_BYTES).take_while(|&&byte| byte != 0).count()];
        // `memcpy@@GLIBC_2.14`, but not a name that is nothing else.
        match name.iter().position(|&byte| byte == b'@') {
            Some(at) if at > 0 => &name[..at],
            _ => name,
        }
    }
}

const NAME_CAP_BYTES: usize = 4096;
/// How many symbols that begin before an address, and end before it, are passed over in search of
/// one around them. Real files nest two deep; a made-up one must not cost a scan for each address.
const SEARCH_CAP: usize = 256;

/// Symbols, sorted for searching.
#[derive(Default, Debug)]
pub(super) struct Index {
    /// By start; where several begin at once, the innermost last.
    symbols: Vec<Symbol>,
    /// For each symbol, the furthest end of it and those before it.
    reach: Vec<u64>,
}

impl Index {
    /// Sorts symbols. Of those with the same range, one is kept: the lowest rank, then the fewest
    /// leading underscores, the shortest, and the first of the alphabet.
    pub fn new(mut symbols: Vec<Symbol>, names: &Names) -> Self {
        let range = |symbol: &Symbol| (symbol.start, Reverse(symbol.end));
        symbols.sort_unstable_by(|a, b| {
            // The names are looked at only where the ranges are equal.
            range(a).cmp(&range(b)).then_with(|| preference(a, names).cmp(&preference(b, names)))
        });
        symbols.dedup_by_key(|symbol| (symbol.start, symbol.end));
        let reach = symbols
            .iter()
            .scan(0, |furthest: &mut u64, symbol| {
                *furthest = symbol.end.max(*furthest);
                Some(*furthest)
            })
            .collect();
        Self { symbols, reach }
    }

    /// The innermost symbol whose range holds the address. Never the nearest one before it.
    pub fn covering(&self, address: u64) -> Option<&Symbol> {
        let after = self.symbols.partition_point(|symbol| symbol.start <= address);
        let before = self.symbols[..after].iter().zip(&self.reach[..after]).rev();
        before
            .take_while(|(_, reach)| **reach > address)
            .take(SEARCH_CAP)
            .map(|(symbol, _)| symbol)
            .find(|symbol| symbol.end > address)
    }

    #[cfg(test)]
    pub fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }
}

fn preference<'names>(symbol: &Symbol, names: &'names Names) -> (u8, usize, usize, &'names [u8]) {
    let name = names.get(symbol);
    let underscores = name.iter().take_while(|&&byte| byte == b'_').count();
    (symbol.rank, underscores, name.len(), name)
}

/// A name as people write it: C++ and Rust symbols without their encoding, parameters and hashes.
pub(super) fn demangled(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    if let Ok(rust) = rustc_demangle::try_demangle(&text) {
        return format!("{rust:#}");
    }
    if text.starts_with("_Z")
        && let Ok(symbol) = cpp_demangle::Symbol::new(&*text)
        && let Ok(readable) = symbol.demangle_with_options(
            &cpp_demangle::DemangleOptions::new().no_params().no_return_type(),
        )
    {
        return readable;
    }
    text.into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symbols by name, start, size and rank.
    fn index(symbols: &[(&str, u64, u64, u8)]) -> (Index, Names) {
        let mut names = Names::default();
        let mut strings = Vec::new();
        let mut list = Vec::new();
        for &(name, start, size, rank) in symbols {
            list.push(Symbol {
                start,
                end: start + size,
                table: 0,
                name: strings.len() as u32,
                rank,
            });
            strings.extend(name.bytes().chain([0]));
        }
        names.add(strings);
        (Index::new(list, &names), names)
    }

    fn name_at(symbols: &[(&str, u64, u64, u8)], address: u64) -> Option<String> {
        let (index, names) = index(symbols);
        index.covering(address).map(|symbol| demangled(names.get(symbol)))
    }

    /// Check that an address between two symbols has no name, nor one before the first or after
    /// the last.
    #[test]
    fn gaps() {
        let symbols = [("first", 0x100, 0x10, 0), ("third", 0x200, 0x10, 0)];
        assert_eq!(name_at(&symbols, 0xff), None);
        assert_eq!(name_at(&symbols, 0x100).as_deref(), Some("first"));
        assert_eq!(name_at(&symbols, 0x10f).as_deref(), Some("first"));
        assert_eq!(name_at(&symbols, 0x110), None);
        assert_eq!(name_at(&symbols, 0x1ff), None);
        assert_eq!(name_at(&symbols, 0x20f).as_deref(), Some("third"));
        assert_eq!(name_at(&symbols, 0x210), None);
        assert_eq!(name_at(&symbols, u64::MAX), None);
        assert_eq!(name_at(&[], 0), None);
    }

    /// Check that behind a symbol within another one, the outer one is found again.
    #[test]
    fn nested() {
        let symbols = [("outer", 0x100, 0x100, 0), ("inner", 0x120, 0x10, 0)];
        assert_eq!(name_at(&symbols, 0x110).as_deref(), Some("outer"));
        assert_eq!(name_at(&symbols, 0x128).as_deref(), Some("inner"));
        assert_eq!(name_at(&symbols, 0x180).as_deref(), Some("outer"));
        assert_eq!(name_at(&symbols, 0x200), None);
    }

    /// Check which of several names of one function is shown, in whatever order they come.
    #[test]
    fn aliases() {
        let mut symbols = [
            ("___pthread_mutex_lock", 0x100, 0x10, 0),
            ("pthread_mutex_lock@@GLIBC_2.2.5", 0x100, 0x10, 0),
            ("a", 0x100, 0x10, 1),
        ];
        for _ in 0..3 {
            symbols.rotate_left(1);
            assert_eq!(name_at(&symbols, 0x105).as_deref(), Some("pthread_mutex_lock"));
        }
    }

    /// Check that the search for an outer symbol is bounded.
    #[test]
    fn search_is_bounded() {
        let mut symbols = vec![("outer", 0, 1 << 40, 0)];
        symbols.extend((1..2000).map(|n| ("inner", n * 16, 8, 0)));
        assert_eq!(name_at(&symbols, 16 * 10 + 12).as_deref(), Some("outer"));
        assert_eq!(name_at(&symbols, 16 * 1999 + 12), None);
    }

    /// Check that C++ and Rust names are readable, and that broken ones are left as they are.
    #[test]
    fn demangling() {
        assert_eq!(demangled(b"_ZN3foo3barEi"), "foo::bar");
        assert_eq!(
            demangled(b"_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"),
            "core::fmt::Write::write_fmt"
        );
        assert_eq!(demangled(b"_RNvCs1234_7mycrate3foo"), "mycrate::foo");
        assert_eq!(demangled(b"_Znonsense"), "_Znonsense");
        assert_eq!(demangled(b"a\xffb"), "a\u{fffd}b");
    }
}
