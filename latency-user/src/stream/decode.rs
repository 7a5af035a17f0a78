//! Records from bytes, by total functions: any bytes give a record or an error.

use bytes::Buf;
use latency_common::ledger::Ledger;
use latency_common::record::{
    BriefRecord, InnerCalls, Inside, OperationRecord, RequestRecord, WaitRecord, kind,
};
use latency_common::sample::SampleRecord;
use thiserror::Error;

use super::stack::{Stack, decode_stack};

/// A decoded record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A completed call, also one that came as a [`BriefRecord`].
    Operation(OperationRecord),
    /// A completed request.
    Request(RequestRecord),
    /// A time that a thread was off the CPU.
    Wait(WaitRecord),
    /// A look at a thread on the CPU.
    Sample(SampleRecord),
    /// A stack that others refer to.
    Stack(Stack),
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
        kind::OPERATION => {
            operation(kind, rest).map(Record::Operation).ok_or(DecodeError::WrongLength {
                kind,
                actual,
                expected: size_of::<OperationRecord>(),
            })
        }
        kind::BRIEF | kind::BRIEF_UNTOLD => brief(kind, rest)
            .map(Record::Operation)
            .ok_or(DecodeError::WrongLength { kind, actual, expected: size_of::<BriefRecord>() }),
        kind::REQUEST => request(kind, rest).ok_or(DecodeError::WrongLength {
            kind,
            actual,
            expected: size_of::<RequestRecord>(),
        }),
        kind::WAIT => wait(kind, rest).ok_or(DecodeError::WrongLength {
            kind,
            actual,
            expected: size_of::<WaitRecord>(),
        }),
        kind::SAMPLE => sample(kind, rest).ok_or(DecodeError::WrongLength {
            kind,
            actual,
            expected: size_of::<SampleRecord>(),
        }),
        kind::STACK => decode_stack(bytes).map(Record::Stack),
        unknown => Ok(Record::Unknown(unknown)),
    }
}

fn operation(kind: u32, mut rest: &[u8]) -> Option<OperationRecord> {
    if rest.len() != size_of::<OperationRecord>() - size_of::<u32>() {
        return None;
    }
    Some(OperationRecord {
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
        ledger: ledger(rest)?,
    })
}

fn brief(kind: u32, mut rest: &[u8]) -> Option<OperationRecord> {
    if rest.len() != size_of::<BriefRecord>() - size_of::<u32>() {
        return None;
    }
    let brief = BriefRecord {
        kind,
        probe: rest.try_get_u16_ne().ok()?,
        operation: rest.try_get_u8().ok()?,
        outcome: rest.try_get_u8().ok()?,
        start_ns: rest.try_get_u64_ne().ok()?,
        duration_ns: rest.try_get_u64_ne().ok()?,
        tid: rest.try_get_u32_ne().ok()?,
        algorithm: rest.try_get_u32_ne().ok()?,
        signature_bytes: rest.try_get_u32_ne().ok()?,
        minor_faults: rest.try_get_u32_ne().ok()?,
    };
    let ledger = if kind == kind::BRIEF {
        Ledger::on_cpu(brief.duration_ns, brief.minor_faults)
    } else {
        Ledger::untold(brief.duration_ns)
    };
    Some(brief.with(0, brief.duration_ns, ledger))
}

fn request(kind: u32, rest: &[u8]) -> Option<Record> {
    if rest.len() != size_of::<RequestRecord>() - size_of::<u32>() {
        return None;
    }
    let (call, mut rest) =
        rest.split_at_checked(size_of::<OperationRecord>() - size_of::<u32>())?;
    let mut parts = [InnerCalls::default(); Inside::SLOTS];
    for part in &mut parts {
        part.count = rest.try_get_u64_ne().ok()?;
        part.duration_ns = rest.try_get_u64_ne().ok()?;
    }
    let inside = Inside { parts, ledger: ledger(rest)? };
    Some(Record::Request(RequestRecord { call: operation(kind, call)?, inside }))
}

