//! One step up the stack: from a frame's registers to its caller's.

use super::StackEnd;
use super::row::{
    AT_RBP, DEREF_INDEXED, DEREF_RBP, DEREF_RSP, END, Fields, NONE, PLT, RBP, REGISTER, RSP,
    SIGNAL, UNCHANGED,
};

/// The registers that unwinding carries from frame to frame.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Registers {
    /// Program counter.
    pub rip: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Frame pointer, or whatever the program keeps there.
    pub rbp: u64,
    /// 1 when `rip` is a return address: the call is the instruction before it. 0 in the innermost
    /// frame, and in one that a signal interrupted.
    pub returned_to: u64,
}

impl Registers {
    /// The address to look up: inside the call instruction, which may be the last of its function.
    #[inline(always)]
    pub const fn lookup_pc(&self) -> u64 {
        self.rip.wrapping_sub(self.returned_to)
    }
}

/// Offsets in `struct ucontext`, arch/x86/include/uapi/asm/{ucontext,sigcontext}.h:
/// <https://github.com/torvalds/linux/blob/v6.1/arch/x86/include/uapi/asm/sigcontext.h#L238>.
const UCONTEXT_RBP: u64 = 120;
const UCONTEXT_RSP: u64 = 160;
const UCONTEXT_RIP: u64 = 168;

/// Steps to the caller by a packed [`Row`](super::Row).
///
/// `read` reads 8 bytes of the stack. `register` gives the value of a register of the current
/// frame by its DWARF number, or `None` if it is not known: only the innermost frame's are.
///
/// # Errors
/// The walk ends here: see [`StackEnd`].
#[inline(always)]
pub fn step(
    row: u64,
    registers: &Registers,
    read: impl Fn(u64) -> Option<u64>,
    register: impl Fn(u32) -> Option<u64>,
) -> Result<Registers, StackEnd> {
    let Registers { rip, rsp, rbp, .. } = *registers;
    let fields = Fields::of(row);
    // One place for each read: each is a copy of the caller's code, which the verifier checks.
    let deref = |address: u64| read(address).ok_or(StackEnd::StackUnreadable);
    let known = |number| register(number).ok_or(StackEnd::UnsupportedRule);
    let bytes = |units: u32| units as u64 * 8;
    let signed = (fields.signed_low as i64 as u64).wrapping_mul(8);
    // The CFA, or where it lies and what is added to it.
    let (address, plus, indirect) = match fields.rule {
        RSP => (rsp.wrapping_add(bytes(fields.operand)), 0, false),
        RBP => (rbp.wrapping_add(bytes(fields.operand)), 0, false),
        PLT => {
            let pushed = rip & 15 >= fields.operand as u64;
            (rsp.wrapping_add(if pushed { 16 } else { 8 }), 0, false)
        }
        DEREF_RSP => (rsp.wrapping_add(signed), bytes(fields.high), true),
        DEREF_RBP => (rbp.wrapping_add(signed), bytes(fields.high), true),
        REGISTER => (known(fields.high)?.wrapping_add(bytes(fields.low)), 0, false),
        DEREF_INDEXED => {
            let index = known(fields.high)?.wrapping_mul(8);
            (rsp.wrapping_add(index).wrapping_add(bytes(fields.low)), 8, true)
        }
        SIGNAL => {
            // A signal may run on a stack of its own: what it interrupted can lie below.
            return Ok(Registers {
                rip: deref(rsp.wrapping_add(UCONTEXT_RIP))?,
                rsp: deref(rsp.wrapping_add(UCONTEXT_RSP))?,
                rbp: deref(rsp.wrapping_add(UCONTEXT_RBP))?,
                returned_to: 0,
            });
        }
        END => return Err(StackEnd::Complete),
        NONE => return Err(StackEnd::NoRow),
        _ => return Err(StackEnd::UnsupportedRule),
    };
    let cfa = if indirect { deref(address)?.wrapping_add(plus) } else { address };
    if cfa <= rsp {
        return Err(StackEnd::NoProgress);
    }
    let return_address = deref(cfa.wrapping_sub(8))?;
    let rbp = match fields.rbp {
        UNCHANGED => rbp,
        units => deref(if units == AT_RBP { rbp } else { cfa.wrapping_sub(bytes(units)) })?,
    };
    Ok(Registers { rip: return_address, rsp: cfa, rbp, returned_to: 1 })
}

/// How far above the stack pointer a frame pointer is believed, in bytes: a frame larger than this
/// is less likely than a register that holds something else.
const MAX_FRAME_BYTES: u64 = 1 << 20;

