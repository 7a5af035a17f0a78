//! What could make a return probe kill the target.

use super::ElfFile;

/// Something in the target that return probes, which rewrite the return address on the stack,
/// must be kept away from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hazard {
    /// A file with a Go runtime, which moves its stacks: return probes in it kill the process.
    Go {
        /// Index in [`super::Target::files`].
        file: usize,
    },
    /// A file that can switch stacks inside a probed call (OpenSSL ASYNC jobs, fibres, greenlets):
    /// the return addresses then are taken down in another order than they were put up.
    StackSwitching {
        /// Index in [`super::Target::files`].
        file: usize,
        /// The function it uses to switch.
        symbol: String,
    },
    /// Seccomp is on: some kernels (6.11 to 6.13.2) kill such a process at its first return probe.
    Seccomp {
        /// 1: strict, 2: filter.
        mode: u32,
    },
}

/// The hazards of one file.
pub(crate) fn of_file(index: usize, file: &ElfFile) -> Vec<Hazard> {
    let mut hazards = Vec::new();
    if file.facts.has_go_runtime {
        hazards.push(Hazard::Go { file: index });
    }
    let name = file.name();
    // greenlet switches by hand-written assembly that no symbol gives away.
    let symbol = if name.contains("_greenlet") {
        Some("greenlet")
    } else if name.starts_with("libssl.so") {
        None
    } else {
        file.facts.stack_switching.as_deref()
    };
    if let Some(symbol) = symbol {
        hazards.push(Hazard::StackSwitching { file: index, symbol: symbol.to_owned() });
    }
    hazards
}
