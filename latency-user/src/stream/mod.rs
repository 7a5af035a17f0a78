//! Draining the ring buffer and decoding its records. The reader polls: a wake-up for each record
//! would be paid by the target.

mod decode;
mod pace;
mod stack;

use std::borrow::Borrow;

use aya::maps::{MapData, RingBuf};

pub use decode::{DecodeError, Record, decode};
pub use pace::Pace;
pub use stack::{Stack, decode_stack};

/// What the kernel puts before each record (`BPF_RINGBUF_HDR_SZ`), and rounds its length up to.
const HEADER_BYTES: usize = 8;

/// The reader's end of the ring buffer.
pub struct Stream<T> {
    ring: RingBuf<T>,
    received: u64,
    waits_received: u64,
    ledger_mismatches: u64,
    undecodable: u64,
}

impl<T: Borrow<MapData>> Stream<T> {
    /// Reads from `ring`.
    pub const fn new(ring: RingBuf<T>) -> Self {
        Self { ring, received: 0, waits_received: 0, ledger_mismatches: 0, undecodable: 0 }
    }

    /// Takes everything that is there, at most `limit` records; returns how many bytes these took in the
    /// ring buffer.
    pub fn drain(&mut self, limit: usize, mut take: impl FnMut(&Record)) -> usize {
        let (mut taken, mut bytes) = (0, 0);
        while taken < limit
            && let Some(item) = self.ring.next()
        {
            taken += 1;
            bytes += HEADER_BYTES + item.len().next_multiple_of(HEADER_BYTES);
            let record = match decode(&item) {
                Ok(Record::Unknown(_)) | Err(_) => {
                    self.undecodable += 1;
                    continue;
                }
                Ok(record) => record,
            };
            match &record {
                Record::Operation(operation) => {
                    self.received += 1;
                    if operation.ledger.total_ns() != operation.duration_ns {
                        self.ledger_mismatches += 1;
                    }
                }
                Record::Request(request) => {
                    self.received += 1;
                    if request.call.ledger.total_ns() != request.call.duration_ns {
                        self.ledger_mismatches += 1;
                    }
                }
                Record::Wait(_) => self.waits_received += 1,
                Record::Sample(_) | Record::Stack(_) | Record::Unknown(_) => {}
            }
            take(&record);
        }
        bytes
    }

    /// Wait records received so far.
    pub const fn waits_received(&self) -> u64 {
        self.waits_received
    }

    /// Operations and requests so far whose ledger does not sum to their duration: none, unless events of the
    /// scheduler were lost.
    pub const fn ledger_mismatches(&self) -> u64 {
        self.ledger_mismatches
    }

    /// Records of operations and requests received so far.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Records of an unknown kind or a wrong length so far: none, unless the object and the
    /// loader do not belong together.
    pub const fn undecodable(&self) -> u64 {
        self.undecodable
    }
}
