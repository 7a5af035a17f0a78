//! The uses of the bpf system call that aya has no function for.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_insn, bpf_prog_info, bpf_prog_type};

use super::object::refused;
use super::{AttachError, Site};

/// `BPF_F_UPROBE_MULTI_RETURN` of include/uapi/linux/bpf.h.
const UPROBE_MULTI_RETURN: u32 = 1;

/// How often programs ran, and for how long.
#[derive(Clone, Copy, Default, Debug)]
pub struct ProgramRuns {
    /// Time inside the programs, in nanoseconds; 0 unless `kernel.bpf_stats_enabled` is 1.
    pub run_time_ns: u64,
    /// Runs; 0 likewise.
    pub run_count: u64,
    /// Runs that the kernel's recursion guard skipped: events that were missed.
    pub recursion_misses: u64,
}

impl ProgramRuns {
    /// Adds another program's.
    pub fn add(&mut self, other: Self) {
        self.run_time_ns += other.run_time_ns;
        self.run_count += other.run_count;
        self.recursion_misses += other.recursion_misses;
    }
}

fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i32> {
    // SAFETY: `attr` is a whole, zero-extended bpf_attr whose pointers the callers keep alive.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<bpf_attr>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn zeroed_attr() -> bpf_attr {
    // SAFETY: a union of plain integers; the kernel demands zeros in what is unused.
    unsafe { std::mem::zeroed() }
}

/// What a program is loaded for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Purpose {
    /// A uprobe-multi link with this attach type.
    Uprobe(u32),
    /// The kernel's tracepoint with this BTF type id.
    Tracepoint(u32),
    /// The overflow of a perf event.
    PerfEvent,
}

/// `BPF_TRACE_RAW_TP` of include/uapi/linux/bpf.h.
const TRACE_RAW_TP: u32 = 23;

/// The object's own type information, as programs with callbacks need it.
pub struct FunctionTypes<'a> {
    /// The object's BTF, loaded.
    pub btf: BorrowedFd<'a>,
    /// The program's `bpf_func_info` records.
    pub records: Vec<u8>,
    /// Size of one of them in bytes.
    pub record_bytes: usize,
}

/// Loads type information into the kernel.
pub fn load_btf(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = zeroed_attr();
    // SAFETY: writing plain integers into a union.
    let load = unsafe { &mut attr.__bindgen_anon_7 };
    load.btf = bytes.as_ptr() as u64;
    load.btf_size = bytes.len() as u32;
    let fd = bpf(bpf_cmd::BPF_BTF_LOAD, &mut attr)?;
    // SAFETY: the kernel returned a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// How often a program is loaded again: the verifier gives up when a signal arrives.
const INTERRUPTED_ATTEMPTS: u32 = 5;

/// Loads a program.
pub fn load_program(
    name: &str,
    instructions: &[bpf_insn],
    license: &CStr,
    purpose: Purpose,
    types: Option<&FunctionTypes<'_>>,
) -> Result<OwnedFd, AttachError> {
    let load = |log: Option<&mut Vec<u8>>| {
        let mut attr = zeroed_attr();
        // SAFETY: writing plain integers into a union.
        let load = unsafe { &mut attr.__bindgen_anon_3 };
        load.insn_cnt = instructions.len() as u32;
        load.insns = instructions.as_ptr() as u64;
        load.license = license.as_ptr() as u64;
        match purpose {
            Purpose::Uprobe(attach_type) => {
                load.prog_type = bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32;
                load.expected_attach_type = attach_type;
            }
            Purpose::Tracepoint(type_id) => {
                load.prog_type = bpf_prog_type::BPF_PROG_TYPE_TRACING as u32;
                load.expected_attach_type = TRACE_RAW_TP;
                load.attach_btf_id = type_id;
            }
            Purpose::PerfEvent => {
                load.prog_type = bpf_prog_type::BPF_PROG_TYPE_PERF_EVENT as u32;
            }
        }
        if let Some(types) = types {
            load.prog_btf_fd = types.btf.as_raw_fd() as u32;
            load.func_info = types.records.as_ptr() as u64;
            load.func_info_rec_size = types.record_bytes as u32;
            load.func_info_cnt = (types.records.len() / types.record_bytes.max(1)) as u32;
        }
        for (to, from) in load.prog_name.iter_mut().zip(name.bytes().take(15)) {
            *to = from as std::ffi::c_char;
        }
        if let Some(log) = log {
            load.log_level = 1;
            load.log_size = log.len() as u32;
            load.log_buf = log.as_mut_ptr() as u64;
        }
        bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr)
    };
    // Without a log first: asking for one costs time, and is refused where it does not fit.
    let mut loaded = load(None);
    for _ in 0..INTERRUPTED_ATTEMPTS {
        if !matches!(&loaded, Err(error) if error.raw_os_error() == Some(libc::EAGAIN)) {
            break;
        }
        loaded = load(None);
    }
    let error = match loaded {
        // SAFETY: the kernel returned a new descriptor.
        Ok(fd) => return Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(error) => error,
    };
    if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOMEM | libc::EMFILE)) {
        return Err(refused(format!("to load the program `{name}`"), error));
    }
    let mut log = vec![0; 1 << 20];
    let _ = load(Some(&mut log));
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    let log = end_of_log(&text);
    Err(AttachError::Verifier { program: name.into(), source: error, log })
}

