//! A file's segments and symbols, with those of its separate debug information.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Origins;
use super::dwarf::{self, Sources};
use super::index::{Index, Names, demangled};
use super::parts::{Fault, Parts, Role, Segment};
use super::plt;
use super::separate::{self, Candidate};

const PAGE_BYTES: u64 = 4096;

/// An ELF file's segments and symbols.
#[derive(Default, Debug)]
pub(super) struct Image {
    segments: Vec<Segment>,
    functions: Index,
    objects: Index,
    names: Names,
    stubs: plt::Stubs,
    debug_info: Option<DebugInfo>,
}

/// Where an image's debug information is.
#[derive(Debug)]
struct DebugInfo {
    file: Arc<File>,
    supplement: Option<File>,
}

impl Image {
    /// Reads a mapped file, and what separate debug information there is of it. `path` is the
    /// file's, as the target sees it. What cannot be used is missing, and noted.
    pub fn of_file(
        file: &Arc<File>,
        path: &Path,
        origins: &mut Origins,
        notes: &mut Vec<String>,
    ) -> Self {
        let mut parts = Parts::default();
        // A file that is no ELF file has no names.
        let _ = parts.read_file(file, Role::Mapped);
        let mut debug_info = parts.has_debug_info.then(|| Arc::clone(file));
        let stubs = plt::Stubs::of_file(file);
        if let Some(packed) = parts.packed.take() {
            let unpacked = separate::unpack(&packed).map_err(|error| error.to_string());
            let read = unpacked.and_then(|unpacked| {
                parts.read(&unpacked[..], Role::Embedded).map_err(|fault| fault.text().into())
            });
            if let Err(why) = read {
                notes.push(format!("{}: its .gnu_debugdata cannot be read: {why}", path.display()));
            }
        }
        let is_wanted = |parts: &Parts, debug_info: &Option<_>, lines| {
            !parts.has_symbols || (lines && debug_info.is_none())
        };
        let mut found_in = parts.has_debug_info.then(|| (0, path.to_owned()));
        if is_wanted(&parts, &debug_info, origins.lines) {
            let (build_id, link) = (parts.build_id.clone(), parts.debug_link.take());
            for candidate in separate::candidates(&build_id, link.as_ref(), path, &origins.roots) {
                let Candidate { file, path, root, is_other } = candidate;
                let read = match is_other {
                    false => parts.read_file(&file, Role::Separate).map_err(Fault::text),
                    true => Err("its checksum is not the one that the file is linked to"),
                };
                match read {
                    Ok(()) => {
                        if parts.has_debug_info && debug_info.is_none() {
                            debug_info = Some(Arc::new(file));
                            found_in = Some((root, path));
                        }
                    }
                    Err(why) => notes.push(format!("{} is not used: {why}", path.display())),
                }
                if !is_wanted(&parts, &debug_info, origins.lines) {
                    break;
                }
            }
        }
        if is_wanted(&parts, &debug_info, origins.lines)
            && !parts.build_id.is_empty()
            && let Some(debuginfod) = &mut origins.debuginfod
        {
            match debuginfod.fetch(&parts.build_id) {
                Ok(None) => {}
                Ok(Some(file)) => match parts.read_file(&file, Role::Separate) {
                    Ok(()) if parts.has_debug_info => debug_info = Some(Arc::new(file)),
                    Ok(()) => {}
                    Err(fault) => notes.push(format!(
                        "{}: what debuginfod sent is not used: {}",
                        path.display(),
                        fault.text()
                    )),
                },
                Err(why) => notes.push(format!("{}: debuginfod: {why}", path.display())),
            }
        }
        let debug_info = debug_info.filter(|_| origins.lines).map(|file| {
            let supplement = supplement(&file, found_in, origins);
            DebugInfo { file, supplement }
        });
        Self { stubs, debug_info, ..Self::of_parts(parts) }
    }

    /// Reads an image that lies in memory, as the vdso does.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let mut parts = Parts::default();
        let _ = parts.read(bytes, Role::Mapped);
        Self::of_parts(parts)
    }

    fn of_parts(mut parts: Parts) -> Self {
        let (functions, objects, names) = parts.indexed();
        Self { segments: parts.segments, functions, objects, names, ..Self::default() }
    }

    /// The address, as the file counts it, of a byte of the file.
    pub fn virtual_address(&self, file_offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let at = file_offset.checked_sub(segment.file_offset)?;
            (at < segment.file_bytes).then(|| segment.virtual_address.checked_add(at))?
        })
    }

    /// Where in the file the first page of the image lies, and its address as the file counts it.
    pub fn first_page(&self) -> Option<(u64, u64)> {
        let first = self.segments.iter().min_by_key(|segment| segment.virtual_address)?;
        let page = |address: u64| address / PAGE_BYTES * PAGE_BYTES;
        Some((page(first.file_offset), page(first.virtual_address)))
    }

    /// Whether the image has memory at an address, `.bss` included.
    pub fn holds(&self, virtual_address: u64) -> bool {
        self.segments.iter().any(|segment| {
            virtual_address
                .checked_sub(segment.virtual_address)
                .is_some_and(|at| at < segment.memory_bytes)
        })
    }

    /// The function that covers an address; of a stub that leads to one in another file,
    /// `name@plt`.
    pub fn function(&self, virtual_address: u64) -> Option<String> {
        match self.functions.covering(virtual_address) {
            Some(symbol) => Some(demangled(self.names.get(symbol))).filter(|name| !name.is_empty()),
            None => self.stubs.name(virtual_address),
        }
    }

    /// The variable that covers an address, and the offset within it.
    pub fn object(&self, virtual_address: u64) -> Option<(String, u64)> {
        let symbol = self.objects.covering(virtual_address)?;
        let name = demangled(self.names.get(symbol));
        (!name.is_empty()).then(|| (name, virtual_address - symbol.start))
    }

    /// Inlined functions and lines at addresses, where there is debug information and it was wanted.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn sources(&self, virtual_addresses: &[u64]) -> Result<Sources, String> {
        match &self.debug_info {
            Some(info) => dwarf::look_up(&info.file, info.supplement.as_ref(), virtual_addresses),
            None => Ok(Sources::new()),
        }
    }

    #[cfg(test)]
    pub fn object_names(&self) -> Vec<String> {
        self.objects.symbols().iter().map(|symbol| demangled(self.names.get(symbol))).collect()
    }

    #[cfg(test)]
    pub fn function_ranges(&self) -> Vec<(u64, u64)> {
        self.functions.symbols().iter().map(|symbol| (symbol.start, symbol.end)).collect()
    }
}

/// The file that `dwz` moved shared parts of debug information to: by build id, or by the path that
/// is relative to the file it was moved from.
fn supplement(
    debug_info: &File,
    found_in: Option<(usize, PathBuf)>,
    origins: &Origins,
) -> Option<File> {
    let (link, build_id) = dwarf::supplement(debug_info)?;
    let is_it = |file: &File| dwarf::build_id(file).as_ref() == Some(&build_id);
    let by_id = separate::build_id_path(&build_id);
    let by_id = by_id.and_then(|path| origins.roots.iter().find_map(|root| root.open(&path).ok()));
    by_id.filter(is_it).or_else(|| {
        let (root, path) = found_in?;
        let path = path.parent()?.join(OsStr::from_bytes(&link));
        origins.roots.get(root)?.open(&path).ok().filter(is_it)
    })
}
