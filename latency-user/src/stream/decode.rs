//! Records from bytes, by total functions: any bytes give a record or an error.

use bytes::Buf;
use latency_common::record::{OperationRecord, kind};
use thiserror::Error;

/// A decoded record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// A completed call.
    Operation(OperationRecord),
    /// A record of a kind that this version does not know.
    Unknown(u32),
}

/// Why bytes are no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DecodeError {
    /// Too few bytes, or too many.
    #[error("a record of kind {kind} has {actual} bytes instead of {expected}")]
    WrongLength {
        /// The record's kind.
        kind: u32,
        /// Its length in bytes.
        actual: usize,
        /// The length its kind has.
        expected: usize,
    },
    /// Not even a kind.
    #[error("a record has only {0} bytes")]
    NoKind(usize),
}

/// Decodes one record.
///
/// # Errors
/// The bytes are too few or too many for their kind.
pub fn decode(bytes: &[u8]) -> Result<Record, DecodeError> {
    let actual = bytes.len();
    let mut rest = bytes;
    let kind = rest.try_get_u32_ne().map_err(|_| DecodeError::NoKind(actual))?;
    match kind {
        kind::OPERATION => operation(kind, rest).ok_or(DecodeError::WrongLength {
            kind,
            actual,
            expected: size_of::<OperationRecord>(),
        }),
        unknown => Ok(Record::Unknown(unknown)),
    }
}

fn operation(kind: u32, mut rest: &[u8]) -> Option<Record> {
    if rest.len() != size_of::<OperationRecord>() - size_of::<u32>() {
        return None;
    }
    Some(Record::Operation(OperationRecord {
        kind,
        probe: rest.try_get_u16_ne().ok()?,
        operation: rest.try_get_u8().ok()?,
        outcome: rest.try_get_u8().ok()?,
        start_ns: rest.try_get_u64_ne().ok()?,
        duration_ns: rest.try_get_u64_ne().ok()?,
        tgid: rest.try_get_u32_ne().ok()?,
        tid: rest.try_get_u32_ne().ok()?,
        algorithm: rest.try_get_u32_ne().ok()?,
        signature_bytes: rest.try_get_u32_ne().ok()?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: OperationRecord = OperationRecord {
        kind: kind::OPERATION,
        probe: 0x0102,
        operation: 3,
        outcome: 4,
        start_ns: 0x1112_1314_1516_1718,
        duration_ns: 0x2122_2324_2526_2728,
        tgid: 0x3132_3334,
        tid: 0x4142_4344,
        algorithm: 0x5152_5354,
        signature_bytes: 0x6162_6364,
    };

    /// The bytes that the kernel side writes: the struct as it lies in memory.
    fn bytes_of(record: &OperationRecord) -> Vec<u8> {
        // SAFETY: integers only, without padding (40 bytes of fields, asserted in the crate).
        unsafe {
            std::slice::from_raw_parts(
                std::ptr::from_ref(record).cast::<u8>(),
                size_of::<OperationRecord>(),
            )
        }
        .to_vec()
    }

    /// Check that what the kernel writes is what the reader sees, field by field.
    #[test]
    fn layout_agrees() {
        assert_eq!(decode(&bytes_of(&RECORD)), Ok(Record::Operation(RECORD)));
    }

    /// Check that every truncation and every extension is refused with both lengths.
    #[test]
    fn wrong_lengths() {
        let bytes = bytes_of(&RECORD);
        for length in 0..bytes.len() {
            let expected = if length < 4 {
                DecodeError::NoKind(length)
            } else {
                DecodeError::WrongLength { kind: 1, actual: length, expected: 40 }
            };
            assert_eq!(decode(&bytes[..length]), Err(expected));
        }
        let long = [bytes.as_slice(), &[0]].concat();
        assert!(matches!(decode(&long), Err(DecodeError::WrongLength { actual: 41, .. })));
    }

    /// Check that a kind of a later version is told, not taken for another.
    #[test]
    fn unknown_kind() {
        assert_eq!(
            decode(&[9, 0, 0, 0, 1, 2]),
            Ok(Record::Unknown(u32::from_ne_bytes([9, 0, 0, 0])))
        );
    }

    proptest::proptest! {
        /// Check that any bytes are decoded or refused, without a panic.
        #[test]
        fn total(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }

        /// Check that any 40 bytes of the operation's kind decode to a record with those bytes.
        #[test]
        fn round_trip(tail: [u8; 32], more: [u8; 4]) {
            let mut bytes = kind::OPERATION.to_ne_bytes().to_vec();
            bytes.extend(tail);
            bytes.extend(more);
            let Ok(Record::Operation(record)) = decode(&bytes) else { panic!("refused") };
            assert_eq!(bytes_of(&record), bytes);
        }
    }
}
