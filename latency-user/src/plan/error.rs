//! Why there is no plan.

/// Why a plan cannot be made; each text names the remedy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    /// A `--probe` or `--request` is not of the form that is understood.
    #[error(
        "{option} {text}: {problem}; write {option} FILE:SYMBOL[=NAME] or {option} \
         FILE:0xOFFSET[=NAME]"
    )]
    Syntax {
        /// Which of the two.
        option: &'static str,
        /// What was given.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The target maps no such file.
    #[error("{probe}: the target runs no code from {file}; {mapped}")]
    NotMapped {
        /// What was given, the option first.
        probe: String,
        /// The file part of it.
        file: String,
        /// What is mapped, nearest names first.
        mapped: String,
    },
    /// The file has no such function.
    #[error("{probe}: {file} defines no function {symbol}{hint}")]
    NoSymbol {
        /// What was given, the option first.
        probe: String,
        /// The mapped file.
        file: String,
        /// The symbol part of it.
        symbol: String,
        /// What else could be tried.
        hint: String,
    },
    /// The place is no place for a probe.
    #[error("{probe}: {problem}")]
    Unsuitable {
        /// What was given, the option first.
        probe: String,
        /// Why, and what to do.
        problem: String,
    },
    /// Too many names of operations.
    #[error(
        "--probe and --request give {0} different names; at most 253 fit, so give several probes \
         one =NAME"
    )]
    TooManyOperations(usize),
    /// Nothing in the target could be probed.
    #[error("{0}")]
    NothingToProbe(String),
}
