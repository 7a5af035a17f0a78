//! The compact form of one row of call frame information.

/// How the CFA of a row is found. Offsets are in bytes and multiples of 8.
///
/// Registers are numbered as DWARF numbers them on x86-64 (System V psABI, figure 3.36): 6 is rbp,
/// 7 is rsp. In every rule the return address lies at CFA - 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// No row: nothing is known here.
    None,
    /// The outermost frame: the return address is undefined.
    End,
    /// A rule that does not fit the other forms.
    Unsupported,
    /// rsp + offset.
    Rsp(u32),
    /// rbp + offset.
    Rbp(u32),
    /// A lazily bound stub of the procedure linkage table, 16 bytes long, that has pushed 8 bytes
    /// from its `pushed_at`-th byte on: `(((rip & 15) >= pushed_at) << 3) + rsp + 8`.
    Plt {
        /// 11; 9 or 10 in stubs that start with `endbr64`.
        pushed_at: u8,
    },
    /// The kernel's signal frame: `struct ucontext` lies at rsp, with all registers in it.
    Signal,
    /// What lies at `register + at`, plus `plus`: hand-written assembly and realigned stacks. The
    /// register is rsp or rbp.
    Deref {
        /// Whether the register is rbp, else it is rsp.
        rbp: bool,
        /// Offset from the register.
        at: i32,
        /// Added to what lies there.
        plus: u32,
    },
    /// A register other than rsp and rbp, plus an offset; only the innermost frame's are known.
    Register {
        /// DWARF number, below 16.
        register: u8,
        /// Offset from the register.
        plus: u32,
    },
    /// What lies at `rsp + 8 * register + at`, plus 8: the frame of OpenSSL's Montgomery
    /// multiplication, whose length is in a register.
    DerefIndexed {
        /// DWARF number, below 16.
        register: u8,
        /// Offset from the indexed address.
        at: u32,
    },
}

/// Where the caller's rbp is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SavedRbp {
    /// Still in the register.
    Unchanged,
    /// That many bytes below the CFA: a multiple of 8, at least 8.
    BelowCfa(u32),
    /// Where rbp points: functions that realign the stack.
    AtRbp,
}

pub(super) const NONE: u32 = 0;
pub(super) const END: u32 = 1;
pub(super) const UNSUPPORTED: u32 = 2;
pub(super) const RSP: u32 = 3;
pub(super) const RBP: u32 = 4;
pub(super) const PLT: u32 = 5;
pub(super) const SIGNAL: u32 = 6;
pub(super) const DEREF_RSP: u32 = 7;
pub(super) const DEREF_RBP: u32 = 8;
pub(super) const REGISTER: u32 = 9;
pub(super) const DEREF_INDEXED: u32 = 10;

pub(super) const UNCHANGED: u32 = 0;
pub(super) const AT_RBP: u32 = 0xfff;

/// One row: from `pc` on, how the caller's registers are found.
///
/// ```text
///   bits 0–31   32–35   36–51        52–63
///        pc     rule    its operand  saved rbp: 0 unchanged, 4095 at rbp, n at CFA - 8n
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The first program counter it holds for, relative to the file's link-time base.
    pub pc: u32,
    /// How the CFA is found.
    pub rule: Rule,
    /// Where the caller's rbp is.
    pub saved_rbp: SavedRbp,
}

impl Row {
    /// Packs the row; `None` when an offset has no place in it.
    pub const fn pack(self) -> Option<u64> {
        const fn scaled(bytes: u32, bits: u32) -> Option<u32> {
            if bytes.is_multiple_of(8) && bytes / 8 < 1 << bits { Some(bytes / 8) } else { None }
        }
        const fn scaled_signed(bytes: i32, bits: u32) -> Option<u32> {
            let units = bytes / 8;
            if bytes % 8 == 0 && units >= -(1 << (bits - 1)) && units < 1 << (bits - 1) {
                Some(units as u32 & ((1 << bits) - 1))
            } else {
                None
            }
        }
        macro_rules! some {
            ($value:expr) => {
                match $value {
                    Some(value) => value,
                    None => return None,
                }
            };
        }
        let (rule, operand) = match self.rule {
            Rule::None => (NONE, 0),
            Rule::End => (END, 0),
            Rule::Unsupported => (UNSUPPORTED, 0),
            Rule::Rsp(offset) => (RSP, some!(scaled(offset, 16))),
            Rule::Rbp(offset) => (RBP, some!(scaled(offset, 16))),
            Rule::Plt { pushed_at } if pushed_at < 16 => (PLT, pushed_at as u32),
            Rule::Signal => (SIGNAL, 0),
            Rule::Deref { rbp, at, plus } => (
                if rbp { DEREF_RBP } else { DEREF_RSP },
                some!(scaled_signed(at, 12)) | some!(scaled(plus, 4)) << 12,
            ),
            Rule::Register { register, plus } if register < 16 => {
                (REGISTER, some!(scaled(plus, 12)) | (register as u32) << 12)
            }
            Rule::DerefIndexed { register, at } if register < 16 => {
                (DEREF_INDEXED, some!(scaled(at, 12)) | (register as u32) << 12)
            }
            Rule::Register { .. } | Rule::DerefIndexed { .. } | Rule::Plt { .. } => return None,
        };
        let rbp = match self.saved_rbp {
            SavedRbp::Unchanged => UNCHANGED,
            SavedRbp::AtRbp => AT_RBP,
            SavedRbp::BelowCfa(bytes) => match some!(scaled(bytes, 12)) {
                UNCHANGED | AT_RBP => return None,
                units => units,
            },
        };
        Some(self.pc as u64 | (rule as u64) << 32 | (operand as u64) << 36 | (rbp as u64) << 52)
    }

