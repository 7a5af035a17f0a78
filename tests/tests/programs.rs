//! Programs that people really run: each prints or implies how many signatures it made.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use latency_tests::{Process, Recorded, Report, Tracer, exclusive, skip};

const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a command that has nothing to do with tracing.
#[track_caller]
fn run(command: &[&str]) {
    let finished = Process::run(Command::new(command[0]).args(&command[1..]), PATIENCE);
    assert!(finished.status.success(), "{command:?}: {}", finished.stderr);
}

/// Records a command from its start; it must succeed.
#[track_caller]
fn recorded(command: &[&str]) -> (Recorded, Report) {
    let recorded = Recorded::of(&[], command);
    assert!(
        recorded.finished.status.success(),
        "{command:?}: {}\n{}",
        recorded.finished.status,
        recorded.finished.stderr
    );
    let report = recorded.report();
    report.assert_no_loss();
    (recorded, report)
}

/// Whether a program can be started at all.
fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|done| done.status.success())
}

/// A folder with a key of each kind, a message and its digest.
struct Desk(tempfile::TempDir);

impl Desk {
    #[track_caller]
    fn new() -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        std::fs::write(desk.0.path().join("message"), "a message to be signed\n").unwrap();
        for (name, arguments) in [
            ("ec", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"][..]),
            ("rsa", &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]),
            ("ed", &["-algorithm", "ED25519"]),
        ] {
            let (key, public) = (desk.path(name), desk.path(&format!("{name}.pub")));
            run(&[&["openssl", "genpkey", "-quiet", "-out", &key], arguments].concat());
            run(&["openssl", "pkey", "-in", &key, "-pubout", "-out", &public]);
        }
        let digest = desk.path("digest");
        run(&["openssl", "dgst", "-sha256", "-binary", "-out", &digest, &desk.path("message")]);
        desk
    }

    fn path(&self, name: &str) -> String {
        Path::join(self.0.path(), name).to_str().expect("a plain path").to_owned()
    }

    /// Records `openssl ARGUMENTS` and requires exactly one operation.
    #[track_caller]
    fn one_operation(&self, operation: &str, algorithm: &str, arguments: &[&str]) {
        let (_, report) = recorded(&[&["openssl"], arguments].concat());
        let operations = report.operations();
        let expected = (operation.to_owned(), algorithm.to_owned());
        let completed = operations.iter().filter(|(_, (count, _, _))| *count > 0);
        let found: Vec<_> = completed.map(|(name, (count, _, _))| (name.clone(), *count)).collect();
        assert_eq!(found, [(expected, 1)], "openssl {arguments:?}");
    }
}

/// Check that `openssl speed`, traced from its start, has as many operations as it printed.
#[test]
fn openssl_speed() {
    let _machine = exclusive();
    let (recorded, report) = recorded(&["openssl", "speed", "-seconds", "2", "ecdsap256"]);
    let printed = |what: &str| -> u64 {
        let text = &recorded.finished.stderr;
        let end = text.find(what).unwrap_or_else(|| panic!("no {what:?} in {text}"));
        text[..end].rsplit(' ').next().unwrap().parse().expect("a count")
    };
    // Before each of its two loops, speed tries the operation once.
    let signs = printed(" 256 bits ECDSA signs in") + 1;
    let verifies = printed(" 256 bits ECDSA verify in") + 1;
    assert_eq!(report.row("sign", "ecdsa-p256").number("count"), signs);
    assert_eq!(report.row("verify", "ecdsa-p256").number("count"), verifies);
    assert_eq!(report.operations().len(), 2);
}

/// Check that `openssl dgst -sign` and `-verify`, a process each, are one operation each.
#[test]
fn openssl_dgst() {
    let _machine = exclusive();
    let desk = Desk::new();
    let (message, signature) = (desk.path("message"), desk.path("signature"));
    for (key, algorithm) in [("ec", "ecdsa-p256"), ("rsa", "rsa-2048")] {
        let (private, public) = (desk.path(key), desk.path(&format!("{key}.pub")));
        for _ in 0..2 {
            let sign = ["dgst", "-sha256", "-sign", &private, "-out", &signature, &message];
            desk.one_operation("sign", algorithm, &sign);
        }
        let verify = ["dgst", "-sha256", "-verify", &public, "-signature", &signature, &message];
        desk.one_operation("verify", algorithm, &verify);
    }
}

/// Check that RSA-PSS, which goes past RSA_sign, is one operation.
#[test]
fn openssl_pss() {
    let _machine = exclusive();
    let desk = Desk::new();
    let (key, message, signature) = (desk.path("rsa"), desk.path("message"), desk.path("sig"));
    let pss = "rsa_padding_mode:pss";
    let sign = ["dgst", "-sha256", "-sigopt", pss, "-sign", &key, "-out", &signature, &message];
    desk.one_operation("sign", "rsa-2048", &sign);
}

/// Check that `openssl pkeyutl` is one operation for each kind of key.
#[test]
fn openssl_pkeyutl() {
    let _machine = exclusive();
    let desk = Desk::new();
    let (digest, message, signature) =
        (desk.path("digest"), desk.path("message"), desk.path("signature"));
    for (key, algorithm) in [("ec", "ecdsa-p256"), ("rsa", "rsa-2048")] {
        let key = desk.path(key);
        let sign = ["pkeyutl", "-sign", "-inkey", &key, "-in", &digest, "-out", &signature];
        desk.one_operation("sign", algorithm, &sign);
    }
    let (key, public) = (desk.path("ed"), desk.path("ed.pub"));
    let sign = ["pkeyutl", "-sign", "-rawin", "-inkey", &key, "-in", &message, "-out", &signature];
    desk.one_operation("sign", "ed25519", &sign);
    let verify = [
        &["pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", &public, "-in", &message][..],
        &["-sigfile", &signature],
    ];
    desk.one_operation("verify", "ed25519", &verify.concat());
}

