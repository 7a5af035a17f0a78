use super::*;
use crate::recording::{
    Counts, Frame, Profile, Reason, Row, SampleGroup, Stack, WaitGroup, Waker, sample,
};
use crate::render::golden;
use std::sync::Arc;

const MILLISECOND: u64 = 1_000_000;

fn frame(function: &str, module: &str, address: u64) -> Arc<Frame> {
    let function = Some(function.to_owned()).filter(|name| !name.is_empty());
    Arc::new(Frame {
        address,
        function,
        module: module.into(),
        module_address: address & 0xffff,
        ..Frame::default()
    })
}

fn stack(id: u64, functions: &[&str]) -> Stack {
    let frames = functions.iter().map(|name| frame(name, "keyservice", 0x40_1000)).collect();
    Stack { id, frames, ..Stack::default() }
}

fn wait(reason: Reason, stack_id: u64, total_ns: u64) -> WaitGroup {
    WaitGroup {
        reason,
        comm: "worker".into(),
        operation: None,
        request: None,
        futex_address: 0,
        futex_command: 0,
        stack_id,
        waker_stack_id: 0,
        waker: Waker::Unknown,
        holder_tid: 0,
        count: 1,
        total_ns,
        run_queue_ns: 0,
        max_ns: total_ns,
    }
}

/// Workers that wait for a lock which an audit thread holds while it writes.
fn recording() -> Recording {
    let lock_stack = |id, outer: &[&str]| {
        let mut stack = stack(id, &[&["pthread_mutex_lock", "key_lookup"], outer].concat());
        stack.frames.insert(0, frame("", "libc.so.6", 0x7f00_0008_fc3e));
        stack
    };
    let mut deep = stack(5, &["read", "Request::parse", "std::vector<int, std::allocator<int> >"]);
    deep.truncated = Some("no unwind row".into());
    let mut jit = stack(6, &["", "main", "_start"]);
    Arc::make_mut(&mut jit.frames[0]).module = String::new();
    jit.used_frame_pointer = true;
    let audit = Waker::Thread { tid: 4711, pid: 4242, comm: "audit 1".into() };
    let lock = WaitGroup {
        futex_address: 0x55_5555_8040,
        operation: Some("sign".into()),
        waker: audit,
        waker_stack_id: 3,
        holder_tid: 4711,
        run_queue_ns: 2 * MILLISECOND + 600,
        ..wait(Reason::Lock, 1, 900 * MILLISECOND + 600)
    };
    let unnamed_lock = WaitGroup { stack_id: 2, futex_address: 0x7f11_2230, ..lock.clone() };
    Recording {
        waits: vec![
            lock.clone(),
            WaitGroup { operation: None, total_ns: 40 * MILLISECOND, ..unnamed_lock },
            WaitGroup { waker: Waker::Interrupt, ..wait(Reason::Io, 4, 120 * MILLISECOND) },
            WaitGroup {
                operation: Some("verify".into()),
                ..wait(Reason::Preempted, 4, 30_400_900)
            },
            wait(Reason::Sleep, 5, 250 * MILLISECOND),
            wait(Reason::Other, 6, 10 * MILLISECOND),
            wait(Reason::Sleep, 99, 70 * MILLISECOND),
            WaitGroup { comm: "main".into(), ..wait(Reason::Sleep, 0, 5 * MILLISECOND + 400) },
        ],
        stacks: vec![
            lock_stack(1, &["handle_request", "worker_loop", "start_thread"]),
            lock_stack(2, &["handle_request::{{closure}}", "worker_loop", "start_thread"]),
            stack(3, &["pthread_mutex_unlock", "audit_log_write", "audit_loop", "start_thread"]),
            stack(4, &["fsync", "handle_request", "worker_loop", "start_thread"]),
            deep,
            jit,
        ],
        ..sample::recording()
    }
}

fn kernel_stack(id: u64, functions: &[&str]) -> Stack {
    let frames = functions.iter().map(|name| frame(name, "[kernel]", 0)).collect();
    Stack { id, frames, ..Stack::default() }
}

fn samples(
    operation: Option<&str>,
    stack_id: u64,
    kernel_stack_id: u64,
    samples: u64,
) -> SampleGroup {
    SampleGroup {
        comm: "worker".into(),
        operation: operation.map(String::from),
        in_kernel: kernel_stack_id != 0,
        stack_id,
        kernel_stack_id,
        samples,
        ..SampleGroup::default()
    }
}

