//! Telling the signature algorithm from the public ABI alone: the signature's length, and the
//! low-level exported function (if any) that was hit inside the operation.
//!
//! DER-encoded ECDSA and DSA signatures vary by some bytes, since leading zero bytes are dropped:
//! hence ranges. A size query returns the upper end of such a range. Curves of one size (P-256,
//! secp256k1, brainpoolP256r1, SM2) cannot be told apart by length and go under the NIST name.

/// Key families seen through low-level functions, as a bit set.
pub mod family {
    /// No low-level function was hit.
    pub const NONE: u8 = 0;
    /// An `RSA_*` function was hit.
    pub const RSA: u8 = 1;
    /// An `ECDSA_*` function was hit.
    pub const ECDSA: u8 = 2;
    /// A `DSA_*` function was hit.
    pub const DSA: u8 = 4;
    /// An `ED25519_*` function was hit (BoringSSL and AWS-LC export them).
    pub const ED25519: u8 = 8;
}

/// An algorithm as the kernel side encodes it: the kind in the top 8 bits, a parameter below.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AlgorithmId(pub u32);

const KIND_SHIFT: u32 = 24;
const PARAMETER_MASK: u32 = (1 << KIND_SHIFT) - 1;

const KIND_UNKNOWN: u32 = 0;
const KIND_NONE: u32 = 1;
const KIND_RSA: u32 = 2;
const KIND_ECDSA: u32 = 3;
const KIND_DSA: u32 = 4;
const KIND_ED25519: u32 = 5;
const KIND_ED448: u32 = 6;
const KIND_ML_DSA: u32 = 7;
const KIND_SLH_DSA: u32 = 8;
const KIND_OTHER: u32 = 9;

/// An algorithm, decoded from an [`AlgorithmId`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// Nothing but a signature of this many bytes was seen.
    Unknown(u32),
    /// The function is no signature function (a user's own probe).
    None,
    /// RSA with a modulus of this many bits.
    Rsa(u32),
    /// ECDSA on a curve of this many bits; `None` when no length was visible.
    Ecdsa(Option<u32>),
    /// DSA with a subgroup order of this many bits; `None` when no length was visible.
    Dsa(Option<u32>),
    /// Ed25519.
    Ed25519,
    /// Ed448.
    Ed448,
    /// ML-DSA of this parameter set (44, 65 or 87).
    MlDsa(u32),
    /// SLH-DSA, by the length of its signature in bytes.
    SlhDsa(u32),
    /// Everything that found no histogram of its own any more.
    Other,
}

impl AlgorithmId {
    /// The functions of a user's own probes have no algorithm.
    pub const NONE: Self = Self::new(KIND_NONE, 0);
    /// The row for what found no histogram of its own any more.
    pub const OTHER: Self = Self::new(KIND_OTHER, 0);

    const fn new(kind: u32, parameter: u32) -> Self {
        Self((kind << KIND_SHIFT) | (parameter & PARAMETER_MASK))
    }

    /// Tells the algorithm from a signature's length in bytes (0: not visible) and the
    /// [`family`] bits of the low-level functions hit.
    #[inline(always)]
    pub const fn classify(signature_bytes: u32, families: u8) -> Self {
        let n = signature_bytes;
        if families & family::RSA != 0 {
            // An RSA signature is exactly as long as the modulus.
            if n >= 32 && n <= 2048 {
                return Self::new(KIND_RSA, n * 8);
            }
            return Self::new(KIND_UNKNOWN, n);
        }
        if families & family::ECDSA != 0 {
            return match n {
                0 => Self::new(KIND_ECDSA, 0),
                50..=56 => Self::new(KIND_ECDSA, 192),
                57..=64 => Self::new(KIND_ECDSA, 224),
                65..=72 => Self::new(KIND_ECDSA, 256),
                97..=104 => Self::new(KIND_ECDSA, 384),
                133..=141 => Self::new(KIND_ECDSA, 521),
                _ => Self::new(KIND_UNKNOWN, n),
            };
        }
        if families & family::DSA != 0 {
            return match n {
                0 => Self::new(KIND_DSA, 0),
                42..=48 => Self::new(KIND_DSA, 160),
                57..=64 => Self::new(KIND_DSA, 224),
                65..=72 => Self::new(KIND_DSA, 256),
                _ => Self::new(KIND_UNKNOWN, n),
            };
        }
        if families & family::ED25519 != 0 {
            return Self::new(KIND_ED25519, 0);
        }
        match n {
            54..=56 => Self::new(KIND_ECDSA, 192),
            62..=63 => Self::new(KIND_ECDSA, 224),
            64 => Self::new(KIND_ED25519, 0),
            68..=72 => Self::new(KIND_ECDSA, 256),
            100..=104 => Self::new(KIND_ECDSA, 384),
            114 => Self::new(KIND_ED448, 0),
            136..=139 | 141 => Self::new(KIND_ECDSA, 521),
            128 | 192 | 256 | 384 | 512 | 768 | 1024 | 2048 => Self::new(KIND_RSA, n * 8),
            2420 => Self::new(KIND_ML_DSA, 44),
            3309 => Self::new(KIND_ML_DSA, 65),
            4627 => Self::new(KIND_ML_DSA, 87),
            7856 | 16224 | 17088 | 29792 | 35664 | 49856 => Self::new(KIND_SLH_DSA, n),
            _ => Self::new(KIND_UNKNOWN, n),
        }
    }

