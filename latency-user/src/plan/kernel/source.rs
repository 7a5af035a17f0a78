//! The kernel's type information as bytes. Copying its 5 MB out of sysfs takes longer than
//! finding the facts in it, so that it is mapped where the kernel can (Linux 6.16).

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Deref;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::ptr::NonNull;

/// The bytes of a file.
pub enum Source {
    /// Mapped.
    Mapped(NonNull<u8>, usize),
    /// Read.
    Read(Vec<u8>),
}

impl Source {
    /// Opens and maps, or reads, `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let bytes = file.metadata()?.len() as usize;
        // Of sysfs alone: other files can be cut short while they are mapped.
        if path.starts_with("/sys") && bytes > 0 {
            // SAFETY: a new private mapping that nothing else uses; it is unmapped on drop.
            let address = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    bytes,
                    libc::PROT_READ,
                    libc::MAP_PRIVATE,
                    file.as_raw_fd(),
                    0,
                )
            };
            if address != libc::MAP_FAILED
                && let Some(address) = NonNull::new(address.cast())
            {
                return Ok(Self::Mapped(address, bytes));
            }
        }
        let mut content = Vec::with_capacity(bytes);
        file.read_to_end(&mut content)?;
        Ok(Self::Read(content))
    }
}

impl Deref for Source {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            // SAFETY: the mapping has this many bytes, which the kernel never changes, and lives
            // as long as `self`.
            Self::Mapped(address, bytes) => unsafe {
                std::slice::from_raw_parts(address.as_ptr(), *bytes)
            },
            Self::Read(bytes) => bytes,
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Self::Mapped(address, bytes) = self {
            // SAFETY: our own mapping, with no reference to it left.
            unsafe { libc::munmap(address.as_ptr().cast(), *bytes) };
        }
    }
}