    /// Unpacks a row; any bits give one.
    pub const fn unpack(bits: u64) -> Self {
        let Fields { rule, operand, low, high, signed_low, rbp } = Fields::of(bits);
        let rule = match rule {
            NONE => Rule::None,
            END => Rule::End,
            RSP => Rule::Rsp(operand * 8),
            RBP => Rule::Rbp(operand * 8),
            PLT => Rule::Plt { pushed_at: operand as u8 & 15 },
            SIGNAL => Rule::Signal,
            DEREF_RSP => Rule::Deref { rbp: false, at: signed_low * 8, plus: high * 8 },
            DEREF_RBP => Rule::Deref { rbp: true, at: signed_low * 8, plus: high * 8 },
            REGISTER => Rule::Register { register: high as u8, plus: low * 8 },
            DEREF_INDEXED => Rule::DerefIndexed { register: high as u8, at: low * 8 },
            _ => Rule::Unsupported,
        };
        let saved_rbp = match rbp {
            UNCHANGED => SavedRbp::Unchanged,
            AT_RBP => SavedRbp::AtRbp,
            units => SavedRbp::BelowCfa(units * 8),
        };
        Self { pc: bits as u32, rule, saved_rbp }
    }
}

/// A packed row's fields, offsets in units of 8 bytes. The kernel side works on these: a match on
/// [`Rule`] would first copy the parts of the enum that a variant does not have, and the verifier
/// refuses to read what was never written.
pub(super) struct Fields {
    pub rule: u32,
    pub operand: u32,
    /// Bits 0–11 of the operand, and the same as a signed number.
    pub low: u32,
    pub signed_low: i32,
    /// Bits 12–15 of the operand.
    pub high: u32,
    pub rbp: u32,
}

impl Fields {
    #[inline(always)]
    pub const fn of(bits: u64) -> Self {
        let operand = (bits >> 36) as u32 & 0xffff;
        let low = operand & 0xfff;
        Self {
            rule: (bits >> 32) as u32 & 15,
            operand,
            low,
            signed_low: ((low << 20) as i32) >> 20,
            high: operand >> 12,
            rbp: (bits >> 52) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that every form survives packing at its limits, and is refused beyond them.
    #[test]
    fn limits() {
        let row = |rule, saved_rbp| Row { pc: u32::MAX, rule, saved_rbp };
        let deref = |rbp, at, plus| row(Rule::Deref { rbp, at, plus }, SavedRbp::AtRbp);
        let kept = |rule| row(rule, SavedRbp::Unchanged);
        for row in [
            kept(Rule::None),
            kept(Rule::End),
            kept(Rule::Unsupported),
            kept(Rule::Plt { pushed_at: 15 }),
            kept(Rule::Signal),
            row(Rule::Rsp(8 * 0xffff), SavedRbp::BelowCfa(8 * 0xffe)),
            row(Rule::Rbp(16), SavedRbp::BelowCfa(8)),
            deref(false, -8 * 2048, 8),
            deref(true, 8 * 2047, 8 * 15),
            kept(Rule::Register { register: 15, plus: 8 * 4095 }),
            kept(Rule::DerefIndexed { register: 9, at: 8 }),
        ] {
            assert_eq!(row.pack().map(Row::unpack), Some(row));
        }
        for row in [
            kept(Rule::Rsp(8 * 0x1_0000)),
            kept(Rule::Rsp(12)),
            row(Rule::Rsp(8), SavedRbp::BelowCfa(8 * 0xfff)),
            row(Rule::Rsp(8), SavedRbp::BelowCfa(0)),
            row(Rule::Rsp(8), SavedRbp::BelowCfa(4)),
            deref(false, -8 * 2049, 8),
            deref(false, 8 * 2048, 8),
            deref(false, -4, 8),
            kept(Rule::Register { register: 16, plus: 8 }),
            kept(Rule::Plt { pushed_at: 16 }),
        ] {
            assert_eq!(row.pack(), None, "{row:?}");
        }
    }

    proptest::proptest! {
        /// Check that any bits unpack, and that packing what came out is stable.
        #[test]
        fn total(bits: u64) {
            let row = Row::unpack(bits);
            assert_eq!(row.pack().map(Row::unpack), Some(row));
        }
    }
}
