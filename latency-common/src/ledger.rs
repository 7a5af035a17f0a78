//! The scheduler model: where a thread's wall time goes, as a state machine driven by three kinds
//! of events, and the ledgers of what the thread does meanwhile.
//!
//! A thread has one running ledger. An operation, and a request around operations, keeps a copy of
//! it from its begin ([`Base`]) and subtracts that at its end ([`Ledger::since`]): so any number of
//! them can be open at once, and none disturbs another.
//!
//! ```text
//!              switch_out(preempted)            switch_in
//!        ┌──────────────────────► PREEMPTED ───────────────┐
//!        │                                                 ▼
//!     ON_CPU                                             ON_CPU
//!        │                              wake               ▲
//!        └──► LOCK | IO | SLEEP | OTHER ────► run queue ───┘
//!        switch_out(reason)                      switch_in
//! ```
//!
//! *Preempted* is runnable: the thread was pushed off its CPU, or yielded it. *Blocked* is not: it
//! waits for a futex ([`off_cpu::LOCK`]), uninterruptibly ([`off_cpu::IO`]), or for anything else
//! ([`off_cpu::SLEEP`]), until someone wakes it; from then on it is in the *run queue*.
//!
//! The end of the run queue time splits nothing else: every moment belongs to one part, because
//! the timestamp that closes one interval opens the next. So the parts of an operation sum to its
//! wall time by construction, and a sum that differs shows a lost event.
//!
//! # Who writes when
//! A thread's switches run with interrupts off, in the order in which they happen; a thread that
//! is off the CPU runs no program of its own. The waker is another matter: it may see the thread
//! as blocked *before* the switch that blocks it is traced, since the kernel takes the thread off
//! the queue first and traces afterwards. [`Timeline::wake`] therefore only notes the time, and
//! touches no field that a switch writes; [`Timeline::switch_in`] judges it:
//!
//! ```text
//!   wake_ns later than the switch out       blocked until then, run queue after
//!   wake_ns earlier, or none                runnable all along: the wakeup won the race with the
//!                                           switch, or a signal kept the thread on the queue
//! ```

use core::sync::atomic::{Ordering, compiler_fence};

/// Why a thread is off the CPU, or that it is on it.
pub mod off_cpu {
    /// No switch of the thread has been seen yet.
    pub const UNKNOWN: u32 = 0;
    /// It runs.
    pub const ON_CPU: u32 = 1;
    /// Runnable, but pushed off the CPU, or it yielded.
    pub const PREEMPTED: u32 = 2;
    /// It waits for a futex.
    pub const LOCK: u32 = 3;
    /// It waits uninterruptibly: a disk, mostly; also the kernel's own locks.
    pub const IO: u32 = 4;
    /// It waits interruptibly: timers, pipes, sockets, `poll`.
    pub const SLEEP: u32 = 5;
    /// Off the CPU for what none of these says: stopped, traced, or blocked before the trace.
    pub const OTHER: u32 = 6;
    /// How many there are.
    pub const COUNT: u32 = 7;
}

/// Where the wall time of one operation went.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Ledger {
    /// It ran, in nanoseconds.
    pub on_cpu_ns: u64,
    /// Woken, but not running yet, in nanoseconds.
    pub run_queue_ns: u64,
    /// Runnable, but pushed off the CPU, in nanoseconds.
    pub preempted_ns: u64,
    /// Blocked in a futex wait, in nanoseconds.
    pub lock_ns: u64,
    /// Blocked uninterruptibly, in nanoseconds.
    pub io_ns: u64,
    /// Blocked interruptibly in anything but a futex wait, in nanoseconds.
    pub sleep_ns: u64,
    /// What cannot be told, in nanoseconds.
    pub other_ns: u64,
    /// Switches at which the thread blocked.
    pub voluntary_switches: u32,
    /// Switches at which it was still runnable.
    pub involuntary_switches: u32,
    /// Times it came back on another CPU.
    pub migrations: u32,
    /// Page faults that needed no I/O.
    pub minor_faults: u32,
    /// Page faults that needed I/O.
    pub major_faults: u32,
    #[doc(hidden)]
    pub _pad: u32,
}

