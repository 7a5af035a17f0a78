//! Build, test and demonstration commands of `latency`.
fn main() {}
