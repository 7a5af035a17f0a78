//! Names for addresses in the kernel, from /proc/kallsyms.

use std::fs;
use std::sync::Arc;

use super::RawStack;
use crate::recording::{Frame, Stack};

/// What the kernel is called where it does not tell more.
const KERNEL: &str = "[kernel]";
/// Longest code without an end of its own: a program that the kernel's own compiler made.
const PROGRAM_CAP_BYTES: u64 = 64 << 10;

/// A function of the kernel. Kallsyms has no sizes: it ends where the next one starts.
#[derive(Clone, Copy, Debug)]
struct Function {
    start: u64,
    /// Address after the last of the code that it is part of.
    limit: u64,
    /// Where its name is in [`KernelSymbols::names`].
    name: u32,
    name_bytes: u16,
    /// Index into [`KernelSymbols::modules`].
    module: u16,
}

/// The kernel's functions.
#[derive(Default, Debug)]
pub struct KernelSymbols {
    /// By start, one for each address.
    functions: Vec<Function>,
    names: String,
    /// `[kernel]`, and the modules, in brackets as well.
    modules: Vec<String>,
}

impl KernelSymbols {
    /// Reads the functions of the running kernel. That takes 0.1 s to 0.2 s of CPU time, most of it
    /// in the kernel, so it is done only where there are addresses to name. There are none where
    /// the kernel hides its addresses (`kernel.kptr_restrict`, or no privileges).
    pub fn read() -> Self {
        let read = |path| fs::read(path).unwrap_or_default();
        Self::parse(&read("/proc/kallsyms"), &read("/proc/modules"))
    }

    /// From the text of /proc/kallsyms and of /proc/modules, which tells where each module ends. A
    /// line that is not understood is left out.
    fn parse(kallsyms: &[u8], modules: &[u8]) -> Self {
        let mut symbols = Self { modules: vec![KERNEL.to_owned()], ..Self::default() };
        let kernel_end = lines(kallsyms)
            .filter_map(symbol)
            .find_map(|symbol| (symbol.name == "_etext").then_some(symbol.start))
            .unwrap_or(0);
        let ranges: Vec<(u64, u64)> = lines(modules).filter_map(module_range).collect();
        let mut previous = None;
        for symbol in lines(kallsyms).filter_map(symbol) {
            // Hidden addresses are all 0.
            if !matches!(symbol.kind, b't' | b'T' | b'w' | b'W') || symbol.start == 0 {
                continue;
            }
            let limit = match symbol.module {
                None => kernel_end,
                Some(_) => ranges
                    .iter()
                    .find(|&&(start, end)| (start..end).contains(&symbol.start))
                    .map_or(symbol.start.saturating_add(PROGRAM_CAP_BYTES), |range| range.1),
            };
            // Code that is used at boot only lies behind the end, and is given back.
            if symbol.start >= limit {
                continue;
            }
            let (Ok(name), Ok(name_bytes)) =
                (u32::try_from(symbols.names.len()), u16::try_from(symbol.name.len()))
            else {
                continue;
            };
            // The symbols of a module stand together.
            let module = match previous {
                Some((module, index)) if module == symbol.module => index,
                _ => {
                    let index = symbols.module_index(symbol.module);
                    previous = Some((symbol.module, index));
                    index
                }
            };
            symbols.names.push_str(symbol.name);
            let start = symbol.start;
            symbols.functions.push(Function { start, limit, name, name_bytes, module });
        }
        let Self { functions, names, .. } = &mut symbols;
        functions.sort_unstable_by(|a, b| {
            let key = |function: &Function| {
                let name = text(names, function);
                let underscores = name.bytes().take_while(|&byte| byte == b'_').count();
                // Marks such as `_stext` stand before the first function.
                (is_mark(name), underscores, name.len())
            };
            a.start
                .cmp(&b.start)
                .then_with(|| key(a).cmp(&key(b)))
                .then_with(|| text(names, a).cmp(text(names, b)))
        });
        functions.dedup_by_key(|function| function.start);
        symbols
    }

    fn module_index(&mut self, module: Option<&str>) -> u16 {
        let Some(module) = module else { return 0 };
        let at = self.modules.iter().position(|known| known == module).unwrap_or_else(|| {
            self.modules.push(module.to_owned());
            self.modules.len() - 1
        });
        u16::try_from(at).unwrap_or(0)
    }

    /// Whether the kernel hides its addresses, so that nothing has a name.
    pub fn is_hidden(&self) -> bool {
        self.functions.is_empty()
    }

    /// The function that an address lies in; for a return address, give the one before it.
    /// `None` outside the kernel's code, and where the kernel hides its addresses.
    pub fn name(&self, address: u64) -> Option<&str> {
        self.function(address).map(|function| text(&self.names, function))
    }

