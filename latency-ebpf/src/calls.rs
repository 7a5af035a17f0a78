//! Entries and returns of probed functions: per thread, one open outermost call, and around it one
//! request at most (see [`requests`]).

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::{BPF_RB_NO_WAKEUP, pt_regs};
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_probe_read_user};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, RingBuf};
use aya_log_ebpf::debug;
use latency_common::algorithm::AlgorithmId;
use latency_common::counter::Counter;
use latency_common::ledger::Ledger;
use latency_common::operation::{Entry, Return};
use latency_common::probe::{ProbeCookie, is_request, probe_of};
use latency_common::record::{BriefRecord, OperationRecord, SlotKey, kind, outcome};
use latency_common::thread::ThreadState;

use crate::counters::{count, hit};
use crate::identity::Current;
use crate::task::Task;
use crate::{globals, histograms, requests, threads};

/// Records to the reader; the loader sets the size.
#[map]
pub static RECORDS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// `[0]`: 1 while new calls and samples are taken. Cleared before the last drain, so that the books close.
#[map]
static TAKING: Array<u32> = Array::with_max_entries(1, 0);

/// Whether new calls and samples are taken.
#[inline(always)]
pub fn is_taking() -> bool {
    TAKING.get(0).is_some_and(|taking| *taking != 0)
}

/// Enters a probed function; true if it is nested in an open call.
#[inline(always)]
pub fn enter<C: EbpfContext>(ctx: &C, regs: *mut pt_regs, cookie: u64) -> bool {
    // The duration is the caller's: what the probes cost inside the call counts, as it does for
    // the caller's own clock. So the first thing here is the time, and the last but the counting
    // at the return.
    // SAFETY: no preconditions.
    let start_ns = unsafe { bpf_ktime_get_ns() };
    let Some(current) = Current::in_target() else { return false };
    if !is_taking() {
        return false;
    }
    hit(probe_of(cookie));
    current.note_kernel_tgid();
    let Some(thread) = threads::get_or_insert(current.kernel_tid()) else { return false };
    // SAFETY: the current thread's entry.
    unsafe { threads::notice_missed_switch(thread, current.task) };
    // SAFETY: the kernel's copy of the registers.
    let regs = unsafe { &*regs };
    let sp = regs.rsp;
    if globals::requests() {
        // SAFETY: the current thread's entry.
        unsafe { requests::notice_abandoned(thread, cookie, sp) };
        if is_request(cookie) {
            // SAFETY: as above.
            return unsafe { requests::enter(thread, current.task, cookie, sp, start_ns) };
        }
    }
    // SAFETY: a part of a map value that only programs of this thread write.
    let call = unsafe { &mut (*thread).call };
    let arguments = Arguments::read(regs);
    match call.enter(sp, cookie, |index| arguments.get(index), || returns_to_trampoline(sp)) {
        Entry::Nested => {
            count(Counter::Nested);
            return true;
        }
        Entry::AfterAbandoned => count(Counter::Abandoned),
        Entry::Outermost => {}
    }
    if globals::log() {
        debug!(ctx, "thread {} enters probe {}", current.tid, probe_of(cookie));
    }
    // Last.
    // SAFETY: the current thread's entry.
    unsafe {
        let (call, base) = (&raw mut (*thread).call, &raw mut (*thread).call_base);
        threads::open(thread, call, base, current.task, start_ns);
    }
    false
}

/// Returns from a probed function. `cookie` is asked for the probe's cookie only if there are
/// requests: operations kept it at their entry.
#[inline(always)]
pub fn leave<C: EbpfContext>(ctx: &C, regs: *mut pt_regs, cookie: impl FnOnce() -> u64) {
    let Some(current) = Current::in_target() else { return };
    let Some(thread) = threads::get(current.kernel_tid()) else {
        count(Counter::UnmatchedReturn);
        return;
    };
    // SAFETY: the current thread's entry.
    unsafe { threads::notice_missed_switch(thread, current.task) };
    // SAFETY: the kernel's copy of the registers.
    let regs = unsafe { &*regs };
    if globals::requests() {
        let cookie = cookie();
        // SAFETY: the current thread's entry.
        unsafe { requests::notice_abandoned(thread, cookie, regs.rsp.wrapping_sub(8)) };
        if is_request(cookie) {
            // SAFETY: as above.
            unsafe { requests::leave(&current, thread, regs.rsp) };
            return;
        }
    }
    // SAFETY: as in `enter`.
    match unsafe { (*thread).call.leave(regs.rsp) } {
        Return::Outermost => complete(ctx, &current, thread, regs.rax),
        Return::Abandoned => count(Counter::Abandoned),
        // The chained return of a function that was tail-called comes after its caller's.
        Return::Unmatched | Return::Nested => {}
    }
}

