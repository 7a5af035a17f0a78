//! What the time on the CPU is spent on, by rules over stacks.
//!
//! A stack is judged from its leaf outward, up to the function that the operation is: the first
//! frame that a rule of [`RULES`] fits decides, and of the rules that fit it the first. So what `malloc`
//! calls is allocation, and what the provider calls is crypto. Three things go before and after:
//!
//! - a thread at a `pause` instruction spins, whatever its function is called;
//! - in kernel mode only allocator and locking count, on the way out to the first crypto frame (a page
//!   fault in `malloc`, the futex call of a mutex); anything else is the kernel's time;
//! - what no rule fits is other time: the target's own code, and functions without a name.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::recording::Frame;

/// What time on the CPU is spent on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Category {
    /// Cryptography: the library itself.
    Crypto,
    /// Allocating and freeing memory.
    Allocator,
    /// Taking and releasing locks, and spinning.
    Locking,
    /// The kernel: system calls, page faults, interrupts, and the probes of this trace.
    Kernel,
    /// Copying and clearing memory.
    Copying,
    /// Anything else.
    #[serde(other)]
    Other,
}

impl Category {
    /// Every category, in the order of a page.
    pub const ALL: [Self; 6] =
        [Self::Crypto, Self::Allocator, Self::Locking, Self::Kernel, Self::Copying, Self::Other];

    /// Its name on a page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crypto => "crypto",
            Self::Allocator => "allocator",
            Self::Locking => "locking or spinning",
            Self::Kernel => "kernel",
            Self::Copying => "copying",
            Self::Other => "other",
        }
    }
}

/// Which frames of a stack a rule looks at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Any of the user stack.
    Anywhere,
    /// Any of the kernel's. There, only waiting for a lock counts: a function of the kernel may have
    /// any name, and the timer's samples gather where interrupts are let in again, as in
    /// `_raw_spin_unlock_irqrestore`.
    Kernel,
    /// Only the innermost: what calls `memcpy` is not copying.
    Leaf,
}

/// Frames of a category: the module or the function fits one of the patterns, in which `*` stands for
/// any text.
struct Rule {
    category: Category,
    place: Place,
    modules: &'static [&'static str],
    functions: &'static [&'static str],
}

