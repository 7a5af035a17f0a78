//! `latency doctor`: whether this machine can trace, and what tracing a process would do to it.
//! Loads the programs, to see whether the kernel takes them, and attaches nothing to any process
//! but itself, to see what a probe costs here.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use latency_common::probe::LengthSource;

use super::args::DoctorArgs;
use super::describe;
use super::record::{self, DEFAULT_RING_BYTES};
use crate::aggregate::duration;
use crate::attach::{MIN_WAIT_NS, Mode, Session, Settings, TrapCost};
use crate::plan::unwind::{Limits, Tables};
use crate::plan::{Plan, Price};
use crate::target::{Hazard, Target};

/// How probes attach, and what they cost; nothing where they cannot.
type Probing = Option<(Mode, TrapCost)>;

/// What a check found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finding {
    Fine,
    Note,
    Broken,
}

/// The page, as it is written.
#[derive(Default)]
struct Page {
    text: String,
    broken: bool,
}

impl Page {
    fn heading(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        let _ = writeln!(self.text, "{text}");
    }

    fn check(&mut self, finding: Finding, text: &str) {
        let mark = match finding {
            Finding::Fine => "ok  ",
            Finding::Note => "note",
            Finding::Broken => "FAIL",
        };
        self.broken |= finding == Finding::Broken;
        let _ = writeln!(self.text, "  {mark}  {text}");
    }
}

/// Runs `latency doctor`; true if something needed is missing.
///
/// # Errors
/// The process cannot be looked at.
pub fn run(args: &DoctorArgs) -> Result<bool> {
    let has_probes = !args.probes.probe.is_empty() || !args.probes.request.is_empty();
    if has_probes && args.pid.is_none() {
        bail!("--probe and --request are looked for in a process: name it with -p PID");
    }
    let mut page = Page::default();
    let probing = machine(&mut page);
    let result = match args.pid {
        Some(pid) => process(&mut page, args, pid, probing),
        None => Ok(()),
    };
    super::print(page.text.as_bytes())?;
    result?;
    Ok(page.broken)
}

fn machine(page: &mut Page) -> Probing {
    page.heading("Machine");
    let host = describe::host();
    let supported = cfg!(target_arch = "x86_64");
    page.check(
        if supported { Finding::Fine } else { Finding::Broken },
        &format!("Linux {} on {}, {} CPUs", host.kernel, host.arch, host.cpus),
    );
    capabilities(page);
    lockdown(page);
    page.check(
        Finding::Note,
        if Path::new("/sys/kernel/btf/vmlinux").exists() {
            "the kernel describes its types (BTF): operations get a ledger of where the time goes"
        } else {
            "the kernel does not describe its types (no BTF): no ledger of where the time goes"
        },
    );
    page.check(
        Finding::Note,
        if ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"]
            .iter()
            .any(|path| Path::new(path).exists())
        {
            "tracefs is mounted: not needed"
        } else {
            "tracefs is not mounted: not needed"
        },
    );
    let settings = Settings {
        pid: std::process::id(),
        ring_bytes: DEFAULT_RING_BYTES,
        log: false,
        threads: 1,
        modes: record::modes(),
        // It would attach the scheduler's programs.
        ledger: false,
        min_wait_ns: MIN_WAIT_NS,
        stacks: false,
        requests: true,
        unwind: None,
    };
    match Session::load(settings, &mut |_| Ok(())) {
        Ok(mut session) => {
            let mode = session.mode();
            let what = match mode {
                Mode::Session => {
                    "one link for all probes of a file, and no return probe for nested calls"
                }
                Mode::Multi => "two links for all probes of a file",
                Mode::Perf => "two perf events a probe: detaching takes about 0.1 s for each",
            };
            page.check(Finding::Fine, "the kernel takes the eBPF programs");
            page.check(Finding::Fine, &format!("probes attach by {}: {what}", mode.name()));
            Some((mode, session.measure_trap_cost()))
        }
        Err(error) => {
            page.check(Finding::Broken, &error.to_string());
            None
        }
    }
}

