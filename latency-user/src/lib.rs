//! `latency`: how long every sign and verify of a running process takes, and where the time goes.

pub mod plan;
pub mod target;
