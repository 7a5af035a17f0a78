//! The words and signs of a Rust source, without its comments, strings and characters.

/// One word or sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// From 1.
    pub line: u32,
    pub kind: Kind,
}

/// What a token is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// An identifier or keyword (a raw one without its `r#`), or a number.
    Word(String),
    /// `::`
    Path,
    /// Any other sign.
    Sign(char),
    /// A string, byte string or character: its text does not matter.
    Literal,
}

impl Token {
    /// The identifier or keyword, if it is one.
    pub fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }

    /// Whether it is this sign.
    pub fn is(&self, sign: char) -> bool {
        self.kind == Kind::Sign(sign)
    }
}

/// Splits a source; what does not end (a string, a comment) goes up to the end of the text.
pub fn tokens(text: &str) -> Vec<Token> {
    let mut scanner = Scanner { rest: text, line: 1, tokens: Vec::new() };
    while scanner.step() {}
    scanner.tokens
}

struct Scanner<'a> {
    rest: &'a str,
    line: u32,
    tokens: Vec<Token>,
}

impl<'a> Scanner<'a> {
    fn step(&mut self) -> bool {
        let Some(first) = self.rest.chars().next() else { return false };
        let line = self.line;
        let kind = if first.is_whitespace() {
            self.advance(first.len_utf8());
            return true;
        } else if self.rest.starts_with("//") {
            self.advance(self.rest.find('\n').unwrap_or(self.rest.len()));
            return true;
        } else if self.rest.starts_with("/*") {
            self.advance(block_comment(self.rest));
            return true;
        } else if let Some(length) = string(self.rest).or_else(|| character(self.rest)) {
            self.advance(length);
            Kind::Literal
        } else if is_word(first) {
            Kind::Word(self.word())
        } else if self.rest.starts_with("::") {
            self.advance(2);
            Kind::Path
        } else {
            self.advance(first.len_utf8());
            Kind::Sign(first)
        };
        self.tokens.push(Token { line, kind });
        true
    }

    fn word(&mut self) -> String {
        if self.rest.starts_with("r#") {
            self.advance(2);
        }
        let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        self.advance(end).to_owned()
    }

    fn advance(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(length);
        self.line += u32::try_from(taken.matches('\n').count()).unwrap_or(0);
        self.rest = rest;
        taken
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// The length of the block comment at the start; they nest.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The length of the string at the start, raw or not, with its prefix.
fn string(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        text.strip_prefix(prefix).is_some_and(|rest| {
            rest.starts_with('"')
                || prefix.ends_with('r') && rest.trim_start_matches('#').starts_with('"')
        })
    })?;
    let body = &text[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = body.len() - body.trim_start_matches('#').len();
        let end = format!("\"{}", "#".repeat(hashes));
        let start = prefix.len() + hashes + 1;
        return Some(text[start..].find(&end).map_or(text.len(), |at| start + at + end.len()));
    }
    Some(prefix.len() + quoted(body, b'"'))
}

/// The length of the character or byte at the start; a lifetime is none.
fn character(text: &str) -> Option<usize> {
    let prefix = usize::from(text.starts_with("b'"));
    let body = text[prefix..].strip_prefix('\'')?;
    let mut chars = body.chars();
    let first = chars.next()?;
    if first == '\\' || chars.next() == Some('\'') {
        return Some(prefix + quoted(&text[prefix..], b'\''));
    }
    None
}

/// The length of a quoted text with backslashes, from its opening quote on.
fn quoted(text: &str, quote: u8) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        tokens(text).iter().filter_map(Token::word).map(str::to_owned).collect()
    }

    /// Check that nothing inside comments, strings and characters is taken for a word.
    #[test]
    fn what_is_not_code() {
        let text = r####"
            // one crate::a
            /* two /* nested */ three */
            "four \" five" b"six" r"seven\" r#"eight "nine" "# br##"ten"## c"eleven"
            'x' '\'' b'y' '\u{41}' end
        "####;
        assert_eq!(words(text), ["end"]);
    }

    /// Check that lifetimes, labels and raw words do not swallow what follows them.
    #[test]
    fn what_is_code() {
        assert_eq!(
            words("fn f<'a>(x: &'a str) { 'l: loop { r#use } }"),
            ["fn", "f", "a", "x", "a", "str", "l", "loop", "use"]
        );
    }

    /// Check that lines are counted through comments and strings of many lines.
    #[test]
    fn lines() {
        let found = tokens("/* \n */ \"\n\n\" here\n");
        assert_eq!(found.last().map(|token| token.line), Some(4));
    }

    /// Check that a text that breaks off is no trouble.
    #[test]
    fn broken_off() {
        for text in ["\"abc", "/* abc", "r#\"abc", "'", "'\\", "b'", "\"\\", "é'é"] {
            tokens(text);
        }
    }
}
