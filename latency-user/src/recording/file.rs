//! The file of a recording; see docs/recording-format.md.
//!
//! ```text
//! offset  bytes  content
//!      0      8  magic "LATREC\r\n"
//!      8      4  format version, little endian
//!     12      4  flags, little endian: bit 0 set while the recording is incomplete
//!     16      8  length of the payload in bytes, little endian
//!     24     32  SHA-256 of the payload
//!     56         payload: the recording as JSON, compressed with gzip
//! ```

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;
use thiserror::Error;

use super::model::Recording;

/// The first bytes of a recording. The line end shows a transfer that "converts" text.
pub const MAGIC: [u8; 8] = *b"LATREC\r\n";
/// The format version this tool writes, and the newest it reads.
pub const FORMAT_VERSION: u32 = 2;

const FLAG_INCOMPLETE: u32 = 1;
const HEADER_BYTES: usize = 56;
const BUFFER_BYTES: usize = 64 << 10;
/// Of 1 to 9: what the end of a run waits for.
const COMPRESSION_LEVEL: u32 = 3;
/// A recording may decompress to this many bytes, so that a small file cannot exhaust memory.
const MAX_JSON_BYTES: u64 = 512 << 20;

/// Why a recording could not be written. The cause is the error's source.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The path leads to something that is no file.
    #[error("cannot write the recording to {path}: it is not a regular file; name a file with -o")]
    NotAFile {
        /// The path given.
        path: PathBuf,
    },
    /// The folder does not exist.
    #[error(
        "cannot write the recording to {path}: the folder {folder} does not exist; create it, or \
         name another file with -o"
    )]
    NoFolder {
        /// The path given.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
        /// The failure.
        source: io::Error,
    },
    /// Anything else that the system refused.
    #[error("cannot write the recording to {path}: {remedy}")]
    Io {
        /// The path given.
        path: PathBuf,
        /// What to do about it.
        remedy: &'static str,
        /// The failure.
        source: io::Error,
    },
}

impl WriteError {
    fn new(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        let remedy = match source.kind() {
            io::ErrorKind::NotFound => {
                let folder = folder_of(&path).to_owned();
                return Self::NoFolder { path, folder, source };
            }
            io::ErrorKind::PermissionDenied => {
                "the folder may not be written to; name a file in another folder with -o"
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                "the file system is read-only; name a file on another one with -o"
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "no space is left; free some, or name a file on another file system with -o"
            }
            io::ErrorKind::NotADirectory => {
                "a part of the path is no folder; name another file with -o"
            }
            _ => "the system refused it; name another file with -o",
        };
        Self::Io { path, remedy, source }
    }
}

/// Why a recording could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file could not be opened or read.
    #[error("cannot read {path}: check that the file exists and that you may read it")]
    Io {
        /// The file.
        path: PathBuf,
        /// The failure.
        source: io::Error,
    },
    /// The file is something else.
    #[error(
        "{path} is not a latency recording: it does not begin with the mark of one; give a file \
         that `latency record` wrote"
    )]
    NotARecording {
        /// The file.
        path: PathBuf,
    },
    /// The file is of a later version.
    #[error(
        "{path} has format version {version}, and this version of latency reads only up to \
         {FORMAT_VERSION}; update latency"
    )]
    NewerVersion {
        /// The file.
        path: PathBuf,
        /// The format version it states.
        version: u32,
    },
    /// The tracer ended before it could finish the file.
    #[error(
        "{path} is incomplete: the tracer was killed before it finished the file; record again"
    )]
    Incomplete {
        /// The file.
        path: PathBuf,
    },
    /// The file ends too early.
    #[error(
        "{path} is truncated: it has {actual} bytes of {expected}; copy it again, or record again"
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Length of the file in bytes.
        actual: u64,
        /// The length it should have, in bytes.
        expected: u64,
    },
    /// The content is not what was written.
    #[error("{path} is damaged: {detail}; copy it again (as binary), or record again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The content is larger than any recording.
    #[error(
        "{path} is too large: it decompresses to over {MAX_JSON_BYTES} bytes, which no recording \
         does; record again"
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
}

/// A recording's file, opened before tracing starts, so that no run is in vain. Under its own
/// name it appears only once it is complete.
#[derive(Debug)]
pub struct RecordingFile {
    path: PathBuf,
    /// Removed on drop.
    temporary: NamedTempFile,
}

impl RecordingFile {
    /// Opens the file under a temporary name beside `path`, readable by its owner only: it holds
    /// command lines and paths. Under sudo, the owner is the user who called it.
    pub fn create(path: &Path) -> Result<Self, WriteError> {
        let owner = std::env::var("SUDO_UID").ok().zip(std::env::var("SUDO_GID").ok());
        let owner = owner.and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
        Self::create_owned(path, owner)
    }

    fn create_owned(path: &Path, owner: Option<(u32, u32)>) -> Result<Self, WriteError> {
        // A rename would put a file in the place of the device or socket.
        let is_other = path.metadata().is_ok_and(|metadata| !metadata.is_file());
        let Some(name) = path.file_name().filter(|_| !is_other) else {
            return Err(WriteError::NotAFile { path: path.to_owned() });
        };
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        let error = |source| WriteError::new(path, source);
        let mut temporary =
            tempfile::Builder::new().prefix(&prefix).tempfile_in(folder_of(path)).map_err(error)?;
        if let Some((uid, gid)) = owner
            // SAFETY: geteuid has no preconditions.
            && unsafe { libc::geteuid() } == 0
        {
            // Some file systems have no owners, or do not let root change them: the recording is
            // of more worth than its owner.
            let _ = std::os::unix::fs::fchown(temporary.as_file(), Some(uid), Some(gid));
        }
        // What is left after a kill says what it is.
        temporary.write_all(&header(FLAG_INCOMPLETE, &[])).map_err(error)?;
        Ok(Self { path: path.to_owned(), temporary })
    }

