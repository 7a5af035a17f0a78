//! What runs on the CPU: samples, their categories, and the graphs drawn of them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use latency_tests::tracer::latency;
use latency_tests::{Process, Recorded, Report, Tracer, Workload, exclusive};

const PATIENCE: Duration = Duration::from_secs(30);

/// `latency flame` with these arguments; returns its standard output.
#[track_caller]
fn flame(arguments: &[&str], file: &Path) -> String {
    let mut command = latency(&["flame"]);
    let finished = Process::run(command.args(arguments).arg(file), PATIENCE);
    assert!(finished.status.success(), "{finished:?}");
    finished.stdout
}

/// Records `oncpu MODE`, with its `request` as an operation.
#[track_caller]
fn record_request(mode: &str) -> Recorded {
    let mut target = Workload::on_cpu(mode, 1500);
    let probe = format!("{}:request", target.program().display());
    let tracer = Tracer::attach(target.pid(), &["--probe", &probe]);
    // The program that samples is loaded after the probes are attached.
    std::thread::sleep(Duration::from_secs(1));
    let truth = target.work();
    let recorded = tracer.stop();
    target.end();
    assert_eq!(recorded.report().count("request"), truth.number("/requests"));
    recorded
}

/// The categories of the first operation, the largest share first.
#[track_caller]
fn categories(report: &Report) -> Vec<(String, f64)> {
    let categories = &report.json["operations"][0]["on_cpu_categories"];
    assert_eq!(categories["is_enough"], true, "{categories}");
    let shares = categories["shares"].as_object().expect("shares");
    let mut shares: Vec<(String, f64)> = shares
        .iter()
        .map(|(name, share)| (name.clone(), share.as_f64().expect("a share")))
        .collect();
    let sum: f64 = shares.iter().map(|(_, share)| share).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{shares:?}");
    shares.sort_by(|left, right| right.1.total_cmp(&left.1));
    shares
}

/// Check that a lock spun on is named first, as a loop of the program's own and as glibc's.
#[test]
fn spinning_is_named() {
    let _machine = exclusive();
    for mode in ["pause", "spin"] {
        let recorded = record_request(mode);
        let report = recorded.report();
        let categories = categories(&report);
        assert_eq!(categories[0].0, "locking", "{mode}: {categories:?}");
        assert!(categories[0].1 > 0.5, "{mode}: {categories:?}");
        let function = report.text("/operations/0/on_cpu_categories/functions/0/function");
        assert_eq!(function, "request", "{mode}");
        let page = recorded.rendered("text");
        assert!(page.contains("% locking or spinning (in request)"), "{page}");
    }
}

/// Check that a storm of allocations is named first, and so are its functions in the graph.
#[test]
fn allocation_is_named() {
    let _machine = exclusive();
    let recorded = record_request("malloc");
    let categories = categories(&recorded.report());
    assert_eq!(categories[0].0, "allocator", "{categories:?}");
    let folded = flame(&["--view", "on-cpu", "--in-operation", "--folded"], &recorded.path());
    let inside = folded.lines().filter(|line| line.contains(";request;"));
    assert!(inside.filter(|line| line.contains(";malloc") || line.contains(";free")).count() > 0);
}

/// Check that a real program's time is crypto, in functions of libcrypto, and that its samples are
/// about as many as the time that it ran makes.
#[test]
fn crypto_is_named() {
    let _machine = exclusive();
    let mut command = Command::new("openssl");
    let mut target = Process::start(command.args(["speed", "-seconds", "20", "ecdsap256"]));
    std::thread::sleep(Duration::from_millis(300));
    let recorded = Tracer::attach(target.pid(), &["-d", "3s"]).end();
    target.signal(libc::SIGTERM);
    let report = recorded.report();
    let categories = categories(&report);
    assert_eq!(categories[0].0, "crypto", "{categories:?}");
    assert_eq!(report.number("/sampling/frequency_hz"), 99);
    let clock = report.text("/sampling/clock");
    assert!(["cpu-clock", "cycles"].contains(&clock), "{clock}");
    assert_eq!(report.number("/loss/samples"), 0);
    // One CPU's worth at most, as there is one thread.
    let samples = report.number("/sampling/samples");
    assert!((30..=99 * 4).contains(&samples), "{samples} samples");
    let folded = flame(&["--view", "on-cpu", "--operation", "sign", "--folded"], &recorded.path());
    let all = folded.lines().count();
    let library =
        folded.lines().filter(|line| line.contains("libcrypto.so") || line.contains(";EC"));
    assert!(library.count() * 2 > all, "few frames of libcrypto in\n{folded}");
    let whole =
        folded.lines().filter(|line| line.starts_with("openssl;") && line.contains("libc_start"));
    assert!(whole.count() * 10 > all * 9, "few whole stacks in\n{folded}");
}

/// Check that the threads of a service are sampled, those that start later too, each sample in the
/// operation it was taken in.
#[test]
fn service_is_sampled() {
    let _machine = exclusive();
    let options = ["--threads", "3", "--count", "500", "--algorithm", "rsa-2048"];
    let mut service = Workload::key_service(&options);
    let tracer = Tracer::attach(service.pid(), &["-F", "499"]);
    std::thread::sleep(Duration::from_secs(1));
    let truth = service.work();
    let recorded = tracer.stop();
    service.end();
    let report = recorded.report();
    assert_eq!(report.operations(), truth.operations());
    let of = |name: &str| {
        let rows = report.json["operations"].as_array().expect("operations");
        let row = rows.iter().find(|row| row["operation"] == name).expect("the operation");
        row["on_cpu_categories"]["samples"].as_u64().expect("samples")
    };
    let (sign, verify) = (of("sign"), of("verify"));
    // With RSA, a signature takes tens of times as long as its verification.
    assert!(sign > 100 && sign > 2 * verify, "{sign} samples in sign, {verify} in verify");
    let folded = flame(&["--view", "on-cpu", "--operation", "sign", "--folded"], &recorded.path());
    assert!(folded.lines().any(|line| line.contains(";handle_request;EVP_DigestSign")), "{folded}");
}