const _: () = assert!(size_of::<Ledger>() == 80);

impl Ledger {
    const ZERO: Self = Self {
        on_cpu_ns: 0,
        run_queue_ns: 0,
        preempted_ns: 0,
        lock_ns: 0,
        io_ns: 0,
        sleep_ns: 0,
        other_ns: 0,
        voluntary_switches: 0,
        involuntary_switches: 0,
        migrations: 0,
        minor_faults: 0,
        major_faults: 0,
        _pad: 0,
    };

    /// The ledger of an operation that was on the CPU throughout.
    #[inline(always)]
    pub const fn on_cpu(duration_ns: u64, minor_faults: u32) -> Self {
        Self { on_cpu_ns: duration_ns, minor_faults, ..Self::ZERO }
    }

    /// A ledger that says only how long it took: for operations without scheduler events.
    #[inline(always)]
    pub fn untold(duration_ns: u64) -> Self {
        Self { other_ns: duration_ns, ..Self::default() }
    }

    /// The sum of the parts in nanoseconds: the operation's wall time.
    #[inline(always)]
    pub const fn total_ns(&self) -> u64 {
        self.on_cpu_ns
            .wrapping_add(self.run_queue_ns)
            .wrapping_add(self.preempted_ns)
            .wrapping_add(self.lock_ns)
            .wrapping_add(self.io_ns)
            .wrapping_add(self.sleep_ns)
            .wrapping_add(self.other_ns)
    }

    /// Both together.
    #[inline(always)]
    pub const fn plus(&self, other: &Self) -> Self {
        let none = Self::ZERO;
        self.since(&none.since(other))
    }

    /// What was added since this same ledger was `base`.
    #[inline(always)]
    pub const fn since(&self, base: &Self) -> Self {
        Self {
            on_cpu_ns: self.on_cpu_ns.wrapping_sub(base.on_cpu_ns),
            run_queue_ns: self.run_queue_ns.wrapping_sub(base.run_queue_ns),
            preempted_ns: self.preempted_ns.wrapping_sub(base.preempted_ns),
            lock_ns: self.lock_ns.wrapping_sub(base.lock_ns),
            io_ns: self.io_ns.wrapping_sub(base.io_ns),
            sleep_ns: self.sleep_ns.wrapping_sub(base.sleep_ns),
            other_ns: self.other_ns.wrapping_sub(base.other_ns),
            voluntary_switches: self.voluntary_switches.wrapping_sub(base.voluntary_switches),
            involuntary_switches: self.involuntary_switches.wrapping_sub(base.involuntary_switches),
            migrations: self.migrations.wrapping_sub(base.migrations),
            minor_faults: self.minor_faults.wrapping_sub(base.minor_faults),
            major_faults: self.major_faults.wrapping_sub(base.major_faults),
            _pad: 0,
        }
    }

    #[inline(always)]
    const fn part(&mut self, state: u32) -> &mut u64 {
        match state {
            off_cpu::ON_CPU => &mut self.on_cpu_ns,
            off_cpu::PREEMPTED => &mut self.preempted_ns,
            off_cpu::LOCK => &mut self.lock_ns,
            off_cpu::IO => &mut self.io_ns,
            off_cpu::SLEEP => &mut self.sleep_ns,
            _ => &mut self.other_ns,
        }
    }
}

/// What a thread did while it was off the CPU, as told when it comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OffCpu {
    /// See [`off_cpu`].
    pub state: u32,
    /// When it left the CPU, in nanoseconds.
    pub start_ns: u64,
    /// How long it was blocked, in nanoseconds; 0 when it was preempted.
    pub blocked_ns: u64,
    /// How long it was runnable without running, in nanoseconds.
    pub runnable_ns: u64,
    /// Whether the clock ran backwards meanwhile.
    pub clock_backwards: bool,
}

