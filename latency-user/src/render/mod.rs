//! Renders a report, or the recording it comes from, one format per file. All are pure functions of what they are given.

pub mod csv;
pub mod flame;
pub mod hlog;
pub mod json;
pub mod text;

#[cfg(test)]
mod golden;
mod table;
mod units;
