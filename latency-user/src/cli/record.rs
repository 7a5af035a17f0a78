//! `latency record`: look at the target, plan, attach, drain until the end, report, detach.

mod libraries;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use aya::maps::MapData;
use latency_common::counter::Counter;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};

use super::alarm::{Alarm, Every};
use super::args::{ProbeArgs, RecordArgs};
use super::command::{self, Started};
use super::describe::{children_note, header, skipped_info};
use super::live::{Live, Printer};
use super::report::{render, write_report};
use super::scheduler::Scheduler;
use super::{own, profile};
use crate::attach::{self, KernelCounts, Mode, Session, Settings};
use crate::plan::{Options, Plan, UserProbe};
use crate::recording::{self, EndedBy, Finish, Header, Recording, RecordingBuilder, RecordingFile};
use crate::stream::{Pace, Record, Stream};
use crate::target::{Hazard, Target};

/// Size of the ring buffer unless `--ring-size` says another: at 30,000 operations a second it
/// holds the records of one second if every one has a ledger, of nearly three if none needs it.
pub const DEFAULT_RING_BYTES: u32 = 4 << 20;

/// Most records drained in one go, so that signals are not kept waiting.
const DRAIN_LIMIT: usize = 1 << 20;

/// How often the target's mappings are read again, for libraries loaded since.
const RESCAN_INTERVAL: Duration = Duration::from_millis(250);

/// How long the end waits for open calls to complete, and for their records to arrive.
const SETTLE: Duration = Duration::from_millis(200);

/// Runs `latency record` and returns the exit status.
///
/// # Errors
/// Whatever keeps it from tracing, or from writing the result.
pub fn run(args: &RecordArgs, verbose: bool) -> Result<u8> {
    let mut command = match args.pid {
        Some(_) => None,
        None => Some(command::start(&args.command)?),
    };
    // After the command was started: its limits are its caller's.
    own::raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot start the event loop")?;
    runtime.block_on(trace(args, command.as_mut(), verbose))
}

/// Looks at a process and plans its probes.
///
/// # Errors
/// There is no such process, or it cannot be traced; a user's probe is not found.
pub fn look(pid: u32, probes: &ProbeArgs, probe_all: bool) -> Result<(Target, Plan)> {
    Target::refuse_self(pid)?;
    let operations = probes.probe.iter().map(|text| UserProbe::parse(text));
    let requests = probes.request.iter().map(|text| UserProbe::parse_request(text));
    let options =
        Options { user_probes: operations.chain(requests).collect::<Result<_, _>>()?, probe_all };
    let wanted = options.wanted();
    let target = Target::open(pid, wanted)?;
    let plan = Plan::new(&target.files, &options)?;
    Ok((target, plan))
}

/// Refuses what a return probe could kill.
///
/// # Errors
/// Names the hazard, and what to do instead.
pub fn refuse_hazards(target: &Target, plan: &Plan) -> Result<()> {
    for hazard in &target.hazards {
        let Hazard::StackSwitching { file, symbol } = hazard else { continue };
        let path = target.files[*file].path.display();
        // An ASYNC job pauses inside a sign or verify; the others switch between calls of their
        // own, and so only inside functions of the user's own choice.
        if symbol == "ASYNC_pause_job" {
            bail!(
                "{path} pauses OpenSSL ASYNC jobs inside sign and verify ({symbol}): a return \
                 probe there would kill process {}, so nothing is attached; trace it with the \
                 asynchronous engine turned off",
                target.pid
            );
        }
        if let Some(probe) = plan.probes.iter().find(|probe| probe.user) {
            bail!(
                "{path} switches stacks ({symbol}): a return probe on {} could kill process {}; \
                 leave out {}",
                probe.symbol,
                target.pid,
                if probe.is_request { "--request" } else { "--probe" }
            );
        }
    }
    Ok(())
}

/// The attach modes to try: all, or the one that `LATENCY_ATTACH_MODE` names.
pub fn modes() -> Vec<Mode> {
    let wanted = std::env::var("LATENCY_ATTACH_MODE").unwrap_or_default();
    match Mode::ALL.into_iter().find(|mode| mode.name() == wanted) {
        Some(mode) => vec![mode],
        None => Mode::ALL.to_vec(),
    }
}

