//! The programs that aya 0.14 cannot attach: its uprobes go through perf events, one by one. Here
//! the same object is relocated by `aya-obj` against the maps that aya created, and loaded for
//! uprobe-multi links.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};

use aya::maps::Map;
use aya::programs::ProgramError;
use aya::{Ebpf, EbpfError};
use aya_obj::Object;

use super::AttachError;
use super::syscalls::{self, ProgramRuns, Purpose};

/// `BPF_TRACE_UPROBE_MULTI` and `BPF_TRACE_UPROBE_SESSION` of include/uapi/linux/bpf.h; the
/// bindings of aya-obj 0.3 have only the first.
const UPROBE_MULTI: u32 = 48;
const UPROBE_SESSION: u32 = 57;

/// A program, and how it is attached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Kind {
    /// Its function's name.
    pub name: &'static str,
    /// What it is loaded for.
    pub purpose: Purpose,
    /// Whether it runs at returns.
    pub is_return: bool,
}

/// What [`super::Mode::Session`] loads.
pub const SESSION: &[Kind] =
    &[Kind { name: "call_session", purpose: Purpose::Uprobe(UPROBE_SESSION), is_return: false }];

/// What [`super::Mode::Multi`] loads.
pub const MULTI: &[Kind] = &[
    Kind { name: "call_return", purpose: Purpose::Uprobe(UPROBE_MULTI), is_return: true },
    Kind { name: "call_entry", purpose: Purpose::Uprobe(UPROBE_MULTI), is_return: false },
];

/// What [`super::Mode::Session`] loads to measure its own traps.
pub const TRAP_SESSION: &[Kind] =
    &[Kind { name: "trap_session", purpose: Purpose::Uprobe(UPROBE_SESSION), is_return: false }];

/// What [`super::Mode::Multi`] loads to measure its own traps.
pub const TRAP_MULTI: &[Kind] = &[
    Kind { name: "trap_return", purpose: Purpose::Uprobe(UPROBE_MULTI), is_return: true },
    Kind { name: "trap_entry", purpose: Purpose::Uprobe(UPROBE_MULTI), is_return: false },
];

/// The object's programs, relocated, and those loaded so far.
pub struct Programs {
    object: Object,
    /// The object's type information in the kernel, where it takes it.
    btf: Option<OwnedFd>,
    loaded: HashMap<Kind, OwnedFd>,
}

impl Programs {
    /// Parses the object and relocates it to `ebpf`'s maps.
    pub fn parse(bytes: &[u8], ebpf: &Ebpf) -> Result<Self, AttachError> {
        let broken = |error: &dyn std::fmt::Display| AttachError::Object(error.to_string());
        let mut object = Object::parse(bytes).map_err(|error| broken(&error))?;
        let btf = match aya::features().btf() {
            Some(features) => object
                .fixup_and_sanitize_btf(features)
                .map_err(|error| broken(&error))?
                .and_then(|btf| syscalls::load_btf(&btf.to_bytes()).ok()),
            None => None,
        };
        let fds: HashMap<&str, RawFd> =
            ebpf.maps().filter_map(|(name, map)| Some((name, map_fd(map)?))).collect();
        let text_sections: HashSet<usize> =
            object.functions.keys().map(|(section, _)| *section).collect();
        let maps: Vec<_> = object
            .maps
            .iter()
            .map(|(name, map)| Some((name.clone(), *fds.get(name.as_str())?, map.clone())))
            .collect::<Option<_>>()
            .ok_or_else(|| AttachError::Object("a map of the object was not created".into()))?;
        object
            .relocate_maps(
                maps.iter().map(|(name, fd, map)| (name.as_str(), *fd, map)),
                &text_sections,
            )
            .map_err(|error| broken(&error))?;
        object.relocate_calls(&text_sections).map_err(|error| broken(&error))?;
        Ok(Self { object, btf, loaded: HashMap::new() })
    }

    /// Loads several programs at the same time: the verifier works on each in its own thread, and
    /// takes tens of milliseconds. What fails here is left to [`Self::load`], which tells why.
    pub fn load_together(&mut self, kinds: &[Kind]) {
        let this = &*self;
        let loaded: Vec<(Kind, OwnedFd)> = std::thread::scope(|scope| {
            let missing = kinds.iter().filter(|kind| !this.loaded.contains_key(kind));
            let loads: Vec<_> = missing
                .map(|kind| (*kind, scope.spawn(move || this.prepare(*kind)?.load())))
                .collect();
            loads
                .into_iter()
                .filter_map(|(kind, load)| Some((kind, load.join().ok()?.ok()?)))
                .collect()
        });
        self.loaded.extend(loaded);
    }

