//! What the end-to-end tests share: the programs they trace, the tracer itself, and its report.
//!
//! The tests attach probes on a real kernel, so they run as root (`cargo xtask test`), one at a
//! time: [`exclusive`] sees to both. A test starts every process it needs, through [`Process`],
//! and ends no other.

pub mod breakpoints;
pub mod folded;
pub mod process;
pub mod report;
pub mod stacks;
pub mod tracer;
pub mod workload;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

pub use folded::Folded;
pub use process::{Finished, Process};
pub use report::{Operations, Report, Row, operations};
pub use tracer::{Recorded, Tracer};
pub use workload::{Build, Workload};

/// Says that a test did not run, and why, then leaves it.
///
/// The line is written past the test harness's capture, so that a skipped test is always seen.
#[macro_export]
macro_rules! skip {
    ($name:expr, $reason:expr) => {{
        $crate::say_skipped($name, &$reason.to_string());
        return;
    }};
}

#[doc(hidden)]
pub fn say_skipped(name: &str, reason: &str) {
    // Nothing can be done about a closed stderr.
    let _ = writeln!(std::io::stderr(), "SKIPPED {name}: {reason}");
}

/// Fails the test unless it runs as root.
#[track_caller]
pub fn require_root() {
    // SAFETY: geteuid takes nothing and cannot fail.
    let uid = unsafe { libc::geteuid() };
    assert!(uid == 0, "this test attaches probes and needs root: run `cargo xtask test`");
}

/// Holds the machine for one test; given back on drop.
#[must_use]
pub struct Exclusive(#[expect(dead_code, reason = "held for its lock")] File);

/// Requires root, and waits until no other test uses the machine: latencies measured beside
/// another load would say nothing.
#[track_caller]
pub fn exclusive() -> Exclusive {
    require_root();
    let path = cache_folder().join("machine.lock");
    let file = File::create(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
    file.lock().expect("locking the machine for one test");
    Exclusive(file)
}

/// The folder, under cargo's target folder, that holds what tests build once.
pub fn cache_folder() -> PathBuf {
    let folder = target_folder().join("latency-tests");
    std::fs::create_dir_all(&folder).unwrap_or_else(|err| panic!("{}: {err}", folder.display()));
    folder
}

/// Cargo's target folder: test programs lie in `target/PROFILE/deps`.
fn target_folder() -> PathBuf {
    let exe = std::env::current_exe().expect("the test's own path");
    exe.ancestors().nth(3).expect("a test lies in target/PROFILE/deps").to_path_buf()
}