/// A thousand signs, with 20 samples at 100 a second in them and 3 outside.
fn sampled() -> Recording {
    let groups = vec![
        samples(Some("sign"), 11, 0, 14),
        samples(Some("sign"), 12, 21, 4),
        samples(Some("sign"), 0, 22, 2),
        samples(None, 13, 0, 3),
    ];
    let samples = groups.iter().map(|group| group.samples).sum();
    let profile = Profile { frequency_hz: 100, samples, groups, ..Profile::default() };
    let received = Counts { successes: 1000, ..Counts::default() };
    Recording {
        rows: vec![Row { operation: "sign".into(), received, ..Row::default() }],
        profile: Some(profile),
        stacks: vec![
            stack(11, &["bn_mul", "EVP_DigestSign", "handle_request", "start_thread"]),
            stack(12, &["malloc", "EVP_DigestSign", "handle_request", "start_thread"]),
            stack(13, &["parse::<u8>", "handle_request", "start_thread"]),
            kernel_stack(21, &["clear_page_erms", "asm_exc_page_fault"]),
            kernel_stack(22, &[""]),
        ],
        ..sample::recording()
    }
}

fn options(view: View, names: &BTreeMap<u64, String>) -> Options<'_> {
    Options { view, in_operation: false, operation: None, with_lines: false, lock_names: names }
}

fn names() -> BTreeMap<u64, String> {
    BTreeMap::from([(0x55_5555_8040, "keysvc:g_keystore_lock".into())])
}

fn svg(recording: &Recording, options: &Options<'_>) -> String {
    let mut svg = Vec::new();
    write_with(recording, options, false, &mut svg).unwrap();
    String::from_utf8(svg).unwrap()
}

