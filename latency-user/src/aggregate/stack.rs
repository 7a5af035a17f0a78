//! Stacks as text, and the function in a stack that a reader can do something about.

use crate::recording::{Frame, Stack};

/// Beginnings of the names of functions that only pass a call on to the C library.
const WRAPPERS: [&str; 16] = [
    "std::",
    "<std::",
    "core::",
    "<core::",
    "alloc::",
    "parking_lot",
    "<parking_lot",
    "lock_api",
    "__gthread_",
    "CRYPTO_THREAD_",
    "CRYPTO_malloc",
    "CRYPTO_zalloc",
    "CRYPTO_free",
    "CRYPTO_clear_free",
    "operator new",
    "operator delete",
];

/// A frame as text: the function, with its line of source where that is known, or where the address
/// lies.
pub(crate) fn frame_text(frame: &Frame) -> String {
    match &frame.function {
        Some(function) => match frame.source() {
            Some(source) => format!("{function} ({source})"),
            None => function.clone(),
        },
        None if frame.module.is_empty() => format!("0x{:x}", frame.address),
        None => format!("{}+0x{:x}", frame.module, frame.module_address),
    }
}

/// The innermost function outside the C library and the wrappers around it: the one that took or
/// released the lock. `None` where no such frame has a name.
pub(crate) fn own_function(stack: &Stack) -> Option<&str> {
    let own = stack.frames.iter().filter(|frame| !is_c_library(&frame.module));
    own.filter_map(|frame| frame.function.as_deref())
        .find(|function| !WRAPPERS.iter().any(|wrapper| function.starts_with(wrapper)))
}

fn is_c_library(module: &str) -> bool {
    let name = module.rsplit('/').next().unwrap_or(module);
    ["libc.so", "libc-", "libc.musl", "libpthread", "ld-linux", "ld-musl", "[vdso]"]
        .iter()
        .any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: Option<&str>, module: &str) -> Frame {
        Frame {
            address: 0x7f00_1234,
            function: function.map(String::from),
            module: module.into(),
            module_address: 0x1234,
            ..Frame::default()
        }
    }

    /// Check that frames without a name tell where they are.
    #[test]
    fn texts() {
        assert_eq!(frame_text(&frame(Some("sign"), "keysvc")), "sign");
        let mut with_line = frame(Some("sign"), "keysvc");
        (with_line.file, with_line.line) = (Some("/src/keysvc.c".into()), Some(120));
        assert_eq!(frame_text(&with_line), "sign (keysvc.c:120)");
        assert_eq!(frame_text(&frame(None, "libc.so.6")), "libc.so.6+0x1234");
        assert_eq!(frame_text(&frame(None, "")), "0x7f001234");
    }

    /// Check that the C library, nameless frames and wrappers are passed over.
    #[test]
    fn own() {
        let stack = |frames: &[(Option<&str>, &str)]| Stack {
            frames: frames
                .iter()
                .map(|&(function, module)| frame(function, module).into())
                .collect(),
            ..Stack::default()
        };
        for (frames, expected) in [
            (
                &[
                    (Some("pthread_mutex_unlock"), "libc.so.6"),
                    (Some("audit_log_write"), "keysvc"),
                    (Some("main"), "keysvc"),
                ][..],
                Some("audit_log_write"),
            ),
            (
                &[
                    (None, "libc-2.31.so"),
                    (Some("std::sys::sync::mutex::futex::Mutex::wake"), "service"),
                    (Some("service::store"), "service"),
                ],
                Some("service::store"),
            ),
            (
                &[
                    (Some("malloc"), "libc.so.6"),
                    (Some("CRYPTO_zalloc"), "libcrypto.so.3"),
                    (Some("EVP_MD_CTX_new"), "libcrypto.so.3"),
                ],
                Some("EVP_MD_CTX_new"),
            ),
            (&[(Some("futex"), "/lib/ld-musl-x86_64.so.1"), (None, "keysvc")], None),
            (&[], None),
        ] {
            assert_eq!(own_function(&stack(frames)), expected);
        }
    }
}
