//! What a verdict says of the time on the CPU.

use std::fmt;

use super::{Basis, CAUSE_SHARE, Cause, Verdict, percent};
use crate::aggregate::{Category, duration};
use crate::report::{OnCpuCategories, Operation};

/// A category with at least this share of the time on the CPU is named.
const NAMED_SHARE: f64 = 0.5;

/// What most of the time on the CPU is.
pub(super) struct Mostly {
    pub(super) category: Category,
    pub(super) function: Option<String>,
    share: f64,
    samples: u64,
    of_slow: bool,
}

impl Mostly {
    /// Of the slow ones of an operation, or where they have too few samples, of all.
    pub(super) fn of_slow(operation: &Operation) -> Option<Self> {
        let all = operation.on_cpu_categories.as_ref()?;
        match all.slow.as_deref().filter(|slow| slow.is_enough) {
            Some(slow) => Self::of(slow, true),
            None => Self::of(all, false),
        }
    }

    fn of(categories: &OnCpuCategories, of_slow: bool) -> Option<Self> {
        let (category, share) = categories.largest()?;
        (share >= NAMED_SHARE).then(|| Self {
            category,
            function: categories.function(category).map(String::from),
            share,
            samples: categories.samples,
            of_slow,
        })
    }
}

impl fmt::Display for Mostly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.category {
            Category::Crypto => "cryptography",
            Category::Allocator => "allocating memory",
            Category::Locking => "locking or spinning",
            Category::Kernel => "the kernel's",
            Category::Copying => "copying memory",
            Category::Other => "other code",
        };
        write!(f, "{} of which is {what}", percent(self.share))?;
        if let Some(function) = &self.function {
            write!(f, " in {function}")?;
        }
        let of = if self.of_slow { "slow operations" } else { "all operations" };
        write!(f, " (from {} samples of {of})", self.samples)
    }
}

/// Where no operation has a slow tail: the one with most time, if allocating, locking, copying or the
/// kernel has most of it.
pub(super) fn typical(operations: &[Operation]) -> Option<Verdict> {
    let candidates = operations.iter().filter_map(|operation| {
        let typical = operation.typical.as_ref().filter(|typical| typical.duration_ns > 0)?;
        let share = typical.ledger_ns.on_cpu as f64 / typical.duration_ns as f64;
        let mostly = Mostly::of(operation.on_cpu_categories.as_ref()?, false)?;
        let is_own_work = matches!(mostly.category, Category::Crypto | Category::Other);
        let is_it = share >= CAUSE_SHARE && !is_own_work;
        is_it.then_some((operation, typical, share, mostly))
    });
    let (operation, typical, share, mostly) =
        candidates.max_by_key(|candidate| candidate.1.duration_ns)?;
    let typical_ns = typical.duration_ns.checked_div(typical.count)?;
    Some(Verdict {
        sentence: format!(
            "{} typically takes {}: {} of it is time on the CPU, {mostly}",
            operation.title(),
            duration(typical_ns),
            percent(share),
        ),
        operation: operation.operation.clone(),
        algorithm: operation.algorithm.clone(),
        cause: Cause::OnCpu,
        basis: Basis::Typical,
        share,
        p99_ns: operation.latency_ns.p99?,
        typical_ns,
        lock: None,
        holder: None,
        function: mostly.function,
        category: Some(mostly.category),
    })
}
