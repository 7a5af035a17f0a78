//! `latency`: how long every sign and verify of a running process takes, and where the time goes.
//!
//! Modules are listed in the order the data flows; each uses only what stands before it.

pub mod recording;

pub mod aggregate;

pub mod report;

pub mod render;