#[inline(always)]
fn complete<C: EbpfContext>(ctx: &C, current: &Current, thread: *mut ThreadState, value: u64) {
    // SAFETY: a part of the current thread's entry, that only its own programs write.
    let call = unsafe { &(*thread).call };
    let described = ProbeCookie::unpack(call.cookie);
    let signature_bytes = match call.signature_bytes(value, read_user) {
        Ok(bytes) => bytes,
        Err(_) => {
            count(Counter::LengthUnreadable);
            0
        }
    };
    let algorithm = if described.has_algorithm {
        AlgorithmId::classify(signature_bytes, call.families)
    } else {
        AlgorithmId::NONE
    };
    let outcome = call.outcome(value);
    count(Counter::Completed);
    let brief = BriefRecord {
        kind: if globals::ledger() { kind::BRIEF } else { kind::BRIEF_UNTOLD },
        probe: described.probe,
        operation: described.operation,
        outcome,
        start_ns: call.start_ns,
        duration_ns: 0,
        tid: current.tid,
        algorithm: algorithm.0,
        signature_bytes,
        minor_faults: 0,
    };
    let duration_ns = match send_brief(thread, current.task, &brief) {
        Some(duration_ns) => duration_ns,
        None => send_whole(thread, current.task, &brief, current.tgid),
    };
    if globals::log() {
        debug!(
            ctx,
            "thread {} leaves probe {}: {} ns, outcome {}, {} bytes",
            current.tid,
            described.probe,
            duration_ns,
            outcome,
            signature_bytes
        );
    }
}

/// Sends an operation's record without a ledger, if its ledger has nothing to tell; its duration in
/// nanoseconds.
#[inline(always)]
fn send_brief(thread: *mut ThreadState, task: Task, brief: &BriefRecord) -> Option<u64> {
    // SAFETY: the current thread's entry.
    let (call, base) = unsafe { (&raw mut (*thread).call, &raw const (*thread).call_base) };
    // SAFETY: as above.
    let minor_faults = unsafe { threads::undisturbed(thread, base, task) }?;
    let mut entry = RECORDS.reserve::<BriefRecord>(0);
    let mut has_entry = 0_u64;
    if let Some(entry) = &mut entry {
        entry.write(BriefRecord { minor_faults, ..*brief });
        has_entry = 1;
    }
    // Else the compiler would ask again whether the entry is null: verifiers before Linux 6.2 take it that it
    // may be, and miss its release.
    hide(&mut has_entry);
    // Everything else is done, and what is written from here on is in the cache.
    // SAFETY: as above.
    let duration_ns = unsafe { threads::close_undisturbed(thread, call, base, brief.start_ns) };
    if has_entry == 0 {
        core::mem::forget(entry);
        if let Some(duration_ns) = duration_ns {
            histograms::lost(key_of(brief).pack(), duration_ns);
        }
    } else {
        // SAFETY: there is one, as the number says.
        let mut entry = unsafe { entry.unwrap_unchecked() };
        match duration_ns {
            Some(duration_ns) => {
                // SAFETY: a whole record was written above.
                unsafe { (*entry.as_mut_ptr()).duration_ns = duration_ns };
                // The reader polls: a wake-up here would be paid by the target.
                entry.submit(BPF_RB_NO_WAKEUP as u64);
            }
            // A switch came since it was looked at.
            None => entry.discard(BPF_RB_NO_WAKEUP as u64),
        }
    }
    let duration_ns = duration_ns?;
    add_to_request(thread, brief, duration_ns, || {
        if globals::ledger() {
            Ledger::on_cpu(duration_ns, minor_faults)
        } else {
            Ledger::untold(duration_ns)
        }
    });
    Some(duration_ns)
}