fn capabilities(page: &mut Page) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .unwrap_or(0);
    let has = |bit: u32| effective >> bit & 1 != 0;
    let needed = [(39, "CAP_BPF"), (38, "CAP_PERFMON"), (19, "CAP_SYS_PTRACE")];
    // CAP_SYS_ADMIN includes the first two.
    let missing: Vec<&str> = needed
        .into_iter()
        .filter(|(bit, _)| !(has(*bit) || *bit != 19 && has(21)))
        .map(|(_, name)| name)
        .collect();
    if missing.is_empty() {
        page.check(Finding::Fine, "capabilities: CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE");
    } else {
        page.check(
            Finding::Broken,
            &format!("missing capabilities: {}; run it with sudo", missing.join(", ")),
        );
    }
    if !has(40) && !has(21) {
        page.check(
            Finding::Note,
            "without CAP_CHECKPOINT_RESTORE, libraries deleted on disk cannot be probed",
        );
    }
}

fn lockdown(page: &mut Page) {
    let text = std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    if text.contains("[confidentiality]") {
        page.check(
            Finding::Broken,
            "kernel lockdown is in confidentiality mode, which forbids tracing: boot without it",
        );
    }
}

fn process(page: &mut Page, args: &DoctorArgs, pid: u32, probing: Probing) -> Result<()> {
    let (target, plan) = record::look(pid, &args.probes, args.probe_all)?;
    page.heading(&format!("Process {} ({}), {}", target.pid, target.comm, target.exe.display()));
    for note in &target.notes {
        page.check(Finding::Note, note);
    }
    for hazard in &target.hazards {
        hazard_line(page, &target, hazard);
    }
    if !target.children.is_empty() {
        page.check(Finding::Note, &describe::children_note(&target));
    }
    libraries(page, &target);
    if plan.probes.is_empty() {
        return Err(plan.explain_empty(&target).into());
    }
    if let Err(error) = record::refuse_hazards(&target, &plan) {
        page.check(Finding::Broken, &error.to_string());
    }
    probes(page, &target, &plan);
    memory_reads(page, &plan);
    cost(page, &plan, probing);
    stacks(page, &target);
    Ok(())
}

/// What it takes to follow the target's stacks without frame pointers.
fn stacks(page: &mut Page, target: &Target) {
    let begin = Instant::now();
    let tables = Tables::of(target, Limits::default());
    let taken_ms = begin.elapsed().as_secs_f64() * 1e3;
    let bytes = 8 * tables.store.words();
    let mut text = format!(
        "stacks: {} unwind rows, {:.1} MiB, made in {taken_ms:.1} ms",
        tables.store.rows(),
        bytes as f64 / f64::from(1 << 20)
    );
    if tables.pending() > 0 {
        text += &format!("; large files come later, while the trace goes on: {}", tables.pending());
    }
    page.check(Finding::Note, &text);
    for warning in &tables.warnings {
        page.check(Finding::Note, warning);
    }
}

fn hazard_line(page: &mut Page, target: &Target, hazard: &Hazard) {
    let path = |file: &usize| target.files[*file].path.display().to_string();
    let text = match hazard {
        Hazard::Go { file } => {
            format!("{} holds a Go runtime: nothing in it is probed", path(file))
        }
        Hazard::StackSwitching { file, symbol } => format!(
            "{} can switch stacks ({symbol}); return probes are safe only around functions that \
             do not",
            path(file)
        ),
        Hazard::Seccomp { mode } => format!(
            "seccomp is on (mode {mode}): kernels 6.11 to 6.13.2 with the first fixes missing kill \
             such a process at its first return probe"
        ),
    };
    page.check(Finding::Note, &text);
}

fn libraries(page: &mut Page, target: &Target) {
    page.heading("OpenSSL found");
    let mut any = false;
    for file in &target.files {
        let Some(version) = &file.facts.openssl_version else { continue };
        any = true;
        let deleted = if file.deleted { ", deleted on disk" } else { "" };
        let build_id = file.facts.build_id.as_deref().unwrap_or("none");
        let _ = writeln!(
            page.text,
            "  {}: {version}, build id {build_id}{deleted}",
            file.path.display()
        );
    }
    if !any {
        let _ = writeln!(page.text, "  none");
    }
}