/// One thread's scheduler state, and its running ledger. All zeros: nothing is known.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Timeline {
    /// Since when the thread is in `state`, in nanoseconds.
    pub since_ns: u64,
    /// When it was woken last, in nanoseconds; 0: not since it last came back.
    pub wake_ns: u64,
    /// See [`off_cpu`].
    pub state: u32,
    /// The CPU it was last seen on.
    pub cpu: u32,
    /// Counts switches: a program that the thread itself runs tells by it that it was interrupted.
    pub sequence: u32,
    #[doc(hidden)]
    pub _pad: u32,
    /// How long it had waited for a CPU in all, as the kernel counts it, when it left one last, in
    /// nanoseconds.
    pub run_delay_ns: u64,
    /// Where its time went so far, up to `since_ns`; wraps. Only differences mean anything.
    pub ledger: Ledger,
}

const _: () = assert!(size_of::<Timeline>() == 120);

impl Timeline {
    /// Whether the thread is off the CPU, as far as known.
    #[inline(always)]
    pub const fn is_off_cpu(&self) -> bool {
        !matches!(self.state, off_cpu::UNKNOWN | off_cpu::ON_CPU)
    }

    /// The thread is seen running at `now_ns`, by a program of its own.
    #[inline(always)]
    pub fn runs(&mut self, now_ns: u64) {
        if self.state == off_cpu::UNKNOWN {
            self.since_ns = now_ns;
            self.state = off_cpu::ON_CPU;
        }
    }

    /// When a call begins whose entry was seen at `start_ns`, by a program of the thread's own: then, or
    /// when the thread came back, if it was switched out in the midst of that program. That wait
    /// was told of as one outside of the call, so it is none of the call's time.
    #[inline(always)]
    pub const fn begin_ns(&self, start_ns: u64) -> u64 {
        if self.since_ns > start_ns { self.since_ns } else { start_ns }
    }

    /// The ledger closed at `end_ns`, and the end that it sums to: `end_ns`, or later if the
    /// thread was switched out between reading the clock and now.
    #[inline(always)]
    pub fn closed(mut self, end_ns: u64) -> (Ledger, u64) {
        self.recover(end_ns, None);
        let end_ns = if end_ns < self.since_ns { self.since_ns } else { end_ns };
        let part = self.ledger.part(self.state);
        *part = part.wrapping_add(end_ns - self.since_ns);
        (self.ledger, end_ns)
    }

    /// The thread leaves the CPU for `state`; whether the clock ran backwards. Comes after
    /// [`Self::recover`].
    #[inline(always)]
    pub fn switch_out(&mut self, now_ns: u64, state: u32) -> bool {
        let (interval_ns, clock_backwards) = self.advance(now_ns);
        // A thread that was not known to run: its switch in was before the trace.
        let part = self.ledger.part(if self.state == off_cpu::ON_CPU {
            off_cpu::ON_CPU
        } else {
            off_cpu::OTHER
        });
        *part = part.wrapping_add(interval_ns);
        if state == off_cpu::PREEMPTED {
            self.ledger.involuntary_switches = self.ledger.involuntary_switches.wrapping_add(1);
        } else {
            self.ledger.voluntary_switches = self.ledger.voluntary_switches.wrapping_add(1);
        }
        self.state = state;
        self.switched();
        clock_backwards
    }

    /// The thread is made runnable. Runs in the waker, possibly beside the thread's own switch.
    #[inline(always)]
    pub const fn wake(&mut self, now_ns: u64) {
        self.wake_ns = now_ns;
    }

    /// The thread comes back on `cpu`.
    #[inline(always)]
    pub fn switch_in(&mut self, now_ns: u64, cpu: u32) -> OffCpu {
        let (state, start_ns) = (self.state, self.since_ns);
        let (off_ns, clock_backwards) = self.advance(now_ns);
        let blocked_ns = self.blocked_ns(start_ns, off_ns);
        let runnable_ns = off_ns - blocked_ns;
        if state == off_cpu::PREEMPTED {
            self.ledger.preempted_ns = self.ledger.preempted_ns.wrapping_add(runnable_ns);
        } else {
            // On the CPU, it cannot come back: a switch was missed, and the time is untold.
            let part =
                self.ledger.part(if state == off_cpu::ON_CPU { off_cpu::OTHER } else { state });
            *part = part.wrapping_add(blocked_ns);
            self.ledger.run_queue_ns = self.ledger.run_queue_ns.wrapping_add(runnable_ns);
        }
        if cpu != self.cpu && state != off_cpu::UNKNOWN {
            self.ledger.migrations = self.ledger.migrations.wrapping_add(1);
        }
        self.cpu = cpu;
        self.wake_ns = 0;
        self.state = off_cpu::ON_CPU;
        self.switched();
        OffCpu { state, start_ns, blocked_ns, runnable_ns, clock_backwards }
    }

