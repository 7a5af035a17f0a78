//! Which functions of a target get probes, where, and at what price: plain data that is made
//! without touching the target, and can be printed before anything is attached.

mod catalog;
mod error;
mod explain;
pub mod kernel;
mod select;
mod site;
pub mod unwind;
mod user;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use latency_common::algorithm::family;
use latency_common::probe::{LengthSource, NO_ARGUMENT, ProbeCookie, ResultMeaning};

use serde::{Serialize, Serializer};

pub use catalog::{CATALOG, Entry, Operation, find as find_in_catalog};
pub use error::PlanError;
pub use site::{DEFAULT_CODE_BYTES, Price, Site, cheapest as cheapest_site};
pub use user::{Place, UserProbe};

use crate::target::{ElfFile, Wanted};

/// A probe's index has 12 bits in the attach cookie.
pub const MAX_PROBES: usize = 4096;
/// An operation's index has 8 bits in the attach cookie.
pub const MAX_OPERATIONS: usize = 255;

/// What the user chose.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// The `--probe` and `--request` arguments.
    pub user_probes: Vec<UserProbe>,
    /// Whether to plan the functions too that a cheaper probe already sees.
    pub probe_all: bool,
}

impl Options {
    /// Tells which names a plan will ask for: what [`crate::target::Target::open`] needs.
    pub fn wanted(&self) -> Wanted {
        let names: HashSet<String> = self
            .user_probes
            .iter()
            .filter_map(|probe| match &probe.place {
                Place::Symbol(name) => Some(name.clone()),
                Place::Offset(_) => None,
            })
            .collect();
        Wanted::new(
            move |name| find_in_catalog(name).is_some() || names.contains(name),
            catalog::texts(),
        )
    }
}

/// One probed function. Its index in [`Plan::probes`] is the one in its cookie.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Probe {
    /// Index of the file in the target's files.
    pub file: usize,
    /// The function's full name, or its offset.
    pub symbol: String,
    /// Where the function starts in the file, in bytes.
    pub function_offset: u64,
    /// Where its entry and return probes go in the file, in bytes.
    pub site_offset: u64,
    /// What a hit costs the target.
    pub price: Price,
    /// What the kernel side knows of the function.
    #[serde(serialize_with = "serialize_cookie")]
    pub cookie: ProbeCookie,
    /// The operation it times.
    pub operation: String,
    /// Whether the user asked for it.
    pub user: bool,
    /// Whether it times a request: the scope around operations.
    pub is_request: bool,
}

/// As the kernel gets it: packed.
fn serialize_cookie<S: Serializer>(cookie: &ProbeCookie, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(cookie.pack())
}

/// A function that gets no probe.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Skipped {
    /// Index of the file in the target's files.
    pub file: usize,
    /// The function's full name.
    pub symbol: String,
    /// Why, and how to get it all the same.
    pub reason: String,
}

/// The plan.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Names of the operations and, after them, of the requests; a cookie's `operation` is an
    /// index here. The first two are `sign` and `verify`.
    pub operations: Vec<String>,
    /// The probes; only ever appended to.
    pub probes: Vec<Probe>,
    /// The known functions that get none.
    pub skipped: Vec<Skipped>,
    /// What the user should know.
    pub warnings: Vec<String>,
    #[serde(skip)]
    options: Options,
}

impl Plan {
    /// Plans the probes for the files of a target, which were read with [`Options::wanted`].
    /// The plan may be empty: see [`Plan::explain_empty`].
    ///
    /// # Errors
    ///
    /// A [`PlanError`] if a probe that the user asked for cannot be planned.
    pub fn new(files: &[ElfFile], options: &Options) -> Result<Self, PlanError> {
        let mut operations = vec![Operation::Sign.name().into(), Operation::Verify.name().into()];
        let (requests, others): (Vec<&UserProbe>, Vec<&UserProbe>) =
            options.user_probes.iter().partition(|probe| probe.is_request);
        for probe in others {
            if !operations.contains(&probe.operation) {
                operations.push(probe.operation.clone());
            }
        }
        let first_request = operations.len();
        for probe in requests {
            if operations[..first_request].contains(&probe.operation) {
                return Err(PlanError::Unsuitable {
                    probe: probe.given(),
                    problem: format!(
                        "operations have the name {} already; give the request another with =NAME",
                        probe.operation
                    ),
                });
            }
            if !operations.contains(&probe.operation) {
                operations.push(probe.operation.clone());
            }
        }
        if operations.len() > MAX_OPERATIONS {
            return Err(PlanError::TooManyOperations(operations.len() - 2));
        }
        for probe in &options.user_probes {
            select::check_user_probe(probe, files)?;
        }
        let mut plan = Self {
            operations,
            probes: Vec::new(),
            skipped: Vec::new(),
            warnings: Vec::new(),
            options: options.clone(),
        };
        plan.extend(files);
        Ok(plan)
    }