/// Everything that is open while tracing.
struct Tracing<'a> {
    args: &'a RecordArgs,
    target: Target,
    plan: Plan,
    attached: usize,
    session: Session,
    stream: Stream<MapData>,
    scheduler: Scheduler,
    builder: RecordingBuilder,
    printer: Printer,
    warnings: Vec<String>,
    started: Instant,
}

async fn trace(args: &RecordArgs, mut command: Option<&mut Started>, verbose: bool) -> Result<u8> {
    let pid = match (&command, args.pid) {
        (Some(started), _) => started.pid(),
        (None, Some(pid)) => pid,
        (None, None) => bail!("neither a PID nor a command was given"),
    };
    // Signals are caught from here on, so that Ctrl-C at once still ends in order.
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
    let mut user1 = signal(SignalKind::user_defined1()).context("cannot catch SIGUSR1")?;
    // Before there is much to do.
    own::keep_off_cpus_of(pid);

    let (mut target, mut plan) = look(pid, &args.probes, args.probe_all)?;
    if command.is_some() {
        // What the command may load later is probed from its first instruction on.
        target.expect_files(&command::system_libraries());
        plan.extend(&target.files);
    }
    if plan.probes.is_empty() {
        return Err(plan.explain_empty(&target).into());
    }
    refuse_hazards(&target, &plan)?;
    let settings = Settings {
        pid: target.pid,
        ring_bytes: args.ring_size,
        log: verbose,
        threads: target.thread_count,
        modes: modes(),
        ledger: !args.no_ledger,
        min_wait_ns: args.min_wait.as_nanos() as u64,
        stacks: args.stacks(),
        requests: !args.probes.request.is_empty(),
        unwind: None,
    };
    let (mut scheduler, mut session) = Scheduler::load(&target, settings, args)?;
    let trap_cost = session.measure_trap_cost();
    let path = output_path(args, &target);
    let file = RecordingFile::create(&path)?;
    let stream = Stream::new(session.take_ring()?);
    let mut logger = match session.take_logger() {
        Some(logger) => Some(
            // SAFETY: the logger owns its descriptor and keeps it open.
            unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) }
                .context("cannot read the log of the kernel side")?,
        ),
        None => None,
    };
    let pidfd = target.pidfd.try_clone().context("cannot duplicate the pidfd")?;
    // SAFETY: an owned descriptor.
    let pidfd = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }
        .context("cannot wait for the target's end")?;

    let start_ns = attach::monotonic_ns();
    let has_ledger = !args.no_ledger && session.ledger_refusal().is_none();
    scheduler.has_ledger = has_ledger;
    let known = header(&target, &plan, start_ns, has_ledger);
    let builder = RecordingBuilder::new(Header { trap_cost, ..known });
    let mut warnings = target.notes.clone();
    warnings.extend(plan.warnings.iter().cloned());
    warnings.extend(scheduler.warnings().iter().cloned());
    if let Some(refusal) = session.ledger_refusal() {
        warnings.push(format!("where the time goes cannot be told: {refusal}"));
    } else if let Some(refusal) = session.stacks_refusal() {
        warnings.push(format!("no stacks are taken: {refusal}"));
    }
    if command.is_none() && !target.children.is_empty() {
        warnings.push(children_note(&target));
    }
    let mut tracing = Tracing {
        args,
        target,
        plan,
        attached: 0,
        session,
        stream,
        scheduler,
        builder,
        printer: Printer::new(args.quiet, command.is_some()),
        warnings: Vec::new(),
        started: Instant::now(),
    };
    tracing.attach_new()?;
    warnings.extend(profile::start(args, &mut tracing.session));
    // A command can wait: then nothing of it is missed.
    tracing.sample(command.is_some());
    for warning in warnings {
        tracing.warn(warning);
    }
    tracing.printer.message(&format!(
        "attached {} probes to process {} ({}) in {:.0} ms",
        tracing.plan.probes.len(),
        tracing.target.pid,
        tracing.target.comm,
        tracing.started.elapsed().as_secs_f64() * 1e3,
    ));
    if let Some(started) = command.as_deref_mut() {
        started.go()?;
    }

    let mut pace = Pace::new(args.ring_size);
    let begun = Instant::now();
    let mut live = Every::new(args.interval.max(Duration::from_millis(50)), begun);
    let mut rescan = Every::new(RESCAN_INTERVAL, begun);
    let deadline = args.duration.map(|duration| begun + duration);
    let or_deadline = |time: Instant| deadline.map_or(time, |deadline| time.min(deadline));
    // All that has its time comes with the next look into the ring buffer: every wake-up takes the CPU from
    // the target.
    let mut alarm = Alarm::new().context("cannot set a timer")?;
    alarm.set(or_deadline(begun + pace.after(0))).context("cannot set a timer")?;
    let ended_by = loop {
        tokio::select! {
            biased;
            // A terminal sends its Ctrl-C to the command as well; SIGTERM came to us alone.
            _ = interrupt.recv() => break EndedBy::Signal,
            _ = terminate.recv() => {
                if let Some(started) = command.as_deref() {
                    started.terminate();
                }
                break EndedBy::Signal;
            }
            rung = alarm.rings() => {
                rung.context("cannot wait for a timer")?;
                let wait = pace.after(tracing.drain());
                // The next look is due from here on, however long the rest takes.
                let now = Instant::now();
                if deadline.is_some_and(|deadline| deadline <= now) {
                    break EndedBy::Duration;
                }
                if live.is_due(now) {
                    tracing.show_live();
                }
                if rescan.is_due(now) {
                    tracing.rescan();
                }
                alarm.set(or_deadline(now + wait)).context("cannot set a timer")?;
            }
            Some(()) = user1.recv() => tracing.interim()?,
            Some(()) = flush_log(logger.as_mut()) => {}
            _ = pidfd.readable() => break EndedBy::TargetExit,
        }
    };
    tracing.finish(ended_by, command.as_deref_mut(), file, &path)?;
    let Some(started) = command else { return Ok(0) };
    // The exit status passed through is the command's, whatever ended the tracing. Another signal
    // ends the waiting.
    tokio::select! {
        _ = interrupt.recv() => Ok(128 + libc::SIGINT as u8),
        _ = terminate.recv() => Ok(128 + libc::SIGTERM as u8),
        _ = pidfd.readable() => Ok(started.wait()? as u8),
    }
}