const RULES: &[Rule] = &[
    Rule {
        category: Category::Allocator,
        place: Place::Anywhere,
        modules: &["libjemalloc*", "libtcmalloc*", "libmimalloc*"],
        functions: &[
            // The C library, with the internal names that symbols bring.
            "malloc",
            "calloc",
            "realloc",
            "reallocarray",
            "free",
            "cfree",
            "memalign",
            "aligned_alloc",
            "posix_memalign",
            "__libc_malloc*",
            "__libc_calloc*",
            "__libc_realloc*",
            "__libc_free*",
            "_int_malloc*",
            "_int_realloc*",
            "_int_free*",
            "_mid_memalign*",
            "malloc_consolidate*",
            "malloc_trim*",
            "sysmalloc*",
            "systrim*",
            "tcache_*",
            "unlink_chunk*",
            // Other allocators, linked in.
            "je_*",
            "tc_malloc*",
            "tc_free*",
            "mi_malloc*",
            "mi_free*",
            // C++ and Rust.
            "operator new*",
            "operator delete*",
            "__rust_alloc*",
            "__rust_dealloc*",
            "__rust_realloc*",
            "__rdl_*",
            "__rg_*",
            "alloc::alloc::*",
            "<alloc::alloc::*",
            // OpenSSL's own.
            "CRYPTO_malloc*",
            "CRYPTO_zalloc*",
            "CRYPTO_realloc*",
            "CRYPTO_clear_realloc*",
            "CRYPTO_free*",
            "CRYPTO_clear_free*",
            "CRYPTO_secure_*",
            "OPENSSL_malloc*",
            "OPENSSL_free*",
        ],
    },
    Rule {
        category: Category::Locking,
        place: Place::Anywhere,
        modules: &[],
        functions: &[
            "pthread_mutex_*",
            "__pthread_mutex_*",
            "pthread_rwlock_*",
            "__pthread_rwlock_*",
            "pthread_spin_*",
            "pthread_cond_*",
            "__pthread_cond_*",
            "__lll_*",
            "___pthread_mutex_*",
            "___pthread_rwlock_*",
            "sem_wait*",
            "sem_post*",
            "sched_yield",
            "CRYPTO_THREAD_*lock",
            "std::mutex::*",
            "std::shared_mutex::*",
            "std::sys::sync::*",
            "<std::sys::sync::*",
            "std::sync::*ock*",
            "parking_lot*",
            "<parking_lot*",
            "lock_api::*",
            "<lock_api::*",
            "spin::*",
            "<spin::*",
            "absl::*Mutex::*",
            "absl::*SpinLock*",
            "*spin_lock*",
            "*spin_unlock*",
            "*spinlock*",
            "*spin_wait*",
            "*SpinLock*",
        ],
    },
    Rule {
        category: Category::Locking,
        place: Place::Kernel,
        modules: &[],
        functions: &[
            "*queued_spin_lock_slowpath*",
            "mutex_spin_on_owner*",
            "rwsem_spin_on_owner*",
            "osq_lock*",
        ],
    },
    Rule {
        category: Category::Copying,
        place: Place::Leaf,
        modules: &[],
        functions: &[
            "memcpy*",
            "memmove*",
            "memset*",
            "mempcpy*",
            "bcopy",
            "bzero",
            "strcpy*",
            "strncpy*",
            "stpcpy*",
            "__memcpy*",
            "__memmove*",
            "__memset*",
            "__mempcpy*",
            "OPENSSL_cleanse",
            "explicit_bzero",
        ],
    },
    Rule {
        category: Category::Crypto,
        place: Place::Anywhere,
        modules: &[
            "libcrypto*",
            "libssl*",
            "fips.so*",
            "legacy.so*",
            "libgcrypt*",
            "libmbedcrypto*",
            "libsodium*",
            "libfreebl*",
            "libsoftokn*",
        ],
        // Where the library is linked in, or renamed.
        functions: &[
            "*EVP_*",
            "*RSA_*",
            "*ECDSA_*",
            "*EC_POINT_*",
            "*EC_GROUP_*",
            "*ED25519_*",
            "*ed25519*",
            "*x25519*",
            "*curve25519*",
            "*ML_DSA_*",
            "*BN_*",
            "bn_*",
            "ossl_*",
            "ecp_nistz256_*",
            "rsaz_*",
            "*sha1_block*",
            "*sha256_block*",
            "*sha512_block*",
            "*keccak*",
            "*Keccak*",
            "aesni_*",
            "*aes_hw_*",
            "aws_lc_*",
            "ring_core_*",
            "ring::*",
        ],
    },
];

/// The category of a sample.
///
/// `kernel` and `user` are its frames, the innermost first; `stop` names the functions that the
/// operation is.
pub(crate) fn categorize(
    in_kernel: bool,
    is_spinning: bool,
    kernel: &[Arc<Frame>],
    user: &[Arc<Frame>],
    stop: &HashSet<&str>,
) -> Category {
    if is_spinning {
        return Category::Locking;
    }
    for frame in kernel {
        if let Some(category) = rule_for(frame, &[Place::Kernel]) {
            return category;
        }
    }
    for (at, frame) in user.iter().enumerate() {
        let is_leaf = at == 0 && !in_kernel;
        let places: &[Place] =
            if is_leaf { &[Place::Anywhere, Place::Leaf] } else { &[Place::Anywhere] };
        match rule_for(frame, places) {
            Some(Category::Crypto) if in_kernel => break,
            Some(category) => return category,
            None => {}
        }
        if frame.function.as_deref().is_some_and(|function| stop.contains(function)) {
            break;
        }
    }
    if in_kernel { Category::Kernel } else { Category::Other }
}

fn rule_for(frame: &Frame, places: &[Place]) -> Option<Category> {
    let function = frame.function.as_deref().unwrap_or_default();
    let module = frame.module.rsplit('/').next().unwrap_or_default();
    let rule = RULES.iter().filter(|rule| places.contains(&rule.place)).find(|rule| {
        rule.functions.iter().any(|pattern| fits(pattern, function))
            || rule.modules.iter().any(|pattern| fits(pattern, module))
    });
    rule.map(|rule| rule.category)
}

/// Whether a pattern, in which `*` stands for any text, fits all of a text.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(end)
}

#[cfg(test)]
#[path = "category/tests.rs"]
mod tests;
