//! Every public function that signs or verifies, in OpenSSL and its forks, as one table.

use latency_common::algorithm::family;
use latency_common::probe::{LengthSource, NO_ARGUMENT, ResultMeaning};

/// What a catalogued function does; the number is its index in [`super::Plan::operations`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Operation {
    /// It makes a signature.
    Sign = 0,
    /// It checks a signature.
    Verify = 1,
}

impl Operation {
    /// The operation's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sign => "sign",
            Self::Verify => "verify",
        }
    }
}

/// One function.
#[derive(Debug)]
pub struct Entry {
    /// Its name, without a prefix or version.
    pub name: &'static str,
    /// What it does.
    pub operation: Operation,
    /// The argument that holds the signature buffer, where null asks for the size only.
    pub signature_argument: u8,
    /// How the signature's length is found.
    pub length: LengthSource,
    /// The argument that `length` speaks of.
    pub length_argument: u8,
    /// What the return value means.
    pub result: ResultMeaning,
    /// The key family that a call of it proves.
    pub family: u8,
    /// Catalogued functions that every real call of it reaches with OpenSSL's own methods.
    pub inner: &'static [&'static str],
    /// What else a program must call for libcrypto itself to come here from outside of this
    /// table's functions: texts in the names of those functions. Empty: nothing does. `None`:
    /// not known.
    pub other_callers: Option<&'static [&'static str]>,
}

impl Entry {
    /// The argument registers (bit n: argument n) that a probe of the function reads.
    pub const fn arguments_read(&self) -> u8 {
        let mut mask = 0;
        if self.signature_argument != NO_ARGUMENT {
            mask |= 1 << self.signature_argument;
        }
        if self.length_argument != NO_ARGUMENT {
            mask |= 1 << self.length_argument;
        }
        mask
    }
}

use LengthSource::{Argument, PointerToU32, PointerToU64, ReturnValue};
use Operation::{Sign, Verify};
use ResultMeaning::{Length, OneIsSuccess, Pointer};

const NO_LENGTH: LengthSource = LengthSource::None;

const fn entry(
    name: &'static str,
    operation: Operation,
    signature_argument: u8,
    (length, length_argument): (LengthSource, u8),
    result: ResultMeaning,
    family: u8,
) -> Entry {
    Entry {
        name,
        operation,
        signature_argument,
        length,
        length_argument,
        result,
        family,
        inner: &[],
        other_callers: None,
    }
}

impl Entry {
    const fn reaches(self, inner: &'static [&'static str]) -> Self {
        Self { inner, ..self }
    }

    /// libcrypto itself calls it only from this table's functions, and from others with these
    /// texts in their names. Found by following every direct call of OpenSSL 3.0's libcrypto.
    const fn only_inside(self, other_callers: &'static [&'static str]) -> Self {
        Self { other_callers: Some(other_callers), ..self }
    }
}

const NONE: (LengthSource, u8) = (NO_LENGTH, NO_ARGUMENT);
const X: u8 = NO_ARGUMENT;

/// Signed messages, time stamps among them.
const MESSAGES: &[&str] = &["CMS_", "PKCS7", "SMIME", "TS_RESP"];
/// And the timestamps of certificate logs.
const MESSAGES_OR_SCT: &[&str] = &["CMS_", "PKCS7", "SMIME", "TS_RESP", "SCT_"];

/// The functions through which libcrypto itself calls all others of an operation: always probed,
/// where the library has them.
pub const fn wrappers(operation: Operation) -> [&'static str; 2] {
    match operation {
        Sign => ["EVP_DigestSign", "EVP_PKEY_sign"],
        Verify => ["EVP_DigestVerify", "EVP_PKEY_verify"],
    }
}

/// Texts that matter in the files of a target: names of catalogued functions, of what else leads
/// to them, and of interpreters that call functions by names from a script.
pub fn texts() -> Vec<String> {
    let names = CATALOG.iter().map(|entry| entry.name);
    let callers = CATALOG.iter().filter_map(|entry| entry.other_callers).flatten().copied();
    let mut texts: Vec<String> =
        names.chain(callers).chain([LUAJIT_TEXT]).map(str::to_owned).collect();
    texts.sort();
    texts.dedup();
    texts
}

/// LuaJIT is often linked into a program statically; it names itself in its version.
pub const LUAJIT_TEXT: &str = "LuaJIT";