fn sum(folded: &str) -> u64 {
    folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// Check the folded text of each view.
#[test]
fn golden_folded() {
    let names = names();
    for view in [View::OnCpu, View::OffCpu, View::Locks, View::Wakers] {
        let recording = if view == View::OnCpu { sampled() } else { recording() };
        let folded = fold(&recording, &options(view, &names));
        golden::check(&format!("flame-{}.folded", view.name()), &folded);
    }
}

/// Check the graph of each view; the script is inferno's affair.
#[test]
fn golden_svg() {
    let names = names();
    for view in [View::OnCpu, View::OffCpu, View::Locks, View::Wakers] {
        let recording = if view == View::OnCpu { sampled() } else { recording() };
        let svg = svg(&recording, &options(view, &names));
        check_xml(&svg);
        golden::check(&format!("flame-{}.svg", view.name()), &svg);
    }
}

/// Check that no time is lost to rounding, however it is spread.
#[test]
fn sums() {
    let names = BTreeMap::new();
    let total = |recording: &Recording| -> u64 {
        recording.waits.iter().map(|wait| wait.total_ns + wait.run_queue_ns).sum()
    };
    let ordinary = recording();
    let folded = fold(&ordinary, &options(View::OffCpu, &names));
    assert_eq!(sum(&folded), (total(&ordinary) + 500) / 1000);
    let tiny = Recording {
        waits: (0..1000)
            .map(|n| wait(Reason::Sleep, 0, 1 + n % 7))
            .enumerate()
            .map(|(n, wait)| WaitGroup { comm: format!("t{n}"), ..wait })
            .collect(),
        ..recording()
    };
    let folded = fold(&tiny, &options(View::OffCpu, &names));
    assert_eq!(sum(&folded), (total(&tiny) + 500) / 1000);
    assert!(folded.lines().all(|line| !line.ends_with(" 0")));
}

/// Check that lines of source are told apart only if that is wanted.
#[test]
fn lines_of_source() {
    let mut recording = recording();
    recording.stacks = vec![stack(1, &["read", "main"]), stack(2, &["read", "main"])];
    for (stack, line) in recording.stacks.iter_mut().zip([7, 9]) {
        let frame = Arc::make_mut(&mut stack.frames[0]);
        (frame.file, frame.line) = (Some("/src/x.c".into()), Some(line));
    }
    recording.waits = (1..3).map(|id| wait(Reason::Sleep, id, MILLISECOND)).collect();
    let names = BTreeMap::new();
    let without = options(View::OffCpu, &names);
    assert_eq!(fold(&recording, &without), "worker;main;read;[sleep] 2000\n");
    assert_eq!(
        fold(&recording, &Options { with_lines: true, ..without }),
        "worker;main;read (x.c:7);[sleep] 1000\nworker;main;read (x.c:9);[sleep] 1000\n"
    );
}

/// Check which stacks get the units that rounding left over: those cut the most, and of those cut alike
/// the first.
#[test]
fn left_over() {
    let waits = [("a", 1_500), ("b", 1_500), ("c", 1_500), ("d", 2_900), ("e", 1_100), ("f", 400)];
    let wait = |(comm, time_ns): (&str, u64)| WaitGroup {
        comm: comm.into(),
        ..wait(Reason::Sleep, 0, time_ns)
    };
    let recording = Recording { waits: waits.into_iter().rev().map(wait).collect(), ..recording() };
    let folded = fold(&recording, &options(View::OffCpu, &BTreeMap::new()));
    let counts: Vec<_> =
        folded.lines().map(|line| line.replace(";[no stack];[sleep]", "")).collect();
    assert_eq!(counts, ["a 2", "b 2", "c 1", "d 3", "e 1"]);
}

/// Check that the most that a recording can claim does not overflow.
#[test]
fn huge_times() {
    let mut recording = recording();
    recording.waits.iter_mut().for_each(|wait| wait.total_ns = u64::MAX);
    let names = BTreeMap::new();
    let folded = fold(&recording, &options(View::OffCpu, &names));
    assert!(sum(&folded).abs_diff(u64::MAX / 1000) <= 1, "{folded}");
    check_xml(&svg(&recording, &options(View::OffCpu, &names)));
}

/// Check which waits each filter leaves.
#[test]
fn filters() {
    let (recording, names) = (recording(), BTreeMap::new());
    let all = options(View::OffCpu, &names);
    let inside = fold(&recording, &Options { in_operation: true, ..all });
    assert_eq!(inside.lines().count(), 3, "{inside}");
    let sign = fold(&recording, &Options { operation: Some("sign"), ..all });
    assert_eq!(sign.lines().count(), 2, "{sign}");
    assert!(sign.lines().all(|line| line.contains("key_lookup")), "{sign}");
    let none = fold(&recording, &Options { operation: Some("decrypt"), ..all });
    assert_eq!(none, "");
}

/// Check that a graph of nothing says so, and why.
#[test]
fn no_samples() {
    let names = BTreeMap::new();
    let mut recording = recording();
    recording.target.comm = "a<b&c".into();
    let filtered =
        svg(&recording, &Options { operation: Some("none"), ..options(View::Locks, &names) });
    check_xml(&filtered);
    assert!(filtered.contains("no samples: the recording holds waits, but none"), "{filtered}");
    recording.waits.clear();
    let empty = svg(&recording, &options(View::OffCpu, &names));
    check_xml(&empty);
    assert!(empty.contains("no samples: the recording holds no waits"), "{empty}");
}

/// Check that names of any kind neither break the graph nor lose time.
#[test]
fn awkward_names() {
    let awkward = [
        "a;b",
        "with spaces",
        "operator<",
        "x && y",
        "bell\u{7}\u{0}\u{1b}[31m",
        "two\nlines\r",
        "pool 12",
        "pool 1.5",
        "# comment",
        " padded ",
        "",
        "-",
        "--",
        "\"quoted\"",
        "]]>",
        "\u{fffe}\u{ffff}\u{2028}",
        "Größe",
        "\u{1f525}",
        "name 3 ",
        "x _[k]",
    ];
    let mut recording = recording();
    recording.waits.clear();
    recording.stacks.clear();
    let mut kernel = Vec::new();
    for (id, name) in (1..).zip(awkward) {
        let mut leaf = stack(id, &[name, "main"]);
        leaf.truncated = Some(name.into());
        leaf.frames.insert(0, frame("", name, 0x10));
        recording.stacks.push(leaf);
        kernel.push(kernel_stack(id + 1000, &[name]));
        recording
            .profile
            .get_or_insert_default()
            .groups
            .push(SampleGroup { comm: name.into(), ..samples(Some(name), id, id + 1000, 3) });
        recording.waits.push(WaitGroup {
            comm: name.into(),
            waker: Waker::Thread { tid: 1, pid: 1, comm: name.into() },
            waker_stack_id: id,
            futex_address: id,
            operation: Some(name.into()),
            ..wait(Reason::Lock, id, 3 * MILLISECOND)
        });
    }
    recording.target.comm = "a;<b&\u{1}".into();
    recording.stacks.extend(kernel);
    if let Some(profile) = &mut recording.profile {
        profile.frequency_hz = 1000;
        profile.samples = 3 * awkward.len() as u64;
    }
    let names: BTreeMap<u64, String> = (1..).zip(awkward.map(String::from)).collect();
    for view in [View::OnCpu, View::OffCpu, View::Locks, View::Wakers] {
        let operation = Some("bell\u{7}\u{0}\u{1b}[31m");
        check_xml(&svg(&recording, &Options { operation, ..options(view, &names) }));
        let folded = fold(&recording, &options(view, &names));
        assert_eq!(sum(&folded), 3000 * awkward.len() as u64);
        let svg = svg(&recording, &options(view, &names));
        check_xml(&svg);
        // All of the time is there, and no line was taken for a comment or a difference.
        assert!(svg.contains(&format!("total_samples=\"{}\"", sum(&folded))), "{folded}");
        assert!(!svg.contains("%; "), "{svg}");
    }
}

/// Check that samples are folded as time, with the kernel's part on top, and how the filters and the
/// number of samples show.
#[test]
fn samples_as_time() {
    let (recording, names) = (sampled(), BTreeMap::new());
    let all = options(View::OnCpu, &names);
    assert_eq!(sum(&fold(&recording, &all)), 23 * 10_000);
    let inside = fold(&recording, &Options { in_operation: true, ..all });
    assert_eq!(sum(&inside), 20 * 10_000, "{inside}");
    let fault = "malloc;asm_exc_page_fault_[k];clear_page_erms_[k] 40000";
    assert!(inside.contains(fault), "{inside}");
    assert!(inside.contains("worker;[no stack];[kernel] 20000"), "{inside}");
    let svg = svg(&recording, &Options { in_operation: true, ..all });
    assert!(svg.contains("20 samples, 100 a second on each CPU"), "{svg}");
}

/// Check that samples at different addresses of code without names are one frame, and that its
/// callers keep theirs.
#[test]
fn nameless_leaves() {
    let (mut recording, names) = (sampled(), BTreeMap::new());
    for (id, address) in [(31, 0x7f00_1010), (32, 0x7f00_1024)] {
        let mut stack = stack(id, &["", "", "main"]);
        stack.frames[0] = frame("", "libcrypto.so.3", address);
        recording.stacks.push(stack);
    }
    let profile = recording.profile.as_mut().unwrap();
    profile.groups = vec![samples(None, 31, 0, 1), samples(None, 32, 0, 2)];
    profile.samples = 3;
    let folded = fold(&recording, &options(View::OnCpu, &names));
    assert_eq!(folded, "worker;main;[keyservice+0x1000];[libcrypto.so.3] 30000\n");
}

/// Check what an on-CPU graph without samples says.
#[test]
fn not_sampled() {
    let (mut recording, names) = (sampled(), BTreeMap::new());
    let all = options(View::OnCpu, &names);
    let other = svg(&recording, &Options { operation: Some("verify"), ..all });
    assert!(other.contains("the recording holds samples, but none that this filter"), "{other}");
    recording.profile = Some(Profile { frequency_hz: 99, ..Profile::default() });
    assert!(svg(&recording, &all).contains("the target did not run"));
    recording.profile = None;
    assert!(svg(&recording, &all).contains("the CPUs were not sampled"));
}

/// The same signs done faster, twice as many, and without the allocation.
fn faster() -> Recording {
    let mut recording = sampled();
    recording.rows[0].received.successes = 2000;
    let profile = recording.profile.as_mut().unwrap();
    profile.groups = vec![
        samples(Some("sign"), 11, 0, 20),
        samples(Some("sign"), 14, 0, 2),
        samples(None, 13, 0, 6),
    ];
    profile.samples = 28;
    recording.stacks.push(stack(14, &["arena_alloc", "handle_request", "start_thread"]));
    recording
}

fn sides<'a>(before: &'a Recording, after: &'a Recording, options: Options<'a>) -> [Side<'a>; 2] {
    [before, after].map(|recording| Side { recording, options })
}

