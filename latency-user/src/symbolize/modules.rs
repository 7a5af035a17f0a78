//! From /proc/PID/maps to the modules that names are looked up in.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use super::Module;
use crate::target::{ElfFile, FileId, Mapping, parse_maps};

/// The vdso is a few pages.
const VDSO_CAP_BYTES: u64 = 1 << 20;

/// All mappings of a process with the files that are held open of it; the vdso with its image.
pub fn modules_of(mappings: &[Mapping], files: &[ElfFile]) -> Vec<Module> {
    let mut open: HashMap<FileId, Arc<File>> = HashMap::new();
    for file in files {
        // Out of descriptors, the module goes without names.
        if let Ok(clone) = file.file.try_clone() {
            open.insert(file.id, Arc::new(clone));
        }
    }
    let vdso = mappings.iter().any(is_vdso).then(own_vdso).flatten();
    mappings
        .iter()
        .map(|mapping| Module {
            start: mapping.start,
            end: mapping.end,
            file_offset: mapping.offset,
            name: name_of(&mapping.path),
            path: mapping.path.clone(),
            file: open.get(&mapping.file).cloned(),
            bytes: vdso.clone().filter(|_| is_vdso(mapping)),
        })
        .collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn is_vdso(mapping: &Mapping) -> bool {
    mapping.path == Path::new("[vdso]")
}

/// Our own vdso: the kernel maps the same one into every 64-bit process, and ours can be read
/// after the target is gone.
pub(super) fn own_vdso() -> Option<Arc<[u8]>> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    let mapping = parse_maps(&maps).find(is_vdso)?;
    let size_bytes =
        mapping.end.checked_sub(mapping.start).filter(|&size| size <= VDSO_CAP_BYTES)?;
    let mut bytes = vec![0; usize::try_from(size_bytes).ok()?];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, mapping.start).ok()?;
    Some(bytes.into())
}