/// The last lines of a verifier's log: where it gave up.
pub fn end_of_log(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Whether the kernel makes links of this attach type. It is asked for a link on a file that does
/// not exist: a kernel that knows the type says so of the file, another says that it does not
/// know the type. Nothing is attached either way.
pub fn has_uprobe_multi(program: BorrowedFd<'_>, attach_type: u32) -> bool {
    let site = Site { offset: 0, cookie: 0 };
    let result = create_link(program, attach_type, false, c"/proc/self/fd/none", 0, &[site]);
    matches!(result, Err(error) if error.raw_os_error() == Some(libc::ENOENT))
}

/// Attaches a program to all `sites` of one file with a single link, for one process.
pub fn attach_uprobe_multi(
    program: BorrowedFd<'_>,
    attach_type: u32,
    is_return: bool,
    path: &Path,
    pid: u32,
    sites: &[Site],
) -> Result<OwnedFd, AttachError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
        .and_then(|path| create_link(program, attach_type, is_return, &path, pid, sites))
        .map_err(|source| refused(format!("to attach {} probes", sites.len()), source))
}

fn create_link(
    program: BorrowedFd<'_>,
    attach_type: u32,
    is_return: bool,
    path: &CStr,
    pid: u32,
    sites: &[Site],
) -> io::Result<OwnedFd> {
    let offsets: Vec<u64> = sites.iter().map(|site| site.offset).collect();
    let cookies: Vec<u64> = sites.iter().map(|site| site.cookie).collect();
    let mut attr = zeroed_attr();
    // SAFETY: writing plain integers into nested unions.
    unsafe {
        attr.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
        attr.link_create.attach_type = attach_type;
        let multi = &mut attr.link_create.__bindgen_anon_3.uprobe_multi;
        multi.path = path.as_ptr() as u64;
        multi.offsets = offsets.as_ptr() as u64;
        multi.cookies = cookies.as_ptr() as u64;
        multi.cnt = sites.len() as u32;
        multi.flags = if is_return { UPROBE_MULTI_RETURN } else { 0 };
        multi.pid = pid;
    }
    let fd = bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr)?;
    // SAFETY: the kernel returned a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Attaches a program that was loaded for a tracepoint.
pub fn attach_tracepoint(name: &str, program: BorrowedFd<'_>) -> Result<OwnedFd, AttachError> {
    let mut attr = zeroed_attr();
    // No name: the program was loaded for its tracepoint.
    attr.raw_tracepoint.prog_fd = program.as_raw_fd() as u32;
    let fd = bpf(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr)
        .map_err(|source| refused(format!("to attach the program `{name}`"), source))?;
    // SAFETY: the kernel returned a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The kernel's statistics of a program; zeros when it does not tell.
pub fn program_runs(program: impl AsFd) -> ProgramRuns {
    // SAFETY: a struct of plain integers.
    let mut info: bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut attr = zeroed_attr();
    attr.info.bpf_fd = program.as_fd().as_raw_fd() as u32;
    attr.info.info_len = size_of::<bpf_prog_info>() as u32;
    attr.info.info = (&raw mut info) as u64;
    if bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr).is_err() {
        return ProgramRuns::default();
    }
    ProgramRuns {
        run_time_ns: info.run_time_ns,
        run_count: info.run_cnt,
        recursion_misses: info.recursion_misses,
    }
}
