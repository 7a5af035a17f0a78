//! Addresses to names, done while the target's files are still held open, and stored in the
//! recording: a report needs neither the files nor the target.
//!
//! A name is given only where a symbol's range holds the address. Anything else is the module and
//! the address in it, never the nearest symbol before.

mod debuginfod;
mod dwarf;
mod image;
mod index;
mod kernel;
mod modules;
mod parts;
mod perf_map;
mod plt;
mod read_at;
mod separate;

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use crate::recording::{Frame, Stack};
use crate::target::Root;
pub use debuginfod::{Debuginfod, DebuginfodError};
use dwarf::Source;
use image::Image;
pub use kernel::KernelSymbols;
pub use modules::modules_of;
use perf_map::PerfMap;
pub use perf_map::PerfMapOf;

/// Code that a compiler made at run time is shown as being in here.
const JIT: &str = "[JIT]";
/// Mappings in which every address is the same to the reader.
const WITHOUT_ADDRESSES: [&str; 2] = ["[uprobes]", "[vsyscall]"];

/// A mapping of the target.
#[derive(Clone, Default, Debug)]
pub struct Module {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Where in the file the mapping starts, in bytes.
    pub file_offset: u64,
    /// Name to show: the file's name without its folder, a mark such as `[vdso]` or `[heap]`, or
    /// nothing.
    pub name: String,
    /// The file's path, as the target sees it.
    pub path: PathBuf,
    /// The mapped file, held open; the target may exit and the file be deleted.
    pub file: Option<Arc<File>>,
    /// The image itself, where it is in memory only: the vdso.
    pub bytes: Option<Arc<[u8]>>,
}

impl Module {
    fn holds(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// A stack as the kernel side took it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RawStack {
    /// Under which the waits refer to it.
    pub id: u64,
    /// Addresses, the innermost first. All but that are return addresses.
    pub frames: Vec<u64>,
    /// Why the stack does not reach the thread's start; `None` if it does.
    pub truncated: Option<String>,
    /// Whether frames were found by the frame pointer.
    pub used_frame_pointer: bool,
}

/// Where names come from, besides the files that are mapped.
#[derive(Default, Debug)]
pub struct Origins {
    /// The file systems that separate debug files are looked for in, the target's own first.
    pub roots: Vec<Root>,
    /// Whether inlined functions and lines of source are wanted.
    ///
    /// They are not by default, for their price at the end, with the probes still attached. Measured
    /// on two busy CPUs with 1,000 addresses: a Rust program of 32 MB takes 10 ms for its symbols and
    /// 260 ms with its debug information (10 MB of `.debug_info`), the C library 10 ms and 300 ms; of
    /// a C++ service with a gigabyte of it, that is tens of seconds.
    pub lines: bool,
    /// The map of the code that the target makes at run time, in its own file system.
    pub perf_map: Option<PerfMapOf>,
    /// Servers to ask for debug information that is not installed.
    pub debuginfod: Option<Debuginfod>,
}

/// Names addresses of one process.
#[derive(Default)]
pub struct Symbolizer {
    origins: Origins,
    /// By start, and not overlapping.
    modules: Vec<Module>,
    /// Of each module, in the same order.
    images: Vec<ImageId>,
    read: HashMap<ImageId, Arc<Image>>,
    /// By the address, and how far before it was looked.
    frames: HashMap<(u64, u64), Vec<Arc<Frame>>>,
    /// Functions and lines from debug information, by the address looked up.
    sources: HashMap<u64, Vec<Source>>,
    /// Read anew for each list of stacks: code made at run time moves.
    perf_map: Option<PerfMap>,
    notes: Vec<String>,
}

/// What an image is read from: mappings of one file share it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ImageId {
    Missing,
    File { device: u64, inode: u64 },
    Bytes { start: u64 },
}

impl ImageId {
    fn of(module: &Module) -> Self {
        if module.bytes.is_some() {
            return Self::Bytes { start: module.start };
        }
        let metadata = module.file.as_ref().and_then(|file| file.metadata().ok());
        metadata.map_or(Self::Missing, |file| Self::File { device: file.dev(), inode: file.ino() })
    }
}

impl Symbolizer {
    /// Takes all mappings of the target, in any order. Code is named from those that are
    /// executable; [`Self::name_data`] needs the others as well. Nothing is read yet.
    pub fn new(modules: Vec<Module>, origins: Origins) -> Self {
        let mut symbolizer = Self { origins, ..Self::default() };
        symbolizer.extend(modules);
        symbolizer
    }

