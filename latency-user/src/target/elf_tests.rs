use std::io::{Seek, Write};
use std::process::Command;

use super::*;
use proptest::prelude::*;

const LIBCRYPTO: &str = "/usr/lib/x86_64-linux-gnu/libcrypto.so.3";

fn wanted(is_name: fn(&str) -> bool) -> Wanted {
    Wanted::new(is_name, vec!["EVP_DigestSignFinal".into(), "strlen".into()])
}

fn facts_of(path: &str, is_name: fn(&str) -> bool) -> Option<ElfFacts> {
    match File::open(path) {
        Ok(file) => Some(read(&file, &wanted(is_name))),
        Err(error) => {
            eprintln!("skipped: {path}: {error}");
            None
        }
    }
}

/// Check that values, sizes and the build id are those that readelf shows.
#[test]
fn agrees_with_readelf() {
    let Some(facts) = facts_of(LIBCRYPTO, |name| name.starts_with("EVP_DigestSign")) else {
        return;
    };
    let Ok(output) = Command::new("readelf").args(["-nW", "--dyn-syms", LIBCRYPTO]).output() else {
        eprintln!("skipped: readelf is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let mut seen = 0;
    for line in text.lines().filter(|line| line.contains(" EVP_DigestSign")) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let name = fields[7].split('@').next().expect("name");
        let function = facts.functions.iter().find(|function| function.name == name).expect(name);
        assert_eq!(function.value, u64::from_str_radix(fields[1], 16).expect("hexadecimal"));
        assert_eq!(function.size_bytes, fields[2].parse::<u64>().expect("decimal"));
        seen += 1;
    }
    assert_eq!(seen, facts.functions.len());
    assert!(text.contains(facts.build_id.as_deref().expect("build id")));
    assert_eq!(facts.soname.as_deref(), Some("libcrypto.so.3"));
    assert!(facts.openssl_version.expect("version").starts_with("OpenSSL 3."));
    assert!(facts.needed.iter().any(|name| name == "libc.so.6"));
    assert_eq!(facts.stack_switching, None, "libcrypto imports swapcontext, but is exempt");
}

/// Check that only wanted names are kept, and that libc, which defines swapcontext, is no hazard.
#[test]
fn keeps_only_what_is_wanted() {
    let Some(facts) = facts_of("/usr/lib/x86_64-linux-gnu/libc.so.6", |_| false) else { return };
    assert!(facts.functions.is_empty() && facts.imports.is_empty());
    assert!(facts.may_mention("strlen") && !facts.may_mention("EVP_DigestSignFinal"));
    assert!(facts.has_symbols && facts.unreadable.is_none());
    assert_eq!(facts.stack_switching, None);
}

/// Check that a function of this very binary, which only .symtab names, is found, and translates
/// to the file offset where its first bytes are.
#[test]
fn symbols_of_symtab() {
    let own = std::env::current_exe().expect("own path");
    let own = own.to_str().expect("UTF-8");
    let facts = facts_of(own, |name| name == "main").expect("own binary");
    let main = facts.functions.first().expect("main");
    let offset = facts.file_offset(main.value).expect("in an executable segment");
    assert!(facts.code_bytes_from(offset).is_some_and(|left| left >= main.size_bytes));
    assert_eq!(facts.file_offset(u64::MAX), None);
    assert_eq!(facts.code_bytes_from(u64::MAX), None);
}

/// Check that addresses translate where p_vaddr differs from p_offset.
#[test]
fn address_to_offset() {
    let segment = Segment { virtual_address: 0x40_2000, file_offset: 0x1000, size_bytes: 0x100 };
    let facts = ElfFacts { executable_segments: vec![segment], ..ElfFacts::default() };
    assert_eq!(facts.file_offset(0x40_2000), Some(0x1000));
    assert_eq!(facts.file_offset(0x40_20ff), Some(0x10ff));
    assert_eq!(facts.file_offset(0x40_2100), None);
    assert_eq!(facts.file_offset(0x40_1fff), None);
    assert_eq!(facts.code_bytes_from(0x10f0), Some(0x10));
}

fn read_bytes(bytes: &[u8]) -> ElfFacts {
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(bytes).expect("written");
    file.rewind().expect("rewound");
    read(&file, &wanted(|_| true))
}

/// Check that each kind of foreign file is kept with its reason.
#[test]
fn reasons() {
    let reason = |bytes: &[u8]| read_bytes(bytes).unreadable.unwrap_or_default();
    assert!(reason(b"").contains("too short"));
    assert!(reason(&[b'#'; 64]).contains("no ELF file"));
    let mut small = b"\x7fELF\x01\x01\x01".to_vec();
    small.resize(64, 0);
    assert!(reason(&small).contains("32-bit"));
    assert!(read_bytes(&small).is_32_bit);
}

/// Check that a sparse file that claims huge sections is refused, not read into memory.
#[test]
fn huge_sections_are_not_read() {
    let Ok(bytes) = std::fs::read("/bin/true") else {
        eprintln!("skipped: no /bin/true");
        return;
    };
    let mut bytes = bytes;
    let table = u64::from_le_bytes(bytes[40..48].try_into().expect("8 bytes")) as usize;
    let count = usize::from(u16::from_le_bytes([bytes[60], bytes[61]]));
    for header in 1..count {
        let size = table + header * 64 + 32;
        bytes[size..size + 8].copy_from_slice(&(1u64 << 40).to_le_bytes());
    }
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(&bytes).expect("written");
    if let Err(error) = file.set_len(2 << 40) {
        eprintln!("skipped: no sparse file of 2 TiB here: {error}");
        return;
    }
    assert!(read(&file, &wanted(|_| true)).unreadable.is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Check that no bytes make the reader panic.
    #[test]
    fn any_bytes(bytes: Vec<u8>) {
        read_bytes(&bytes);
        read_bytes(&[b"\x7fELF\x02\x01\x01", &bytes[..]].concat());
    }

    /// Check that a real file with changed bytes, or cut short, never makes the reader panic.
    #[test]
    fn damaged_file(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..24),
        cut: prop::sample::Index,
        is_cut: bool,
    ) {
        let Ok(mut bytes) = std::fs::read("/bin/true") else { return Ok(()) };
        let table = u64::from_le_bytes(bytes[40..48].try_into().expect("8 bytes")) as usize;
        for (at, byte, in_headers) in changes {
            // Half of the changes go where they hurt most: the headers.
            let at = if in_headers {
                let at = at.index(1024);
                if at < 512 { at } else { (table + at).min(bytes.len() - 1) }
            } else {
                at.index(bytes.len())
            };
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_bytes(&bytes);
    }
}
