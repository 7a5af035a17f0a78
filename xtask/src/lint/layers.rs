//! The order of the layers in `latency-user`: a module uses only what stands before it.

use std::{
    collections::HashMap,
    path::{Component, Path},
};

use super::{
    Finding, Severity, Source,
    tokens::{Kind, Token, tokens},
};

/// The order in which the data flows, as ARCHITECTURE.md explains it.
const ORDER: [&str; 10] = [
    "target",
    "plan",
    "attach",
    "stream",
    "recording",
    "aggregate",
    "symbolize",
    "report",
    "render",
    "cli",
];

const SOURCE: &str = "latency-user/src";

/// Every finding about the layers of `latency-user`.
pub fn check(files: &[Source]) -> Vec<Finding> {
    let Some(lib) = files.iter().find(|file| file.path == Path::new(SOURCE).join("lib.rs")) else {
        return Vec::new();
    };
    let layers = Layers::read(&tokens(&lib.text));
    let mut findings = Vec::new();
    for file in files {
        let Ok(inside) = file.path.strip_prefix(SOURCE) else { continue };
        let messages = match inside.to_str() {
            Some("lib.rs") => layers.misdeclared(),
            Some("main.rs") => only_cli(&tokens(&file.text)),
            _ => layers.misused(inside, &tokens(&file.text)),
        };
        findings.extend(messages.into_iter().map(|(line, message)| Finding {
            file: file.path.clone(),
            line,
            severity: Severity::Error,
            message,
        }));
    }
    findings
}

/// What `lib.rs` declares.
struct Layers {
    /// Modules with their lines, in the order of their declarations.
    declared: Vec<(String, u32)>,
    /// Names that `lib.rs` re-exports, with the module they come from: using them uses it.
    reexported: HashMap<String, String>,
}

impl Layers {
    fn read(lib: &[Token]) -> Self {
        let mut declared: Vec<(String, u32)> = Vec::new();
        for window in lib.windows(3) {
            if let [first, name, last] = window
                && first.word() == Some("mod")
                && last.is(';')
                && let Some(name) = name.word()
            {
                declared.push((name.to_owned(), first.line));
            }
        }
        let mut reexported = HashMap::new();
        for (at, _) in lib.iter().enumerate().filter(|(_, token)| token.word() == Some("use")) {
            let item = lib[at + 1..].iter().take_while(|token| !token.is(';'));
            let mut words = item
                .filter_map(Token::word)
                .filter(|word| !matches!(*word, "crate" | "self" | "as"));
            let Some(module) = words.next() else { continue };
            if declared.iter().any(|(name, _)| name == module) {
                reexported.extend(words.map(|word| (word.to_owned(), module.to_owned())));
            }
        }
        Self { declared, reexported }
    }

    /// Where `lib.rs` differs from the order of the design.
    fn misdeclared(&self) -> Vec<(u32, String)> {
        let mut findings = Vec::new();
        let mut last = 0;
        for (name, line) in &self.declared {
            match ORDER.iter().position(|layer| layer == name) {
                None => findings.push((
                    *line,
                    format!("`{name}` is no layer: put it inside one of {}", ORDER.join(", ")),
                )),
                Some(at) if at < last => {
                    findings.push((*line, format!("declare `{name}` before `{}`", ORDER[last])));
                }
                Some(at) => last = at,
            }
        }
        findings
    }

    /// Where a file uses a layer that stands after its own.
    fn misused(&self, file: &Path, tokens: &[Token]) -> Vec<(u32, String)> {
        let module = module_path(file);
        let position = |name: &str| self.declared.iter().position(|(layer, _)| layer == name);
        let Some((own, own_at)) = module.first().and_then(|own| Some((own, position(own)?))) else {
            return Vec::new();
        };
        let mut findings = Vec::new();
        for (line, name) in names_at_root(tokens, module.len()) {
            if name == "*" {
                findings.push((line, "name what is used of the crate's root".to_owned()));
                continue;
            }
            let layer = self.reexported.get(name).map_or(name, String::as_str);
            if position(layer).is_some_and(|at| at > own_at) {
                findings.push((line, format!("`{own}` uses `{layer}`, which stands after it")));
            }
        }
        findings
    }
}

/// The binary only hands over to `cli`.
fn only_cli(tokens: &[Token]) -> Vec<(u32, String)> {
    let mut names = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if token.word() == Some("latency_user")
            && tokens.get(at + 1).is_some_and(|token| token.kind == Kind::Path)
        {
            first_names(&tokens[at + 2..], &mut names);
        }
    }
    let others = names.into_iter().filter(|(_, name)| *name != "cli");
    others.map(|(line, name)| (line, format!("main.rs uses `{name}`: only `cli` is its"))).collect()
}

/// `plan/elf.rs` and `plan/elf/mod.rs` are both `[plan, elf]`.
fn module_path(file: &Path) -> Vec<String> {
    let mut path: Vec<String> = file
        .with_extension("")
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect();
    if path.last().is_some_and(|name| name == "mod") {
        path.pop();
    }
    path
}

/// The names that a file uses of the crate's root, through `crate::` or enough of `super::`, with
/// their lines. `depth` is how far below the root the file's module is.
fn names_at_root(tokens: &[Token], depth: usize) -> Vec<(u32, &str)> {
    let mut names = Vec::new();
    let mut braces = 0_usize;
    // Inline modules, by how many braces were open before their own.
    let mut inline: Vec<usize> = Vec::new();
    let is_path = |at: usize| tokens.get(at).is_some_and(|token| token.kind == Kind::Path);

    let mut at = 0;
    while at < tokens.len() {
        let token = &tokens[at];
        if token.is('{') {
            let before = &tokens[..at];
            if matches!(before, [.., word, name]
                if word.word() == Some("mod") && name.word().is_some())
            {
                inline.push(braces);
            }
            braces += 1;
        } else if token.is('}') {
            braces = braces.saturating_sub(1);
            if inline.last() == Some(&braces) {
                inline.pop();
            }
        } else if at == 0 || !is_path(at - 1) {
            let mut level = depth + inline.len();
            let start = at;
            while is_path(at + 1) {
                match tokens[at].word() {
                    Some("crate") => level = 0,
                    Some("super") => level = level.saturating_sub(1),
                    Some("self") => {}
                    _ => break,
                }
                at += 2;
            }
            if at > start {
                if level == 0 {
                    first_names(&tokens[at..], &mut names);
                }
                continue;
            }
        }
        at += 1;
    }
    names
}

