//! Loading the eBPF object, attaching its programs to the target, and detaching them on drop.

mod counts;
mod error;
mod mode;
mod namespace;
mod object;
mod profile;
mod scheduler;
mod syscalls;
mod trap;
mod unwind;

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use aya::maps::{Array, MapData, RingBuf};
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use aya::programs::{RawTracePoint, UProbe};
use aya::{Ebpf, EbpfLoader};

pub use counts::{KernelCounts, SlotCounts};
pub use error::AttachError;
pub use mode::Mode;
pub use profile::SampleClock;
pub use scheduler::monotonic_ns;
pub use syscalls::ProgramRuns;
pub use trap::TrapCost;
pub use unwind::{UnwindCounts, UnwindSizes};

use crate::plan::unwind::{ProcessTable, RowStore};
use unwind::UnwindMaps;

/// The eBPF object, built from `latency-ebpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("LATENCY_BPF_OBJECT"));

/// Histogram slots: one for each (operation, algorithm, outcome) that occurs.
const HISTOGRAM_SLOTS: u32 = 96;

/// How much kernel memory the per-CPU histograms may take, in bytes; on machines with many CPUs
/// there are fewer slots.
const HISTOGRAM_BUDGET_BYTES: usize = 64 << 20;

/// Most probes that one session can hold.
const MAX_PROBES: u32 = crate::plan::MAX_PROBES as u32;

/// What the programs must know before they are loaded.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The target process.
    pub pid: u32,
    /// Size of the ring buffer in bytes: a power of two, at least a page.
    pub ring_bytes: u32,
    /// Whether the programs log (`-v`).
    pub log: bool,
    /// Number of the target's threads, for the size of the thread table.
    pub threads: u32,
    /// The modes to try, in order.
    pub modes: Vec<Mode>,
    /// Whether to follow the scheduler: operations get a ledger, and waits are recorded. Where
    /// the kernel does not allow it, [`Session::ledger_refusal`] says why.
    pub ledger: bool,
    /// Waits outside of operations, and preemptions, shorter than this are only added up.
    pub min_wait_ns: u64,
    /// Whether waits and wakers are to have stacks.
    pub stacks: bool,
    /// Whether there are probes of requests.
    pub requests: bool,
    /// Room for unwind rows, if anything is to have stacks; see [`Session::set_unwind`].
    pub unwind: Option<UnwindSizes>,
}

/// The usual [`Settings::min_wait_ns`].
pub const MIN_WAIT_NS: u64 = 10_000;

/// One probe to attach.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Offset of the probed instruction in the file, in bytes.
    pub offset: u64,
    /// The packed [`latency_common::probe::ProbeCookie`].
    pub cookie: u64,
}

/// See [`Session::load`].
pub type Prepare<'a> = dyn FnMut(&mut Session) -> Result<(), AttachError> + 'a;

/// The loaded programs and their links. Dropping it detaches everything.
pub struct Session {
    ebpf: Ebpf,
    object: object::Programs,
    settings: Settings,
    mode: Mode,
    links: Vec<OwnedFd>,
    perf_links: usize,
    watching: bool,
    logger: Option<aya_log::EbpfLogger<&'static dyn log::Log>>,
    slots: u32,
    trap_cost: TrapCost,
    scheduler: scheduler::Scheduler,
    unwind: UnwindMaps,
    has_unwind: bool,
    stacks_refusal: Option<AttachError>,
    profiler: profile::Profiler,
}

impl Session {
    /// Loads the object: creates the maps, chooses the mode, loads the programs. No probe is
    /// attached yet. `prepare` runs once the maps are there, and before the scheduler is followed;
    /// once more if less is tried after a refusal.
    ///
    /// # Errors
    /// Missing rights, a kernel without a needed feature, or a verifier's refusal.
    pub fn load(settings: Settings, prepare: &mut Prepare<'_>) -> Result<Self, AttachError> {
        let session = match Self::load_once(settings.clone(), prepare) {
            // Stacks need most of the memory, and a kernel of this decade: the rest may do without.
            Err(refusal) if settings.unwind.is_some() => {
                return match Self::load(Settings { unwind: None, ..settings }, prepare) {
                    Ok(session) => Ok(Self { stacks_refusal: Some(refusal), ..session }),
                    Err(_) => Err(refusal),
                };
            }
            Err(refusal) => return Err(refusal),
            Ok(session) => session,
        };
        if !session.settings.ledger || session.ledger_refusal().is_none() {
            return Ok(session);
        }
        // The programs were told that switches are traced: without them, every operation
        // would seem to be on the CPU all the time.
        if session.has_unwind {
            let settings = Settings { unwind: None, ..session.settings };
            let refusal = session.scheduler.into_refusal();
            return Ok(Self { stacks_refusal: refusal, ..Self::load(settings, prepare)? });
        }
        let settings = Settings { ledger: false, ..session.settings };
        let scheduler = session.scheduler;
        Ok(Self { scheduler, ..Self::load_once(settings, prepare)? })
    }

