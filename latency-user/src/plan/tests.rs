use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::*;
use crate::target::{ElfFacts, FileId, Function, Segment, Target};

const PUSH: &[u8] = &[0x53, 0xc3];
const SUB_RSP: &[u8] = &[0x48, 0x83, 0xec, 0x08, 0xc3];
/// Where the code of made-up files starts, in the file and in memory.
const CODE_OFFSET: u64 = 0x40;
const CODE_ADDRESS: u64 = 0x40_1040;

/// Makes up a mapped file with these functions, 16 bytes apart.
fn file(path: &str, functions: &[(&str, &[u8])]) -> ElfFile {
    let mut content = vec![0; CODE_OFFSET as usize];
    let mut facts =
        ElfFacts { has_symbols: true, texts: Some(BTreeSet::new()), ..ElfFacts::default() };
    for (index, (name, code)) in functions.iter().enumerate() {
        facts.functions.push(Function {
            name: (*name).to_owned(),
            value: CODE_ADDRESS + 16 * index as u64,
            size_bytes: code.len() as u64,
            is_ifunc: false,
        });
        content.extend_from_slice(code);
        content.resize(CODE_OFFSET as usize + 16 * (index + 1), 0xcc);
    }
    facts.executable_segments.push(Segment {
        virtual_address: CODE_ADDRESS,
        file_offset: CODE_OFFSET,
        size_bytes: content.len() as u64 - CODE_OFFSET,
    });
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(&content).expect("written");
    let path = PathBuf::from(path);
    let name = path.file_name().expect("name").to_str().expect("UTF-8");
    if name.contains(".so") {
        facts.soname = Some(name.to_owned());
    }
    ElfFile {
        expected: false,
        is_main_executable: !name.contains(".so"),
        path,
        deleted: false,
        id: FileId { major: 0, minor: 0, inode: 1 },
        file,
        facts,
    }
}

fn importing(path: &str, imports: &[&str]) -> ElfFile {
    let mut file = file(path, &[]);
    file.facts.imports = imports.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    file.facts.texts = Some(file.facts.imports.clone());
    file
}

fn plan(files: &[ElfFile]) -> Plan {
    Plan::new(files, &Options::default()).expect("planned")
}

fn user(probes: &[&str]) -> Options {
    let user_probes = probes.iter().map(|text| UserProbe::parse(text).expect(text)).collect();
    Options { user_probes, probe_all: false }
}

fn planned(plan: &Plan) -> Vec<&str> {
    plan.probes.iter().map(|probe| probe.symbol.as_str()).collect()
}

fn reasons(plan: &Plan) -> Vec<(&str, &str)> {
    plan.skipped.iter().map(|it| (it.symbol.as_str(), it.reason.as_str())).collect()
}

/// Check that offsets are those in the file, that cookies follow the catalogue, and that indices
/// are positions.
#[test]
fn probes_are_plain_data() {
    let code: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa, 0x53, 0xc3];
    let files = [file("/app", &[("RSA_verify", PUSH), ("EVP_DigestSign", code)])];
    let plan = plan(&files);
    assert_eq!(planned(&plan), ["EVP_DigestSign", "RSA_verify"]);
    let [sign, verify] = &plan.probes[..] else { panic!("two probes") };
    assert_eq!((sign.function_offset, sign.site_offset), (0x50, 0x54));
    assert_eq!((verify.function_offset, verify.site_offset), (0x40, 0x40));
    assert_eq!((sign.price, sign.operation.as_str()), (Price::Emulated, "sign"));
    assert_eq!((sign.cookie.operation, verify.cookie.operation), (0, 1));
    assert_eq!((sign.cookie.probe, verify.cookie.probe), (0, 1));
    assert_eq!((sign.cookie.signature_argument, sign.cookie.length_argument), (1, 2));
    assert_eq!(sign.cookie.length, LengthSource::PointerToU64);
    assert_eq!(verify.cookie.family, family::RSA);
    assert!(sign.cookie.has_algorithm && !sign.user);
    assert_eq!(plan.operations, ["sign", "verify"]);
}