    /// The thread is seen running: if it was off the CPU as far as known, its switch in was missed
    /// (some kernels do not trace the switches from some tasks, such as an idle one). What it
    /// waited in the run queue is told by the kernel's count of that, `run_delay_ns`, which is of
    /// now; without it, the time since the wakeup is untold. Returns the time off the CPU.
    ///
    /// ```text
    ///   ├─on-CPU─┼─blocked─┼──run queue──┼──on-CPU──┤
    ///            out       wake          (in missed) now
    ///                      ├─run_delay──┤
    /// ```
    #[inline(always)]
    pub fn recover(&mut self, now_ns: u64, run_delay_ns: Option<u64>) -> Option<OffCpu> {
        if !self.is_off_cpu() {
            return None;
        }
        let (state, start_ns) = (self.state, self.since_ns);
        let (off_ns, clock_backwards) = self.advance(now_ns);
        let blocked_ns = self.blocked_ns(start_ns, off_ns);
        let part = self.ledger.part(state);
        *part = part.wrapping_add(blocked_ns);
        let rest_ns = off_ns - blocked_ns;
        let runnable_ns = match run_delay_ns {
            // Another clock than ours measured it.
            Some(run_delay_ns) => match run_delay_ns.wrapping_sub(self.run_delay_ns) {
                waited_ns if waited_ns < rest_ns => waited_ns,
                _ => rest_ns,
            },
            None => 0,
        };
        let is_preempted = state == off_cpu::PREEMPTED;
        // Without a wakeup, it may as well have been blocked.
        let is_told = run_delay_ns.is_some() && (is_preempted || self.wake_ns != 0);
        let ran_ns = rest_ns - runnable_ns;
        // All four, since the verifier loses sight of a pointer to one of them.
        let [preempted_ns, run_queue_ns] =
            if is_preempted { [runnable_ns, 0] } else { [0, runnable_ns] };
        let [on_cpu_ns, other_ns] = if is_told { [ran_ns, 0] } else { [0, ran_ns] };
        self.ledger.preempted_ns = self.ledger.preempted_ns.wrapping_add(preempted_ns);
        self.ledger.run_queue_ns = self.ledger.run_queue_ns.wrapping_add(run_queue_ns);
        self.ledger.on_cpu_ns = self.ledger.on_cpu_ns.wrapping_add(on_cpu_ns);
        self.ledger.other_ns = self.ledger.other_ns.wrapping_add(other_ns);
        self.wake_ns = 0;
        self.state = off_cpu::ON_CPU;
        self.switched();
        Some(OffCpu { state, start_ns, blocked_ns, runnable_ns, clock_backwards })
    }

    /// What a thread that is off the CPU has done until `now_ns`: for waits that are still in
    /// progress when the trace ends. Without a wakeup so far, it is blocked until now.
    pub fn in_progress(&self, now_ns: u64) -> Option<OffCpu> {
        if !self.is_off_cpu() {
            return None;
        }
        let mut timeline = *self;
        if timeline.wake_ns < timeline.since_ns {
            timeline.wake_ns = now_ns;
        }
        Some(timeline.switch_in(now_ns, self.cpu))
    }

    /// How much of the last `off_ns`, which began at `start_ns`, the thread was blocked.
    #[inline(always)]
    const fn blocked_ns(&self, start_ns: u64, off_ns: u64) -> u64 {
        match self.state {
            off_cpu::PREEMPTED => 0,
            off_cpu::UNKNOWN | off_cpu::ON_CPU => off_ns,
            _ => match self.wake_ns.checked_sub(start_ns) {
                Some(blocked_ns) if blocked_ns < off_ns => blocked_ns,
                Some(_) => off_ns,
                None => 0,
            },
        }
    }