fn ledger(mut rest: &[u8]) -> Option<Ledger> {
    Some(Ledger {
        on_cpu_ns: rest.try_get_u64_ne().ok()?,
        run_queue_ns: rest.try_get_u64_ne().ok()?,
        preempted_ns: rest.try_get_u64_ne().ok()?,
        lock_ns: rest.try_get_u64_ne().ok()?,
        io_ns: rest.try_get_u64_ne().ok()?,
        sleep_ns: rest.try_get_u64_ne().ok()?,
        other_ns: rest.try_get_u64_ne().ok()?,
        voluntary_switches: rest.try_get_u32_ne().ok()?,
        involuntary_switches: rest.try_get_u32_ne().ok()?,
        migrations: rest.try_get_u32_ne().ok()?,
        minor_faults: rest.try_get_u32_ne().ok()?,
        major_faults: rest.try_get_u32_ne().ok()?,
        _pad: rest.try_get_u32_ne().ok()?,
    })
}

fn wait(kind: u32, mut rest: &[u8]) -> Option<Record> {
    if rest.len() != size_of::<WaitRecord>() - size_of::<u32>() {
        return None;
    }
    Some(Record::Wait(WaitRecord {
        kind,
        reason: rest.try_get_u8().ok()?,
        flags: rest.try_get_u8().ok()?,
        waker_flags: rest.try_get_u8().ok()?,
        operation: rest.try_get_u8().ok()?,
        start_ns: rest.try_get_u64_ne().ok()?,
        duration_ns: rest.try_get_u64_ne().ok()?,
        run_queue_ns: rest.try_get_u64_ne().ok()?,
        operation_start_ns: rest.try_get_u64_ne().ok()?,
        tgid: rest.try_get_u32_ne().ok()?,
        tid: rest.try_get_u32_ne().ok()?,
        waker_tgid: rest.try_get_u32_ne().ok()?,
        waker_tid: rest.try_get_u32_ne().ok()?,
        waker_syscall: rest.try_get_i32_ne().ok()?,
        syscall: rest.try_get_i32_ne().ok()?,
        futex_address: rest.try_get_u64_ne().ok()?,
        futex_command: rest.try_get_u32_ne().ok()?,
        futex_value: rest.try_get_u32_ne().ok()?,
        futex_owner: rest.try_get_u32_ne().ok()?,
        probe: rest.try_get_u16_ne().ok()?,
        request: rest.try_get_u8().ok()?,
        _pad: rest.try_get_u8().ok()?,
        stack_id: rest.try_get_u64_ne().ok()?,
        waker_stack_id: rest.try_get_u64_ne().ok()?,
    }))
}

