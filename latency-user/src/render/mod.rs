//! Renders a report, one format per file. All are pure functions of what they are given.
