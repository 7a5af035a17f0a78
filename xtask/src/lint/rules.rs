//! Rules that look at one file alone.

use std::path::Path;

use super::{
    Finding, Severity,
    tokens::{Kind, Token, tokens},
};

/// Lines from which a file is called long, and from which it is refused.
const LONG: usize = 500;
const TOO_LONG: usize = 800;

/// Macros that stand for work not done.
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Names that say nothing about what a module holds.
const VAGUE: [&str; 6] = ["util", "utils", "helper", "helpers", "misc", "common_utils"];

/// Every finding in one file.
pub fn check(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |line, severity, message: String| {
        findings.push(Finding { file: path.to_owned(), line, severity, message });
    };

    let length = text.lines().count();
    if length > LONG && !is_generated(text) {
        let severity = if length > TOO_LONG { Severity::Error } else { Severity::Warning };
        add(1, severity, format!("{length} lines: split the file by what its parts do"));
    }

    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let folder = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let module = if stem == "mod" { folder.unwrap_or_default() } else { stem };
    if VAGUE.contains(&module) {
        add(1, Severity::Error, format!("name the module after what it holds, not `{module}`"));
    }

    let tokens = tokens(text);
    for (at, token) in tokens.iter().enumerate() {
        let next = |sign| tokens.get(at + 1).is_some_and(|token| token.is(sign));
        match token.word() {
            Some(word) if UNFINISHED.contains(&word) && next('!') => {
                add(token.line, Severity::Error, format!("`{word}!` is unfinished work"));
            }
            Some("ignore") if is_attribute(&tokens[..at]) => {
                let message = "an ignored test is forgotten: let it print `SKIPPED name: reason`";
                add(token.line, Severity::Error, message.to_owned());
            }
            Some("use") if is_public(&tokens[..at]) && has_glob(&tokens[at..]) => {
                let message = "re-export by name: a glob hides what is public";
                add(token.line, Severity::Error, message.to_owned());
            }
            _ => {}
        }
    }
    findings
}

fn is_generated(text: &str) -> bool {
    text.lines().take(5).any(|line| line.starts_with("//") && line.contains("@generated"))
}

/// Whether what follows stands first in `#[…]`.
fn is_attribute(before: &[Token]) -> bool {
    matches!(before, [.., hash, bracket] if hash.is('#') && bracket.is('['))
}

/// Whether what follows stands after `pub` or `pub(…)`.
fn is_public(before: &[Token]) -> bool {
    let visible = match before {
        [rest @ .., last] if last.is(')') => {
            let open = rest.iter().rposition(|token| token.is('('));
            &before[..open.unwrap_or(0)]
        }
        _ => before,
    };
    visible.last().and_then(Token::word) == Some("pub")
}

/// Whether the item that starts here has a `*` before its `;`.
fn has_glob(item: &[Token]) -> bool {
    item.iter().take_while(|token| !token.is(';')).any(|token| token.kind == Kind::Sign('*'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(Path::new(path), text).iter().map(ToString::to_string).collect()
    }

    /// Check that each rule finds what breaks it, with the line.
    #[test]
    fn broken_rules() {
        let cases = [
            ("fn f() {\n todo!() }", "a.rs:2: error: `todo!`"),
            ("fn f() { dbg!(1); }", "a.rs:1: error: `dbg!`"),
            ("#[test]\n#[ignore = \"slow\"]\nfn f() {}", "a.rs:2: error: an ignored test"),
            ("pub use x::*;", "a.rs:1: error: re-export"),
            ("pub(crate) use x::{y::*, z};", "a.rs:1: error: re-export"),
        ];
        for (text, expected) in cases {
            let found = messages("a.rs", text);
            assert!(matches!(&found[..], [one] if one.starts_with(expected)), "{text}: {found:?}");
        }
    }

    /// Check that look-alikes are left alone.
    #[test]
    fn kept_rules() {
        for text in [
            "// todo!() and #[ignore]\nconst S: &str = \"dbg!(1) pub use x::*;\";",
            "use super::*;\npub use x::y;\nfn todo(ignore: bool) -> bool { !ignore }",
        ] {
            assert!(messages("a.rs", text).is_empty(), "{text}");
        }
    }

    /// Check the limits of length, on both sides, and that generated files have none.
    #[test]
    fn lengths() {
        let lines = |count| "//\n".repeat(count);
        assert!(messages("a.rs", &lines(500)).is_empty());
        assert!(messages("a.rs", &lines(501))[0].contains("warning: 501 lines"));
        assert!(messages("a.rs", &lines(801))[0].contains("error: 801 lines"));
        assert!(messages("a.rs", &format!("// @generated\n{}", lines(900))).is_empty());
    }

    /// Check that a vague name is found as a file and as a folder.
    #[test]
    fn names() {
        assert_eq!(messages("x/utils.rs", "").len(), 1);
        assert_eq!(messages("x/helpers/mod.rs", "").len(), 1);
        assert!(messages("x/plan/mod.rs", "").is_empty());
    }
}