/// Check a difference by hand: nanoseconds an operation before and after, what is gone and what is
/// new included.
#[test]
fn differences() {
    let (before, after, names) = (sampled(), faster(), BTreeMap::new());
    let options = Options { in_operation: true, ..options(View::OnCpu, &names) };
    let [before, after] = sides(&before, &after, options);
    assert_eq!((before.operations(), after.operations()), (1000, 2000));
    assert_eq!(
        fold_diff(&before, &after),
        "worker;[no stack];[kernel] 20000 0\n\
         worker;start_thread;handle_request;EVP_DigestSign;bn_mul 140000 100000\n\
         worker;start_thread;handle_request;EVP_DigestSign;malloc;asm_exc_page_fault_[k];\
         clear_page_erms_[k] 40000 0\n\
         worker;start_thread;handle_request;arena_alloc 0 10000\n"
    );
}

/// Check that the operations of the time before the sampling began do not count.
#[test]
fn late_sampling() {
    let (mut recording, names) = (sampled(), BTreeMap::new());
    recording.profile.as_mut().unwrap().start_ns = recording.duration_ns / 2;
    let options = Options { in_operation: true, ..options(View::OnCpu, &names) };
    let [before, after] = sides(&recording, &recording, options);
    let folded = fold_diff(&before, &after);
    assert!(folded.contains(";bn_mul 280000 280000"), "{folded}");
}