/// Prints what the kernel side logged, when there is something.
async fn flush_log(
    logger: Option<&mut AsyncFd<aya_log::EbpfLogger<&'static dyn log::Log>>>,
) -> Option<()> {
    let logger = logger?;
    let mut guard = logger.readable_mut().await.ok()?;
    guard.get_inner_mut().flush();
    guard.clear_ready();
    Some(())
}

impl Tracing<'_> {
    /// Begins to sample, if that is ready by now or `wait` is set.
    fn sample(&mut self, wait: bool) {
        let (session, builder) = (&mut self.session, &mut self.builder);
        if let Some(warning) = profile::attach(self.args, session, builder, wait) {
            self.warn(warning);
        }
    }

    /// Takes what is in the ring buffer; returns how many bytes it was.
    fn drain(&mut self) -> usize {
        self.sample(false);
        let (builder, scheduler) = (&mut self.builder, &mut self.scheduler);
        self.stream.drain(DRAIN_LIMIT, |record| match record {
            Record::Operation(operation) => builder.operation(operation),
            Record::Request(request) => builder.request(request),
            other => scheduler.take(other, builder),
        })
    }

    fn show_live(&mut self) {
        if self.args.quiet {
            return;
        }
        let (_, lost) = self.session.completed_and_lost().unwrap_or_default();
        let live = self.builder.live(attach::monotonic_ns());
        let busiest =
            live.busiest.as_ref().and_then(|row| Some((row.title(), row.p50_ns?, row.p99_ns?)));
        self.printer.show(&Live {
            elapsed: self.started.elapsed(),
            operations: live.operations,
            rate_hz: live.rate_hz,
            busiest: busiest.as_ref().map(|(name, p50, p99)| (name.as_str(), *p50, *p99)),
            lost,
        });
    }

    fn warn(&mut self, text: String) {
        self.printer.warn(&text);
        self.warnings.push(text);
    }

    /// Prints the report as it stands.
    fn interim(&mut self) -> Result<()> {
        let recording = self.recording(EndedBy::Interim, None)?;
        self.printer.clear();
        let page = render(&recording, self.args.format, super::colour(&std::io::stdout()))?;
        write_report(&page, self.args.pid.is_none())
    }

    /// What the kernel side counted, with all its records drained. When no new calls are taken any
    /// more, the open ones are given a moment to complete, and the counts are read once more when
    /// none is left: else one could be in the records and not in the counts.
    fn settled_counts(&mut self, taking: bool) -> Result<KernelCounts> {
        let settled = Instant::now() + SETTLE;
        let mut stand_still = taking;
        loop {
            let counts = self.session.counts(self.plan.probes.len())?;
            self.drain();
            let lost = counts.get(Counter::LostRingFull);
            let have_arrived = self.stream.received() + lost >= counts.get(Counter::Completed);
            if have_arrived && stand_still || Instant::now() > settled {
                return Ok(counts);
            }
            stand_still |= counts.in_progress == 0;
            std::thread::sleep(SETTLE / 40);
        }
    }

    /// The recording as it stands.
    fn recording(&mut self, ended_by: EndedBy, exit_status: Option<i32>) -> Result<Recording> {
        let counts = self.settled_counts(ended_by == EndedBy::Interim)?;
        let runs = self.session.program_runs();
        let files = &self.target.files;
        self.builder.set_skipped(
            self.plan.skipped.iter().map(|skipped| skipped_info(skipped, files)).collect(),
        );
        self.builder.clear_kernel_state();
        for slot in &counts.slots {
            self.builder.lost_histogram(slot.key, slot.sum_ns, slot.max_ns, &slot.buckets);
        }
        self.scheduler.waits_in_progress(&counts, &mut self.builder);
        let mut warnings = self.warnings.clone();
        warnings.extend(self.scheduler.losses(&self.session));
        if self.stream.undecodable() > 0 {
            warnings.push(format!(
                "{} records could not be decoded; please report this",
                self.stream.undecodable()
            ));
        }
        let mut recording = self.builder.finish(Finish {
            end_ns: attach::monotonic_ns(),
            ended_by,
            exit_status,
            counters: counts.counters,
            recursion_misses: runs.recursion_misses,
            in_progress: counts.in_progress,
            wait_totals: counts.wait_totals,
            probe_hits: counts.probe_hits,
            own_cost: recording::OwnCost {
                cpu_ns: own::cpu_ns(),
                peak_memory_bytes: own::peak_memory_bytes(),
                program_run_ns: (runs.run_time_ns > 0).then_some(runs.run_time_ns),
                program_runs: (runs.run_count > 0).then_some(runs.run_count),
                trap: self.session.trap_cost(),
            },
            warnings,
        });
        self.scheduler.finish(&self.target, &mut recording);
        // Names are a large part of it.
        recording.own_cost.cpu_ns = own::cpu_ns();
        recording.own_cost.peak_memory_bytes = own::peak_memory_bytes();
        Ok(recording)
    }

    fn finish(
        mut self,
        ended_by: EndedBy,
        command: Option<&mut Started>,
        file: RecordingFile,
        path: &std::path::Path,
    ) -> Result<()> {
        self.session.set_taking(false)?;
        let exit_status = match command {
            Some(started) if ended_by == EndedBy::TargetExit => Some(started.wait()?),
            Some(started) => started.try_wait()?,
            None => None,
        };
        let recording = self.recording(ended_by, exit_status)?;
        self.printer.clear();
        // The report comes first: should the disk be full, it is on the screen at least.
        let to_stderr = self.args.pid.is_none();
        let colour = if to_stderr {
            super::colour(&std::io::stderr())
        } else {
            super::colour(&std::io::stdout())
        };
        let page = render(&recording, self.args.format, colour)?;
        let printed = write_report(&page, to_stderr);
        file.commit(&recording)?;
        self.printer.message(&format!(
            "recording: {}  (print it again with `latency report {}`)",
            path.display(),
            path.display()
        ));
        if self.args.stacks() {
            let path = path.display();
            self.printer.message(&format!("flame graphs: `latency flame {path} --view locks`"));
        }
        let estimate = self.session.detach_estimate();
        if estimate > Duration::from_millis(500) {
            self.printer.message(&format!("detaching, about {:.1} s …", estimate.as_secs_f64()));
        }
        drop(self.session);
        printed
    }
}

fn output_path(args: &RecordArgs, target: &Target) -> PathBuf {
    if let Some(path) = &args.output {
        return path.clone();
    }
    let comm: String = target
        .comm
        .chars()
        .map(|character| if character.is_ascii_alphanumeric() { character } else { '_' })
        .collect();
    PathBuf::from(format!("latency-{comm}-{}.latency", target.pid))
}