fn probes(page: &mut Page, target: &Target, plan: &Plan) {
    page.heading("Functions that would be probed");
    let _ = writeln!(
        page.text,
        "  {:<28} {:<8} {:>10} {:>10}  {:<15} FILE",
        "FUNCTION", "AS", "OFFSET", "PROBE AT", "PRICE"
    );
    for probe in &plan.probes {
        let _ = writeln!(
            page.text,
            "  {:<28} {:<8} {:>#10x} {:>#10x}  {:<15} {}",
            probe.symbol,
            probe.operation,
            probe.function_offset,
            probe.site_offset,
            price(probe.price),
            target.files[probe.file].path.display()
        );
    }
    if !plan.skipped.is_empty() {
        page.heading("Functions left out");
        for skipped in &plan.skipped {
            let _ = writeln!(page.text, "  {:<28} {}", skipped.symbol, skipped.reason);
        }
    }
}

const fn price(price: Price) -> &'static str {
    match price {
        Price::Emulated => "emulated",
        Price::SingleStepped => "single-stepped",
        Price::Unknown => "unknown",
    }
}

fn memory_reads(page: &mut Page, plan: &Plan) {
    page.heading("Reads of the process's memory");
    let mut any = false;
    for probe in &plan.probes {
        let bytes = match probe.cookie.length {
            LengthSource::PointerToU64 => 8,
            LengthSource::PointerToU32 => 4,
            _ => continue,
        };
        any = true;
        let _ = writeln!(
            page.text,
            "  {:<28} on return, {bytes} bytes at its argument {}: the signature's length",
            probe.symbol,
            probe.cookie.length_argument + 1
        );
    }
    if any || !plan.probes.is_empty() {
        let _ = writeln!(
            page.text,
            "  {:<28} 8 bytes of the stack, the return address, when two probed functions are\n  \
             {:<28} entered at one stack depth: a jump, or a call that was jumped out of?",
            "any", ""
        );
    }
    let _ = writeln!(
        page.text,
        "  {:<28} 16 bytes at the futex that a thread waits for: the lock's word and its owner\n  \
         {:<28} words of the stack that hold return addresses and saved registers, when a\n  \
         {:<28} thread is sampled on its CPU (unless -F 0), and without --no-stacks when it\n  \
         {:<28} leaves the CPU or wakes another\n  \
         {:<28} 4 bytes of its code where it is sampled: does it spin at a `pause`?",
        "any", "", "", "", ""
    );
    let _ = writeln!(page.text, "  No message, key or signature byte is ever read.");
}

fn cost(page: &mut Page, plan: &Plan, probing: Probing) {
    page.heading("Cost");
    let mode = probing.map(|(mode, _)| mode);
    let nested = match mode {
        Some(Mode::Session) => "half as much for each call nested in one",
        _ => "as much again for each call nested in one",
    };
    match probing {
        Some((_, TrapCost { hot_pair_ns, cold_pair_ns, .. })) if cold_pair_ns > 0 => {
            let _ = writeln!(
                page.text,
                "  each operation: {} in the process, {} where the caches are cold (measured just \
                 now); {nested}",
                duration(hot_pair_ns),
                duration(cold_pair_ns),
            );
        }
        _ => {
            let _ = writeln!(page.text, "  each operation: about 1 µs in the process; {nested}");
        }
    }
    let stepped: Vec<&str> = plan
        .probes
        .iter()
        .filter(|probe| probe.price == Price::SingleStepped)
        .map(|probe| probe.symbol.as_str())
        .collect();
    if !stepped.is_empty() {
        let _ = writeln!(
            page.text,
            "  single-stepped: {}: 1 to 2 µs more a call on bare metal, up to 20 µs in a virtual \
             machine",
            stepped.join(", ")
        );
    }
    let _ = writeln!(
        page.text,
        "  memory in the kernel: about {} MiB\n  detaching: about {:.1} s, after the report",
        DEFAULT_RING_BYTES / (1 << 20) + 3,
        match mode {
            Some(Mode::Session) | None => 0.1,
            Some(Mode::Multi) => 0.2,
            Some(Mode::Perf) => plan.probes.len() as f64 * 2.0 * 0.107,
        }
    );
}