/// Check that a recording does not differ from itself, whatever the view.
#[test]
fn no_difference() {
    let (sampled, waited, names) = (sampled(), recording(), names());
    for view in [View::OnCpu, View::OffCpu, View::Locks, View::Wakers] {
        let recording = if view == View::OnCpu { &sampled } else { &waited };
        let [before, after] = sides(recording, recording, options(view, &names));
        let folded = fold_diff(&before, &after);
        assert!(!folded.is_empty());
        for line in folded.lines() {
            let mut counts = line.rsplit(' ');
            assert_eq!(counts.next(), counts.next(), "{line}");
        }
        let mut svg = Vec::new();
        diff::write_diff_with(&before, &after, false, &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        check_xml(&svg);
        assert!(!svg.contains("<title>[gone]"), "{svg}");
    }
}

/// Check the graph of a difference: widths are the newer's, what is gone stands apart at its old
/// width, and a difference of nothing says so.
#[test]
fn difference_svg() {
    let (before, after, names) = (sampled(), faster(), BTreeMap::new());
    let draw = |operation| {
        let options = Options { operation, ..options(View::OnCpu, &names) };
        let [before, after] = sides(&before, &after, options);
        let mut svg = Vec::new();
        diff::write_diff_with(&before, &after, false, &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        check_xml(&svg);
        svg
    };
    let svg = draw(Some("sign"));
    assert!(svg.contains("<title>[gone] (60,000 ns an operation"), "{svg}");
    assert!(svg.contains("<title>bn_mul (100,000 ns an operation"), "{svg}");
    assert!(svg.contains("200 µs an operation before, 110 µs now"), "{svg}");
    golden::check("flame-diff.svg", &svg);
    assert!(draw(Some("verify")).contains("neither recording holds any"));
}

/// Check that siblings one of whose names begins with the other's do not tear a frame apart.
#[test]
fn siblings_with_a_common_start() {
    let mut recording = recording();
    recording.stacks =
        vec![stack(1, &["run"]), stack(2, &["run::inner"]), stack(3, &["leaf", "run"])];
    recording.waits = (1..4).map(|id| wait(Reason::Sleep, id, MILLISECOND)).collect();
    let names = BTreeMap::new();
    let svg = svg(&recording, &options(View::OffCpu, &names));
    assert_eq!(svg.matches("<title>run (").count(), 1, "{svg}");
    assert!(svg.contains("<title>run (2,000 us, 66.67%)"), "{svg}");
}

/// Checks that an SVG is well-formed: tags that match, attributes that are quoted.
fn check_xml(svg: &str) {
    assert!(svg.starts_with("<?xml "), "{svg}");
    assert!(svg.trim_end().ends_with("</svg>"), "{svg}");
    assert!(!svg.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{svg:?}");
    let mut reader = quick_xml::Reader::from_str(svg);
    reader.config_mut().check_end_names = true;
    loop {
        match reader.read_event() {
            Ok(quick_xml::events::Event::Eof) => break,
            Ok(quick_xml::events::Event::Start(tag) | quick_xml::events::Event::Empty(tag)) => {
                tag.attributes().for_each(|attribute| drop(attribute.unwrap()));
            }
            Ok(_) => {}
            Err(error) => panic!("{error}: {svg}"),
        }
    }
}
