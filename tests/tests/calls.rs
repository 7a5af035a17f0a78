//! Every way of signing with OpenSSL: N calls must be N operations of the right algorithm.

use latency_tests::{Build, Report, Tracer, Workload, exclusive};

/// Traces one mode of signloop, from before its first operation to after its last.
#[track_caller]
fn traced(linked: Build, mode: &str, count: u32) -> (Report, u64) {
    let _machine = exclusive();
    let mut signloop = Workload::signloop(linked, mode, count);
    let tracer = Tracer::attach(signloop.pid(), &[]);
    let truth = signloop.work();
    let report = tracer.stop().report();
    signloop.end();
    assert_eq!(report.operations(), truth.operations(), "{mode}");
    report.assert_no_loss();
    (report, truth.number("/abandoned"))
}

macro_rules! modes {
    ($($(#[$doc:meta])* $test:ident: $mode:literal, $count:literal;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $test() {
            let (report, _) = traced(Build::Shared, $mode, $count);
            assert_eq!(report.incomplete_calls(), 0);
        }
    )*};
}

modes! {
    /// Check that EVP_DigestSign and EVP_DigestVerify are counted once each.
    evp_digestsign: "evp-digestsign", 500;
    /// Check that EVP_DigestSignFinal and EVP_DigestVerifyFinal are counted once each.
    evp_digestsign_final: "evp-digestsign-final", 500;
    /// Check that EVP_PKEY_sign and EVP_PKEY_verify are counted once each.
    evp_pkey_sign: "evp-pkey-sign", 500;
    /// Check that EVP_SignFinal and EVP_VerifyFinal are counted once each.
    evp_signfinal: "evp-signfinal", 100;
    /// Check that RSA_sign and RSA_verify, called directly, are counted once each.
    rsa_sign_direct: "rsa-sign-direct", 100;
    /// Check that RSA_private_encrypt, called directly, is a signature.
    rsa_private_encrypt: "rsa-private-encrypt", 100;
    /// Check that RSA-PSS, which takes other paths inside, is counted once.
    rsa_pss: "rsa-pss", 100;
    /// Check that ECDSA_sign and ECDSA_verify, called directly, are counted once each.
    ecdsa_sign_direct: "ecdsa-sign-direct", 500;
    /// Check that ECDSA_do_sign, whose signature has no visible length, is counted as ECDSA.
    ecdsa_do_sign: "ecdsa-do-sign", 500;
    /// Check that DSA_sign and DSA_verify are told from ECDSA, whose signatures are as long.
    dsa: "dsa", 200;
    /// Check that Ed25519, which has no function of its own, is counted.
    ed25519: "ed25519", 500;
    /// Check that P-384 is told by its length.
    p384: "p384", 100;
    /// Check that P-521 is told by its length.
    p521: "p521", 100;
    /// Check that RSA-3072 is told by its length.
    rsa_3072: "rsa-3072", 50;
    /// Check that RSA-4096 is told by its length.
    rsa_4096: "rsa-4096", 30;
    /// Check that refused signatures are operations, and failures.
    verify_fail: "verify-fail", 500;
    /// Check that calls that only ask for the size are no operations, and counted apart.
    size_query_only: "size-query-only", 500;
}

/// Check that a call that was jumped out of pairs with no later return, and is counted.
#[test]
fn longjmp_out_of_a_call() {
    let (report, abandoned) = traced(Build::Shared, "longjmp", 100);
    assert_eq!(report.incomplete_calls(), abandoned);
    // A wrong pair would span a whole call more than there is.
    let row = report.row("sign", "rsa-2048");
    assert!(row.latency_ns("p50") > 50_000, "shorter than any RSA-2048 signature");
}

/// Check that threads that end inside a call leave nothing behind: the target lives, and all
/// whole calls are counted.
#[test]
fn threads_that_end_inside_a_call() {
    let (report, abandoned) = traced(Build::Shared, "thread-churn", 2000);
    assert_eq!(abandoned, 2000);
    assert_eq!(report.incomplete_calls(), abandoned);
}

/// Check that OpenSSL inside a static executable is found by the executable's own symbols.
#[test]
fn static_executable() {
    traced(Build::Static, "evp-digestsign", 500);
}
