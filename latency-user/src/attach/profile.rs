//! Sampling what runs on the CPU: one perf event a CPU, which runs the program `on_cpu_sample`.
//!
//! One a CPU and not one a thread: a thread that starts while the threads are being listed is not
//! missed, a switch of the target's threads costs nothing more, and a target of 10,000 threads needs
//! no 10,000 descriptors. Other tasks pay for it with a tick, which ends after one comparison.
//!
//! The verifier takes its time over the program. It is loaded by a thread, beside the tracing.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::thread::JoinHandle;

use aya_obj::generated::{
    PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_SET_BPF, PERF_FLAG_FD_CLOEXEC, perf_event_attr,
    perf_hw_id, perf_sw_ids, perf_type_id,
};

use super::object::{Kind, PreparedProgram, Programs, refused};
use super::syscalls::{self, ProgramRuns, Purpose};
use super::{AttachError, Session};

const PROGRAM: Kind = Kind { name: "on_cpu_sample", purpose: Purpose::PerfEvent, is_return: false };

/// What the samples are taken by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SampleClock {
    /// The CPU's counter of cycles. Its interrupt cannot be masked: it also sees the kernel where
    /// that has interrupts off.
    Cycles,
    /// A timer of the kernel's, where there is no such counter, as in most virtual machines.
    CpuClock,
}

impl SampleClock {
    const ALL: [Self; 2] = [Self::Cycles, Self::CpuClock];

    /// Type and number of the perf event.
    const fn event(self) -> (u32, u64) {
        match self {
            Self::Cycles => (
                perf_type_id::PERF_TYPE_HARDWARE as u32,
                perf_hw_id::PERF_COUNT_HW_CPU_CYCLES as u64,
            ),
            Self::CpuClock => (
                perf_type_id::PERF_TYPE_SOFTWARE as u32,
                perf_sw_ids::PERF_COUNT_SW_CPU_CLOCK as u64,
            ),
        }
    }
}

/// The program and its events. Dropping it ends the sampling.
#[derive(Default)]
pub struct Profiler {
    frequency_hz: u32,
    loading: Option<JoinHandle<Result<OwnedFd, AttachError>>>,
    program: Option<OwnedFd>,
    /// One a CPU.
    events: Vec<OwnedFd>,
}

impl Profiler {
    /// Begins to load the program.
    pub fn start(programs: &Programs, frequency_hz: u32) -> Result<Self, AttachError> {
        let program: PreparedProgram = programs.prepare(PROGRAM)?;
        let loading = std::thread::Builder::new()
            .name("latency-load".into())
            .spawn(move || program.load())
            .map_err(|source| refused("to start a thread".into(), source))?;
        Ok(Self { frequency_hz, loading: Some(loading), ..Self::default() })
    }

    /// Attaches the program once it is loaded, and says what its clock is; `None`: not yet, or it
    /// was attached before. With `wait`, it waits for the program.
    pub fn attach(&mut self, wait: bool) -> Option<Result<SampleClock, AttachError>> {
        let loading = self.loading.take_if(|loading| wait || loading.is_finished())?;
        let loaded = loading
            .join()
            .unwrap_or_else(|_| Err(AttachError::Object("the loading thread died".into())));
        Some(loaded.and_then(|program| self.attach_loaded(program)))
    }

    fn attach_loaded(&mut self, program: OwnedFd) -> Result<SampleClock, AttachError> {
        let refuse = |source| refused("to sample the CPUs".into(), source);
        let cpus = aya::util::online_cpus().map_err(|(_, source)| refuse(source))?;
        let first = cpus.first().copied().unwrap_or(0);
        let clock = SampleClock::ALL
            .into_iter()
            .find(|clock| open_event(*clock, self.frequency_hz, first).is_ok())
            .unwrap_or(SampleClock::CpuClock);
        for cpu in cpus {
            match open_event(clock, self.frequency_hz, cpu) {
                Ok(event) => {
                    attach_program(&event, &program).map_err(refuse)?;
                    self.events.push(event);
                }
                // It went offline since.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    return Err(AttachError::Refused {
                        action: format!("to sample {} times a second", self.frequency_hz),
                        source: error,
                        hint: "; kernel.perf_event_max_sample_rate is the most that it allows: \
                               ask for less with -F",
                    });
                }
                Err(error) => return Err(refuse(error)),
            }
        }
        self.program = Some(program);
        Ok(clock)
    }

    /// Runs of the program so far.
    pub fn runs(&self) -> ProgramRuns {
        self.program.as_ref().map(syscalls::program_runs).unwrap_or_default()
    }
}

impl Session {
    /// Begins to load the program that samples the target's threads, `frequency_hz` times a second
    /// on each CPU.
    ///
    /// # Errors
    /// The kernel cannot tell the registers of a task, or has no room for another thread.
    pub fn start_profile(&mut self, frequency_hz: u32) -> Result<(), AttachError> {
        if !self.has_unwind {
            return Err(AttachError::Object(
                "this kernel does not tell programs the registers of a task (Linux 5.15 and later \
                 do)"
                .into(),
            ));
        }
        self.profiler = Profiler::start(&self.object, frequency_hz)?;
        Ok(())
    }

    /// Begins to sample once the program is loaded, and says by which clock; `None`: not yet, or
    /// nothing new. With `wait`, it waits for that.
    pub fn attach_profile(&mut self, wait: bool) -> Option<Result<SampleClock, AttachError>> {
        self.profiler.attach(wait)
    }
}

fn open_event(clock: SampleClock, frequency_hz: u32, cpu: u32) -> io::Result<OwnedFd> {
    // SAFETY: a struct of plain integers; the kernel demands zeros in what is unused.
    let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
    (attr.type_, attr.config) = clock.event();
    attr.size = size_of::<perf_event_attr>() as u32;
    attr.__bindgen_anon_1.sample_freq = frequency_hz.into();
    attr.set_freq(1);
    attr.set_disabled(1);
    // The program has nothing to do there, and a sleeping CPU should sleep.
    attr.set_exclude_idle(1);
    // SAFETY: the attributes are whole; every process (-1) of one CPU, in no group (-1).
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            -1,
            cpu,
            -1,
            u64::from(PERF_FLAG_FD_CLOEXEC),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel returned a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn attach_program(event: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    let event = event.as_fd().as_raw_fd();
    for (request, argument) in
        [(PERF_EVENT_IOC_SET_BPF, program.as_raw_fd()), (PERF_EVENT_IOC_ENABLE, 0)]
    {
        // SAFETY: both requests take a plain integer.
        if unsafe { libc::ioctl(event, request.into(), argument) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
