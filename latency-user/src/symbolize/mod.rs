//! Addresses to names, done while the target's files are still held open, and stored in the
//! recording: a report needs neither the files nor the target.
//!
//! A name is given only where a symbol's range holds the address. Anything else is the module and
//! the address in it, never the nearest symbol before.

mod image;
mod index;
mod kernel;
mod modules;

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use crate::recording::{Frame, Stack};
use image::Image;
pub use kernel::KernelSymbols;
pub use modules::modules_of;

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

/// Names addresses of one process.
#[derive(Default)]
pub struct Symbolizer {
    /// By start, and not overlapping.
    modules: Vec<Module>,
    /// Of each module, in the same order.
    images: Vec<ImageId>,
    read: HashMap<ImageId, Arc<Image>>,
    /// By the address looked up. The modules are given by it, so it needs no second key.
    frames: HashMap<u64, Frame>,
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
    pub fn new(modules: Vec<Module>) -> Self {
        let mut symbolizer = Self::default();
        symbolizer.extend(modules);
        symbolizer
    }

    /// Adds mappings made since, such as those of `dlopen`. They replace what was mapped there.
    pub fn extend(&mut self, modules: Vec<Module>) {
        for module in modules.into_iter().filter(|module| module.start < module.end) {
            let overlaps = |other: &Module| other.start < module.end && module.start < other.end;
            let mut at = self.modules.partition_point(|other| other.start < module.start);
            if at > 0 && overlaps(&self.modules[at - 1]) {
                at -= 1;
            }
            while self.modules.get(at).is_some_and(overlaps) {
                self.modules.remove(at);
                let gone = self.images.remove(at);
                if matches!(gone, ImageId::Bytes { .. }) {
                    self.read.remove(&gone);
                }
            }
            self.images.insert(at, ImageId::of(&module));
            self.modules.insert(at, module);
        }
        self.frames.clear();
    }

    /// Names the frames of stacks.
    pub fn resolve(&mut self, raw: &[RawStack]) -> Vec<Stack> {
        raw.iter()
            .map(|stack| Stack {
                id: stack.id,
                frames: stack
                    .frames
                    .iter()
                    .enumerate()
                    .map(|(depth, &address)| self.frame(address, depth > 0))
                    .collect(),
                truncated: stack.truncated.clone(),
                used_frame_pointer: stack.used_frame_pointer,
            })
            .collect()
    }

    /// Names one frame.
    fn frame(&mut self, address: u64, is_return_address: bool) -> Frame {
        // A call can be the last instruction of a function: what follows it is another one.
        let back = u64::from(is_return_address && address > 0);
        let lookup = address - back;
        let mut frame = match self.frames.get(&lookup) {
            Some(frame) => frame.clone(),
            None => {
                let frame = self.look_up(lookup);
                self.frames.insert(lookup, frame.clone());
                frame
            }
        };
        frame.address = address;
        frame.module_address = frame.module_address.saturating_add(back);
        frame
    }

    fn look_up(&mut self, address: u64) -> Frame {
        let unknown = Frame { address, module_address: address, ..Frame::default() };
        let Some(at) = self.module_at(address) else { return unknown };
        let image = self.image(at);
        let module = &self.modules[at];
        let offset = (address - module.start).saturating_add(module.file_offset);
        let name = module.name.clone();
        match image.virtual_address(offset) {
            Some(virtual_address) => Frame {
                address,
                function: image.function(virtual_address),
                module: name,
                module_address: virtual_address,
            },
            // Memory without a file, as compilers at run time use it, has no addresses of its own.
            None if self.images[at] == ImageId::Missing => Frame { module: name, ..unknown },
            None => Frame { module: name, module_address: offset, ..unknown },
        }
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
        let module = &self.modules[at];
        let image = self.read.entry(self.images[at]).or_insert_with(|| {
            Arc::new(match (&module.bytes, &module.file) {
                (Some(bytes), _) => Image::of_bytes(bytes),
                (None, Some(file)) => Image::of_file(file),
                (None, None) => Image::default(),
            })
        });
        Arc::clone(image)
    }
}

#[cfg(test)]
mod tests;
