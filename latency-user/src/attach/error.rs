//! Why a target cannot be traced: the kernel's answers, in words.

use thiserror::Error;

/// Why the target could not be traced.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The caller lacks the rights.
    #[error(
        "the kernel refused {action}: this needs root, or CAP_BPF and CAP_PERFMON; run it with \
         sudo{lockdown}"
    )]
    NotPermitted {
        /// What was refused.
        action: String,
        /// The kernel's answer.
        source: std::io::Error,
        /// More to say when kernel lockdown is on.
        lockdown: &'static str,
    },
    /// The kernel refused for another reason.
    #[error("the kernel refused {action}{hint}")]
    Refused {
        /// What was refused.
        action: String,
        /// The kernel's answer.
        source: std::io::Error,
        /// What may help.
        hint: &'static str,
    },
    /// The eBPF object does not load.
    #[error("the eBPF object could not be loaded: {0}")]
    Object(String),
    /// A fact of the kernel is missing.
    #[error(transparent)]
    Facts(#[from] crate::plan::kernel::FactError),
    /// The kernel's verifier rejected a program.
    #[error(
        "the kernel's verifier rejected the program `{program}`; please report this with `uname -r` \
         and the log:\n{log}\n"
    )]
    Verifier {
        /// The program.
        program: String,
        /// The kernel's answer.
        source: std::io::Error,
        /// The end of the verifier's log.
        log: String,
    },
}