    /// Moves `since_ns` on to `now_ns`; returns the time between. A clock that steps back moves
    /// nothing, so that no interval counts twice.
    #[inline(always)]
    const fn advance(&mut self, now_ns: u64) -> (u64, bool) {
        match now_ns.checked_sub(self.since_ns) {
            Some(interval_ns) => {
                self.since_ns = now_ns;
                (interval_ns, false)
            }
            None => (0, true),
        }
    }

    /// Last of a switch's writes.
    #[inline(always)]
    fn switched(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.sequence = self.sequence.wrapping_add(1);
    }
}

/// Where the ledger of one open call begins.
///
/// Most calls are too short for a switch. So the running ledger, of 80 bytes, is not copied when a call
/// begins but at the first switch inside it ([`Self::keep`]): until then it stands still.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Base {
    /// The thread's ledger when the call began, with `faults`; once a switch came.
    pub ledger: Ledger,
    /// The task's minor and major page faults when the call began.
    pub faults: [u32; 2],
    /// [`Timeline::sequence`] when the call began.
    pub sequence: u32,
    #[doc(hidden)]
    pub _pad: u32,
}

const _: () = assert!(size_of::<Base>() == 96);

impl Base {
    /// A call begins, with the task's minor and major page faults so far, at a
    /// [`Timeline::begin_ns`] of the same sequence. Comes after [`Timeline::runs`]. If the sequence is no
    /// longer this one when the call is marked as open, a switch may not have kept the ledger, and this
    /// has to be said again.
    #[inline(always)]
    pub fn mark(&mut self, sequence: u32, faults: [u32; 2]) {
        self.sequence = sequence;
        self.faults = faults;
    }

    /// The timeline is about to move on, inside a call that began at `start_ns`.
    #[inline(always)]
    pub fn keep(&mut self, timeline: &Timeline, start_ns: u64) {
        if self.sequence == timeline.sequence {
            let [minor_faults, major_faults] = self.faults;
            let ledger = timeline.ledger;
            let ran_ns = start_ns.wrapping_sub(timeline.since_ns);
            self.ledger = Ledger {
                on_cpu_ns: ledger.on_cpu_ns.wrapping_add(ran_ns),
                minor_faults,
                major_faults,
                ..ledger
            };
        }
    }

    /// The ledger from `start_ns`, when the call began, to `end_ns`, with the task's page faults so
    /// far; and the end that it sums to, as [`Timeline::closed`] has it.
    #[inline(always)]
    pub fn closed(
        &self,
        timeline: &Timeline,
        start_ns: u64,
        end_ns: u64,
        faults: [u32; 2],
    ) -> (Ledger, u64) {
        let [minor_faults, major_faults] = faults;
        if self.sequence != timeline.sequence {
            let (ledger, end_ns) = timeline.closed(end_ns);
            return (Ledger { minor_faults, major_faults, ..ledger }.since(&self.ledger), end_ns);
        }
        // Not switched since: as the other way would have it, without its 80 bytes twice.
        let end_ns = if end_ns < start_ns { start_ns } else { end_ns };
        let ledger = Ledger {
            on_cpu_ns: end_ns - start_ns,
            minor_faults: minor_faults.wrapping_sub(self.faults[0]),
            major_faults: major_faults.wrapping_sub(self.faults[1]),
            ..Ledger::ZERO
        };
        (ledger, end_ns)
    }

    /// The minor page faults since the call began, if that and its duration are all that its
    /// ledger has to tell so far: it was on the CPU throughout, and nothing was read from a disk.
    #[inline(always)]
    pub const fn undisturbed(&self, timeline: &Timeline, faults: [u32; 2]) -> Option<u32> {
        let [minor_faults, major_faults] = faults;
        if self.sequence == timeline.sequence && major_faults == self.faults[1] {
            Some(minor_faults.wrapping_sub(self.faults[0]))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests;