    fn load_once(settings: Settings, prepare: &mut Prepare<'_>) -> Result<Self, AttachError> {
        let cpus = aya::util::nr_cpus().map_err(|(path, source)| AttachError::Refused {
            action: format!("to tell the number of CPUs ({path})"),
            source,
            hint: "; is /sys mounted?",
        })?;
        let slot_bytes = size_of::<latency_common::histogram::KernelHistogram>() * cpus;
        let slots = (HISTOGRAM_BUDGET_BYTES / slot_bytes).clamp(16, HISTOGRAM_SLOTS as usize);
        let slots = slots as u32;
        let threads = settings.threads.saturating_mul(4).clamp(4096, 262_144);
        let (namespace_device, namespace_inode) = namespace::pid_namespace();
        let (log, requests) = (u32::from(settings.log), u32::from(settings.requests));
        let scheduler = scheduler::Scheduler::prepare(&settings);
        let facts = scheduler.globals();
        let unwind = settings.unwind.filter(|_| scheduler.has_stacks());
        let stacks = u32::from(settings.stacks && unwind.is_some());
        let mut loader = EbpfLoader::new();
        if let Some(sizes) = unwind {
            sizes.apply(&mut loader);
        }
        for (name, value) in &facts {
            loader.override_global(name, value, true);
        }
        let mut ebpf = loader
            .btf(None)
            .override_global("TARGET_TGID", &settings.pid, true)
            .override_global("PID_NAMESPACE_DEVICE", &namespace_device, true)
            .override_global("PID_NAMESPACE_INODE", &namespace_inode, true)
            .override_global("LOG", &log, true)
            .override_global("MIN_WAIT_NS", &settings.min_wait_ns, true)
            .override_global("STACKS", &stacks, true)
            .override_global("UNWIND", &u32::from(unwind.is_some()), true)
            .override_global("REQUESTS", &requests, true)
            .map_max_entries("RECORDS", settings.ring_bytes)
            .map_max_entries("THREADS", threads)
            .map_max_entries("THREAD_SLOTS", threads)
            .map_max_entries("FREE_SLOTS", threads)
            .map_max_entries("PROBE_HITS", MAX_PROBES)
            .map_max_entries("HISTOGRAMS", slots)
            .map_max_entries("HISTOGRAM_SLOTS", slots)
            .load(OBJECT)
            .map_err(object::explain)?;
        let object = object::Programs::parse(OBJECT, &ebpf)?;
        counts::prepare(&mut ebpf, slots, threads)?;
        let logger = if settings.log {
            let logger: &'static dyn log::Log = log::logger();
            Some(aya_log::EbpfLogger::init_with_logger(&mut ebpf, logger).map_err(|error| {
                AttachError::Object(format!("the log of the kernel side: {error}"))
            })?)
        } else {
            None
        };
        let watcher: &mut RawTracePoint = object::program(&mut ebpf, "thread_exit")?;
        watcher.load().map_err(|error| object::explain_program("thread_exit", error))?;
        let stacks_refusal = settings.unwind.and_then(|_| scheduler.stacks_refusal());
        let mut session = Self {
            ebpf,
            object,
            settings,
            mode: Mode::Perf,
            links: Vec::new(),
            perf_links: 0,
            watching: false,
            logger,
            slots,
            trap_cost: TrapCost::default(),
            scheduler,
            unwind: UnwindMaps::default(),
            has_unwind: unwind.is_some(),
            stacks_refusal,
            profiler: profile::Profiler::default(),
        };
        let mut kinds = session.scheduler.programs();
        kinds.extend(session.settings.modes.first().map_or(&[][..], |mode| mode.programs()));
        session.object.load_together(&kinds);
        prepare(&mut session)?;
        session.scheduler.attach(&mut session.object);
        session.set_trace_start(monotonic_ns())?;
        session.set_taking(true)?;
        session.mode = session.choose_mode()?;
        Ok(session)
    }

