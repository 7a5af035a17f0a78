//! Debug information in files of their own: by build id, by `.gnu_debuglink`, or packed inside the
//! file itself.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::parts::DebugLink;
use super::read_at::Positioned;
use crate::target::Root;

/// Where packages of separate debug information put it: Debian's `-dbgsym`, Fedora's `-debuginfo`.
const DEBUG_FOLDER: &str = "/usr/lib/debug";
/// Unpacked, MiniDebugInfo is a symbol table.
const UNPACKED_CAP_BYTES: u64 = 512 << 20;
/// What unpacking may take beside that; `xz -9` needs 64 MiB.
const UNPACKING_CAP_KIB: u32 = 256 << 10;
/// A checksum is not computed over more: of a file that large, the build id must do.
const CHECKED_CAP_BYTES: u64 = 4 << 30;

/// A file that may hold the debug information wanted.
pub(super) struct Candidate {
    pub file: File,
    /// As its own root counts it.
    pub path: PathBuf,
    /// The root that it was opened in.
    pub root: usize,
    /// Whether it was found by its name alone, and has another checksum.
    pub is_other: bool,
}

/// The file of a build id, relative to the folder for them; `None` if that is no build id.
pub(super) fn build_id_path(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    if rest.is_empty() || rest.len() > 63 {
        return None;
    }
    let rest = hex(rest);
    Some(Path::new(DEBUG_FOLDER).join(format!(".build-id/{first:02x}/{rest}.debug")))
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The files that may hold debug information of a file, best first, opened one by one. `path` is
/// the file's own, as the target sees it.
pub(super) fn candidates<'a>(
    build_id: &[u8],
    link: Option<&'a DebugLink>,
    path: &'a Path,
    roots: &'a [Root],
) -> impl Iterator<Item = Candidate> + 'a {
    let by_build_id = build_id_path(build_id);
    let by_id = (0..roots.len()).filter_map(move |root| {
        let path = by_build_id.clone()?;
        let file = roots[root].open(&path).ok()?;
        Some(Candidate { file, path, root, is_other: false })
    });
    let by_name = link.into_iter().flat_map(move |link| {
        linked_paths(link, path).into_iter().flat_map(move |path| {
            (0..roots.len()).filter_map(move |root| {
                let file = roots[root].open(&path).ok()?;
                let is_other = checksum(&file).ok() != Some(link.crc);
                Some(Candidate { file, path: path.clone(), root, is_other })
            })
        })
    });
    by_id.chain(by_name)
}

/// Where gdb looks for a link, too.
fn linked_paths(link: &DebugLink, path: &Path) -> Vec<PathBuf> {
    let Some(folder) = path.parent() else { return Vec::new() };
    let name = Path::new(OsStr::from_bytes(&link.name));
    let global = Path::new(DEBUG_FOLDER).join(folder.strip_prefix("/").unwrap_or(folder));
    let paths = [folder.join(name), folder.join(".debug").join(name), global.join(name)];
    // A file may be linked to a name that is its own, in another folder.
    paths.into_iter().filter(|candidate| candidate != path).collect()
}

fn checksum(file: &File) -> io::Result<u32> {
    if file.metadata()?.len() > CHECKED_CAP_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut reader = Positioned::new(file);
    let mut crc = flate2::Crc::new();
    let mut buffer = vec![0; 256 << 10];
    loop {
        let length = match reader.read(&mut buffer) {
            Ok(0) => return Ok(crc.sum()),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        crc.update(&buffer[..length]);
    }
}

/// Unpacks MiniDebugInfo: an ELF file, compressed by xz.
pub(super) fn unpack(packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    let reader = lzma_rust2::XzReader::new_mem_limit(packed, false, UNPACKING_CAP_KIB);
    reader.take(UNPACKED_CAP_BYTES).read_to_end(&mut unpacked)?;
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check where a build id's file lies, and that what is none has no file.
    #[test]
    fn build_ids() {
        let path = build_id_path(&[0xab, 0xcd, 0x01]).unwrap();
        assert_eq!(path, Path::new("/usr/lib/debug/.build-id/ab/cd01.debug"));
        assert_eq!(build_id_path(&[]), None);
        assert_eq!(build_id_path(&[1]), None);
        assert_eq!(build_id_path(&[1; 65]), None);
    }

    /// Check that a link is looked for in the three places, and that it does not lead to the file
    /// itself.
    #[test]
    fn places() {
        let link = DebugLink { name: b"x.so".to_vec(), crc: 0 };
        let paths = linked_paths(&link, Path::new("/usr/lib/x.so"));
        assert_eq!(
            paths,
            ["/usr/lib/.debug/x.so", "/usr/lib/debug/usr/lib/x.so"].map(PathBuf::from)
        );
        assert_eq!(linked_paths(&link, Path::new("/")).len(), 0);
    }

    proptest::proptest! {
        /// Check that any bytes are refused, or unpacked, without a panic.
        #[test]
        fn any_packed(bytes: Vec<u8>) {
            let _ = unpack(&bytes);
            let _ = unpack(&[b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4\x46", &bytes[..]].concat());
        }
    }
}