fn sample(kind: u32, mut rest: &[u8]) -> Option<Record> {
    if rest.len() != size_of::<SampleRecord>() - size_of::<u32>() {
        return None;
    }
    Some(Record::Sample(SampleRecord {
        kind,
        flags: rest.try_get_u8().ok()?,
        operation: rest.try_get_u8().ok()?,
        probe: rest.try_get_u16_ne().ok()?,
        time_ns: rest.try_get_u64_ne().ok()?,
        operation_start_ns: rest.try_get_u64_ne().ok()?,
        tgid: rest.try_get_u32_ne().ok()?,
        tid: rest.try_get_u32_ne().ok()?,
        stack_id: rest.try_get_u64_ne().ok()?,
        kernel_stack_id: rest.try_get_u64_ne().ok()?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that the kernel side writes: the struct as it lies in memory.
    fn bytes_of<T: Copy>(record: &T) -> Vec<u8> {
        // SAFETY: the records are integers only, without padding (their sizes and their fields'
        // offsets are asserted in the crate).
        unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(record).cast::<u8>(), size_of::<T>())
        }
        .to_vec()
    }

    /// Bytes of a record of this kind and length, each unlike its neighbours.
    fn sample(kind: u32, length: usize) -> Vec<u8> {
        let tail = (4..length).map(|index| index as u8 ^ 0x5a);
        kind.to_ne_bytes().into_iter().chain(tail).collect()
    }

    const LENGTHS: [(u32, usize); 4] =
        [(kind::OPERATION, 120), (kind::WAIT, 104), (kind::SAMPLE, 48), (kind::REQUEST, 296)];

    fn encode(record: &Record) -> Vec<u8> {
        match record {
            Record::Operation(record) => bytes_of(record),
            Record::Wait(record) => bytes_of(record),
            Record::Sample(record) => bytes_of(record),
            Record::Request(record) => bytes_of(record),
            Record::Stack(_) | Record::Unknown(_) => Vec::new(),
        }
    }

    /// Check that what the kernel writes is what the reader sees, field by field: every byte
    /// lies where the struct has it.
    #[test]
    fn layout_agrees() {
        for (kind, length) in LENGTHS {
            let bytes = sample(kind, length);
            assert_eq!(encode(&decode(&bytes).unwrap()), bytes);
        }
        let Ok(Record::Wait(wait)) = decode(&sample(kind::WAIT, 104)) else { panic!() };
        let at = |offset: u8| u32::from_ne_bytes([0, 1, 2, 3].map(|n| (offset + n) ^ 0x5a));
        assert_eq!((wait.tid, wait.waker_tid, wait.futex_owner), (at(44), at(52), at(80)));
    }

    /// Check that a brief record says what the whole one would have said.
    #[test]
    fn brief_records() {
        let brief = BriefRecord {
            kind: kind::BRIEF,
            probe: 300,
            operation: 2,
            outcome: 1,
            start_ns: 1 << 40,
            duration_ns: 1 << 33,
            tid: 4711,
            algorithm: 9,
            signature_bytes: 71,
            minor_faults: 5,
        };
        let whole = OperationRecord {
            kind: kind::OPERATION,
            probe: 300,
            operation: 2,
            outcome: 1,
            start_ns: 1 << 40,
            duration_ns: 1 << 33,
            tgid: 0,
            tid: 4711,
            algorithm: 9,
            signature_bytes: 71,
            ledger: Ledger { on_cpu_ns: 1 << 33, minor_faults: 5, ..Ledger::default() },
        };
        assert_eq!(decode(&bytes_of(&brief)), Ok(Record::Operation(whole)));
        let untold = BriefRecord { kind: kind::BRIEF_UNTOLD, minor_faults: 0, ..brief };
        let ledger = Ledger { other_ns: 1 << 33, ..Ledger::default() };
        let whole = OperationRecord { ledger, ..whole };
        assert_eq!(decode(&bytes_of(&untold)), Ok(Record::Operation(whole)));
    }

    /// Check that every truncation and every extension is refused with each length.
    #[test]
    fn wrong_lengths() {
        for (kind, expected) in
            LENGTHS.into_iter().chain([(kind::BRIEF, 40), (kind::BRIEF_UNTOLD, 40)])
        {
            let bytes = sample(kind, expected + 1);
            for actual in (0..=bytes.len()).filter(|length| *length != expected) {
                let error = if actual < 4 {
                    DecodeError::NoKind(actual)
                } else {
                    DecodeError::WrongLength { kind, actual, expected }
                };
                assert_eq!(decode(&bytes[..actual]), Err(error));
            }
        }
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

        /// Check that any bytes of the right length decode to a record with those bytes.
        #[test]
        fn round_trip(tail in proptest::collection::vec(0_u8.., 292)) {
            for (kind, length) in LENGTHS {
                let bytes = [&kind.to_ne_bytes(), &tail[..length - 4]].concat();
                assert_eq!(encode(&decode(&bytes).unwrap()), bytes);
            }
        }
    }
}
