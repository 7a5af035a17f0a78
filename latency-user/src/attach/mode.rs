//! The ways to probe a function.

use super::object;

/// How function entries and returns are probed; the best that the kernel has is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// One link, one program for entry and return; a nested call pays no return probe
    /// (Linux 6.13 and later).
    Session,
    /// Two links for all probes of a file (Linux 6.6 and later).
    Multi,
    /// Two perf events a probe, as every kernel has them; detaching takes about 0.1 s each.
    Perf,
}

impl Mode {
    /// Every mode, the best first.
    pub const ALL: [Self; 3] = [Self::Session, Self::Multi, Self::Perf];

    /// The mode's name, as `LATENCY_ATTACH_MODE` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Session => "uprobe-session",
            Self::Multi => "uprobe-multi",
            Self::Perf => "perf-uprobe",
        }
    }

    /// What is loaded for it, other than by aya.
    pub(super) const fn programs(self) -> &'static [object::Kind] {
        match self {
            Self::Session => object::SESSION,
            Self::Multi => object::MULTI,
            Self::Perf => &[],
        }
    }
}
