//! What is to be done, as plain data that can be printed, before anything is attached.

pub mod unwind;