/// Check that a dear probe is left out only where nothing is lost: in libcrypto, not imported,
/// and seen by a cheap inner function or through those that call it.
#[test]
fn dear_probes_are_left_out() {
    let functions: [(&str, &[u8]); 5] = [
        ("EVP_SignFinal", SUB_RSP),
        ("EVP_SignFinal_ex", SUB_RSP),
        ("EVP_PKEY_sign", PUSH),
        ("RSA_private_encrypt", SUB_RSP),
        ("EVP_PKEY_verify", SUB_RSP),
    ];
    let library = || file("/lib/libcrypto.so.3", &functions);
    let alone = plan(&[library()]);
    assert_eq!(planned(&alone), ["EVP_PKEY_sign", "EVP_PKEY_verify", "RSA_private_encrypt"]);
    let reasons = reasons(&alone);
    assert!(reasons[0].0 == "EVP_SignFinal" && reasons[0].1.contains("reaches EVP_PKEY_sign"));
    assert!(reasons[1].0 == "EVP_SignFinal_ex" && reasons[1].1.contains("--probe-all"));

    let imported = plan(&[library(), importing("/app", &["EVP_SignFinal"])]);
    assert_eq!(
        planned(&imported),
        ["EVP_PKEY_sign", "EVP_PKEY_verify", "EVP_SignFinal", "RSA_private_encrypt"]
    );
    let all = Options { probe_all: true, ..Options::default() };
    assert_eq!(Plan::new(&[library()], &all).expect("planned").probes.len(), 5);
    assert_eq!(plan(&[file("/app", &functions)]).probes.len(), 5, "a static copy");
    assert_eq!(plan(&[file("/lib/plugin.so", &functions)]).probes.len(), 5, "a plug-in's copy");
}

/// Check that functions that are only called from within others are left out, however cheap, until
/// some file mentions them, or what else leads to them, or can call by any name.
#[test]
fn nested_probes_are_left_out() {
    let functions: [(&str, &[u8]); 5] = [
        ("EVP_DigestSign", PUSH),
        ("EVP_DigestSignFinal", PUSH),
        ("EVP_PKEY_sign", PUSH),
        ("RSA_sign", PUSH),
        ("DSA_sign", PUSH),
    ];
    let library = || file("/lib/libcrypto.so.3", &functions);
    let with = |file| planned(&plan(&[library(), file])).join(" ");
    let outer = "EVP_DigestSign EVP_PKEY_sign DSA_sign";
    let all = "EVP_DigestSign EVP_DigestSignFinal EVP_PKEY_sign RSA_sign DSA_sign";
    assert_eq!(with(importing("/app", &["EVP_DigestSign"])), outer);
    assert_eq!(
        with(importing("/app", &["RSA_sign"])),
        "EVP_DigestSign EVP_PKEY_sign RSA_sign DSA_sign"
    );
    assert_eq!(
        with(importing("/lib/mail.so", &["CMS_"])),
        "EVP_DigestSign EVP_DigestSignFinal EVP_PKEY_sign DSA_sign"
    );
    assert_eq!(with(importing("/lib/libffi.so.8", &[])), all);
    assert_eq!(with(importing("/app", &["LuaJIT"])), all);
    let mut unread = importing("/app", &[]);
    unread.facts.texts = None;
    assert_eq!(with(unread), all, "what was not searched may mention anything");
    let mut expected = importing("/lib/libssl.so.3", &["RSA_sign"]);
    expected.expected = true;
    assert_eq!(with(expected), outer, "what is not mapped calls nothing");
    let old = file("/lib/libcrypto.so.1.0.0", &functions[2..]);
    assert_eq!(planned(&plan(&[old])).len(), 3, "without the wrappers, nothing is known");
}

