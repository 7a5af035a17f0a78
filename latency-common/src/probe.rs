//! What a probe's 64-bit attach cookie says: everything the program must know of the function it
//! sits on, so that no map look-up is needed for it.

/// How the length of the signature is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LengthSource {
    /// It is not visible.
    None = 0,
    /// An argument holds it (the low 32 bits).
    Argument = 1,
    /// An argument points to a `size_t` that holds it on return.
    PointerToU64 = 2,
    /// An argument points to an `unsigned int` that holds it on return.
    PointerToU32 = 3,
    /// The return value is it.
    ReturnValue = 4,
}

/// What the return value means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ResultMeaning {
    /// Nothing: every return is a success (a user's own probe).
    Ignored = 0,
    /// `int`: 1 is success, 0 failure, anything else an error.
    OneIsSuccess = 1,
    /// `int`: a length above 0 is success, anything else an error.
    Length = 2,
    /// A pointer: null is an error.
    Pointer = 3,
}

/// Stands for "no argument" in the argument fields.
pub const NO_ARGUMENT: u8 = 7;

/// A probe's description, packed into its attach cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeCookie {
    /// Index of the probe in the plan, below 4096.
    pub probe: u16,
    /// Index of the operation's name in the plan.
    pub operation: u8,
    /// Argument (0 to 5) that holds the signature buffer; a null one makes the call a size query.
    /// [`NO_ARGUMENT`] where the function has no size query.
    pub signature_argument: u8,
    /// Argument (0 to 5) that `length` speaks of.
    pub length_argument: u8,
    /// How the signature's length is found.
    pub length: LengthSource,
    /// What the return value means.
    pub result: ResultMeaning,
    /// The key family that a hit of this function proves; see [`crate::algorithm::family`].
    pub family: u8,
    /// Whether the function signs or verifies at all, and so has an algorithm.
    pub has_algorithm: bool,
    /// Whether a call of it is a request: the scope around operations, not one itself.
    pub is_request: bool,
}

impl ProbeCookie {
    /// Packs the description.
    pub const fn pack(self) -> u64 {
        (self.probe as u64 & 0xfff)
            | (self.operation as u64) << 12
            | (self.signature_argument as u64 & 7) << 20
            | (self.length_argument as u64 & 7) << 23
            | (self.length as u64) << 26
            | (self.result as u64) << 29
            | (self.family as u64 & 15) << 32
            | (self.has_algorithm as u64) << 36
            | (self.is_request as u64) << 37
    }

    /// Unpacks a cookie; any bits give a description.
    #[inline(always)]
    pub const fn unpack(cookie: u64) -> Self {
        Self {
            probe: probe_of(cookie),
            operation: (cookie >> 12) as u8,
            signature_argument: (cookie >> 20) as u8 & 7,
            length_argument: (cookie >> 23) as u8 & 7,
            length: match (cookie >> 26) & 7 {
                1 => LengthSource::Argument,
                2 => LengthSource::PointerToU64,
                3 => LengthSource::PointerToU32,
                4 => LengthSource::ReturnValue,
                _ => LengthSource::None,
            },
            result: match (cookie >> 29) & 7 {
                1 => ResultMeaning::OneIsSuccess,
                2 => ResultMeaning::Length,
                3 => ResultMeaning::Pointer,
                _ => ResultMeaning::Ignored,
            },
            family: (cookie >> 32) as u8 & 15,
            has_algorithm: (cookie >> 36) & 1 != 0,
            is_request: is_request(cookie),
        }
    }
}

/// The probe's index, without unpacking the rest.
#[inline(always)]
pub const fn probe_of(cookie: u64) -> u16 {
    (cookie & 0xfff) as u16
}

/// Whether the probe times requests, without unpacking the rest.
#[inline(always)]
pub const fn is_request(cookie: u64) -> bool {
    (cookie >> 37) & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that a description survives packing.
    #[test]
    fn round_trip() {
        let cookie = ProbeCookie {
            probe: 4095,
            operation: 200,
            signature_argument: 3,
            length_argument: 4,
            length: LengthSource::PointerToU32,
            result: ResultMeaning::Pointer,
            family: 5,
            has_algorithm: true,
            is_request: true,
        };
        assert_eq!(ProbeCookie::unpack(cookie.pack()), cookie);
    }

    proptest::proptest! {
        /// Check that any 64 bits unpack, and that packing what came out is stable.
        #[test]
        fn total(bits: u64) {
            let cookie = ProbeCookie::unpack(bits);
            assert_eq!(ProbeCookie::unpack(cookie.pack()), cookie);
        }
    }
}