/// Libraries by which scripts and managed code call any function by a name that no mapped file
/// needs to hold: file names start so.
pub const FOREIGN_CALL_LIBRARIES: [&str; 6] =
    ["libffi", "libluajit", "libjvm", "libcoreclr", "libmono", "libjulia"];

/// The functions. Nesting is that of OpenSSL 1.1.1 and 3; a name that a library lacks is passed
/// over when nesting is followed.
#[rustfmt::skip] // One row, one line.
pub const CATALOG: &[Entry] = &[
    entry("EVP_DigestSign", Sign, 1, (PointerToU64, 2), OneIsSuccess, family::NONE),
    entry("EVP_DigestSignFinal", Sign, 1, (PointerToU64, 2), OneIsSuccess, family::NONE).only_inside(MESSAGES),
    entry("EVP_DigestVerify", Verify, X, (Argument, 2), OneIsSuccess, family::NONE),
    entry("EVP_DigestVerifyFinal", Verify, X, (Argument, 2), OneIsSuccess, family::NONE).only_inside(MESSAGES_OR_SCT),
    entry("EVP_PKEY_sign", Sign, 1, (PointerToU64, 2), OneIsSuccess, family::NONE),
    entry("EVP_PKEY_verify", Verify, X, (Argument, 2), OneIsSuccess, family::NONE),
    entry("EVP_PKEY_sign_message_final", Sign, 1, (PointerToU64, 2), OneIsSuccess, family::NONE),
    entry("EVP_PKEY_verify_message_final", Verify, X, NONE, OneIsSuccess, family::NONE),
    entry("EVP_SignFinal", Sign, X, (PointerToU32, 2), OneIsSuccess, family::NONE).reaches(&["EVP_SignFinal_ex"]),
    entry("EVP_SignFinal_ex", Sign, X, (PointerToU32, 2), OneIsSuccess, family::NONE).reaches(&["EVP_PKEY_sign"]),
    entry("EVP_VerifyFinal", Verify, X, (Argument, 2), OneIsSuccess, family::NONE).reaches(&["EVP_VerifyFinal_ex"]),
    entry("EVP_VerifyFinal_ex", Verify, X, (Argument, 2), OneIsSuccess, family::NONE).reaches(&["EVP_PKEY_verify"]),
    entry("RSA_sign", Sign, X, (PointerToU32, 4), OneIsSuccess, family::RSA).only_inside(&[]),
    entry("RSA_verify", Verify, X, (Argument, 4), OneIsSuccess, family::RSA).only_inside(&[]),
    entry("RSA_private_encrypt", Sign, X, (ReturnValue, X), Length, family::RSA).only_inside(&["RSA_sign_ASN1"]),
    entry("RSA_public_decrypt", Verify, X, (Argument, 0), Length, family::RSA).only_inside(&["RSA_verify_ASN1"]),
    entry("ECDSA_sign", Sign, 3, (PointerToU32, 4), OneIsSuccess, family::ECDSA).reaches(&["ECDSA_sign_ex"]).only_inside(&[]),
    entry("ECDSA_sign_ex", Sign, 3, (PointerToU32, 4), OneIsSuccess, family::ECDSA).reaches(&["ECDSA_do_sign_ex"]).only_inside(&[]),
    entry("ECDSA_verify", Verify, X, (Argument, 4), OneIsSuccess, family::ECDSA).only_inside(&[]),
    entry("ECDSA_do_sign", Sign, X, NONE, Pointer, family::ECDSA).reaches(&["ECDSA_do_sign_ex"]).only_inside(&[]),
    entry("ECDSA_do_sign_ex", Sign, X, NONE, Pointer, family::ECDSA).only_inside(&[]),
    entry("ECDSA_do_verify", Verify, X, NONE, OneIsSuccess, family::ECDSA).only_inside(&[]),
    entry("DSA_sign", Sign, 3, (PointerToU32, 4), OneIsSuccess, family::DSA),
    entry("DSA_verify", Verify, X, (Argument, 4), OneIsSuccess, family::DSA),
    entry("DSA_do_sign", Sign, X, NONE, Pointer, family::DSA).only_inside(&[]),
    entry("DSA_do_verify", Verify, X, NONE, OneIsSuccess, family::DSA).only_inside(&[]),
    entry("ED25519_sign", Sign, X, NONE, OneIsSuccess, family::ED25519),
    entry("ED25519_verify", Verify, X, NONE, OneIsSuccess, family::ED25519),
];