/// Check that an inner function of another prefix does not stand in, and full names are shown.
#[test]
fn prefixed_symbols() {
    let functions: [(&str, &[u8]); 2] =
        [("aws_lc_0_40_0_ECDSA_sign", SUB_RSP), ("ECDSA_do_sign_ex", PUSH)];
    let plan = plan(&[file("/lib/libcrypto.so", &functions)]);
    assert_eq!(planned(&plan), ["aws_lc_0_40_0_ECDSA_sign", "ECDSA_do_sign_ex"]);
}

/// Check that symbols of one place are one probe, and that the catalogue's own name is preferred.
#[test]
fn aliases() {
    let mut app = file("/app", &[("aws_lc_0_1_0_RSA_sign", PUSH), ("RSA_verify", PUSH)]);
    let alias = |name: &str, value| Function {
        name: name.to_owned(),
        value,
        size_bytes: 2,
        is_ifunc: false,
    };
    app.facts.functions.push(alias("RSA_sign", CODE_ADDRESS));
    app.facts.functions.push(alias("DSA_verify", CODE_ADDRESS + 16));
    let plan = plan(&[app]);
    assert_eq!(planned(&plan), ["RSA_sign", "RSA_verify"]);
    assert_eq!(reasons(&plan), [("DSA_verify", "it is the same code as RSA_verify")]);
}

/// Check that ifuncs, functions outside the code and files with Go are passed over with reasons.
#[test]
fn unsuitable_functions() {
    let mut app = file("/app", &[("RSA_sign", PUSH), ("RSA_verify", PUSH), ("DSA_sign", PUSH)]);
    app.facts.functions[0].is_ifunc = true;
    app.facts.functions[1].value = 0x10;
    let mut go = file("/go", &[("RSA_sign", PUSH)]);
    go.facts.has_go_runtime = true;
    let files = [app, go];
    let plan = plan(&files);
    assert_eq!(planned(&plan), ["DSA_sign"]);
    let texts: Vec<_> = plan.skipped.iter().map(|skipped| skipped.reason.as_str()).collect();
    assert!(texts[0].contains("ifunc") && texts[1].contains("segment") && texts[2].contains("Go"));
    let error = Plan::new(&files, &user(&["go:RSA_sign"])).expect_err("Go").to_string();
    assert!(error.contains("Go runtime"), "{error}");
}

/// Check user probes: by name and by offset, joining an operation, taking a catalogued place.
#[test]
fn user_probes() {
    let files = [file("/opt/app", &[("RSA_sign", PUSH), ("hsm_sign", PUSH), ("x", SUB_RSP)])];
    let options = user(&["app:hsm_sign=hsm", "/opt/app:0x60=sign", "app:RSA_sign"]);
    let plan = Plan::new(&files, &options).expect("planned");
    assert_eq!(planned(&plan), ["hsm_sign", "0x60", "RSA_sign"]);
    assert_eq!(plan.operations, ["sign", "verify", "hsm", "RSA_sign"]);
    let operations: Vec<_> = plan.probes.iter().map(|probe| probe.cookie.operation).collect();
    assert_eq!(operations, [2, 0, 3]);
    assert!(plan.probes.iter().all(|probe| probe.user && !probe.cookie.has_algorithm));
    assert_eq!(plan.probes[1].price, Price::SingleStepped);
    assert_eq!(plan.skipped.len(), 1, "the catalogued RSA_sign");

    let wanted = options.wanted();
    let wanted = |name: &str| (wanted.is_name)(name);
    assert!(wanted("hsm_sign") && wanted("EVP_DigestSign") && !wanted("main"));
}