/// Sends an operation's record with its ledger; its duration in nanoseconds. A function of its own, with
/// room for the ledger: few operations are switched out.
#[inline(never)]
fn send_whole(thread: *mut ThreadState, task: Task, brief: &BriefRecord, tgid: u32) -> u64 {
    let entry = RECORDS.reserve::<OperationRecord>(0);
    // SAFETY: the current thread's entry.
    let (ledger, duration_ns) = unsafe {
        let (call, base) = (&raw mut (*thread).call, &raw const (*thread).call_base);
        threads::close(thread, call, base, task, brief.start_ns)
    };
    match entry {
        Some(mut entry) => {
            entry.write(brief.with(tgid, duration_ns, ledger));
            entry.submit(BPF_RB_NO_WAKEUP as u64);
        }
        None => histograms::lost(key_of(brief).pack(), duration_ns),
    }
    add_to_request(thread, brief, duration_ns, || ledger);
    duration_ns
}

/// The histogram that counts an operation whose record is lost.
#[inline(always)]
fn key_of(brief: &BriefRecord) -> SlotKey {
    SlotKey { operation: brief.operation, outcome: brief.outcome, algorithm: brief.algorithm }
}

/// Adds an operation to the request that it lies in.
#[inline(always)]
fn add_to_request(
    thread: *mut ThreadState,
    brief: &BriefRecord,
    duration_ns: u64,
    ledger: impl FnOnce() -> Ledger,
) {
    if globals::requests() && brief.outcome != outcome::SIZE_QUERY {
        let (start_ns, operation) = (brief.start_ns, brief.operation);
        // SAFETY: the current thread's entry.
        unsafe { requests::add_operation(thread, start_ns, operation, duration_ns, &ledger()) };
    }
}

/// Hides from the compiler what it knows of a number, so that it is asked about where the code says so.
#[inline(always)]
pub fn hide(number: &mut u64) {
    // SAFETY: no instruction.
    unsafe { core::arch::asm!("/* {0} */", inout(reg) * number, options(pure, nomem, nostack)) };
}

/// Time since a call began, in nanoseconds.
#[inline(always)]
pub fn elapsed_since(start_ns: u64) -> u64 {
    // SAFETY: no preconditions.
    match unsafe { bpf_ktime_get_ns() }.checked_sub(start_ns) {
        Some(elapsed_ns) => elapsed_ns,
        None => {
            count(Counter::ClockBackwards);
            0
        }
    }
}

/// Forgets a thread that ends. It still has switches to come: with those traced, the last one
/// forgets it again.
#[inline(always)]
pub fn forget_thread() {
    let Some(current) = Current::in_target() else { return };
    let tid = current.kernel_tid();
    if let Some(thread) = threads::get(tid) {
        // SAFETY: as in `enter`.
        let (call_ns, request_ns) =
            unsafe { ((*thread).call.start_ns, (*thread).request.start_ns) };
        if call_ns != 0 {
            count(Counter::ThreadExited);
        }
        if request_ns != 0 {
            count(Counter::ThreadExited);
        }
        threads::remove(tid);
    }
}

/// The first six integer arguments, by the x86-64 System V calling convention.
struct Arguments([u64; 6]);

impl Arguments {
    #[inline(always)]
    fn read(regs: &pt_regs) -> Self {
        // Volatile: the compiler would else compute an address inside the context and read
        // there, which the verifier forbids.
        macro_rules! read {
            ($($register:ident),*) => {
                // SAFETY: the kernel's copy of the registers.
                Self(unsafe { [$(core::ptr::read_volatile(&raw const regs.$register)),*] })
            };
        }
        read!(rdi, rsi, rdx, rcx, r8, r9)
    }

    #[inline(always)]
    fn get(&self, index: u8) -> u64 {
        let Self([a, b, c, d, e, f]) = *self;
        match index {
            0 => a,
            1 => b,
            2 => c,
            3 => d,
            4 => e,
            _ => f,
        }
    }
}

/// Whether the return address at `sp` is the kernel's return trampoline, which starts a page: so
/// it is when a function with a return probe was left by a jump to this one.
#[inline(always)]
pub fn returns_to_trampoline(sp: u64) -> bool {
    read_user(sp, 8).is_ok_and(|address| address & 0xfff == 0)
}

#[inline(always)]
fn read_user(address: u64, bytes: u8) -> Result<u64, i32> {
    // SAFETY: the helper checks the address.
    unsafe {
        if bytes == 8 {
            bpf_probe_read_user(address as *const u64)
        } else {
            bpf_probe_read_user(address as *const u32).map(u64::from)
        }
    }
}
