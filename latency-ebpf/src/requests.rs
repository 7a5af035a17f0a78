//! Requests: calls of the service's own functions around its operations. They are followed as
//! operations are, side by side with them: each has an outermost call of its own, and what the
//! operations inside took is added up until the request returns.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use latency_common::algorithm::AlgorithmId;
use latency_common::counter::Counter;
use latency_common::ledger::Ledger;
use latency_common::operation::{Entry, Return};
use latency_common::probe::{ProbeCookie, is_request, probe_of};
use latency_common::record::{Inside, RequestRecord, SlotKey, kind, outcome};
use latency_common::thread::ThreadState;

use crate::calls::{RECORDS, returns_to_trampoline};
use crate::counters::count;
use crate::identity::Current;
use crate::task::Task;
use crate::{histograms, threads};

/// Looks whether an entry or return at `sp` shows that the thread jumped out of its open request,
/// or, where it is a request's, out of its open operation.
///
/// # Safety
/// `thread` is the current thread's entry.
#[inline(always)]
pub unsafe fn notice_abandoned(thread: *mut ThreadState, cookie: u64, sp: u64) {
    // SAFETY: a live map value, these parts of which only programs of this thread write.
    let (call, request) = unsafe { (&mut (*thread).call, &mut (*thread).request) };
    let other = if is_request(cookie) { call } else { request };
    if other.is_abandoned(sp) {
        other.close();
        count(Counter::Abandoned);
    }
}

/// Enters a request function; true if it is nested in an open request.
///
/// # Safety
/// `thread` is the current thread's entry, and `task` its task.
#[inline(always)]
pub unsafe fn enter(
    thread: *mut ThreadState,
    task: Task,
    cookie: u64,
    sp: u64,
    start_ns: u64,
) -> bool {
    // SAFETY: as above.
    let request = unsafe { &mut (*thread).request };
    match request.enter(sp, cookie, |_| 0, || returns_to_trampoline(sp)) {
        Entry::Nested => {
            count(Counter::Nested);
            return true;
        }
        Entry::AfterAbandoned => count(Counter::Abandoned),
        Entry::Outermost => {}
    }
    // SAFETY: as above.
    unsafe {
        (*thread).inside = Inside::default();
        let (request, base) = (&raw mut (*thread).request, &raw mut (*thread).request_base);
        threads::open(thread, request, base, task, start_ns);
    }
    false
}

/// Adds an operation that returned to the request that it lies in, if it lies in one.
///
/// # Safety
/// `thread` is the current thread's entry.
#[inline(always)]
pub unsafe fn add_operation(
    thread: *mut ThreadState,
    start_ns: u64,
    operation: u8,
    duration_ns: u64,
    ledger: &Ledger,
) {
    // SAFETY: as above.
    let thread = unsafe { &mut *thread };
    // An operation can also lie around the request.
    if thread.request.start_ns != 0 && thread.request.start_ns <= start_ns {
        thread.inside.add(operation, duration_ns, ledger);
    }
}

/// Returns from a request function.
///
/// # Safety
/// `thread` is the current thread's entry.
#[inline(always)]
pub unsafe fn leave(current: &Current, thread: *mut ThreadState, sp: u64) {
    // SAFETY: as above.
    let request = unsafe { &mut (*thread).request };
    match request.leave(sp) {
        Return::Outermost => {
            complete(thread, request.start_ns, request.cookie, current.tgid, current.tid);
        }
        Return::Abandoned => count(Counter::Abandoned),
        Return::Unmatched | Return::Nested => {}
    }
}

/// A function of its own: the programs' stacks are short of room.
#[inline(never)]
fn complete(thread: *mut ThreadState, start_ns: u64, cookie: u64, tgid: u32, tid: u32) {
    let operation = ProbeCookie::unpack(cookie).operation;
    count(Counter::Completed);
    let algorithm = AlgorithmId::NONE.0;
    let entry = RECORDS.reserve::<RequestRecord>(0);
    // SAFETY: the current thread's entry.
    let (ledger, duration_ns) = unsafe {
        let (request, base) = (&raw mut (*thread).request, &raw const (*thread).request_base);
        threads::close(thread, request, base, Task::current_or_none(), start_ns)
    };
    match entry {
        Some(mut entry) => {
            let record = entry.as_mut_ptr();
            // SAFETY: room for a record, every field of which is written here.
            unsafe {
                (*record).call.kind = kind::REQUEST;
                (*record).call.probe = probe_of(cookie);
                (*record).call.operation = operation;
                (*record).call.outcome = outcome::SUCCESS;
                (*record).call.start_ns = start_ns;
                (*record).call.duration_ns = duration_ns;
                (*record).call.tgid = tgid;
                (*record).call.tid = tid;
                (*record).call.algorithm = algorithm;
                (*record).call.signature_bytes = 0;
                (*record).call.ledger = ledger;
                (*record).inside = (*thread).inside;
            }
            entry.submit(BPF_RB_NO_WAKEUP.into());
        }
        None => {
            let key = SlotKey { operation, outcome: outcome::SUCCESS, algorithm };
            histograms::lost(key.pack(), duration_ns);
        }
    }
}