    /// A frame of the kernel, with its name, and the module it is in: `[kernel]`, or a module as
    /// `[ext4]`. `lookup` is the address to name: before `address`, if that is a return address.
    ///
    /// Where the kernel hides its addresses, the frame is `[kernel]` and has none either: the
    /// recording may be given to people to whom they are not shown.
    pub fn frame(&self, address: u64, lookup: u64) -> Frame {
        let module = |index: usize| self.modules.get(index).cloned().unwrap_or(KERNEL.into());
        match self.function(lookup) {
            Some(function) => Frame {
                address,
                function: Some(text(&self.names, function).to_owned()),
                module: module(usize::from(function.module)),
                module_address: address,
                ..Frame::default()
            },
            None if self.is_hidden() => {
                Frame { function: Some(KERNEL.into()), module: module(0), ..Frame::default() }
            }
            None => {
                Frame { address, module: module(0), module_address: address, ..Frame::default() }
            }
        }
    }

    /// Names the frames of a kernel stack. Only names are kept: a recording may be given to people
    /// who must not know where the kernel lies in memory. Where that is hidden from us too, the
    /// stack is one frame without a name.
    pub fn resolve(&self, raw: &RawStack) -> Stack {
        let named = |(at, &address): (usize, &u64)| {
            // All but the innermost are return addresses.
            let lookup = address.wrapping_sub(u64::from(at > 0));
            let frame = self.frame(address, lookup);
            let function = frame.function.filter(|_| !self.is_hidden());
            Frame { address: 0, module_address: 0, function, ..frame }
        };
        let mut frames: Vec<Arc<Frame>> =
            raw.frames.iter().enumerate().map(named).map(Arc::new).collect();
        if self.is_hidden() {
            frames.truncate(1);
        }
        Stack {
            id: raw.id,
            frames,
            truncated: raw.truncated.clone(),
            used_frame_pointer: raw.used_frame_pointer,
        }
    }

    fn function(&self, address: u64) -> Option<&Function> {
        let at = self.functions.partition_point(|function| function.start <= address);
        let function = self.functions.get(at.checked_sub(1)?)?;
        (address < function.limit).then_some(function)
    }
}

fn text<'names>(names: &'names str, function: &Function) -> &'names str {
    let start = function.name as usize;
    names.get(start..start + usize::from(function.name_bytes)).unwrap_or_default()
}

fn is_mark(name: &str) -> bool {
    matches!(name, "_text" | "_stext" | "_etext") || name.ends_with("_text_start")
}

/// A line of /proc/kallsyms: `ffffffff81001000 T name`, and `\t[module]` behind it.
struct Symbol<'line> {
    start: u64,
    kind: u8,
    name: &'line str,
    module: Option<&'line str>,
}

fn lines(text: &[u8]) -> impl Iterator<Item = &str> {
    text.split(|&byte| byte == b'\n').filter_map(|line| str::from_utf8(line).ok())
}

fn symbol(line: &str) -> Option<Symbol<'_>> {
    let (address, rest) = line.split_once(' ')?;
    let (kind, rest) = rest.split_once(' ')?;
    let (name, module) = match rest.split_once('\t') {
        Some((name, module)) => (name, Some(module.trim_end())),
        None => (rest, None),
    };
    let start = u64::from_str_radix(address, 16).ok()?;
    let [kind] = kind.as_bytes() else { return None };
    (!name.is_empty()).then_some(Symbol { start, kind: *kind, name, module })
}

