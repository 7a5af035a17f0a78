//! `latency`: how long every sign and verify of a running process takes, and where the time goes.
//!
//! The modules stand in the order the data flows; each uses only those before it.

pub mod target;

pub mod plan;

pub mod attach;

pub mod stream;

pub mod recording;

pub mod aggregate;

pub mod symbolize;

pub mod report;

pub mod render;

pub mod cli;