    /// Where the recording will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the recording and gives the file its name.
    pub fn commit(mut self, recording: &Recording) -> Result<(), WriteError> {
        self.write(recording).map_err(|source| WriteError::new(&self.path, source))?;
        match self.temporary.persist(&self.path) {
            Ok(_) => Ok(()),
            Err(error) => Err(WriteError::new(&self.path, error.error)),
        }
    }

    fn write(&mut self, recording: &Recording) -> io::Result<()> {
        let bytes = encode(recording)?;
        let file = self.temporary.as_file_mut();
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&bytes)?;
        file.sync_all()
    }
}

/// Reads a recording.
pub fn read(path: &Path) -> Result<Recording, ReadError> {
    let file = File::open(path).map_err(|source| ReadError::Io { path: path.into(), source })?;
    decode(path, BufReader::new(file), MAX_JSON_BYTES)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn header(flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES + payload.len());
    header.extend(MAGIC);
    header.extend(FORMAT_VERSION.to_le_bytes());
    header.extend(flags.to_le_bytes());
    header.extend((payload.len() as u64).to_le_bytes());
    header.extend(Sha256::digest(payload));
    header
}

fn encode(recording: &Recording) -> io::Result<Vec<u8>> {
    // The JSON comes in pieces of some bytes, and every one would cost the encoder a pass over its
    // output's spare room: 10 s of 12 for a recording of 100,000 stacks.
    let gzip = GzEncoder::new(Vec::new(), Compression::new(COMPRESSION_LEVEL));
    let mut buffered = BufWriter::with_capacity(BUFFER_BYTES, gzip);
    serde_json::to_writer(&mut buffered, recording)?;
    let gzip = buffered.into_inner().map_err(io::IntoInnerError::into_error)?;
    let payload = gzip.finish()?;
    let mut bytes = header(0, &payload);
    bytes.extend(payload);
    Ok(bytes)
}

/// Reads a recording of at most `max_json_bytes` from `input`; `path` is for the errors.
fn decode(path: &Path, mut input: impl Read, max_json_bytes: u64) -> Result<Recording, ReadError> {
    let path = || path.to_owned();
    let io = |source| ReadError::Io { path: path(), source };
    let damaged = |detail: &str| ReadError::Damaged { path: path(), detail: detail.to_owned() };

    let mut header = Vec::new();
    input.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut header).map_err(io)?;
    let compared = header.len().min(MAGIC.len());
    if header.is_empty() || header[..compared] != MAGIC[..compared] {
        return Err(ReadError::NotARecording { path: path() });
    }
    let mut fields = Fields(&header[compared..]);
    let (Some(version), Some(flags), Some(payload_bytes), Some(digest)) = (
        fields.next().map(u32::from_le_bytes),
        fields.next().map(u32::from_le_bytes),
        fields.next().map(u64::from_le_bytes),
        fields.next::<32>(),
    ) else {
        let (actual, expected) = (header.len() as u64, HEADER_BYTES as u64);
        return Err(ReadError::Truncated { path: path(), actual, expected });
    };
    match version {
        0 => return Err(damaged("it states format version 0")),
        1..=FORMAT_VERSION => {}
        _ => return Err(ReadError::NewerVersion { path: path(), version }),
    }
    match flags {
        0 => {}
        FLAG_INCOMPLETE => return Err(ReadError::Incomplete { path: path() }),
        _ => return Err(damaged("it has flags that do not exist")),
    }
    if payload_bytes > max_json_bytes {
        return Err(ReadError::TooLarge { path: path() });
    }
    let mut payload = Vec::new();
    input.take(payload_bytes + 1).read_to_end(&mut payload).map_err(io)?;
    let actual = payload.len() as u64;
    if actual < payload_bytes {
        let header = HEADER_BYTES as u64;
        let (actual, expected) = (header + actual, header + payload_bytes);
        return Err(ReadError::Truncated { path: path(), actual, expected });
    }
    if actual > payload_bytes {
        return Err(damaged("something follows its end"));
    }
    if Sha256::digest(&payload)[..] != digest {
        return Err(damaged("its checksum does not match"));
    }
    let mut json = GzDecoder::new(&payload[..]).take(max_json_bytes + 1);
    let mut text = String::new();
    let decompressed = json.read_to_string(&mut text);
    if json.limit() == 0 {
        return Err(ReadError::TooLarge { path: path() });
    }
    decompressed.map_err(|error| damaged(&error.to_string()))?;
    drop(payload);
    // From memory it takes half the time that it takes from a reader.
    let recording: Recording =
        serde_json::from_str(&text).map_err(|error| damaged(&error.to_string()))?;
    recording.validate().map_err(damaged)?;
    Ok(recording)
}

/// Takes fixed-size fields off the front of some bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn next<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }
}

#[cfg(test)]
mod tests;
