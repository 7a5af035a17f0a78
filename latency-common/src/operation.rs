//! The state machine that turns calls of probed functions into operations: per thread, only the
//! outermost call counts, and a call that was jumped out of must not pair with a later return.
//!
//! Calls are told apart by the stack pointer at their entry, where the return address lies. The
//! stack grows down, so while a call is open:
//!
//! ```text
//!   new entry's sp    meaning
//!   below             nested: a function called by the open one
//!   equal             a tail call from the open one, or the open one was jumped out of
//!   above             the open one was jumped out of (longjmp, exception)
//!
//!   return's sp - 8   meaning
//!   equal             the open call returns
//!   below             a nested call returns
//!   above             the open call was jumped out of
//! ```

use crate::probe::{LengthSource, NO_ARGUMENT, ProbeCookie, ResultMeaning, probe_of};
use crate::record::outcome;

/// A thread's open outermost call. `start_ns == 0` means that none is open.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct OpenCall {
    /// Time of entry, `CLOCK_MONOTONIC`, in nanoseconds; 0: no call is open.
    pub start_ns: u64,
    /// Stack pointer at the function's entry.
    pub sp: u64,
    /// The probe's packed [`ProbeCookie`].
    pub cookie: u64,
    /// The signature's length, or the address where it will be; see [`LengthSource`].
    pub length: u64,
    /// [`crate::algorithm::family`] bits of the functions hit so far.
    pub families: u8,
    /// 1 when the caller only asks for the signature's size.
    pub size_query: u8,
    #[doc(hidden)]
    pub _pad: [u8; 6],
}

const _: () = assert!(size_of::<OpenCall>() == 40);

/// What an entry turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A new outermost call.
    Outermost,
    /// A call inside the open one.
    Nested,
    /// A new outermost call; the one before was jumped out of.
    AfterAbandoned,
}

/// What a return turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Return {
    /// The open call returned. It is for the program to [`OpenCall::close`], once its ledger is.
    Outermost,
    /// A nested call returned.
    Nested,
    /// The open call had been jumped out of; none is open now.
    Abandoned,
    /// No call was open.
    Unmatched,
}

impl OpenCall {
    /// Enters a function. `arguments` are the first six integer arguments; `is_tail_call` is
    /// asked only if the stack pointer equals the open call's and the functions differ.
    ///
    /// `start_ns` is left for the caller to set, last of all, when the answer is not
    /// [`Entry::Nested`].
    #[inline(always)]
    pub fn enter(
        &mut self,
        sp: u64,
        cookie: u64,
        arguments: impl Fn(u8) -> u64,
        is_tail_call: impl FnOnce() -> bool,
    ) -> Entry {
        let described = ProbeCookie::unpack(cookie);
        let was_open = self.start_ns != 0;
        if was_open {
            let nested = sp < self.sp
                || (sp == self.sp && probe_of(self.cookie) != described.probe && is_tail_call());
            if nested {
                self.families |= described.family;
                return Entry::Nested;
            }
        }
        self.sp = sp;
        self.cookie = cookie;
        self.families = described.family;
        self.size_query = (described.signature_argument != NO_ARGUMENT
            && arguments(described.signature_argument) == 0) as u8;
        self.length = match described.length {
            LengthSource::None | LengthSource::ReturnValue => 0,
            _ => arguments(described.length_argument),
        };
        if was_open { Entry::AfterAbandoned } else { Entry::Outermost }
    }

    /// Returns from a function: `sp` is the stack pointer after the return address was popped.
    #[inline(always)]
    pub fn leave(&mut self, sp: u64) -> Return {
        if self.start_ns == 0 {
            return Return::Unmatched;
        }
        let entry_sp = sp.wrapping_sub(8);
        if entry_sp < self.sp {
            return Return::Nested;
        }
        if entry_sp == self.sp {
            return Return::Outermost;
        }
        self.close();
        Return::Abandoned
    }