/// The first name of a path that goes on here, or of each path in a group; `*` for a glob.
fn first_names<'a>(tokens: &'a [Token], names: &mut Vec<(u32, &'a str)>) {
    let mut depth = 0_usize;
    let mut expected = true;
    for token in tokens {
        match &token.kind {
            Kind::Sign('{') => depth += 1,
            Kind::Sign('}') if depth > 1 => depth -= 1,
            Kind::Sign('}') => return,
            Kind::Sign(',') => expected = depth == 1,
            Kind::Sign('*') if expected => names.push((token.line, "*")),
            Kind::Word(name) if expected => {
                // `crate::{self as root}` names the root itself.
                names.push((token.line, if name == "self" { "*" } else { name }));
                expected = false;
            }
            _ => {}
        }
        if depth == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "//! x\npub mod target;\npub mod plan;\npub mod attach;\npub mod stream;\n\
        pub mod recording;\npub mod aggregate;\npub mod symbolize;\npub mod report;\n\
        pub mod render;\npub mod cli;\npub use report::{Report, Row as Line};\n";

    fn source(path: &str, text: &str) -> Source {
        Source { path: Path::new(SOURCE).join(path), text: text.to_owned() }
    }

    fn findings(path: &str, text: &str) -> Vec<String> {
        let found = check(&[source("lib.rs", LIB), source(path, text)]);
        found.iter().map(ToString::to_string).collect()
    }

    /// Check that every way to name a later layer is found, with its line.
    #[test]
    fn violations() {
        let cases = [
            ("plan.rs", "use crate::report::Row;", "report"),
            ("plan.rs", "use crate::{target::Pid, attach::{self, Link}};", "attach"),
            ("plan.rs", "use super::stream;", "stream"),
            ("plan/mod.rs", "use super::stream;", "stream"),
            ("plan/elf.rs", "use super::super::stream::X;", "stream"),
            ("plan/elf/mod.rs", "use super::super::{target, cli};", "cli"),
            ("plan.rs", "fn f() -> crate::render::Page { x }", "render"),
            ("plan.rs", "mod tests { use super::super::cli; }", "cli"),
            ("plan.rs", "use {crate::target, crate::recording as r};", "recording"),
            ("plan.rs", "use crate::Report;", "report"),
            ("plan.rs", "use crate::Line;", "report"),
            ("plan.rs", "use crate::{\n    a::{b, c},\n    symbolize::Frame,\n};", "symbolize"),
            ("plan.rs", "macro_rules! m { () => { $crate::cli::run() } }", "cli"),
            ("plan.rs", "mod a { mod b {} fn f() { {} } } use super::cli;", "cli"),
        ];
        for (path, text, layer) in cases {
            let found = findings(path, text);
            let expected = format!("`plan` uses `{layer}`, which stands after it");
            assert!(matches!(&found[..], [one] if one.ends_with(&expected)), "{text}: {found:?}");
        }
        let found = findings("plan.rs", "use crate::target;\n\nuse crate::cli;\n");
        assert!(found[0].contains("plan.rs:3: error"), "{found:?}");
    }

    /// Check that earlier layers, the own one, other crates, comments and strings are left alone.
    #[test]
    fn allowed() {
        for (path, text) in [
            ("plan.rs", "use crate::{target::Pid, plan::Site};"),
            ("plan/elf.rs", "use super::{report, Site}; use crate::Something;"),
            ("plan.rs", "mod tests { use super::*; use super::cli; }"),
            ("plan.rs", "// use crate::cli;\n/* crate::cli */ const S: &str = \"crate::cli\";"),
            ("plan.rs", "/// See [`crate::render`].\nuse object::render::cli;"),
            ("plan.rs", "pub(crate) fn cli() {} pub(super) struct X; use self::cli::y;"),
            ("cli/record.rs", "use crate::{report::Report, render, target};"),
            ("main.rs", "fn main() { latency_user::cli::main() }"),
        ] {
            assert!(findings(path, text).is_empty(), "{text}: {:?}", findings(path, text));
        }
    }

    /// Check that a glob of the root is refused: it hides which layers are used.
    #[test]
    fn root_glob() {
        assert_eq!(findings("cli.rs", "use crate::*;").len(), 1);
        assert_eq!(findings("plan.rs", "use super::*;").len(), 1);
    }

    /// Check that the binary uses nothing but `cli`.
    #[test]
    fn binary() {
        let found = findings("main.rs", "use latency_user::{cli, report::Report};");
        assert!(matches!(&found[..], [one] if one.contains("`report`")), "{found:?}");
    }

    /// Check that `lib.rs` has the layers in order, and nothing else.
    #[test]
    fn declarations() {
        let swapped =
            LIB.replace("pub mod target;\npub mod plan;", "pub mod plan;\npub mod target;");
        let found = check(&[source("lib.rs", &swapped)]);
        assert!(found[0].message.contains("declare `target` before `plan`"), "{found:?}");

        let found = check(&[source("lib.rs", &LIB.replace("render;", "paint;"))]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("`paint` is no layer"));
    }
}