    /// Loads a program into the kernel, once.
    pub fn load(&mut self, kind: Kind) -> Result<BorrowedFd<'_>, AttachError> {
        if !self.loaded.contains_key(&kind) {
            let fd = self.prepare(kind)?.load()?;
            self.loaded.insert(kind, fd);
        }
        match self.loaded.get(&kind) {
            Some(fd) => Ok(fd.as_fd()),
            None => Err(missing(kind)),
        }
    }

    /// All that is needed to load a program, to be taken elsewhere.
    pub fn prepare(&self, kind: Kind) -> Result<PreparedProgram, AttachError> {
        let function = self
            .object
            .programs
            .get(kind.name)
            .and_then(|program| {
                self.object.functions.get(&(program.section_index, program.address))
            })
            .ok_or_else(|| missing(kind))?;
        let btf = match &self.btf {
            Some(btf) => Some(
                btf.try_clone()
                    .map_err(|source| refused("to duplicate a descriptor".into(), source))?,
            ),
            None => None,
        };
        Ok(PreparedProgram {
            kind,
            instructions: function.instructions.clone(),
            license: self.object.license.clone(),
            btf,
            records: function.func_info.func_info_bytes(),
            record_bytes: function.func_info_rec_size,
        })
    }

    /// Runs of one program, by its name, as [`Self::load`] loaded it.
    pub fn runs_of(&self, name: &str) -> ProgramRuns {
        let mut runs = ProgramRuns::default();
        for (_, fd) in self.loaded.iter().filter(|(kind, _)| kind.name == name) {
            runs.add(syscalls::program_runs(fd));
        }
        runs
    }

    /// Runs of all programs loaded here.
    pub fn runs(&self) -> ProgramRuns {
        let mut runs = ProgramRuns::default();
        for fd in self.loaded.values() {
            runs.add(syscalls::program_runs(fd));
        }
        runs
    }
}

fn missing(kind: Kind) -> AttachError {
    AttachError::Object(format!("the program {} is missing", kind.name))
}

/// A program, ready to be loaded.
pub struct PreparedProgram {
    kind: Kind,
    instructions: Vec<aya_obj::generated::bpf_insn>,
    license: CString,
    /// With [`Self::records`]: a walk over a stack is a callback, which must have a type.
    btf: Option<OwnedFd>,
    records: Vec<u8>,
    record_bytes: usize,
}

impl PreparedProgram {
    /// Loads it into the kernel.
    ///
    /// # Errors
    /// Missing rights, or the verifier's refusal.
    pub fn load(self) -> Result<OwnedFd, AttachError> {
        let types = self.btf.as_ref().map(|btf| syscalls::FunctionTypes {
            btf: btf.as_fd(),
            records: self.records,
            record_bytes: self.record_bytes,
        });
        syscalls::load_program(
            self.kind.name,
            &self.instructions,
            &self.license,
            self.kind.purpose,
            types.as_ref(),
        )
    }
}

/// A program of aya's by its name and type.
pub fn program<'a, T>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut T, AttachError>
where
    &'a mut T: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    ebpf.program_mut(name)
        .ok_or_else(|| AttachError::Object(format!("the program {name} is missing")))?
        .try_into()
        .map_err(|error: ProgramError| explain_program(name, error))
}

fn map_fd(map: &Map) -> Option<RawFd> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::PerCpuArray(data)
        | Map::RingBuf(data)
        | Map::Stack(data) => Some(data.fd().as_fd().as_raw_fd()),
        _ => None,
    }
}

/// An error of the kernel's with what it means.
pub fn refused(action: String, source: io::Error) -> AttachError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            AttachError::NotPermitted { action, source, lockdown: lockdown() }
        }
        Some(libc::ENOMEM) => AttachError::Refused {
            action,
            source,
            hint: "; memory or the memlock limit ran out: try a smaller --ring-size, or \
                   `ulimit -l unlimited`",
        },
        Some(libc::EMFILE | libc::ENFILE) => AttachError::Refused {
            action,
            source,
            hint: "; too many open files: raise `ulimit -n`",
        },
        Some(libc::ESRCH) => {
            AttachError::Refused { action, source, hint: "; the target has ended" }
        }
        _ => AttachError::Refused { action, source, hint: "" },
    }
}

/// What kernel lockdown adds to a refusal.
fn lockdown() -> &'static str {
    match std::fs::read_to_string("/sys/kernel/security/lockdown") {
        Ok(text) if text.contains("[confidentiality]") => {
            "; kernel lockdown is in confidentiality mode, which forbids tracing: boot without it"
        }
        _ => "",
    }
}

/// aya's load errors, with the kernel's answer where there is one.
pub fn explain(error: EbpfError) -> AttachError {
    match os_error(&error) {
        Some(source) => refused("to create the maps".into(), source),
        None => AttachError::Object(chain(&error)),
    }
}

/// aya's program errors, likewise.
pub fn explain_program(name: &str, error: ProgramError) -> AttachError {
    if let ProgramError::LoadError { io_error, verifier_log } = error {
        if matches!(io_error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
            && verifier_log.to_string().is_empty()
        {
            return refused(format!("to load the program `{name}`"), io_error);
        }
        return AttachError::Verifier {
            program: name.into(),
            source: io_error,
            log: syscalls::end_of_log(&verifier_log.to_string()),
        };
    }
    match os_error(&error) {
        Some(source) => refused(format!("to attach the program `{name}`"), source),
        None => AttachError::Object(chain(&error)),
    }
}

fn os_error(error: &(dyn std::error::Error + 'static)) -> Option<io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(code) = error.downcast_ref::<io::Error>().and_then(std::io::Error::raw_os_error)
        {
            return Some(io::Error::from_raw_os_error(code));
        }
        next = error.source();
    }
    None
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}