    /// Decodes the id; an id of a later version is [`Algorithm::Other`].
    pub const fn algorithm(self) -> Algorithm {
        let parameter = self.0 & PARAMETER_MASK;
        let some = if parameter == 0 { None } else { Some(parameter) };
        match self.0 >> KIND_SHIFT {
            KIND_UNKNOWN => Algorithm::Unknown(parameter),
            KIND_NONE => Algorithm::None,
            KIND_RSA => Algorithm::Rsa(parameter),
            KIND_ECDSA => Algorithm::Ecdsa(some),
            KIND_DSA => Algorithm::Dsa(some),
            KIND_ED25519 => Algorithm::Ed25519,
            KIND_ED448 => Algorithm::Ed448,
            KIND_ML_DSA => Algorithm::MlDsa(parameter),
            KIND_SLH_DSA => Algorithm::SlhDsa(parameter),
            _ => Algorithm::Other,
        }
    }
}

impl core::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Unknown(0) => f.write_str("unknown"),
            Self::Unknown(bytes) => write!(f, "unknown ({bytes} bytes)"),
            Self::None => f.write_str("-"),
            Self::Rsa(bits) => write!(f, "rsa-{bits}"),
            Self::Ecdsa(None) => f.write_str("ecdsa"),
            Self::Ecdsa(Some(bits)) => write!(f, "ecdsa-p{bits}"),
            Self::Dsa(None) => f.write_str("dsa"),
            Self::Dsa(Some(bits)) => write!(f, "dsa-q{bits}"),
            Self::Ed25519 => f.write_str("ed25519"),
            Self::Ed448 => f.write_str("ed448"),
            Self::MlDsa(set) => write!(f, "ml-dsa-{set}"),
            Self::SlhDsa(bytes) => f.write_str(match bytes {
                7856 => "slh-dsa-128s",
                17088 => "slh-dsa-128f",
                16224 => "slh-dsa-192s",
                35664 => "slh-dsa-192f",
                29792 => "slh-dsa-256s",
                49856 => "slh-dsa-256f",
                _ => "slh-dsa",
            }),
            Self::Other => f.write_str("other"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bytes: u32, families: u8) -> String {
        AlgorithmId::classify(bytes, families).algorithm().to_string()
    }

    /// Check that every length of design.md's list is named as it says.
    #[test]
    fn lengths_name_algorithms() {
        for (range, expected) in [
            (64..=64, "ed25519"),
            (68..=72, "ecdsa-p256"),
            (100..=104, "ecdsa-p384"),
            (136..=139, "ecdsa-p521"),
            (256..=256, "rsa-2048"),
            (384..=384, "rsa-3072"),
            (512..=512, "rsa-4096"),
            (2420..=2420, "ml-dsa-44"),
            (3309..=3309, "ml-dsa-65"),
            (4627..=4627, "ml-dsa-87"),
        ] {
            for bytes in range {
                assert_eq!(name(bytes, family::NONE), expected, "{bytes}");
            }
        }
        assert_eq!(name(300, family::NONE), "unknown (300 bytes)");
        assert_eq!(name(0, family::NONE), "unknown");
    }

    /// Check that the low-level function decides where the length alone is ambiguous.
    #[test]
    fn family_decides_ambiguous_lengths() {
        assert_eq!(name(64, family::ECDSA), "ecdsa-p224");
        assert_eq!(name(64, family::RSA), "rsa-512");
        assert_eq!(name(71, family::DSA), "dsa-q256");
        assert_eq!(name(66, family::ECDSA), "ecdsa-p256");
        assert_eq!(name(0, family::ECDSA), "ecdsa");
        assert_eq!(name(128, family::RSA), "rsa-1024");
        assert_eq!(name(10, family::ECDSA), "unknown (10 bytes)");
    }

    proptest::proptest! {
        /// Check that no length and no id panics, and that names are never empty.
        #[test]
        fn total(bytes: u32, families: u8, id: u32) {
            assert!(!name(bytes, families).is_empty());
            assert!(!AlgorithmId(id).algorithm().to_string().is_empty());
        }
    }
}