/// Check that a shell loop of signing processes leaves its own report empty with a warning: the
/// shell signs nothing itself.
#[test]
fn shell_loop_is_not_the_signer() {
    let _machine = exclusive();
    let desk = Desk::new();
    let script = format!(
        "for i in 1 2 3; do openssl dgst -sha256 -sign {} {} | wc -c; done",
        desk.path("rsa"),
        desk.path("message")
    );
    let recorded = Recorded::of(&[], &["sh", "-c", &script]);
    assert!(recorded.finished.status.success(), "{}", recorded.finished.stderr);
    assert_eq!(recorded.finished.stdout.split_whitespace().collect::<Vec<_>>(), ["256"; 3]);
    let report = recorded.report();
    assert_eq!(report.count("sign"), 0);
    assert_ne!(report.warnings(), "[]", "a report with nothing in it says why");
}

/// Check that Node's `crypto.sign` and `crypto.verify` are counted, wherever its OpenSSL lies.
#[test]
fn node() {
    let _machine = exclusive();
    if !is_there("node") {
        skip!("node", "node is not installed");
    }
    let script = "
        const c = require('crypto'), data = Buffer.from('message');
        const keys = c.generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
        for (let i = 0; i < 60; i++) {
            const signature = c.sign('sha256', data, keys.privateKey);
            const text = i % 10 == 0 ? Buffer.from('other') : data;
            if (c.verify('sha256', text, keys.publicKey, signature) != (i % 10 != 0))
                process.exit(1);
        }
        console.log('done');";
    let (recorded, report) = recorded(&["node", "-e", script]);
    assert_eq!(recorded.finished.stdout, "done\n");
    assert_eq!(report.row("sign", "ecdsa-p256").number("count"), 60);
    assert_eq!(report.row("verify", "ecdsa-p256").number("count"), 60);
    assert_eq!(report.row("verify", "ecdsa-p256").number("failures"), 6);
}

/// Attaches to a Python script that says "ready", waits for a line, and signs.
#[track_caller]
fn python(script: &str) -> Report {
    let mut target = Process::start(Command::new("python3").args(["-c", script]));
    target.wait_stdout("ready");
    let tracer = Tracer::attach(target.pid(), &[]);
    target.send_line();
    target.wait_stdout("done");
    let report = tracer.stop().report();
    target.send_line();
    let finished = target.finish();
    assert!(finished.status.success(), "{}", finished.stderr);
    report.assert_no_loss();
    report
}

/// Check that Python calling the system's libcrypto is counted.
#[test]
fn python_ctypes() {
    let _machine = exclusive();
    if !is_there("python3") {
        skip!("python_ctypes", "python3 is not installed");
    }
    let report = python(
        "
import ctypes, sys
lib = ctypes.CDLL('libcrypto.so.3')
p, size = ctypes.c_void_p, ctypes.c_size_t
for name in ('EVP_PKEY_Q_keygen', 'EVP_MD_CTX_new', 'EVP_sha256'):
    getattr(lib, name).restype = p
lib.EVP_DigestSignInit.argtypes = [p, p, p, p, p]
lib.EVP_DigestSign.argtypes = [p, ctypes.c_char_p, ctypes.POINTER(size), ctypes.c_char_p, size]
lib.EVP_DigestSign.restype = ctypes.c_int
lib.EVP_MD_CTX_reset.argtypes = [p]
key = lib.EVP_PKEY_Q_keygen(None, None, b'EC', b'P-256')
context, out = lib.EVP_MD_CTX_new(), ctypes.create_string_buffer(128)
print('ready', flush=True)
sys.stdin.readline()
for i in range(80):
    lib.EVP_MD_CTX_reset(context)
    assert lib.EVP_DigestSignInit(context, None, lib.EVP_sha256(), None, key) == 1
    length = size()
    assert lib.EVP_DigestSign(context, None, ctypes.byref(length), b'message', 7) == 1
    assert lib.EVP_DigestSign(context, out, ctypes.byref(length), b'message', 7) == 1
print('done', flush=True)
sys.stdin.readline()
",
    );
    let row = report.row("sign", "ecdsa-p256");
    assert_eq!((row.number("count"), row.number("size_queries")), (80, 80));
    assert_eq!(report.count("sign") + report.count("verify"), 80);
}

/// Check that Python's `cryptography`, whose OpenSSL lies inside its own module under local
/// symbols, is counted.
#[test]
fn python_cryptography() {
    let _machine = exclusive();
    let import = Command::new("python3").args(["-c", "import cryptography"]).output();
    if !import.is_ok_and(|done| done.status.success()) {
        skip!("python_cryptography", "python3 has no module cryptography");
    }
    let report = python(
        "
import sys
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
key, other = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()
print('ready', flush=True)
sys.stdin.readline()
for i in range(50):
    signature = key.sign(b'message', ec.ECDSA(hashes.SHA256()))
    key.public_key().verify(signature, b'message', ec.ECDSA(hashes.SHA256()))
    other.public_key().verify(other.sign(b'message'), b'message')
print('done', flush=True)
sys.stdin.readline()
",
    );
    for operation in ["sign", "verify"] {
        for algorithm in ["ecdsa-p256", "ed25519"] {
            let row = report.row(operation, algorithm);
            assert_eq!(row.number("count"), 50, "{operation} {algorithm}");
        }
        assert_eq!(report.count(operation), 100);
    }
}
