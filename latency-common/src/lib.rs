//! What the eBPF programs and the loader of `latency` share: the records that cross the kernel
//! boundary, and the arithmetic and state transitions that both sides must agree on.
//!
//! Everything here is `no_std`, free of panics on any input, and tested on the host.
#![cfg_attr(not(test), no_std)]

pub mod algorithm;
pub mod counter;
pub mod histogram;
pub mod ledger;
pub mod operation;
pub mod probe;
pub mod record;
pub mod sample;
pub mod thread;
pub mod unwind;
pub mod wait;