    /// The first of the wanted modes that this kernel has.
    fn choose_mode(&mut self) -> Result<Mode, AttachError> {
        let mut refusal = None;
        for mode in self.settings.modes.clone() {
            match self.has_mode(mode) {
                Ok(true) => return Ok(mode),
                Ok(false) => log::debug!("this kernel has no {}", mode.name()),
                Err(error @ AttachError::NotPermitted { .. }) => return Err(error),
                // Verifiers before Linux 6.13, which has no sessions, do not allow their program the
                // stack that it needs.
                Err(error) => {
                    log::debug!("this kernel has no {}: {error}", mode.name());
                    refusal = Some(error);
                }
            }
        }
        Err(refusal.unwrap_or_else(|| {
            AttachError::Object("this kernel has none of the attach modes asked for".into())
        }))
    }

    fn has_mode(&mut self, mode: Mode) -> Result<bool, AttachError> {
        let mut supported = true;
        for kind in mode.programs() {
            let syscalls::Purpose::Uprobe(attach_type) = kind.purpose else { continue };
            let program = self.object.load(*kind)?;
            supported &= syscalls::has_uprobe_multi(program, attach_type);
        }
        Ok(supported)
    }

    /// The ring buffer of records; once.
    ///
    /// # Errors
    /// It was taken before, or cannot be mapped.
    pub fn take_ring(&mut self) -> Result<RingBuf<MapData>, AttachError> {
        let map = self
            .ebpf
            .take_map("RECORDS")
            .ok_or_else(|| AttachError::Object("the map RECORDS is missing".into()))?;
        RingBuf::try_from(map).map_err(|error| AttachError::Object(error.to_string()))
    }