/// Check that nothing is sampled when that is turned off, and that the page says nothing of it.
#[test]
fn turned_off() {
    let _machine = exclusive();
    let mut target = Workload::signloop(latency_tests::Build::Shared, "ed25519", 100);
    let tracer = Tracer::attach(target.pid(), &["-F", "0"]);
    target.work();
    let recorded = tracer.stop();
    target.end();
    let report = recorded.report();
    assert!(report.is_null("/sampling"));
    assert!(report.is_null("/operations/0/on_cpu_categories"));
    let svg = flame(&["--view", "on-cpu", "-o", "-"], &recorded.path());
    assert!(svg.contains("the CPUs were not sampled"), "{svg}");
}

/// Check that graphs with any name in them are XML, as xmllint sees it, and that the names are
/// in them.
#[test]
fn graphs_are_xml() {
    let _machine = exclusive();
    let mut target = Workload::on_cpu("names", 1000);
    let probe = format!("{}:request", target.program().display());
    let tracer = Tracer::attach(target.pid(), &["--probe", &probe]);
    std::thread::sleep(Duration::from_secs(1));
    target.work();
    let recorded = tracer.stop();
    target.end();
    let path = recorded.path();
    let mut drawn = vec![path.with_extension("diff.svg")];
    let out = drawn[0].display().to_string();
    let older = path.display().to_string();
    flame(&["--view", "on-cpu", "--diff", &older, "-o", &out], &path);
    for view in ["on-cpu", "off-cpu", "locks", "wakers"] {
        let svg = path.with_extension(format!("{view}.svg"));
        flame(&["--view", view, "-o", &svg.display().to_string()], &path);
        drawn.push(svg);
    }
    for svg in drawn {
        let mut xmllint = Command::new("xmllint");
        let finished = Process::run(xmllint.arg("--noout").arg(&svg), PATIENCE);
        assert!(finished.status.success(), "{}: {}", svg.display(), finished.stderr);
    }
    let svg = std::fs::read_to_string(path.with_extension("on-cpu.svg")).expect("the graph");
    let folded = flame(&["--view", "on-cpu", "--folded"], &path);
    assert!(folded.contains("<w:?\u{fffd}> \"&'_7"), "{folded}");
    assert!(folded.contains("a:b <c> ?&\u{fffd}_7"), "{folded}");
    assert!(svg.contains("a:b &lt;c&gt; ?&amp;\u{fffd}_7"), "{svg}");
}

/// Check that a change between two runs is seen: what was done before is gone, what is done now
/// is new, per operation.
#[test]
fn difference_of_two_runs() {
    let _machine = exclusive();
    let [before, after] = ["malloc", "names"].map(record_request);
    let older = before.path().display().to_string();
    let arguments = ["--view", "on-cpu", "--in-operation", "--diff", &older];
    let folded = flame(&[&arguments[..], &["--folded"]].concat(), &after.path());
    let counts = |line: &str| {
        let mut words = line.rsplit(' ').map(|word| word.parse::<u64>().expect("a count"));
        let after = words.next().expect("a count");
        (words.next().expect("two counts"), after)
    };
    let mut lines = folded.lines();
    assert!(lines.clone().any(|line| line.contains(";malloc") && counts(line).1 == 0), "{folded}");
    assert!(lines.any(|line| line.contains(";a:b") && counts(line).0 == 0), "{folded}");
    let svg = flame(&[&arguments[..], &["-o", "-"]].concat(), &after.path());
    assert!(svg.contains("<title>[gone] ("), "{svg}");
}

/// Check that samples which a full ring dropped are counted, and said, apart from other losses.
#[test]
fn lost_samples_are_counted() {
    let _machine = exclusive();
    let mut target = Workload::on_cpu("names", 1500);
    let probe = format!("{}:request", target.program().display());
    let options = ["--ring-size", "4KiB", "-F", "1000", "--probe", &probe];
    let mut tracer = Tracer::attach(target.pid(), &options);
    std::thread::sleep(Duration::from_secs(1));
    tracer.process().signal(libc::SIGSTOP);
    let truth = target.work();
    tracer.process().signal(libc::SIGCONT);
    let recorded = tracer.stop();
    target.end();
    let report = recorded.report();
    assert_eq!(report.count("request"), truth.number("/requests"));
    let (received, lost) = (report.number("/sampling/samples"), report.number("/loss/samples"));
    assert!(lost > 0, "4 KiB cannot hold the samples: {received} received");
    // A second and a half on the CPU, looked at a thousand times a second.
    assert!((300..=3000).contains(&(received + lost)), "{received} received, {lost} lost");
    assert!(report.warnings().contains("of what runs on the CPU"), "{}", report.warnings());
    // The page wraps long lines.
    let page = recorded.rendered("text");
    let page: Vec<&str> = page.split_whitespace().collect();
    assert!(page.join(" ").contains("samples of the CPUs"), "{page:?}");
}
