//! Which functions are worth a probe.

use std::collections::BTreeMap;

use latency_common::algorithm::family;

use super::catalog::{self, Entry};
use super::site::{self, DEFAULT_CODE_BYTES, Price, Site};
use super::{Options, Place, PlanError, Skipped, UserProbe};
use crate::target::{ElfFile, Function};

/// A function of known size is read up to here: longer ones do not occur.
const CODE_CAP_BYTES: u64 = 64 << 10;

/// What a function is probed for.
pub(super) enum Kind {
    Catalogued(&'static Entry),
    /// The name of the operation, or of the request.
    User {
        name: String,
        is_request: bool,
    },
}

/// A function that is to be probed.
pub(super) struct Selected {
    pub(super) file: usize,
    pub(super) symbol: String,
    pub(super) function_offset: u64,
    pub(super) site_offset: u64,
    pub(super) price: Price,
    pub(super) kind: Kind,
}

impl Selected {
    /// The name of the operation that it times.
    pub(super) fn operation(&self) -> &str {
        match &self.kind {
            Kind::Catalogued(entry) => entry.operation.name(),
            Kind::User { name, .. } => name,
        }
    }

    pub(super) fn is_user(&self) -> bool {
        matches!(self.kind, Kind::User { .. })
    }
}

fn site_of(file: &ElfFile, offset: u64, size_bytes: u64, arguments_read: u8) -> Option<Site> {
    let size_bytes = match size_bytes {
        0 => DEFAULT_CODE_BYTES,
        known => known.min(CODE_CAP_BYTES) as usize,
    };
    let code = file.read_code(offset, size_bytes).ok()?;
    Some(site::cheapest(&code, arguments_read))
}

/// Refuses a user's probe that finds no place in any mapped file.
pub(super) fn check_user_probe(probe: &UserProbe, files: &[ElfFile]) -> Result<(), PlanError> {
    let meant: Vec<&ElfFile> = files.iter().filter(|file| probe.means(file)).collect();
    let Some(first) = meant.first() else { return Err(probe.not_mapped(files)) };
    let path = first.path.display();
    let unsuitable = |problem| Err(PlanError::Unsuitable { probe: probe.given(), problem });
    if first.facts.has_go_runtime {
        return unsuitable(format!(
            "{path} holds a Go runtime, which a return probe would kill; use Go's own tracing"
        ));
    }
    match &probe.place {
        Place::Offset(offset) => {
            if meant.iter().all(|file| file.facts.code_bytes_from(*offset).is_none()) {
                return unsuitable(format!(
                    "{offset:#x} lies in no executable segment of {path}; a file offset is meant \
                     (st_value - p_vaddr + p_offset, see `readelf -lW`), not an address"
                ));
            }
        }
        Place::Symbol(symbol) => {
            let mut defined =
                meant.iter().flat_map(|file| &file.facts.functions).filter(|it| it.name == *symbol);
            match defined.next() {
                Some(function) if function.is_ifunc => {
                    return unsuitable(format!(
                        "{symbol} only names the resolver that chooses among several functions \
                         (ifunc); give the offset of the chosen one"
                    ));
                }
                Some(_) => {}
                None => {
                    let hint = match (&first.facts.unreadable, first.facts.has_symbols) {
                        (Some(reason), _) => format!(": {reason}"),
                        (None, false) => ": it is stripped of its symbols; find the function's \
                                          offset in its debug symbols and give FILE:0xOFFSET"
                            .to_owned(),
                        (None, true) => format!(
                            "; `nm -D --defined-only {path}` and `nm {path}` list what it defines"
                        ),
                    };
                    return Err(PlanError::NoSymbol {
                        probe: probe.given(),
                        file: path.to_string(),
                        symbol: symbol.clone(),
                        hint,
                    });
                }
            }
        }
    }
    Ok(())
}

/// The functions that the user asked for, in all files that have them.
pub(super) fn user_functions(files: &[ElfFile], options: &Options) -> Vec<Selected> {
    let mut selected = Vec::new();
    // A function asked for as both is a request: that has its ledger as well.
    let requests = options.user_probes.iter().filter(|probe| probe.is_request);
    let operations = options.user_probes.iter().filter(|probe| !probe.is_request);
    for probe in requests.chain(operations) {
        for (index, file) in files.iter().enumerate() {
            if file.facts.has_go_runtime || !probe.means(file) {
                continue;
            }
            let places: Vec<(u64, u64)> = match &probe.place {
                Place::Offset(offset) => vec![(*offset, 0)],
                Place::Symbol(symbol) => file
                    .facts
                    .functions
                    .iter()
                    .filter(|function| function.name == *symbol && !function.is_ifunc)
                    .filter_map(|it| Some((file.facts.file_offset(it.value)?, it.size_bytes)))
                    .collect(),
            };
            for (offset, size_bytes) in places {
                if file.facts.code_bytes_from(offset).is_none() {
                    continue;
                }
                // Where the code cannot be read the kernel will refuse, and say why.
                let site = site_of(file, offset, size_bytes, 0)
                    .unwrap_or(Site { offset_bytes: 0, price: Price::Unknown });
                selected.push(Selected {
                    file: index,
                    symbol: probe.place.to_string(),
                    function_offset: offset,
                    site_offset: offset + site.offset_bytes,
                    price: site.price,
                    kind: Kind::User {
                        name: probe.operation.clone(),
                        is_request: probe.is_request,
                    },
                });
            }
        }
    }
    selected
}

/// A catalogued function of one file.
struct Candidate<'a> {
    symbol: &'a str,
    prefix: &'a str,
    entry: &'static Entry,
    function_offset: u64,
    site: Site,
}

