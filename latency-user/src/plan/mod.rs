//! What to probe, and what the programs must know of this kernel: plain data.

pub mod kernel;
