//! Reading a file at a position of one's own.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt as _;

/// A file that is read at a position of its own: others that hold the same open file may move
/// theirs. It is read, not mapped: one cut short while mapped would kill the tracer with SIGBUS.
pub(super) struct Positioned<'file> {
    file: &'file File,
    position: u64,
}

impl<'file> Positioned<'file> {
    pub fn new(file: &'file File) -> Self {
        Self { file, position: 0 }
    }
}

impl Read for Positioned<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read_at(buffer, self.position)?;
        self.position = self.position.saturating_add(length as u64);
        Ok(length)
    }
}

impl Seek for Positioned<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(by) => self.file.metadata()?.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