/// The catalogued functions that are worth a probe; the others go to `skipped`.
pub(super) fn catalogued_functions(
    files: &[ElfFile],
    options: &Options,
    skipped: &mut Vec<Skipped>,
) -> Vec<Selected> {
    let mut selected = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let mut skip = |symbol: &str, reason: String| {
            skipped.push(Skipped { file: index, symbol: symbol.to_owned(), reason });
        };
        let candidates = candidates(file, &mut skip);
        for candidate in &candidates {
            if !options.probe_all
                && let Some(reason) = reason_to_skip(candidate, &candidates, index, files)
            {
                skip(candidate.symbol, format!("{reason}; --probe-all includes it"));
                continue;
            }
            selected.push(Selected {
                file: index,
                symbol: candidate.symbol.to_owned(),
                function_offset: candidate.function_offset,
                site_offset: candidate.function_offset + candidate.site.offset_bytes,
                price: candidate.site.price,
                kind: Kind::Catalogued(candidate.entry),
            });
        }
    }
    selected
}

/// The catalogued functions of a file that a probe could sit on, in the catalogue's order.
fn candidates<'a>(file: &'a ElfFile, skip: &mut impl FnMut(&str, String)) -> Vec<Candidate<'a>> {
    let mut by_offset: BTreeMap<u64, Vec<(usize, &'a Function, &'a str)>> = BTreeMap::new();
    for function in &file.facts.functions {
        let Some((prefix, entry)) = catalog::find(&function.name) else { continue };
        if file.facts.has_go_runtime {
            skip(&function.name, "the file holds a Go runtime, which a return probe kills".into());
        } else if function.is_ifunc {
            skip(&function.name, "it only names a resolver (ifunc), not the function".into());
        } else if let Some(offset) = file.facts.file_offset(function.value) {
            let row = catalog::CATALOG.iter().position(|it| it.name == entry.name);
            by_offset.entry(offset).or_default().push((row.unwrap_or(0), function, prefix));
        } else {
            skip(&function.name, "its address lies in no executable segment".into());
        }
    }
    let mut rows = Vec::new();
    for (offset, mut names) in by_offset {
        names.sort_by_key(|(row, function, prefix)| (*row, prefix.len(), &function.name));
        let Some(&(row, function, prefix)) = names.first() else { continue };
        let entry = &catalog::CATALOG[row];
        for (other, alias, _) in &names[1..] {
            if *other != row {
                skip(&alias.name, format!("it is the same code as {}", function.name));
            }
        }
        let size_bytes = names.iter().map(|(_, it, _)| it.size_bytes).max().unwrap_or(0);
        match site_of(file, offset, size_bytes, entry.arguments_read()) {
            Some(site) => rows.push((
                row,
                Candidate { symbol: &function.name, prefix, entry, function_offset: offset, site },
            )),
            None => skip(&function.name, "its code cannot be read from the file".into()),
        }
    }
    rows.sort_by_key(|(row, candidate)| (*row, candidate.function_offset));
    rows.into_iter().map(|(_, candidate)| candidate).collect()
}

/// A probe is not worth its price where every call is nested in one that is seen anyhow: each hit
/// costs the target a trap. That is known in libcrypto itself only: others call it by names that
/// they must hold, and it calls itself from within functions that are probed. A copy of OpenSSL
/// inside a program or plug-in is called by code in the same file, which no name shows.
///
/// DSA stays: its functions tell it from ECDSA, and cost nothing where there is none.
fn reason_to_skip(
    candidate: &Candidate,
    candidates: &[Candidate],
    index: usize,
    files: &[ElfFile],
) -> Option<String> {
    let entry = candidate.entry;
    if !is_libcrypto(&files[index]) || files.iter().any(calls_by_any_name) {
        return None;
    }
    let is_mentioned = |text: &str| {
        files
            .iter()
            .enumerate()
            .any(|(at, file)| at != index && !file.expected && file.facts.may_mention(text))
    };
    if is_mentioned(candidate.symbol) {
        return None;
    }
    let is_wrapped = catalog::wrappers(entry.operation).iter().all(|wrapper| {
        candidates
            .iter()
            .any(|other| other.entry.name == *wrapper && other.prefix == candidate.prefix)
    });
    if is_wrapped
        && entry.family != family::DSA
        && entry.other_callers.is_some_and(|texts| !texts.iter().any(|text| is_mentioned(text)))
    {
        return Some(
            "nothing in the target mentions it, and inside the library only functions call it \
             that are probed themselves"
                .to_owned(),
        );
    }
    if candidate.site.price != Price::SingleStepped {
        return None;
    }
    let inner = catalog::reached_inside(entry).into_iter().find(|inner| {
        candidates.iter().any(|other| {
            other.entry.name == inner.name
                && other.prefix == candidate.prefix
                && other.site.price == Price::Emulated
        })
    })?;
    Some(format!(
        "its probe would be single-stepped, nothing in the target mentions it, and every call of \
         it reaches {}{}, which is probed",
        candidate.prefix, inner.name
    ))
}

/// Whether a file runs scripts or managed code that can call any function by name.
fn calls_by_any_name(file: &ElfFile) -> bool {
    if file.expected {
        return false;
    }
    let name = file.facts.soname.clone().unwrap_or_else(|| file.name());
    catalog::FOREIGN_CALL_LIBRARIES.iter().any(|library| name.starts_with(library))
        || file.facts.may_mention(catalog::LUAJIT_TEXT)
}

fn is_libcrypto(file: &ElfFile) -> bool {
    let name = file.facts.soname.clone().unwrap_or_else(|| file.name());
    file.is_shared_library() && name.starts_with("libcrypto")
}
