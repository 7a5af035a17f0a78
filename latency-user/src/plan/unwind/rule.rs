//! One row of call frame information, as gimli reads it, in the compact form.

use gimli::{
    CfaRule, Encoding, Operation, Register, RegisterRule, UnwindExpression, UnwindSection,
    UnwindTableRow, X86_64,
};
use latency_common::unwind::{Rule, SavedRbp};

use super::rows::{Slice, Store};

/// The rule and where rbp is saved. What the compact form cannot say is [`Rule::Unsupported`].
pub fn of<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    row: &UnwindTableRow<usize, Store>,
    encoding: Encoding,
    return_address: Register,
    is_signal: bool,
) -> (Rule, SavedRbp) {
    const UNSUPPORTED: (Rule, SavedRbp) = (Rule::Unsupported, SavedRbp::Unchanged);
    if is_signal {
        // glibc's and the kernel's restorers describe each register by an expression; all say that
        // it lies in the `struct ucontext` at rsp.
        return (Rule::Signal, SavedRbp::Unchanged);
    }
    match row.register(return_address) {
        RegisterRule::Undefined => return (Rule::End, SavedRbp::Unchanged),
        RegisterRule::Offset(-8) => {}
        _ => return UNSUPPORTED,
    }
    let expression = |expression: UnwindExpression<usize>| {
        expression.get(section).ok().and_then(|expression| operations(expression, encoding))
    };
    let cfa = match *row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            u32::try_from(offset).ok().and_then(|offset| match register {
                X86_64::RSP => Some(Rule::Rsp(offset)),
                X86_64::RBP => Some(Rule::Rbp(offset)),
                Register(number @ 0..16) => {
                    Some(Rule::Register { register: number as u8, plus: offset })
                }
                _ => None,
            })
        }
        CfaRule::Expression(cfa) => expression(cfa).and_then(|operations| cfa_rule(&operations)),
    };
    let rbp = match row.register(X86_64::RBP) {
        RegisterRule::Undefined | RegisterRule::SameValue => Some(SavedRbp::Unchanged),
        RegisterRule::Offset(offset) => {
            offset.checked_neg().and_then(|below| u32::try_from(below).ok()).map(SavedRbp::BelowCfa)
        }
        RegisterRule::Expression(rbp) => match expression(rbp).as_deref() {
            Some([Operation::RegisterOffset { register: X86_64::RBP, offset: 0, .. }]) => {
                Some(SavedRbp::AtRbp)
            }
            _ => None,
        },
        _ => None,
    };
    cfa.zip(rbp).unwrap_or(UNSUPPORTED)
}

/// The expression's operations, if there are no more than the known forms have.
fn operations<'a>(
    expression: gimli::Expression<Slice<'a>>,
    encoding: Encoding,
) -> Option<Vec<Operation<Slice<'a>>>> {
    const MAX_OPERATIONS: usize = 12;
    let mut bytes = expression.0;
    let mut operations = Vec::new();
    while let Some(&code) = bytes.slice().first() {
        // A value in pieces is no address; gimli multiplies a piece's size without a check.
        if operations.len() == MAX_OPERATIONS || code == gimli::constants::DW_OP_piece.0 {
            return None;
        }
        operations.push(Operation::parse(&mut bytes, encoding).ok()?);
    }
    Some(operations)
}

/// The forms that occur in practice: the linkers' one for the procedure linkage table, those of
/// OpenSSL's assembly, and the compilers' for realigned stacks.
fn cfa_rule(operations: &[Operation<Slice<'_>>]) -> Option<Rule> {
    use Operation::{
        And, Deref, Ge, Mul, Plus, PlusConstant, RegisterOffset, Shl, UnsignedConstant,
    };
    match *operations {
        [
            RegisterOffset { register: X86_64::RSP, offset: 8, .. },
            RegisterOffset { register: X86_64::RA, offset: 0, .. },
            UnsignedConstant { value: 15 },
            And,
            UnsignedConstant { value: pushed_at @ 0..16 },
            Ge,
            UnsignedConstant { value: 3 },
            Shl,
            Plus,
        ] => Some(Rule::Plt { pushed_at: pushed_at as u8 }),
        [RegisterOffset { register, offset, .. }, Deref { .. }, ref plus @ ..] => {
            let plus = match *plus {
                [] => 0,
                [PlusConstant { value }] => value,
                _ => return None,
            };
            let rbp = match register {
                X86_64::RSP => false,
                X86_64::RBP => true,
                _ => return None,
            };
            Some(Rule::Deref {
                rbp,
                at: i32::try_from(offset).ok()?,
                plus: u32::try_from(plus).ok()?,
            })
        }
        [
            RegisterOffset { register: X86_64::RSP, offset, .. },
            RegisterOffset { register: Register(register @ 0..16), offset: 0, .. },
            UnsignedConstant { value: 8 },
            Mul,
            Plus,
            Deref { .. },
            PlusConstant { value: 8 },
        ] => Some(Rule::DerefIndexed { register: register as u8, at: u32::try_from(offset).ok()? }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENCODING: Encoding =
        Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 1 };

    fn rule(bytes: &[u8]) -> Option<Rule> {
        let slice = Slice::new(bytes, gimli::LittleEndian);
        assert!(!slice.is_empty());
        cfa_rule(&operations(gimli::Expression(slice), ENCODING)?)
    }

    /// Check that the expressions found in libc, libcrypto and compilers' output are understood,
    /// and others refused.
    #[test]
    fn expressions() {
        let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        assert_eq!(rule(&plt), Some(Rule::Plt { pushed_at: 11 }));
        assert_eq!(
            rule(&[0x77, 0x78, 0x06, 0x23, 8]),
            Some(Rule::Deref { rbp: false, at: -8, plus: 8 })
        );
        assert_eq!(rule(&[0x76, 0x78, 0x06]), Some(Rule::Deref { rbp: true, at: -8, plus: 0 }));
        assert_eq!(
            rule(&[0x77, 8, 0x79, 0, 0x38, 0x1e, 0x22, 0x06, 0x23, 8]),
            Some(Rule::DerefIndexed { register: 9, at: 8 })
        );
        assert_eq!(rule(&[0x77, 8, 0x22]), None);
        assert_eq!(rule(&[0x70, 8, 0x06]), None);
        assert_eq!(rule(&[0xff]), None);
        assert_eq!(rule(&[0x96; 40]), None);
        let huge = [0x93, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(rule(&huge), None);
    }

    proptest::proptest! {
        /// Check that any bytes are an expression or none.
        #[test]
        fn total(bytes in proptest::collection::vec(proptest::num::u8::ANY, 1..30)) {
            let _ = rule(&bytes);
        }
    }
}
