//! What the time on the CPU inside operations went into, as the samples tell.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::aggregate::{Category, categorize, own_function};
use crate::recording::{Frame, Profile, Recording, SampleClock, SampleGroup, Stack};

/// With fewer samples than this, a share may be wrong by more than a sixth of the whole: nothing is
/// said of the shares.
pub const MIN_SAMPLES: u64 = 30;

/// How the CPUs were sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sampling {
    /// How often each CPU was looked at, per second.
    pub frequency_hz: u32,
    /// By what.
    pub clock: SampleClock,
    /// When it began, in nanoseconds since tracing began.
    pub start_ns: u64,
    /// Samples of the target's threads, inside operations and outside.
    pub samples: u64,
}

impl From<&Profile> for Sampling {
    fn from(profile: &Profile) -> Self {
        let &Profile { frequency_hz, clock, start_ns, samples, .. } = profile;
        Self { frequency_hz, clock, start_ns, samples }
    }
}

/// The categories of an operation's time on the CPU, by samples.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct OnCpuCategories {
    /// Samples in operations of this kind.
    pub samples: u64,
    /// Whether there are enough of them to speak of shares: [`MIN_SAMPLES`].
    pub is_enough: bool,
    /// How they divide.
    pub shares: CategoryShares,
    /// The functions outside the C library in which allocator, locking and copying were met, most
    /// samples first.
    pub functions: Vec<CategoryFunction>,
    /// The same of the slow ones among these operations: those that took at least as long as the
    /// power of two below P99. `None` where there is no P99.
    pub slow: Option<Box<OnCpuCategories>>,
}

/// Shares of categories, each between 0 and 1; together 1, or 0 without samples.
#[derive(Clone, Copy, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct CategoryShares {
    /// See [`Category::Crypto`].
    pub crypto: f64,
    /// See [`Category::Allocator`].
    pub allocator: f64,
    /// See [`Category::Locking`].
    pub locking: f64,
    /// See [`Category::Kernel`].
    pub kernel: f64,
    /// See [`Category::Copying`].
    pub copying: f64,
    /// See [`Category::Other`].
    pub other: f64,
}

/// Where a category was met.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CategoryFunction {
    /// The category.
    pub category: Category,
    /// The function.
    pub function: String,
    /// How many samples.
    pub samples: u64,
}

/// So many functions are named.
const MAX_FUNCTIONS: usize = 10;

impl CategoryShares {
    /// Categories and their shares, the largest first.
    pub fn sorted(&self) -> Vec<(Category, f64)> {
        let of = |category| match category {
            Category::Crypto => self.crypto,
            Category::Allocator => self.allocator,
            Category::Locking => self.locking,
            Category::Kernel => self.kernel,
            Category::Copying => self.copying,
            Category::Other => self.other,
        };
        let mut shares: Vec<(Category, f64)> =
            Category::ALL.map(|category| (category, of(category))).into();
        shares.sort_by(|left, right| right.1.total_cmp(&left.1).then(left.0.cmp(&right.0)));
        shares
    }
}

impl OnCpuCategories {
    /// The category with the largest share, and that; `None` with too few samples.
    pub fn largest(&self) -> Option<(Category, f64)> {
        self.shares.sorted().into_iter().next().filter(|_| self.is_enough)
    }

    /// The function in which a category was met most.
    pub fn function(&self, category: Category) -> Option<&str> {
        let mut functions = self.functions.iter();
        functions.find(|function| function.category == category).map(|found| &*found.function)
    }

    fn add(&mut self, sample: &Judged<'_>) {
        self.samples = self.samples.saturating_add(sample.samples);
        let share = match sample.category {
            Category::Crypto => &mut self.shares.crypto,
            Category::Allocator => &mut self.shares.allocator,
            Category::Locking => &mut self.shares.locking,
            Category::Kernel => &mut self.shares.kernel,
            Category::Copying => &mut self.shares.copying,
            Category::Other => &mut self.shares.other,
        };
        // A number of samples until all are in.
        *share += sample.samples as f64;
    }

    fn of<'a>(samples: impl Iterator<Item = &'a Judged<'a>>) -> Self {
        let mut categories = Self::default();
        let mut functions = BTreeMap::<(Category, &str), u64>::new();
        for sample in samples {
            categories.add(sample);
            let tells = [Category::Allocator, Category::Locking, Category::Copying]
                .contains(&sample.category);
            if let Some(function) = sample.function.filter(|_| tells) {
                let count = functions.entry((sample.category, function)).or_default();
                *count = count.saturating_add(sample.samples);
            }
        }
        let shares = &mut categories.shares;
        for share in [
            &mut shares.crypto,
            &mut shares.allocator,
            &mut shares.locking,
            &mut shares.kernel,
            &mut shares.copying,
            &mut shares.other,
        ] {
            *share /= categories.samples.max(1) as f64;
        }
        categories.is_enough = categories.samples >= MIN_SAMPLES;
        let mut functions: Vec<CategoryFunction> = functions
            .into_iter()
            .map(|((category, function), samples)| CategoryFunction {
                category,
                function: function.to_owned(),
                samples,
            })
            .collect();
        functions.sort_by_key(|function| Reverse(function.samples));
        functions.truncate(MAX_FUNCTIONS);
        categories.functions = functions;
        categories
    }
}

/// A group of samples with what it was spent on.
struct Judged<'a> {
    group: &'a SampleGroup,
    category: Category,
    function: Option<&'a str>,
    samples: u64,
}

/// The samples of a recording, each with its category.
pub(super) struct Judge<'a>(Option<Vec<Judged<'a>>>);

impl<'a> Judge<'a> {
    pub(super) fn of(recording: &'a Recording) -> Self {
        let Some(profile) = &recording.profile else { return Self(None) };
        let stacks: HashMap<u64, &Stack> =
            recording.stacks.iter().map(|stack| (stack.id, stack)).collect();
        let mut symbols = HashMap::<&str, HashSet<&str>>::new();
        for probe in &recording.probes {
            symbols.entry(&probe.operation).or_default().insert(&probe.symbol);
        }
        let none = HashSet::new();
        let judged = profile.groups.iter().filter_map(|group| {
            let stop = symbols.get(group.operation.as_deref()?).unwrap_or(&none);
            let stack = |id| stacks.get(&id).copied();
            let frames = |id| stack(id).map_or(&[] as &[Arc<Frame>], |stack| &stack.frames);
            let category = categorize(
                group.in_kernel,
                group.is_spinning,
                frames(group.kernel_stack_id),
                frames(group.stack_id),
                stop,
            );
            let function = stack(group.stack_id).and_then(own_function);
            Some(Judged { group, category, function, samples: group.samples })
        });
        Self(Some(judged.collect()))
    }

    /// The categories of an operation and algorithm; `None` where nothing was sampled.
    pub(super) fn categories(
        &self,
        operation: &str,
        algorithm: &str,
        p99_ns: Option<u64>,
    ) -> Option<OnCpuCategories> {
        let own = |judged: &&Judged<'_>| {
            judged.group.operation.as_deref() == Some(operation)
                && judged.group.algorithm.as_deref() == Some(algorithm)
        };
        let all = self.0.as_ref()?;
        let slow = p99_ns.map(|p99_ns| {
            let least = Some(p99_ns.max(1).ilog2() as u8);
            Box::new(OnCpuCategories::of(
                all.iter().filter(own).filter(|judged| judged.group.duration_log2 >= least),
            ))
        });
        Some(OnCpuCategories { slow, ..OnCpuCategories::of(all.iter().filter(own)) })
    }
}

#[cfg(test)]
#[path = "on_cpu/tests.rs"]
mod tests;