/// Steps to the caller by the frame pointer, where no row is known.
///
/// # Errors
/// [`StackEnd::NoRow`] when rbp does not look like a frame pointer, or what it points to cannot be
/// read.
#[inline(always)]
pub fn step_frame_pointer(
    registers: &Registers,
    read: impl Fn(u64) -> Option<u64>,
) -> Result<Registers, StackEnd> {
    let Registers { rsp, rbp, .. } = *registers;
    if rbp < rsp || rbp & 7 != 0 || rbp.wrapping_sub(rsp) > MAX_FRAME_BYTES {
        return Err(StackEnd::NoRow);
    }
    let return_address = read(rbp.wrapping_add(8)).ok_or(StackEnd::NoRow)?;
    let saved = read(rbp).ok_or(StackEnd::NoRow)?;
    Ok(Registers { rip: return_address, rsp: rbp.wrapping_add(16), rbp: saved, returned_to: 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::{Row, Rule, SavedRbp};
    use std::collections::HashMap;

    const START: Registers = Registers { rip: 0x40_100b, rsp: 0x1000, rbp: 0x2000, returned_to: 0 };

    fn row(rule: Rule, below: u32) -> Row {
        let saved_rbp = if below == 0 { SavedRbp::Unchanged } else { SavedRbp::BelowCfa(below) };
        Row { pc: 0, rule, saved_rbp }
    }

    fn run(row: Row, memory: &[(u64, u64)]) -> Result<Registers, StackEnd> {
        let memory: HashMap<u64, u64> = memory.iter().copied().collect();
        let row = row.pack().unwrap();
        step(row, &START, |at| memory.get(&at).copied(), |number| (number == 9).then_some(2))
    }

    /// Check that each rule finds the CFA, the return address and rbp where DWARF says.
    #[test]
    fn rules() {
        let to = |rip, rsp, rbp| Ok(Registers { rip, rsp, rbp, returned_to: 1 });
        assert_eq!(run(row(Rule::Rsp(8), 0), &[(0x1000, 7)]), to(7, 0x1008, 0x2000));
        assert_eq!(
            run(row(Rule::Rsp(32), 16), &[(0x1018, 7), (0x1010, 9)]),
            to(7, 0x1020, 9),
            "saved rbp"
        );
        assert_eq!(
            run(row(Rule::Rbp(16), 16), &[(0x2008, 7), (0x2000, 9)]),
            to(7, 0x2010, 9),
            "frame pointer"
        );
        assert_eq!(
            run(row(Rule::Plt { pushed_at: 11 }, 0), &[(0x1008, 7)]),
            to(7, 0x1010, 0x2000),
            "after the push"
        );
        let deref = Rule::Deref { rbp: false, at: -8, plus: 8 };
        assert_eq!(
            run(row(deref, 16), &[(0xff8, 0x3000), (0x3000, 7), (0x2ff8, 9)]),
            to(7, 0x3008, 9)
        );
        let deref = Rule::Deref { rbp: true, at: 16, plus: 0 };
        assert_eq!(run(row(deref, 0), &[(0x2010, 0x3000), (0x2ff8, 7)]), to(7, 0x3000, 0x2000));
        let realigned = Row { pc: 0, rule: deref, saved_rbp: SavedRbp::AtRbp };
        assert_eq!(run(realigned, &[(0x2010, 0x3000), (0x2ff8, 7), (0x2000, 9)]), to(7, 0x3000, 9));
        let register = Rule::Register { register: 9, plus: 0x1100 };
        assert_eq!(run(row(register, 0), &[(0x10fa, 7)]), to(7, 0x1102, 0x2000));
        let indexed = Rule::DerefIndexed { register: 9, at: 8 };
        assert_eq!(run(row(indexed, 0), &[(0x1018, 0x3000), (0x3000, 7)]), to(7, 0x3008, 0x2000));
    }

    /// Check that a signal frame gives the interrupted registers, even below the signal's stack.
    #[test]
    fn signal() {
        let memory = [(0x10a8, 0x55), (0x10a0, 0x500), (0x1078, 0x66)];
        assert_eq!(
            run(row(Rule::Signal, 0), &memory),
            Ok(Registers { rip: 0x55, rsp: 0x500, rbp: 0x66, returned_to: 0 })
        );
    }

    /// Check that every way to fail has its own reason.
    #[test]
    fn ends() {
        assert_eq!(run(row(Rule::End, 0), &[]), Err(StackEnd::Complete));
        assert_eq!(run(row(Rule::None, 0), &[]), Err(StackEnd::NoRow));
        assert_eq!(run(row(Rule::Unsupported, 0), &[]), Err(StackEnd::UnsupportedRule));
        assert_eq!(run(row(Rule::Rsp(8), 0), &[]), Err(StackEnd::StackUnreadable));
        assert_eq!(run(row(Rule::Rsp(0), 0), &[]), Err(StackEnd::NoProgress));
        let register = Rule::Register { register: 10, plus: 8 };
        assert_eq!(run(row(register, 0), &[]), Err(StackEnd::UnsupportedRule));
    }

    /// Check that a frame pointer is followed only where it can be one.
    #[test]
    fn frame_pointer() {
        let read = |at: u64| Some(at + 1);
        let at = |rbp| Registers { rbp, ..START };
        assert_eq!(
            step_frame_pointer(&at(0x1010), read),
            Ok(Registers { rip: 0x1019, rsp: 0x1020, rbp: 0x1011, returned_to: 1 })
        );
        for rbp in [0, 0xff8, 0x1011, 0x1000 + MAX_FRAME_BYTES + 8] {
            assert_eq!(step_frame_pointer(&at(rbp), read), Err(StackEnd::NoRow));
        }
        assert_eq!(step_frame_pointer(&at(0x1010), |_| None), Err(StackEnd::NoRow));
    }

    proptest::proptest! {
        /// Check that any row, registers and memory give a step upwards or a reason.
        #[test]
        fn total(bits: u64, rip: u64, rsp: u64, rbp: u64, value: u64) {
            let registers = Registers { rip, rsp, rbp, returned_to: 1 };
            let read = |at: u64| (!at.is_multiple_of(3)).then_some(value);
            if let Ok(next) = step(bits, &registers, read, |_| Some(value)) {
                assert!(next.rsp > rsp || Row::unpack(bits).rule == Rule::Signal);
            }
            if let Ok(next) = step_frame_pointer(&registers, read) {
                assert!(next.rsp > rsp || next.rsp < 16);
            }
        }
    }
}
