//! Waits that the start or the end of the trace cuts.

use latency_tests::{Tracer, Workload, exclusive};
use serde_json::Value;

/// Check that a thread that never stirs, one that is released meanwhile, and one that blocks
/// meanwhile are all shown as in progress, at the end that they were cut at, with the time they
/// lasted; and that those at the end show in the table of locks without counting as waits.
#[test]
fn cut_at_either_end() {
    let _machine = exclusive();
    let mut blocked = Workload::waits("blocked", 1);
    // Something must be probed; it is never called.
    let probe = blocked.function("quick");
    let tracer = Tracer::attach(blocked.pid(), &["--probe", &probe]);
    blocked.work();
    let recorded = tracer.stop();
    let report = recorded.report();
    let page = recorded.rendered("text");
    blocked.end();

    let of = |symbol: &str| -> &Value {
        let is_it = |wait: &&Value| wait["lock"].as_str().is_some_and(|it| it.ends_with(symbol));
        let found = report.list("/in_progress").iter().find(is_it);
        found.unwrap_or_else(|| panic!("no {symbol} in {:#}", report.json["in_progress"]))
    };
    let traced = report.number("/duration_ns");
    let never = of(":g_never");
    assert_eq!((&never["at_start"], &never["at_end"]), (&true.into(), &true.into()), "{never:#}");
    assert!(never["start_ns"].is_null());
    let lasted = never["duration_ns"].as_u64().unwrap();
    assert!(lasted.abs_diff(traced) <= traced / 10, "{lasted} of {traced} ns");
    assert_eq!(never["reason"], "lock");

    let released = of(":g_released");
    assert_eq!(
        (&released["at_start"], &released["at_end"]),
        (&true.into(), &false.into()),
        "{released:#}"
    );
    assert_eq!(report.lock(":g_released")["waits"], 1);

    let late = of(":g_late");
    assert_eq!((&late["at_start"], &late["at_end"]), (&false.into(), &true.into()), "{late:#}");
    let start = late["start_ns"].as_u64().unwrap();
    let lasted = late["duration_ns"].as_u64().unwrap();
    // From its start to the end of the trace, at which the state is read.
    assert!((start + lasted).abs_diff(traced) <= traced / 10, "{start} + {lasted} of {traced} ns");
    // It blocked before the program released the other.
    assert!(lasted >= 200_000_000, "{late:#}");
    for symbol in [":g_never", ":g_late"] {
        let lock = report.lock(symbol);
        assert_eq!((&lock["waits"], &lock["in_progress"]), (&0.into(), &1.into()), "{lock:#}");
    }
    assert_eq!(report.lock(":g_late")["class"], "mutex", "judged from the stack");
    assert!(page.contains("in progress: "), "{page}");
}
