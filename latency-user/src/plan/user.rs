//! Probes that the user asks for: `--probe FILE:SYMBOL[=NAME]`, and `--request` likewise.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;

use super::PlanError;
use crate::target::ElfFile;

/// Where in a file a user's probe goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// On a function.
    Symbol(String),
    /// On a function that starts at this file offset, in bytes.
    Offset(u64),
}

/// A `--probe` or `--request`, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserProbe {
    /// A path as the target maps it, or a file name alone.
    pub file: String,
    /// Where in the file.
    pub place: Place,
    /// The operation or request it times.
    pub operation: String,
    /// Whether it times a request: the scope around operations.
    pub is_request: bool,
}

impl UserProbe {
    /// Takes `FILE:SYMBOL[=NAME]` apart. The file may contain `:` and `=`.
    ///
    /// # Errors
    ///
    /// [`PlanError::Syntax`] if a part is missing.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        Self::parse_as(text, false)
    }

    /// The same for a `--request`.
    ///
    /// # Errors
    ///
    /// As for [`UserProbe::parse`].
    pub fn parse_request(text: &str) -> Result<Self, PlanError> {
        Self::parse_as(text, true)
    }

    fn parse_as(text: &str, is_request: bool) -> Result<Self, PlanError> {
        let option = option(is_request);
        let error = |problem| PlanError::Syntax { option, text: text.to_owned(), problem };
        let (left, name) = match text.rsplit_once('=') {
            // Without this, `/a=b/c.so:f` would have the name `b/c.so:f`.
            Some((left, name)) if left.contains(':') && !name.contains(':') => (left, Some(name)),
            _ => (text, None),
        };
        let (file, symbol) = left.rsplit_once(':').ok_or_else(|| error("there is no `:`"))?;
        if file.is_empty() {
            return Err(error("FILE is missing"));
        }
        if symbol.is_empty() {
            return Err(error("SYMBOL is missing"));
        }
        if name.is_some_and(|name| name.is_empty() || name.chars().any(char::is_control)) {
            return Err(error("NAME is empty or not printable"));
        }
        let place = match symbol.strip_prefix("0x").or_else(|| symbol.strip_prefix("0X")) {
            Some(digits) => Place::Offset(
                u64::from_str_radix(digits, 16)
                    .map_err(|_| error("the offset is no hexadecimal number"))?,
            ),
            None => Place::Symbol(symbol.to_owned()),
        };
        let operation = name.unwrap_or(symbol).to_owned();
        Ok(Self { file: file.to_owned(), place, operation, is_request })
    }

    /// It as the user gave it, the option first.
    pub(super) fn given(&self) -> String {
        format!("{} {self}", option(self.is_request))
    }

    /// Whether the file is meant: by its path, its name, its SONAME, or as the same file that the
    /// path leads to here (`/lib` and `/usr/lib`).
    pub fn means(&self, file: &ElfFile) -> bool {
        let given = Path::new(&self.file);
        if file.path == given
            || file.name() == self.file
            || file.facts.soname.as_deref() == Some(self.file.as_str())
        {
            return true;
        }
        given.is_absolute()
            && std::fs::metadata(given).is_ok_and(|here| {
                here.ino() == file.id.inode
                    && libc::major(here.dev()) == file.id.major
                    && libc::minor(here.dev()) == file.id.minor
            })
    }

    /// Names what the target maps, the nearest names first.
    pub(super) fn not_mapped(&self, files: &[ElfFile]) -> PlanError {
        let given = Path::new(&self.file).file_name().map(|name| name.to_string_lossy());
        let given = given.as_deref().unwrap_or(&self.file);
        let stem = given.split('.').next().unwrap_or(given);
        let mut near: Vec<String> = files
            .iter()
            .filter(|file| file.name().split('.').next() == Some(stem))
            .map(|file| file.path.display().to_string())
            .collect();
        let mapped = if near.is_empty() {
            near = files.iter().take(12).map(ElfFile::name).collect();
            let more = files.len().saturating_sub(near.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("it runs {}{more}", near.join(", "))
        } else {
            format!("did you mean {}?", near.join(" or "))
        };
        PlanError::NotMapped { probe: self.given(), file: self.file.clone(), mapped }
    }
}

const fn option(is_request: bool) -> &'static str {
    if is_request { "--request" } else { "--probe" }
}

impl FromStr for UserProbe {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        Self::parse(text)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol(name) => f.write_str(name),
            Self::Offset(offset) => write!(f, "{offset:#x}"),
        }
    }
}

impl fmt::Display for UserProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}={}", self.file, self.place, self.operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, file: &str, place: Place, operation: &str) {
        let probe = UserProbe::parse(text).expect(text);
        assert_eq!(
            (probe.file.as_str(), &probe.place, probe.operation.as_str()),
            (file, &place, operation)
        );
    }

    /// Check every accepted form, with `:` and `=` in paths.
    #[test]
    fn forms() {
        let symbol = |name: &str| Place::Symbol(name.to_owned());
        check("libfoo.so.1:hsm_sign", "libfoo.so.1", symbol("hsm_sign"), "hsm_sign");
        check("/a/b:hsm_sign=sign", "/a/b", symbol("hsm_sign"), "sign");
        check("app:0x12f0=sign", "app", Place::Offset(0x12f0), "sign");
        check("app:0x12f0", "app", Place::Offset(0x12f0), "0x12f0");
        check("/a:b/c.so:f", "/a:b/c.so", symbol("f"), "f");
        check("/a=b/c.so:f", "/a=b/c.so", symbol("f"), "f");
        check("/a=b/c.so:f=g h", "/a=b/c.so", symbol("f"), "g h");
    }

    /// Check that what lacks a part is refused with the right form.
    #[test]
    fn refusals() {
        for text in ["", "f", ":f", "lib:", "lib:f=", "lib:0xzz", "lib:0x", "lib=f", "lib:f=a\n"] {
            let error = UserProbe::parse(text).expect_err(text).to_string();
            assert!(error.contains("write --probe FILE:SYMBOL[=NAME]"), "{error}");
            let error = UserProbe::parse_request(text).expect_err(text).to_string();
            assert!(error.contains("write --request FILE:SYMBOL[=NAME]"), "{error}");
        }
    }

    proptest::proptest! {
        /// Check that no text panics, and that what is shown of a probe parses to itself.
        #[test]
        fn any_text(text: String, parts in "[a=:/]{1,8}:[a-z0-9=:]{1,8}") {
            for text in [text, parts] {
                if let Ok(probe) = UserProbe::parse(&text) {
                    let again = UserProbe::parse(&probe.to_string()).expect("parses again");
                    assert_eq!(again.place.to_string(), probe.place.to_string());
                }
            }
        }
    }
}
