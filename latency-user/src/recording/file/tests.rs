use proptest::prelude::{any, proptest};

use super::*;
use crate::recording::{EndedBy, Header, RecordingBuilder};

fn recording() -> Recording {
    let builder = RecordingBuilder::new(Header { start_ns: 1, ..Header::default() });
    builder.finish(crate::recording::Finish {
        end_ns: 2,
        ended_by: EndedBy::TargetExit,
        exit_status: Some(3),
        counters: Default::default(),
        recursion_misses: 0,
        in_progress: 0,
        wait_totals: Default::default(),
        probe_hits: Vec::new(),
        own_cost: Default::default(),
        warnings: vec!["a warning".into()],
    })
}

fn decode_bytes(bytes: &[u8]) -> Result<Recording, ReadError> {
    decode(Path::new("some.latrec"), bytes, MAX_JSON_BYTES)
}

/// A file around any payload, with a right checksum.
fn file_of(json: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(json).unwrap();
    let payload = gzip.finish().unwrap();
    [header(0, &payload), payload].concat()
}

/// Check that a recording survives its file, which appears only on commit and is private.
#[test]
fn round_trip() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.latrec");
    let file = RecordingFile::create(&path).unwrap();
    assert!(!path.exists());
    file.commit(&recording()).unwrap();
    assert_eq!(read(&path).unwrap(), recording());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(folder.path().read_dir().unwrap().count(), 1, "no temporary file stays");
}

/// Check that a file that is never committed leaves nothing, and the old recording as it was.
#[test]
fn dropped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.latrec");
    std::fs::write(&path, "old").unwrap();
    drop(RecordingFile::create(&path).unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(folder.path().read_dir().unwrap().count(), 1);
}

/// Check that what a killed tracer leaves is told apart from damage.
#[test]
fn incomplete() {
    let folder = tempfile::tempdir().unwrap();
    let file = RecordingFile::create(&folder.path().join("a.latrec")).unwrap();
    let error = read(file.temporary.path()).unwrap_err();
    assert!(matches!(error, ReadError::Incomplete { .. }), "{error}");
}

/// Check that the file goes to the user who called sudo.
#[test]
fn owner() {
    use std::os::unix::fs::MetadataExt;
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can give files away");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.latrec");
    let file = RecordingFile::create_owned(&path, Some((12, 34))).unwrap();
    file.commit(&recording()).unwrap();
    let metadata = path.metadata().unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (12, 34));
}

/// Check that errors of writing name the path and the way out.
#[test]
fn write_errors() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &Path| RecordingFile::create(path).unwrap_err().to_string();
    let missing = folder.path().join("none/a.latrec");
    let text = message(&missing);
    assert!(text.contains(missing.to_str().unwrap()) && text.contains("create it"), "{text}");
    assert!(message(folder.path()).contains("not a regular file"));
    assert!(message(Path::new("/dev/null")).contains("not a regular file"));
    assert!(message(Path::new("")).contains("not a regular file"));
    let text = message(Path::new("/proc/a.latrec"));
    assert!(text.contains("/proc/a.latrec") && text.contains("-o"), "{text}");
    let full = WriteError::new(&missing, io::Error::from(io::ErrorKind::StorageFull)).to_string();
    assert!(full.contains("no space is left"), "{full}");
}

/// Check that a full disk fails the commit with its reason.
#[test]
fn disk_full() {
    let mut file = File::options().write(true).open("/dev/full").unwrap();
    let source = file.write_all(&encode(&recording()).unwrap()).unwrap_err();
    let error = WriteError::new(Path::new("a.latrec"), source).to_string();
    assert!(error.contains("a.latrec") && error.contains("free some"), "{error}");
}

/// Check that a recording cut at any length is refused, and by which name.
#[test]
fn truncations() {
    let bytes = encode(&recording()).unwrap();
    assert!(decode_bytes(&bytes).is_ok());
    for length in 0..bytes.len() {
        let error = decode_bytes(&bytes[..length]).unwrap_err();
        match error {
            ReadError::NotARecording { .. } => assert_eq!(length, 0),
            ReadError::Truncated { actual, .. } => assert_eq!(actual, length as u64),
            _ => panic!("{length}: {error}"),
        }
    }
}

/// Check that every flipped bit is noticed.
#[test]
fn bit_flips() {
    let mut bytes = encode(&recording()).unwrap();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            let error = decode_bytes(&bytes).expect_err("a flipped bit");
            assert!(error.to_string().starts_with("some.latrec"), "{error}");
            bytes[at] ^= 1 << bit;
        }
    }
}

/// Check that each kind of wrong file gets the name it deserves.
#[test]
fn wrong_files() {
    let mut newer = encode(&recording()).unwrap();
    newer[8] = FORMAT_VERSION as u8 + 1;
    assert!(
        matches!(decode_bytes(&newer), Err(ReadError::NewerVersion { version, .. }) if version == FORMAT_VERSION + 1)
    );
    assert!(matches!(decode_bytes(b"PERFILE2"), Err(ReadError::NotARecording { .. })));
    assert!(matches!(decode_bytes(&file_of(b"{}")), Err(ReadError::Damaged { .. })));
    let trailing = [encode(&recording()).unwrap(), vec![0]].concat();
    assert!(matches!(decode_bytes(&trailing), Err(ReadError::Damaged { .. })));
    let missing = read(Path::new("/nonexistent.latrec")).unwrap_err().to_string();
    assert!(missing.contains("/nonexistent.latrec"), "{missing}");
}

/// Check that content which contradicts itself is refused although its checksum is right.
#[test]
fn contradictions() {
    let mut value = serde_json::to_value(recording()).unwrap();
    value["loss"]["counted"] = 7.into();
    let error = decode_bytes(&file_of(value.to_string().as_bytes())).unwrap_err();
    assert!(error.to_string().contains("do not add up"), "{error}");
}

/// Check that a small file that decompresses without end is given up.
#[test]
fn decompression_bomb() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    io::copy(&mut io::repeat(b' ').take(1 << 20), &mut gzip).unwrap();
    let payload = gzip.finish().unwrap();
    let bytes = [header(0, &payload), payload].concat();
    let error = decode(Path::new("some.latrec"), &bytes[..], (1 << 20) - 1).unwrap_err();
    assert!(matches!(error, ReadError::TooLarge { .. }), "{error}");
}

proptest! {
    /// Check that no bytes make the reader panic, with and without a right beginning and checksum.
    #[test]
    fn any_bytes(bytes: Vec<u8>, kind in 0..3u8, at in any::<u16>()) {
        let good = encode(&recording()).unwrap();
        let input = match kind {
            0 => bytes,
            1 => [&good[..usize::from(at) % good.len()], &bytes].concat(),
            _ => file_of(&bytes),
        };
        assert!(decode_bytes(&input).is_err());
    }
}
