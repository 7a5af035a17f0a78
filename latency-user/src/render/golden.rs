//! Compares output with the files under `golden/`, which change only when `LATENCY_BLESS=1` is set.

use std::path::Path;

/// Compares `actual` with the golden file `name`.
pub(super) fn check(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/render/golden").join(name);
    if std::env::var_os("LATENCY_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; set LATENCY_BLESS=1 to make it, and look at it", path.display())
    });
    assert!(
        actual == expected,
        "{} differs; set LATENCY_BLESS=1 if the new output is right:\n{actual}",
        path.display()
    );
}