    /// Adds mappings made since, such as those of `dlopen`. They replace what was mapped there.
    pub fn extend(&mut self, mut new: Vec<Module>) {
        new.retain(|module| module.start < module.end);
        new.sort_by_key(|module| module.start);
        let mut reach = 0;
        new.retain(|module| {
            let is_free = module.start >= reach;
            reach = reach.max(module.end);
            is_free
        });
        let is_replaced = |module: &Module| {
            let after = new.partition_point(|other| other.start < module.end);
            after > 0 && new[after - 1].end > module.start
        };
        let old =
            std::mem::take(&mut self.modules).into_iter().zip(std::mem::take(&mut self.images));
        let mut all: Vec<(Module, ImageId)> =
            old.filter(|(module, _)| !is_replaced(module)).collect();
        all.extend(new.into_iter().map(|module| {
            let id = ImageId::of(&module);
            (module, id)
        }));
        all.sort_by_key(|(module, _)| module.start);
        (self.modules, self.images) = all.into_iter().unzip();
        self.frames.clear();
        self.sources.clear();
    }

    /// What was found on the way that could not be used, as sentences; each is returned once.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Names the frames of stacks.
    pub fn resolve(&mut self, raw: &[RawStack]) -> Vec<Stack> {
        self.perf_map = None;
        if self.origins.lines {
            self.read_sources(raw);
        }
        raw.iter()
            .map(|stack| Stack {
                id: stack.id,
                frames: lookups(stack)
                    .flat_map(|(address, back)| self.frames_at(address, back))
                    .collect(),
                truncated: stack.truncated.clone(),
                used_frame_pointer: stack.used_frame_pointer,
            })
            .collect()
    }

    /// Looks up the debug information of all addresses, image by image.
    fn read_sources(&mut self, raw: &[RawStack]) {
        let mut wanted: HashMap<ImageId, (usize, Vec<(u64, u64)>)> = HashMap::new();
        for (address, back) in raw.iter().flat_map(lookups) {
            let lookup = address - back;
            let Some(at) =
                self.module_at(lookup).filter(|_| !self.frames.contains_key(&(address, back)))
            else {
                continue;
            };
            let image = self.image(at);
            if let Some(virtual_address) = image.virtual_address(self.file_offset(at, lookup)) {
                let of_image = wanted.entry(self.images[at]).or_insert((at, Vec::new()));
                of_image.1.push((lookup, virtual_address));
            }
        }
        for (at, addresses) in wanted.into_values() {
            let mut virtual_addresses: Vec<u64> = addresses.iter().map(|pair| pair.1).collect();
            virtual_addresses.sort_unstable();
            virtual_addresses.dedup();
            match self.image(at).sources(&virtual_addresses) {
                Ok(found) => {
                    self.sources.extend(addresses.iter().filter_map(|(lookup, address)| {
                        Some((*lookup, found.get(address)?.clone()))
                    }))
                }
                Err(why) => self.notes.push(format!(
                    "{}: no lines from its debug information: {why}",
                    self.modules[at].path.display()
                )),
            }
        }
        self.notes.sort_unstable();
    }

    /// Names a frame, and the functions inlined there, the innermost first. `back` is how far before
    /// the address its instruction is looked for.
    fn frames_at(&mut self, address: u64, back: u64) -> Vec<Arc<Frame>> {
        if let Some(frames) = self.frames.get(&(address, back)) {
            return frames.clone();
        }
        let mut frames = self.look_up(address - back);
        // What is made at run time may be something else the next time.
        let is_lasting = frames.iter().all(|frame| frame.module != JIT);
        for frame in &mut frames {
            frame.address = address;
            frame.module_address = frame.module_address.saturating_add(back);
        }
        let frames: Vec<_> = frames.into_iter().map(Arc::new).collect();
        if is_lasting {
            self.frames.insert((address, back), frames.clone());
        }
        frames
    }