/// A line of /proc/modules: `name size users dependencies state address`.
fn module_range(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let size_bytes: u64 = fields.nth(1)?.parse().ok()?;
    let start = u64::from_str_radix(fields.nth(3)?.strip_prefix("0x")?, 16).ok()?;
    Some((start, start.checked_add(size_bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &[u8] = b"ffffffff81000000 T _stext\n\
        ffffffff81000000 T _text\n\
        ffffffff81000000 t srso_ret\n\
        ffffffff81001000 T do_futex\n\
        ffffffff81001100 t __do_futex_cold\n\
        ffffffff81001100 W do_cold\n\
        ffffffff81002000 T _etext\n\
        ffffffff82000000 D jiffies\n\
        ffffffff83000000 t boot_only\n\
        ffffffffc0001000 t ext4_read\t[ext4]\n\
        ffffffffc0003000 t bpf_prog_1234_first\t[bpf]\n\
        not a line\n\
        ffffffffc0003080 t bpf_prog_5678_second\t[bpf]\n";
    const MODULES: &[u8] = b"ext4 4096 2 jbd2,mbcache, Live 0xffffffffc0001000\nbroken\n";

    /// Check that functions end where the next one begins or their module does, that marks and data
    /// name nothing, and that aliases give the plainest name.
    #[test]
    fn ranges() {
        let symbols = KernelSymbols::parse(KALLSYMS, MODULES);
        for (address, name) in [
            (0xffff_ffff_80ff_ffff, None),
            (0xffff_ffff_8100_0000, Some("srso_ret")),
            (0xffff_ffff_8100_10ff, Some("do_futex")),
            (0xffff_ffff_8100_1100, Some("do_cold")),
            (0xffff_ffff_8100_1fff, Some("do_cold")),
            (0xffff_ffff_8100_2000, None),
            (0xffff_ffff_8200_0000, None),
            (0xffff_ffff_8300_0000, None),
            (0xffff_ffff_c000_1fff, Some("ext4_read")),
            (0xffff_ffff_c000_2000, None),
            (0xffff_ffff_c000_3000, Some("bpf_prog_1234_first")),
            (0xffff_ffff_c000_3080, Some("bpf_prog_5678_second")),
            (0xffff_ffff_c001_3080, None),
            (u64::MAX, None),
            (0, None),
        ] {
            assert_eq!(symbols.name(address), name, "{address:#x}");
        }
    }

    /// Check that a frame says which part of the kernel it is in, and that an address outside every
    /// function has no name.
    #[test]
    fn frames() {
        let symbols = KernelSymbols::parse(KALLSYMS, MODULES);
        let frame = symbols.frame(0xffff_ffff_8100_1100, 0xffff_ffff_8100_10ff);
        assert_eq!((frame.function.as_deref(), &*frame.module), (Some("do_futex"), "[kernel]"));
        let frame = symbols.frame(0xffff_ffff_c000_1010, 0xffff_ffff_c000_1010);
        assert_eq!((frame.function.as_deref(), &*frame.module), (Some("ext4_read"), "[ext4]"));
        let frame = symbols.frame(0xffff_ffff_9000_0000, 0xffff_ffff_9000_0000);
        assert_eq!((frame.function, &*frame.module), (None, "[kernel]"));
    }

    /// Check that a kernel that hides its addresses gives frames that say so, without addresses.
    #[test]
    fn hidden() {
        let text = b"0000000000000000 T do_futex\n0000000000000000 T _etext\n";
        let symbols = KernelSymbols::parse(text, b"ext4 4096 2 - Live 0x0000000000000000\n");
        assert!(symbols.is_hidden());
        let frame = symbols.frame(0xffff_ffff_8100_1100, 0xffff_ffff_8100_1100);
        assert_eq!((frame.function.as_deref(), frame.address), (Some("[kernel]"), 0));
        assert_eq!(frame.module_address, 0);
    }

    /// Check that the running kernel's functions are found at their addresses, where it shows them.
    #[test]
    fn running_kernel() {
        let symbols = KernelSymbols::read();
        let text = fs::read("/proc/kallsyms").unwrap_or_default();
        let shown = lines(&text).filter_map(symbol).find(|symbol| symbol.name == "schedule");
        match shown.filter(|symbol| symbol.start != 0) {
            Some(symbol) => assert_eq!(symbols.name(symbol.start + 1), Some("schedule")),
            None => assert!(symbols.is_hidden()),
        }
    }

    /// Check that a stack keeps names and no addresses, and that a return address is named by the
    /// one before it; where the kernel hides its symbols, one frame is left.
    #[test]
    fn stacks_without_addresses() {
        let text =
            b"ffffffff81000000 T first\nffffffff81000100 T second\nffffffff81000200 T _etext\n";
        let raw = RawStack {
            id: 1,
            frames: vec![0xffff_ffff_8100_0100, 0xffff_ffff_8100_0100],
            ..RawStack::default()
        };
        let stack = KernelSymbols::parse(text, b"").resolve(&raw);
        let names: Vec<_> = stack.frames.iter().map(|it| it.function.as_deref()).collect();
        assert_eq!(names, [Some("second"), Some("first")]);
        assert!(stack.frames.iter().all(|it| (it.address, it.module_address) == (0, 0)));
        let hidden = KernelSymbols::parse(b"0000000000000000 T first\n", b"").resolve(&raw);
        assert_eq!(hidden.frames.len(), 1);
        assert_eq!(
            (hidden.frames[0].function.as_deref(), &*hidden.frames[0].module),
            (None, KERNEL)
        );
    }

    proptest::proptest! {
        /// Check that any text is read without a panic.
        #[test]
        fn any_text(kallsyms: Vec<u8>, modules: Vec<u8>, address: u64) {
            KernelSymbols::parse(&kallsyms, &modules).frame(address, address);
        }

        /// Check that damaged lines are left out.
        #[test]
        fn damaged(at in 0..KALLSYMS.len(), byte: u8, address in 0xffff_ffff_8100_0000_u64..) {
            let mut text = KALLSYMS.to_vec();
            text[at] = byte;
            KernelSymbols::parse(&text, MODULES).name(address);
        }
    }
}
