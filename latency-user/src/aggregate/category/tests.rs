use super::*;

fn frames(frames: &[(&str, &str)]) -> Vec<Arc<Frame>> {
    let frame = |&(function, module): &(&str, &str)| Frame {
        function: (!function.is_empty()).then(|| function.to_owned()),
        module: module.to_owned(),
        ..Frame::default()
    };
    frames.iter().map(frame).map(Arc::new).collect()
}

fn user(stack: &[(&str, &str)]) -> Category {
    categorize(false, false, &[], &frames(stack), &HashSet::from(["work", "EVP_DigestSign"]))
}

fn kernel(kernel: &[(&str, &str)], user: &[(&str, &str)]) -> Category {
    categorize(true, false, &frames(kernel), &frames(user), &HashSet::from(["EVP_DigestSign"]))
}

/// Check patterns with stars in any place.
#[test]
fn patterns() {
    for (pattern, text, expected) in [
        ("free", "free", true),
        ("free", "freeze", false),
        ("je_*", "je_malloc", true),
        ("*spin_lock*", "my_spin_lock", true),
        ("*spin_lock*", "spin_locked_thing", true),
        ("*spin_lock*", "spin", false),
        ("absl::*Mutex::*", "absl::lts_2023::Mutex::Lock", true),
        ("absl::*Mutex::*", "absl::Mutex", false),
        ("CRYPTO_THREAD_*lock", "CRYPTO_THREAD_write_lock", true),
        ("CRYPTO_THREAD_*lock", "CRYPTO_THREAD_run_once", false),
        ("a*ba", "aba", true),
        ("a*ba", "ab", false),
        ("*", "", true),
    ] {
        assert_eq!(fits(pattern, text), expected, "{pattern} on {text}");
    }
}

/// Check each category by a stack that is typical of it.
#[test]
fn user_stacks() {
    let sign = ("EVP_DigestSign", "libcrypto.so.3");
    for (stack, expected) in [
        (&[("", "libcrypto.so.3"), sign][..], Category::Crypto),
        (&[("", "libc.so.6"), ("malloc", "libc.so.6"), sign], Category::Allocator),
        (&[("CRYPTO_free", "libcrypto.so.3"), sign], Category::Allocator),
        (
            &[("", "libc.so.6"), ("CRYPTO_THREAD_read_lock", "libcrypto.so.3"), sign],
            Category::Locking,
        ),
        (&[("pthread_mutex_lock", "libc.so.6"), sign], Category::Locking),
        (&[("my_spin_lock", "service"), ("work", "service")], Category::Locking),
        (&[("memcpy", "libc.so.6"), sign], Category::Copying),
        (&[("helper", "service"), ("memcpy", "libc.so.6"), ("work", "service")], Category::Other),
        (&[("aws_lc_0_40_0_EVP_DigestSign", "service")], Category::Crypto),
        (&[("parse", "service"), ("work", "service")], Category::Other),
        (&[("", "")], Category::Other),
        (&[], Category::Other),
    ] {
        assert_eq!(user(stack), expected, "{stack:?}");
    }
}

/// Check that callers of the operation do not count, and that a pause does.
#[test]
fn bounds() {
    let stack = [("work", "service"), ("run_under_spin_lock", "service")];
    assert_eq!(user(&stack), Category::Other);
    let spinning = categorize(false, true, &[], &frames(&stack), &HashSet::new());
    assert_eq!(spinning, Category::Locking);
}

/// Check that time in the kernel is the allocator's or the lock's where they caused it, and
/// else the kernel's.
#[test]
fn kernel_stacks() {
    let fault = [("clear_page_erms", "[kernel]"), ("asm_exc_page_fault", "[kernel]")];
    for (user, expected) in [
        (
            &[("", "libc.so.6"), ("malloc", "libc.so.6"), ("work", "service")][..],
            Category::Allocator,
        ),
        (&[("memset", "libc.so.6"), ("work", "service")], Category::Kernel),
        (&[("pthread_mutex_unlock", "libc.so.6"), ("work", "service")], Category::Locking),
        (&[("getrandom", "libc.so.6"), ("", "libcrypto.so.3"), ("malloc", "x")], Category::Kernel),
        (&[], Category::Kernel),
    ] {
        assert_eq!(kernel(&fault, user), expected, "{user:?}");
    }
    let slow_lock = [("native_queued_spin_lock_slowpath", "[kernel]")];
    assert_eq!(kernel(&slow_lock, &[("write", "libc.so.6")]), Category::Locking);
    assert_eq!(kernel(&[("tcp_free", "[kernel]")], &[]), Category::Kernel);
}