    fn look_up(&mut self, address: u64) -> Vec<Frame> {
        let unknown = Frame { address, module_address: address, ..Frame::default() };
        let at = self.module_at(address);
        let Some(at) = at.filter(|&at| self.images[at] != ImageId::Missing) else {
            // Memory without a file has no addresses of its own.
            let module = at.map(|at| self.modules[at].name.clone()).unwrap_or_default();
            if WITHOUT_ADDRESSES.contains(&&*module) {
                let function = Some(module.clone());
                return vec![Frame { function, module, ..unknown }];
            }
            return vec![match self.perf_map().name(address) {
                Some(name) => Frame { function: Some(name), module: JIT.into(), ..unknown },
                None => Frame { module, ..unknown },
            }];
        };
        let image = self.image(at);
        let offset = self.file_offset(at, address);
        let module = self.modules[at].name.clone();
        let Some(module_address) = image.virtual_address(offset) else {
            return vec![Frame { module, module_address: offset, ..unknown }];
        };
        let function = image.function(module_address);
        let physical = Frame { address, function, module, module_address, ..Frame::default() };
        let Some(sources) = self.sources.get(&address) else { return vec![physical] };
        let last = sources.len().saturating_sub(1);
        let frame = |(depth, source): (usize, &Source)| Frame {
            // The symbol also tells parts of a function apart, as `sign.cold`.
            function: match &physical.function {
                Some(symbol) if depth == last => Some(symbol.clone()),
                _ => source.function.clone(),
            },
            file: source.file.clone(),
            line: source.line,
            is_inlined: depth < last,
            ..physical.clone()
        };
        sources.iter().enumerate().map(frame).collect()
    }

    fn file_offset(&self, at: usize, address: u64) -> u64 {
        let module = &self.modules[at];
        address.saturating_sub(module.start).saturating_add(module.file_offset)
    }

    fn perf_map(&mut self) -> &PerfMap {
        if self.perf_map.is_none() {
            let of = self.origins.perf_map;
            let read = of.zip(self.origins.roots.first()).map(|(of, root)| of.read(root));
            let map = read.unwrap_or(Ok(None)).unwrap_or_else(|why| {
                self.notes.push(format!("names of code made at run time: {why}"));
                None
            });
            self.perf_map = Some(map.unwrap_or_default());
        }
        self.perf_map.get_or_insert_default()
    }

    /// Names a futex, or other data, by its address: `keysvc:g_keystore_lock` where a variable
    /// covers it (with `+0x…` if not at its start), else `keysvc+0x…` with the address as the file
    /// counts it, else `[heap]+0x…` with the offset in the mapping; `None` for memory that has no
    /// name, or is not mapped.
    pub fn name_data(&mut self, address: u64) -> Option<String> {
        if let Some(name) = self.name_in_image(address) {
            return Some(name);
        }
        let module = &self.modules[self.module_at(address)?];
        let offset = (address - module.start).saturating_add(module.file_offset);
        (!module.name.is_empty()).then(|| format!("{}+{offset:#x}", module.name))
    }

    fn name_in_image(&mut self, address: u64) -> Option<String> {
        // The `.bss` lies behind the last mapping of the file, in memory without a file.
        let before = self.modules.partition_point(|module| module.start <= address);
        let last = (0..before).rev().find(|&at| self.images[at] != ImageId::Missing)?;
        let id = self.images[last];
        let image = self.image(last);
        let (first_offset, first_address) = image.first_page()?;
        // The same file can be mapped twice (`dlmopen`): the nearest first page before is its own.
        let first = (0..=last)
            .rev()
            .find(|&at| self.images[at] == id && self.modules[at].file_offset == first_offset)?;
        let bias = self.modules[first].start.wrapping_sub(first_address);
        let virtual_address = address.wrapping_sub(bias);
        if !image.holds(virtual_address) {
            return None;
        }
        let module = &self.modules[last].name;
        Some(match image.object(virtual_address) {
            Some((object, 0)) => format!("{module}:{object}"),
            Some((object, offset)) => format!("{module}:{object}+{offset:#x}"),
            None => format!("{module}+{virtual_address:#x}"),
        })
    }

    fn module_at(&self, address: u64) -> Option<usize> {
        let at = self.modules.partition_point(|module| module.start <= address).checked_sub(1)?;
        self.modules[at].holds(address).then_some(at)
    }

    /// The image of a module, read at its first use; empty where there is none.
    fn image(&mut self, at: usize) -> Arc<Image> {
        let Self { origins, modules, images, read, notes, .. } = self;
        let module = &modules[at];
        let image = read.entry(images[at]).or_insert_with(|| {
            Arc::new(match (&module.bytes, &module.file) {
                (Some(bytes), _) => Image::of_bytes(bytes),
                (None, Some(file)) => Image::of_file(file, &module.path, origins, notes),
                (None, None) => Image::default(),
            })
        });
        Arc::clone(image)
    }
}

/// The addresses of a stack, with how far before each its instruction is looked for. A call can be
/// the last instruction of a function: what a return address names is another one.
fn lookups(stack: &RawStack) -> impl Iterator<Item = (u64, u64)> {
    let addresses = stack.frames.iter().enumerate();
    addresses.map(|(depth, &address)| (address, u64::from(depth > 0 && address > 0)))
}

#[cfg(test)]
mod tests;
