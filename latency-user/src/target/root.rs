//! File systems as a process sees them, held open: what lies there can be read when the process is
//! gone.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::file::regular;

/// The root folder of a process.
#[derive(Debug)]
pub struct Root {
    folder: File,
    /// Keeps what is mounted below the root folder where it is.
    _namespace: Option<File>,
}

impl Root {
    /// The root folder of a process.
    ///
    /// # Errors
    /// The process is gone, or its root may not be opened.
    pub fn of(pid: u32) -> io::Result<Self> {
        let namespace = File::open(format!("/proc/{pid}/ns/mnt")).ok();
        Self::hold(Path::new(&format!("/proc/{pid}/root")), namespace)
    }

    /// The tracer's own root folder.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn own() -> io::Result<Self> {
        Self::at(Path::new("/"))
    }

    /// A folder as a root.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn at(path: &Path) -> io::Result<Self> {
        Self::hold(path, None)
    }

    fn hold(path: &Path, namespace: Option<File>) -> io::Result<Self> {
        let folder = File::options()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC)
            .open(path)?;
        Ok(Self { folder, _namespace: namespace })
    }

    /// Whether both are the same folder.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self.folder.metadata(), other.folder.metadata()) {
            (Ok(ours), Ok(theirs)) => (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()),
            _ => false,
        }
    }

    /// Opens a regular file. Symbolic links and `..` lead nowhere but into this root: those that a
    /// process made must not lead to files of the tracer's.
    ///
    /// # Errors
    /// There is no such file, or it is no regular one ([`io::ErrorKind::InvalidInput`]).
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: a struct of plain integers, of which zero is the default.
        let mut how: libc::open_how = unsafe { std::mem::zeroed() };
        how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
        how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
        // SAFETY: both pointers are valid for the call, and the size is that of the struct.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_openat2,
                self.folder.as_raw_fd(),
                path.as_ptr(),
                &raw const how,
                size_of::<libc::open_how>(),
            )
        };
        let fd = i32::try_from(fd).unwrap_or(-1);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        let handle = unsafe { File::from_raw_fd(fd) };
        regular(&handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Check that links stay within the root, and that nothing but regular files is opened.
    #[test]
    fn stays_within() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("etc")).unwrap();
        std::fs::write(folder.path().join("etc/hostname"), "inside").unwrap();
        symlink("/etc/hostname", folder.path().join("absolute")).unwrap();
        symlink("../../../etc/hostname", folder.path().join("relative")).unwrap();
        symlink("/proc/self/exe", folder.path().join("nowhere")).unwrap();
        let root = Root::at(folder.path()).unwrap();
        for name in ["/etc/hostname", "etc/hostname", "/absolute", "relative", "/../etc/hostname"] {
            let text = io::read_to_string(root.open(Path::new(name)).unwrap()).unwrap();
            assert_eq!(text, "inside", "{name}");
        }
        assert_eq!(root.open(Path::new("nowhere")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(root.open(Path::new("etc")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(root.open(Path::new("a\0b")).is_err());
    }

    /// Check that a process of the same namespace has the same root, and that its files can be
    /// opened when it is gone.
    #[test]
    fn survives_the_process() {
        let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        let root = Root::of(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(root.is_same(&Root::own().unwrap()));
        assert!(root.open(&std::env::current_exe().unwrap()).is_ok());
        assert!(Root::of(child.id()).is_err());
    }
}