/// Splits the prefix that aws-lc-rs gives all symbols (`aws_lc_0_40_0_`, `aws_lc_fips_0_13_7_`)
/// off a name.
fn split_prefix(symbol: &str) -> (&str, &str) {
    let Some(rest) = symbol.strip_prefix("aws_lc_") else { return ("", symbol) };
    let rest = rest.strip_prefix("fips_").unwrap_or(rest);
    let name = rest.trim_start_matches(|it: char| it.is_ascii_digit() || it == '_');
    let version = &rest[..rest.len() - name.len()];
    if version.ends_with('_') && version.starts_with(|it: char| it.is_ascii_digit()) {
        symbol.split_at(symbol.len() - name.len())
    } else {
        ("", symbol)
    }
}

/// Finds a symbol's row, and the prefix that its name has.
pub fn find(symbol: &str) -> Option<(&str, &'static Entry)> {
    let (prefix, name) = split_prefix(symbol);
    CATALOG.iter().find(|entry| entry.name == name).map(|entry| (prefix, entry))
}

/// All functions that a call of the entry always reaches.
pub fn reached_inside(entry: &Entry) -> Vec<&'static Entry> {
    let mut reached: Vec<&'static Entry> = Vec::new();
    let mut open: Vec<&'static str> = entry.inner.to_vec();
    while let Some(name) = open.pop() {
        let Some(inner) = CATALOG.iter().find(|entry| entry.name == name) else { continue };
        if !reached.iter().any(|known| known.name == name) {
            reached.push(inner);
            open.extend(inner.inner);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that rows are distinct, inner names exist, and no argument needs more than the six
    /// registers.
    #[test]
    fn rows_are_sound() {
        for (index, row) in CATALOG.iter().enumerate() {
            assert!(CATALOG[..index].iter().all(|other| other.name != row.name), "{}", row.name);
            assert!(row.arguments_read() < 1 << 6, "{}", row.name);
            for inner in row.inner {
                let inner = CATALOG.iter().find(|entry| entry.name == *inner).expect(inner);
                assert_eq!(inner.operation, row.operation);
            }
            let has_argument = row.length_argument != NO_ARGUMENT;
            assert_eq!(
                has_argument,
                !matches!(row.length, LengthSource::None | LengthSource::ReturnValue),
                "{}",
                row.name
            );
            assert!(row.signature_argument == NO_ARGUMENT || row.operation == Operation::Sign);
            for wrapper in wrappers(row.operation) {
                let wrapper = CATALOG.iter().find(|entry| entry.name == wrapper).expect(wrapper);
                assert_eq!(wrapper.operation, row.operation);
                assert!(wrapper.other_callers.is_none(), "a wrapper is always probed");
            }
        }
    }

    /// Check that prefixed names are found, and look-alikes are not.
    #[test]
    fn prefixes() {
        let name = |symbol| find(symbol).map(|(prefix, entry)| (prefix, entry.name));
        assert_eq!(name("RSA_sign"), Some(("", "RSA_sign")));
        assert_eq!(
            name("aws_lc_0_40_0_EVP_DigestSign"),
            Some(("aws_lc_0_40_0_", "EVP_DigestSign"))
        );
        assert_eq!(name("aws_lc_fips_0_13_7_RSA_sign"), Some(("aws_lc_fips_0_13_7_", "RSA_sign")));
        for no in [
            "aws_lc_RSA_sign",
            "aws_lc__RSA_sign",
            "aws_lc_0RSA_sign",
            "my_RSA_sign",
            "",
            "aws_lc_",
        ] {
            assert_eq!(name(no), None, "{no}");
        }
    }

    /// Check that nesting is followed to its end.
    #[test]
    fn nesting() {
        let names = |name| -> Vec<_> {
            let entry = find(name).expect("catalogued").1;
            reached_inside(entry).iter().map(|entry| entry.name).collect()
        };
        assert_eq!(names("ECDSA_sign"), ["ECDSA_sign_ex", "ECDSA_do_sign_ex"]);
        assert_eq!(names("EVP_SignFinal"), ["EVP_SignFinal_ex", "EVP_PKEY_sign"]);
        assert!(names("EVP_DigestSign").is_empty());
    }

    proptest::proptest! {
        /// Check that no name makes the look-up panic.
        #[test]
        fn any_name(name: String, tail in "[0-9_a-zA-Z\u{e9}]{0,12}") {
            find(&name);
            find(&format!("aws_lc_{tail}"));
        }
    }
}