/// Check that a user's probe without a place names what is there.
#[test]
fn user_probe_errors() {
    let files = [file("/lib/libfoo.so.1", &[("RSA_sign", PUSH)]), file("/app", &[])];
    let error = |text| Plan::new(&files, &user(&[text])).expect_err(text).to_string();
    assert!(error("libfoo.so.2:f").contains("did you mean /lib/libfoo.so.1?"));
    assert!(error("libbar.so:f").contains("libfoo.so.1, app"));
    assert!(error("libfoo.so.1:f").contains("defines no function f"));
    assert!(error("libfoo.so.1:0x1=f").contains("no executable segment"));
    let names: Vec<_> = (0..254).map(|n| format!("libfoo.so.1:RSA_sign=n{n}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    assert!(Plan::new(&files, &user(&names[..253])).is_ok());
    assert!(Plan::new(&files, &user(&names)).is_err());
}

/// Check that later files only append, and that a new importer brings a skipped function back.
#[test]
fn later_files() {
    let functions: [(&str, &[u8]); 4] = [
        ("EVP_DigestSign", PUSH),
        ("EVP_PKEY_sign", PUSH),
        ("ECDSA_sign", SUB_RSP),
        ("ECDSA_do_sign_ex", PUSH),
    ];
    let mut files = vec![file("/lib/libcrypto.so.3", &functions)];
    let mut plan = plan(&files);
    let before = plan.probes.clone();
    assert_eq!((before.len(), plan.skipped.len()), (2, 2));
    assert_eq!(plan.extend(&files), 2..2);
    files.push(importing("/lib/engine.so", &["ECDSA_sign"]));
    files.push(file("/lib/other.so", &[("RSA_sign", PUSH)]));
    assert_eq!(plan.extend(&files), 2..4);
    assert_eq!(plan.probes[..2], before[..]);
    assert_eq!(planned(&plan)[2..], ["ECDSA_sign", "RSA_sign"]);
    assert_eq!(plan.probes[3].cookie.probe, 3);
    assert_eq!(plan.skipped.len(), 1);
}

/// Check that no more probes are planned than a cookie can number.
#[test]
fn too_many_probes() {
    let files: Vec<_> =
        (0..2).map(|n| file(&format!("/{n}"), &vec![("RSA_sign", PUSH); 2100])).collect();
    let plan = plan(&files);
    assert_eq!(plan.probes.len(), MAX_PROBES);
    assert_eq!(plan.probes[MAX_PROBES - 1].cookie.probe, 4095);
    assert_eq!(plan.skipped.len(), 4200 - MAX_PROBES);
    assert!(plan.warnings.iter().any(|text| text.contains("4096")));
}

/// Check that an empty plan names a stripped static copy, with its build id and the ways out.
#[test]
fn empty_plans_are_explained() {
    let mut app = file("/opt/app", &[]);
    app.facts.openssl_version = Some("OpenSSL 3.0.22 25 Aug 2026".into());
    app.facts.build_id = Some("c0ffee".into());
    let files = [app];
    assert!(plan(&files).warnings.is_empty(), "said once, in the explanation");
    let text = explain::explain("process 7 (app)", &files, &plan(&files));
    for part in ["process 7", "/opt/app", "c0ffee", "OpenSSL 3.0.22", "--probe app:0xOFFSET=sign"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let files = [file("/bin/sleep", &[])];
    let text = explain::explain("process 8 (sleep)", &files, &plan(&files));
    assert!(text.contains("sleep") && text.contains("--probe"), "{text}");
}

/// Check that a nameless copy beside a library that is probed is not passed over in silence, and
/// that users of the library are not taken for copies.
#[test]
fn nameless_copies_are_told() {
    let mut copy = file("/lib/_rust.abi3.so", &[]);
    copy.facts.openssl_version = Some("OpenSSL 3.5.0 8 Apr 2025".into());
    let mut files = [file("/lib/libcrypto.so.3", &[("RSA_sign", PUSH)]), copy];
    let warnings = plan(&files).warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("OpenSSL 3.5.0"), "{warnings:?}");
    files[1].facts.needed.push("libcrypto.so.3".into());
    assert!(plan(&files).warnings.is_empty());
}

/// Check that of two user probes on one place the second is told to be left out.
#[test]
fn user_probes_on_one_place() {
    let files = [file("/app", &[("f", PUSH)])];
    let plan = Plan::new(&files, &user(&["app:f=a", "app:0x40=b", "app:f=c"])).expect("planned");
    assert_eq!(planned(&plan), ["f"]);
    assert_eq!(plan.skipped.len(), 2);
}

/// Check that requests get names after the operations', that a function asked for as both is a
/// request, and that no name is both.
#[test]
fn requests() {
    let files = [file("/app", &[("handle", PUSH), ("hash", PUSH)])];
    let mut options = user(&["app:handle=work", "app:hash"]);
    let request = |text| UserProbe::parse_request(text).expect(text);
    options.user_probes.insert(0, request("app:handle=request"));
    let plan = Plan::new(&files, &options).expect("planned");
    assert_eq!(plan.operations, ["sign", "verify", "work", "hash", "request"]);
    assert_eq!(planned(&plan), ["handle", "hash"]);
    let [handle, hash] = &plan.probes[..] else { panic!() };
    assert_eq!((&*handle.operation, handle.cookie.operation), ("request", 4));
    assert!(handle.is_request && handle.cookie.is_request);
    assert!(!hash.is_request && !hash.cookie.is_request);
    assert_eq!(reasons(&plan), [("handle", "the probe on handle sits on the same instruction")]);
    options.user_probes.push(request("app:handle=hash"));
    let error = Plan::new(&files, &options).expect_err("refused").to_string();
    assert!(error.starts_with("--request app:handle=hash: operations have the name"), "{error}");
    let missing = Options { user_probes: vec![request("app:none")], ..Options::default() };
    let error = Plan::new(&files, &missing).expect_err("no such function").to_string();
    assert!(error.starts_with("--request app:none=none: /app defines no"), "{error}");
}

/// Check the plan for a real process that signs: every offset is what readelf's addresses and
/// segments give, and every cheap site holds an emulated instruction.
#[test]
fn real_libcrypto() {
    let mut command = Command::new("openssl");
    command.args(["speed", "-seconds", "20", "ed25519"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut openssl) = command.spawn() else {
        eprintln!("skipped: openssl is not installed");
        return;
    };
    let options = Options::default();
    let mut target = None;
    for _ in 0..500 {
        target = Target::open(openssl.id(), options.wanted()).ok();
        let has_libcrypto =
            |target: &Target| target.files.iter().any(|it| it.name().starts_with("libcrypto"));
        if target.as_ref().is_some_and(has_libcrypto) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let target = target.expect("opened");
    let plan = Plan::new(&target.files, &options).expect("planned");
    openssl.kill().expect("killed");
    openssl.wait().expect("reaped");

    assert!(plan.probes.iter().any(|probe| probe.symbol == "EVP_DigestSign"));
    for probe in &plan.probes {
        println!(
            "{:28} {:#x}+{} {} {}",
            probe.symbol,
            probe.function_offset,
            probe.site_offset - probe.function_offset,
            probe.price,
            target.files[probe.file].name()
        );
    }
    for skipped in &plan.skipped {
        println!("{:28} skipped: {}", skipped.symbol, skipped.reason);
    }
    for text in plan.warnings.iter().chain(&target.notes) {
        println!("{text}");
    }
    let library = target.files.iter().find(|it| it.name().starts_with("libcrypto")).expect("one");
    let path = library.path.to_str().expect("UTF-8");
    let Ok(output) = Command::new("readelf").args(["-lW", "--dyn-syms", path]).output() else {
        eprintln!("skipped: readelf is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hex");
    let code =
        text.lines().find(|line| line.contains("LOAD") && line.contains("R E")).expect("code");
    let code: Vec<&str> = code.split_whitespace().collect();
    for probe in plan.probes.iter().filter(|it| target.files[it.file].name() == library.name()) {
        let wanted = format!(" {}@", probe.symbol);
        let symbol = text.lines().find(|line| line.contains(&wanted)).expect("symbol");
        let value = hex(symbol.split_whitespace().nth(1).expect("value"));
        assert_eq!(probe.function_offset, value - hex(code[2]) + hex(code[1]), "{}", probe.symbol);
    }
}