    /// Closes the call, as seen by a switch that comes before or after this, not among it.
    #[inline(always)]
    pub fn close(&mut self) {
        // SAFETY: a field of this call. Volatile: a switch that comes between looks at it.
        unsafe { (&raw mut self.start_ns).write_volatile(0) };
    }

    /// Whether the call was jumped out of, as a call or a return shows that has its return address
    /// at `sp`, above where this one's is. Of an operation and a request around it, neither sees
    /// the other's calls, so each asks for the other.
    #[inline(always)]
    pub const fn is_abandoned(&self, sp: u64) -> bool {
        self.start_ns != 0 && sp > self.sp
    }

    /// The length of the signature in bytes, once the call returned `value`. `read` reads the
    /// given number of bytes (4 or 8) of the target's memory.
    #[inline(always)]
    pub fn signature_bytes<E>(
        &self,
        value: u64,
        read: impl FnOnce(u64, u8) -> Result<u64, E>,
    ) -> Result<u32, E> {
        Ok(match ProbeCookie::unpack(self.cookie).length {
            LengthSource::None => 0,
            LengthSource::Argument => self.length as u32,
            LengthSource::ReturnValue => {
                let length = value as u32 as i32;
                if length > 0 { length as u32 } else { 0 }
            }
            LengthSource::PointerToU64 | LengthSource::PointerToU32 if self.length == 0 => 0,
            LengthSource::PointerToU64 => read(self.length, 8)? as u32,
            LengthSource::PointerToU32 => read(self.length, 4)? as u32,
        })
    }