    /// Plans for files that were appended since (`dlopen`). Probes planned before stay as they
    /// are; a function of an old file that was skipped since nobody imported it may be added now.
    /// Returns the range of the new probes.
    pub fn extend(&mut self, files: &[ElfFile]) -> Range<usize> {
        let first_new = self.probes.len();
        self.skipped.clear();
        // By file and offset: the function's start and its site.
        let mut taken: HashMap<(usize, u64), String> = HashMap::new();
        for probe in &self.probes {
            taken.insert((probe.file, probe.function_offset), probe.symbol.clone());
            taken.insert((probe.file, probe.site_offset), probe.symbol.clone());
        }
        let user = select::user_functions(files, &self.options);
        let catalogued = select::catalogued_functions(files, &self.options, &mut self.skipped);
        let mut is_full = false;
        for function in user.into_iter().chain(catalogued) {
            let (start, site) =
                ((function.file, function.function_offset), (function.file, function.site_offset));
            if let Some(holder) = taken.get(&start).or_else(|| taken.get(&site)) {
                let is_planned = self.probes.iter().any(|probe| {
                    (probe.file, probe.function_offset) == start
                        && probe.symbol == function.symbol
                        && probe.operation == function.operation()
                        && probe.user == function.is_user()
                });
                if !is_planned {
                    self.skipped.push(Skipped {
                        file: function.file,
                        symbol: function.symbol,
                        reason: format!("the probe on {holder} sits on the same instruction"),
                    });
                }
                continue;
            }
            if self.probes.len() == MAX_PROBES {
                is_full = true;
                self.skipped.push(Skipped {
                    file: function.file,
                    symbol: function.symbol,
                    reason: format!("there are {MAX_PROBES} probes already"),
                });
                continue;
            }
            taken.insert(start, function.symbol.clone());
            taken.insert(site, function.symbol.clone());
            let probe = self.probe(function);
            self.probes.push(probe);
        }
        self.skipped.sort_by_key(|skipped| skipped.file);
        self.warn(files, is_full);
        first_new..self.probes.len()
    }

    fn probe(&self, function: select::Selected) -> Probe {
        let operation = function.operation();
        let index = self.operations.iter().position(|name| name == operation).unwrap_or_default();
        let common = ProbeCookie {
            probe: self.probes.len() as u16,
            operation: index as u8,
            signature_argument: NO_ARGUMENT,
            length_argument: NO_ARGUMENT,
            length: LengthSource::None,
            result: ResultMeaning::Ignored,
            family: family::NONE,
            has_algorithm: false,
            is_request: false,
        };
        let cookie = match function.kind {
            select::Kind::Catalogued(entry) => ProbeCookie {
                signature_argument: entry.signature_argument,
                length_argument: entry.length_argument,
                length: entry.length,
                result: entry.result,
                family: entry.family,
                has_algorithm: true,
                ..common
            },
            select::Kind::User { is_request, .. } => ProbeCookie { is_request, ..common },
        };
        Probe {
            operation: operation.to_owned(),
            user: function.is_user(),
            is_request: cookie.is_request,
            file: function.file,
            symbol: function.symbol,
            function_offset: function.function_offset,
            site_offset: function.site_offset,
            price: function.price,
            cookie,
        }
    }

    fn warn(&mut self, files: &[ElfFile], is_full: bool) {
        let mut warnings = Vec::new();
        for (index, file) in files.iter().enumerate() {
            let path = file.path.display();
            if file.deleted && self.probes.iter().any(|probe| probe.file == index) {
                warnings.push(format!(
                    "{path} is deleted on disk or was replaced; the copy that the target runs is \
                     probed"
                ));
            }
            let has_known =
                file.facts.functions.iter().any(|it| find_in_catalog(&it.name).is_some());
            if let Some(version) = &file.facts.openssl_version
                && explain::holds_own_copy(file)
                && !has_known
                && !self.probes.is_empty()
                && !self.probes.iter().any(|probe| probe.file == index)
            {
                warnings.push(format!(
                    "{path} (build id {}) holds {version} without the names of its functions: \
                     what it signs itself is not seen; --probe {}:0xOFFSET=sign adds a function",
                    file.facts.build_id.as_deref().unwrap_or("none"),
                    file.name()
                ));
            }
            if let Some(reason) = &file.facts.unreadable {
                warnings.push(format!("{path} is not searched for functions: {reason}"));
            }
        }
        if is_full {
            warnings.push(format!("only the first {MAX_PROBES} probes are planned"));
        }
        for warning in warnings {
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }
}

#[cfg(test)]
mod tests;
