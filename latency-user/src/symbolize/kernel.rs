//! Names for the kernel's addresses, from /proc/kallsyms.
//!
//! The kernel lists every function, without sizes: a function reaches to the next symbol of any
//! kind. Where it hides the addresses (`kernel.kptr_restrict`), a stack becomes one frame
//! `[kernel]`. A recording keeps names alone: addresses would tell where the kernel lies in memory,
//! to whoever is given the file.

use std::io::Read as _;

use super::RawStack;
use crate::recording::{Frame, Stack};

const PATH: &str = "/proc/kallsyms";
/// More than any kernel's: with all of Debian's modules loaded, it is about 20 MB.
const CAP_BYTES: u64 = 256 << 20;
/// What the kernel's own code is said to be in.
const KERNEL: &str = "[kernel]";

#[derive(Debug)]
struct Symbol {
    address: u64,
    /// Global names before local ones.
    is_local: bool,
    /// Where the name lies in the text; empty for data, which names no code.
    name: std::ops::Range<usize>,
    /// Likewise the module's, with its brackets; empty: the kernel itself.
    module: std::ops::Range<usize>,
}

/// The kernel's symbols.
#[derive(Default, Debug)]
pub struct KernelSymbols {
    text: String,
    /// By address.
    symbols: Vec<Symbol>,
}

impl KernelSymbols {
    /// Reads the running kernel's; none where it does not tell.
    pub fn read() -> Self {
        let mut bytes = Vec::new();
        let file = std::fs::File::open(PATH);
        let read = file.and_then(|file| file.take(CAP_BYTES).read_to_end(&mut bytes));
        if read.is_err() {
            return Self::default();
        }
        Self::parse(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Parses lines such as `ffffffff81000000 T _text` and `ffffffffc0000000 t init\t[ext4]`;
    /// others are left out.
    pub fn parse(text: String) -> Self {
        let mut symbols = Vec::new();
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            symbols.extend(symbol(line.trim_end(), start));
            start += line.len();
        }
        symbols.sort_by(|left, right| {
            let by = |symbol: &Symbol| (symbol.address, symbol.name.is_empty(), symbol.is_local);
            by(left)
                .cmp(&by(right))
                .then_with(|| text[left.name.clone()].cmp(&text[right.name.clone()]))
        });
        symbols.dedup_by_key(|symbol| symbol.address);
        Self { text, symbols }
    }

    /// Names the frames of a kernel stack.
    pub fn resolve(&self, raw: &RawStack) -> Stack {
        let mut frames: Vec<Frame> = raw
            .frames
            .iter()
            .enumerate()
            // All but the innermost are return addresses.
            .map(|(at, &address)| self.frame(address.wrapping_sub(u64::from(at > 0))))
            .collect();
        if self.symbols.is_empty() {
            frames.truncate(1);
        }
        Stack {
            id: raw.id,
            frames,
            truncated: raw.truncated.clone(),
            used_frame_pointer: raw.used_frame_pointer,
        }
    }

    fn frame(&self, address: u64) -> Frame {
        let before = self.symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = before.checked_sub(1).and_then(|at| self.symbols.get(at));
        let known = symbol.filter(|symbol| !symbol.name.is_empty());
        let module = known.map_or("", |symbol| &self.text[symbol.module.clone()]);
        Frame {
            address: 0,
            function: known.map(|symbol| self.text[symbol.name.clone()].to_owned()),
            module: if module.is_empty() { KERNEL } else { module }.to_owned(),
            module_address: 0,
        }
    }
}

/// The symbol of a line that begins at `start` of the text.
fn symbol(line: &str, start: usize) -> Option<Symbol> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok().filter(|address| *address != 0)?;
    let kind = words.next()?;
    let range = |word: &str| {
        let from = start + (word.as_ptr() as usize - line.as_ptr() as usize);
        from..from + word.len()
    };
    let name = range(words.next()?);
    let module = words.next().map_or(0..0, range);
    let is_code = matches!(kind, "t" | "T" | "w" | "W");
    let is_local = !kind.starts_with(|letter: char| letter.is_ascii_uppercase());
    Some(Symbol { address, is_local, name: if is_code { name } else { 0..0 }, module })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
        ffffffff81000100 T do_one\n\
        ffffffff81000000 T _text\n\
        ffffffff81000100 t alias_of_one\n\
        ffffffff81000200 D some_data\n\
        nonsense\n\
        ffffffffc0000000 t ext4_read\t[ext4]\n";

    fn names(symbols: &KernelSymbols, frames: &[u64]) -> Vec<String> {
        let raw = RawStack { id: 1, frames: frames.to_vec(), ..RawStack::default() };
        let stack = symbols.resolve(&raw);
        let text = |frame: Frame| {
            assert_eq!((frame.address, frame.module_address), (0, 0));
            format!("{} {}", frame.function.unwrap_or_default(), frame.module)
        };
        stack.frames.into_iter().map(text).collect()
    }

    /// Check that an address is named by the function that begins at or before it, a return
    /// address by the one before it, and none by data.
    #[test]
    fn resolves() {
        let symbols = KernelSymbols::parse(TEXT.to_owned());
        let frames = [0xffff_ffff_8100_0100, 0xffff_ffff_8100_0100, 0xffff_ffff_c000_0010];
        assert_eq!(
            names(&symbols, &frames),
            ["do_one [kernel]", "_text [kernel]", "ext4_read [ext4]"]
        );
        assert_eq!(names(&symbols, &[0xffff_ffff_8100_0250]), [" [kernel]"]);
        assert_eq!(names(&symbols, &[0x1000]), [" [kernel]"]);
    }

    /// Check that hidden addresses make one frame of a stack.
    #[test]
    fn hidden() {
        let zeros = "0000000000000000 T do_one\n0000000000000000 T _text\n";
        let symbols = KernelSymbols::parse(zeros.to_owned());
        assert_eq!(names(&symbols, &[0xffff_ffff_8100_0100, 0xffff_ffff_8100_0200]), [" [kernel]"]);
    }

    proptest::proptest! {
        /// Check that any text is taken without a panic.
        #[test]
        fn total(text in ".*", address: u64) {
            names(&KernelSymbols::parse(text), &[address]);
        }
    }
}
