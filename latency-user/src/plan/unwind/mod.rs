//! Unwind rows for the kernel side: compiled from the `.eh_frame` of each mapped file, shared
//! between processes by file, and laid out as `latency_common::unwind` describes.

mod elf;
mod large;
mod rows;
mod rule;
mod table;
mod tables;

pub use elf::{CompileError, FileRows, FrameSize, LoadSegment, compile, size};
pub use table::{FileKey, Limits, Mapping, NotUnwound, ProcessTable, RowStore};
pub use tables::Tables;
