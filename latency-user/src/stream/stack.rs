//! Stacks from bytes, by a total function.

use bytes::Buf as _;
use latency_common::record::{StackHeader, kind, stack_flags};
use latency_common::unwind::StackEnd;

use super::DecodeError;

/// A user stack, or the kernel's part of one, as the kernel side sends it once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stack {
    /// Under which other records refer to it.
    pub id: u64,
    /// Process, in the tracer's PID namespace.
    pub tgid: u32,
    /// How it ended; `None`: in a way that this version does not know.
    pub end: Option<StackEnd>,
    /// Whether frames were found by the frame pointer, where no row was known: they may be wrong.
    pub used_frame_pointer: bool,
    /// Whether the frames are the kernel's.
    pub is_kernel: bool,
    /// Addresses, the innermost first. All but the innermost are return addresses, or, above a
    /// signal frame, the interrupted instruction.
    pub frames: Vec<u64>,
}

/// Decodes a record of [`kind::STACK`].
///
/// # Errors
/// The bytes are too few or too many for the number of frames they announce, or of another kind.
pub fn decode_stack(bytes: &[u8]) -> Result<Stack, DecodeError> {
    const HEADER_BYTES: usize = size_of::<StackHeader>();
    let actual = bytes.len();
    let mut rest = bytes;
    let kind = rest.try_get_u32_ne().map_err(|_| DecodeError::NoKind(actual))?;
    let wrong = |expected| DecodeError::WrongLength { kind, actual, expected };
    if kind != kind::STACK || actual < HEADER_BYTES {
        return Err(wrong(HEADER_BYTES));
    }
    let header = wrong(HEADER_BYTES);
    let count = rest.try_get_u16_ne().map_err(|_| header)?;
    let end = rest.try_get_u8().map_err(|_| header)?;
    let flags = rest.try_get_u8().map_err(|_| header)?;
    let id = rest.try_get_u64_ne().map_err(|_| header)?;
    let tgid = rest.try_get_u32_ne().map_err(|_| header)?;
    let _padding = rest.try_get_u32_ne().map_err(|_| header)?;
    if rest.len() != 8 * usize::from(count) {
        return Err(wrong(HEADER_BYTES + 8 * usize::from(count)));
    }
    let (frames, _) = rest.as_chunks::<8>();
    Ok(Stack {
        id,
        tgid,
        end: StackEnd::from_id(end),
        used_frame_pointer: flags & stack_flags::FRAME_POINTER != 0,
        is_kernel: flags & stack_flags::KERNEL != 0,
        frames: frames.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(frames: &[u64]) -> Vec<u8> {
        let mut bytes = kind::STACK.to_ne_bytes().to_vec();
        bytes.extend((frames.len() as u16).to_ne_bytes());
        bytes.extend([StackEnd::NoRow as u8, stack_flags::FRAME_POINTER]);
        bytes.extend(0x1112_1314_1516_1718_u64.to_ne_bytes());
        bytes.extend(42_u32.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(frames.iter().flat_map(|frame| frame.to_ne_bytes()));
        bytes
    }

    /// Check that every field arrives.
    #[test]
    fn fields() {
        let stack = Stack {
            id: 0x1112_1314_1516_1718,
            tgid: 42,
            end: Some(StackEnd::NoRow),
            used_frame_pointer: true,
            is_kernel: false,
            frames: vec![1, 2, 3],
        };
        assert_eq!(decode_stack(&record(&[1, 2, 3])), Ok(stack));
    }

    /// Check that every truncation and every extension is refused.
    #[test]
    fn wrong_lengths() {
        let bytes = record(&[1, 2]);
        for length in 0..bytes.len() {
            assert!(decode_stack(&bytes[..length]).is_err(), "{length} bytes");
        }
        assert!(decode_stack(&[bytes.as_slice(), &[0; 8]].concat()).is_err());
    }

    proptest::proptest! {
        /// Check that any bytes are decoded or refused, without a panic.
        #[test]
        fn total(mut bytes: Vec<u8>, is_stack: bool) {
            if is_stack && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&kind::STACK.to_ne_bytes());
            }
            let _ = decode_stack(&bytes);
        }
    }
}
