//! The target, the machine and the plan in the words of a recording.

use std::ffi::OsString;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::attach::TrapCost;
use crate::plan::{self, Plan};
use crate::recording::{self, Header};
use crate::target::{ElfFile, Target};

/// What is said of child processes, which are not traced.
pub fn children_note(target: &Target) -> String {
    let mut children: Vec<String> = target
        .children
        .iter()
        .take(8)
        .map(|child| format!("{} ({})", child.pid, child.comm))
        .collect();
    if target.children.len() > children.len() {
        children.push(format!("{} more", target.children.len() - children.len()));
    }
    format!(
        "child processes are not traced: {}; trace one with -p and its own PID",
        children.join(", ")
    )
}

/// The machine.
pub fn host() -> recording::Host {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_string();
    recording::Host {
        kernel: read("/proc/sys/kernel/osrelease"),
        arch: std::env::consts::ARCH.into(),
        cpus: aya::util::online_cpus().map_or(0, |cpus| cpus.len() as u32),
    }
}

/// What is known when tracing begins.
pub fn header(target: &Target, plan: &Plan, start_ns: u64, has_ledger: bool) -> Header {
    Header {
        tool_version: env!("CARGO_PKG_VERSION").into(),
        command_line: std::env::args_os().map(|argument| lossy(&argument)).collect(),
        started_unix_ns: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64),
        start_ns,
        has_ledger,
        trap_cost: TrapCost::default(),
        target: recording::Target {
            pid: target.pid,
            comm: target.comm.clone(),
            exe: target.exe.display().to_string(),
            uid: target.uid,
            threads: target.thread_count,
            start_time_ticks: target.start_time_ticks,
        },
        host: host(),
        libraries: target.files.iter().filter_map(library).collect(),
        operations: plan.operations.clone(),
        probes: plan.probes.iter().map(|probe| probe_info(probe, &target.files)).collect(),
        skipped: plan.skipped.iter().map(|skipped| skipped_info(skipped, &target.files)).collect(),
    }
}

fn lossy(text: &OsString) -> String {
    text.to_string_lossy().into_owned()
}

/// A file as a recording names it, if it holds a copy of OpenSSL.
pub fn library(file: &ElfFile) -> Option<recording::Library> {
    let version = file.facts.openssl_version.clone()?;
    Some(recording::Library {
        path: file.path.display().to_string(),
        build_id: file.facts.build_id.clone(),
        openssl_version: Some(version),
        deleted: file.deleted,
    })
}

/// A probe as a recording names it.
pub fn probe_info(probe: &plan::Probe, files: &[ElfFile]) -> recording::Probe {
    recording::Probe {
        file: files[probe.file].path.display().to_string(),
        symbol: probe.symbol.clone(),
        offset: probe.function_offset,
        site_offset: probe.site_offset,
        price: match probe.price {
            plan::Price::Emulated => recording::Price::Emulated,
            plan::Price::SingleStepped => recording::Price::SingleStepped,
            plan::Price::Unknown => recording::Price::Unknown,
        },
        operation: probe.operation.clone(),
        is_request: probe.is_request,
        hits: 0,
        recursion_misses: None,
    }
}

/// A function left out, likewise.
pub fn skipped_info(skipped: &plan::Skipped, files: &[ElfFile]) -> recording::Skipped {
    recording::Skipped {
        file: files[skipped.file].path.display().to_string(),
        symbol: skipped.symbol.clone(),
        reason: skipped.reason.clone(),
    }
}