    /// The kernel side's log, when it was asked for; once. Reading it is the caller's task.
    pub fn take_logger(&mut self) -> Option<aya_log::EbpfLogger<&'static dyn log::Log>> {
        self.logger.take()
    }

    /// How probes are attached.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Measures what a caller pays for the probes of an operation, on a function of the tracer's
    /// own; zeroes if that cannot be done. Takes some ten milliseconds.
    pub fn measure_trap_cost(&mut self) -> TrapCost {
        // Without it durations are a little short; that is no reason not to trace.
        match trap::measure(self) {
            Ok(cost) => self.trap_cost = cost,
            Err(error) => log::debug!("the cost of a trap is not known: {error}"),
        }
        self.trap_cost
    }

    /// What [`Self::measure_trap_cost`] found.
    pub const fn trap_cost(&self) -> TrapCost {
        self.trap_cost
    }

    /// Attaches probes to one file, for the target's threads alone.
    ///
    /// # Errors
    /// The kernel refused in every mode that was to be tried.
    pub fn attach(&mut self, file: &File, sites: &[Site]) -> Result<(), AttachError> {
        if sites.is_empty() {
            return Ok(());
        }
        if !self.watching {
            let watcher: &mut RawTracePoint = object::program(&mut self.ebpf, "thread_exit")?;
            watcher
                .attach("sched_process_exit")
                .map_err(|error| object::explain_program("thread_exit", error))?;
            self.watching = true;
        }
        // The file is attached by the inode that is open, whatever its path leads to now.
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let pid = self.settings.pid;
        match self.mode {
            Mode::Session => self.attach_multi(pid, &path, sites, object::SESSION),
            Mode::Multi => self.attach_multi(pid, &path, sites, object::MULTI),
            Mode::Perf => self.attach_perf(pid, &path, sites, ["call_return", "call_entry"]),
        }
    }

    /// Attaches by uprobe-multi links, for the threads of `pid` alone.
    fn attach_multi(
        &mut self,
        pid: u32,
        path: &std::path::Path,
        sites: &[Site],
        kinds: &[object::Kind],
    ) -> Result<(), AttachError> {
        let mut links = Vec::new();
        // Return probes first: an entry whose return is not seen yet would stay open.
        for kind in kinds {
            let syscalls::Purpose::Uprobe(attach_type) = kind.purpose else { continue };
            let program = self.object.load(*kind)?;
            links.push(syscalls::attach_uprobe_multi(
                program,
                attach_type,
                kind.is_return,
                path,
                pid,
                sites,
            )?);
        }
        self.links.extend(links);
        Ok(())
    }

    /// Attaches by perf events: the program for returns, and the one for entries.
    fn attach_perf(
        &mut self,
        pid: u32,
        path: &std::path::Path,
        sites: &[Site],
        names: [&'static str; 2],
    ) -> Result<(), AttachError> {
        let pid = std::num::NonZeroU32::new(pid)
            .ok_or_else(|| AttachError::Object("PID 0 cannot be traced".into()))?;
        for name in names {
            let program: &mut UProbe = object::program(&mut self.ebpf, name)?;
            match program.load() {
                Ok(()) | Err(aya::programs::ProgramError::AlreadyLoaded) => {}
                Err(error) => return Err(object::explain_program(name, error)),
            }
            for site in sites {
                let point = UProbeAttachPoint {
                    location: UProbeAttachLocation::AbsoluteOffset(site.offset),
                    cookie: Some(site.cookie),
                };
                program
                    .attach(point, path, UProbeScope::OneProcess(pid))
                    .map_err(|error| object::explain_program(name, error))?;
                self.perf_links += 1;
            }
        }
        Ok(())
    }

    /// Gives the programs the unwind rows of the target's files, and where they are mapped. Called
    /// again when new files were mapped.
    ///
    /// # Errors
    /// There are more rows than the maps were made for, or a map cannot be written.
    pub fn set_unwind(
        &mut self,
        store: &RowStore,
        table: &ProcessTable,
    ) -> Result<(), AttachError> {
        if !self.has_unwind {
            return Ok(());
        }
        self.unwind.write_rows(&mut self.ebpf, store)?;
        self.unwind.set_table(&mut self.ebpf, table)
    }

    /// What the unwinder counted.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn unwind_counts(&self) -> Result<UnwindCounts, AttachError> {
        UnwindCounts::read(&self.ebpf)
    }

    /// Whether new calls are taken. Once cleared, open calls still complete, and the counts stand
    /// still soon after.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn set_taking(&mut self, taking: bool) -> Result<(), AttachError> {
        let map = self
            .ebpf
            .map_mut("TAKING")
            .ok_or_else(|| AttachError::Object("the map TAKING is missing".into()))?;
        let mut array: Array<_, u32> =
            Array::try_from(map).map_err(|error| AttachError::Object(error.to_string()))?;
        array.set(0, u32::from(taking), 0).map_err(|error| AttachError::Object(error.to_string()))
    }

    /// Tells the programs since when every switch is seen.
    fn set_trace_start(&mut self, start_ns: u64) -> Result<(), AttachError> {
        let map = self
            .ebpf
            .map_mut("TRACE_START")
            .ok_or_else(|| AttachError::Object("the map TRACE_START is missing".into()))?;
        let mut array: Array<_, u64> =
            Array::try_from(map).map_err(|error| AttachError::Object(error.to_string()))?;
        array.set(0, start_ns, 0).map_err(|error| AttachError::Object(error.to_string()))
    }

    /// What the kernel counted so far; the hits of the first `probes` probes.
    ///
    /// # Errors
    /// A map cannot be read.
    pub fn counts(&self, probes: usize) -> Result<KernelCounts, AttachError> {
        counts::read(&self.ebpf, self.slots, (probes as u32).min(MAX_PROBES))
    }

    /// Only the number of completed calls and of lost records: cheap enough for a live line.
    ///
    /// # Errors
    /// A map cannot be read.
    pub fn completed_and_lost(&self) -> Result<(u64, u64), AttachError> {
        counts::completed_and_lost(&self.ebpf)
    }

    /// Runs and time of each program so far. Times are counted only while the kernel's
    /// `kernel.bpf_stats_enabled` is 1.
    pub fn program_runs(&self) -> ProgramRuns {
        let mut runs = self.object.runs();
        runs.add(self.profiler.runs());
        for (_, program) in self.ebpf.programs() {
            if let Ok(fd) = program.fd() {
                runs.add(syscalls::program_runs(fd));
            }
        }
        runs
    }

    /// Why the scheduler is not followed, though the settings ask for it.
    pub const fn ledger_refusal(&self) -> Option<&AttachError> {
        self.scheduler.refusal()
    }

    /// Whether stacks are taken, once [`Session::set_unwind`] has told where code is.
    pub const fn has_unwind(&self) -> bool {
        self.has_unwind
    }

    /// Why no stacks are taken, though the settings ask for them.
    pub const fn stacks_refusal(&self) -> Option<&AttachError> {
        self.stacks_refusal.as_ref()
    }

    /// Runs and time of one program so far, by its name.
    pub fn runs_of(&self, program: &str) -> ProgramRuns {
        self.object.runs_of(program)
    }

    /// How long detaching is going to take, about: the kernel waits for grace periods, once a
    /// link or perf event, one after another.
    pub fn detach_estimate(&self) -> Duration {
        Duration::from_millis(107) * (self.links.len() + self.perf_links) as u32
    }
}