    /// How the call ended; see [`outcome`].
    #[inline(always)]
    pub fn outcome(&self, value: u64) -> u8 {
        if self.size_query != 0 {
            return outcome::SIZE_QUERY;
        }
        let int = value as u32 as i32;
        match ProbeCookie::unpack(self.cookie).result {
            ResultMeaning::Ignored => outcome::SUCCESS,
            ResultMeaning::OneIsSuccess => match int {
                1 => outcome::SUCCESS,
                0 => outcome::FAILURE,
                _ => outcome::ERROR,
            },
            ResultMeaning::Length => {
                if int > 0 {
                    outcome::SUCCESS
                } else {
                    outcome::ERROR
                }
            }
            ResultMeaning::Pointer => {
                if value != 0 {
                    outcome::SUCCESS
                } else {
                    outcome::ERROR
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::family;

    fn cookie(probe: u16, family: u8) -> u64 {
        ProbeCookie {
            probe,
            operation: 0,
            signature_argument: 1,
            length_argument: 2,
            length: LengthSource::PointerToU64,
            result: ResultMeaning::OneIsSuccess,
            family,
            has_algorithm: true,
            is_request: false,
        }
        .pack()
    }

    const ARGUMENTS: [u64; 6] = [10, 11, 12, 13, 14, 15];

    fn enter(call: &mut OpenCall, sp: u64, probe: u16, tail: bool) -> Entry {
        let entry = call.enter(sp, cookie(probe, family::NONE), |n| ARGUMENTS[n as usize], || tail);
        if entry != Entry::Nested {
            call.start_ns = 100;
        }
        entry
    }

    /// Check that only the outermost of three nested calls is an operation.
    #[test]
    fn nested_calls_count_once() {
        let mut call = OpenCall::default();
        assert_eq!(enter(&mut call, 1000, 1, false), Entry::Outermost);
        assert_eq!(enter(&mut call, 900, 2, false), Entry::Nested);
        assert_eq!(
            call.enter(800, cookie(3, family::RSA), |_| 0, || false),
            Entry::Nested,
            "family is noted, arguments are not"
        );
        assert_eq!(call.leave(808), Return::Nested);
        assert_eq!(call.leave(908), Return::Nested);
        assert_eq!(call.leave(1008), Return::Outermost);
        assert_eq!((call.families, call.length, call.size_query), (family::RSA, 12, 0));
        assert_ne!(call.start_ns, 0, "a switch while its record is written lies inside of it");
        call.close();
        assert_eq!(call.leave(1008), Return::Unmatched);
    }

    /// Check that a tail call is part of the call it replaces, and returns once.
    #[test]
    fn tail_call_is_nested() {
        let mut call = OpenCall::default();
        enter(&mut call, 1000, 1, false);
        assert_eq!(enter(&mut call, 1000, 2, true), Entry::Nested);
        assert_eq!(call.leave(1008), Return::Outermost);
        call.close();
        assert_eq!(call.leave(1008), Return::Unmatched, "the chained return of the other probe");
    }

    /// Check that a call that was jumped out of never pairs with a later return.
    #[test]
    fn abandoned_calls_do_not_pair() {
        let mut call = OpenCall::default();
        enter(&mut call, 1000, 1, false);
        assert_eq!(enter(&mut call, 1000, 1, true), Entry::AfterAbandoned, "same function");
        assert_eq!(enter(&mut call, 1000, 2, false), Entry::AfterAbandoned, "no tail call");
        assert_eq!(enter(&mut call, 2000, 1, false), Entry::AfterAbandoned, "shallower");
        assert_eq!(call.leave(3008), Return::Abandoned);
        assert_eq!(call.leave(3008), Return::Unmatched);
    }

    /// Check that only what lies above an open call shows it as jumped out of.
    #[test]
    fn shown_by_others() {
        let mut call = OpenCall::default();
        assert!(!call.is_abandoned(5000), "none is open");
        enter(&mut call, 1000, 1, false);
        assert!(!call.is_abandoned(900), "called by it");
        assert!(!call.is_abandoned(1000), "jumped to by it");
        assert!(call.is_abandoned(1008));
    }

    /// Check that a null signature buffer makes a size query.
    #[test]
    fn size_query() {
        let mut call = OpenCall::default();
        call.enter(1000, cookie(1, 0), |n| if n == 1 { 0 } else { 5 }, || false);
        assert_eq!(call.size_query, 1);
        assert_eq!(call.outcome(1), outcome::SIZE_QUERY);
    }

    /// Check what each kind of return value means.
    #[test]
    fn results() {
        let outcome_of = |result, value: i64| {
            let cookie = ProbeCookie { result, ..ProbeCookie::unpack(cookie(1, 0)) }.pack();
            OpenCall { cookie, ..OpenCall::default() }.outcome(value as u64)
        };
        use ResultMeaning::{Ignored, Length, OneIsSuccess, Pointer};
        assert_eq!(outcome_of(OneIsSuccess, 1), outcome::SUCCESS);
        assert_eq!(outcome_of(OneIsSuccess, 0), outcome::FAILURE);
        assert_eq!(outcome_of(OneIsSuccess, -2), outcome::ERROR);
        // An `int` leaves the upper half of the register undefined.
        assert_eq!(outcome_of(OneIsSuccess, 0xdead_0000_0001), outcome::SUCCESS);
        assert_eq!(outcome_of(Length, 256), outcome::SUCCESS);
        assert_eq!(outcome_of(Length, -1), outcome::ERROR);
        assert_eq!(outcome_of(Pointer, 0), outcome::ERROR);
        assert_eq!(outcome_of(Pointer, 0x7f00_0000_0000), outcome::SUCCESS);
        assert_eq!(outcome_of(Ignored, 0), outcome::SUCCESS);
    }

    proptest::proptest! {
        /// Check that no sequence of entries and returns pairs a return with an entry at another
        /// depth, or leaves a call open above a return.
        #[test]
        fn any_sequence(steps: Vec<(bool, u8, u8, bool)>) {
            let mut call = OpenCall::default();
            for (is_entry, depth, probe, tail) in steps {
                let sp = 10_000 - u64::from(depth) * 8;
                if is_entry {
                    enter(&mut call, sp, probe.into(), tail);
                    assert!(call.start_ns != 0 && call.sp >= sp);
                } else if call.leave(sp + 8) == Return::Outermost {
                    assert_eq!(call.sp, sp);
                    call.close();
                }
            }
        }
    }
}
