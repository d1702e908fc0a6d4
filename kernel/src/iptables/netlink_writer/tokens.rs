//! The words of a rule as `iptables-restore` parts them: by blanks, and what is in double quotes is one word.

use std::borrow::Cow;

/// A token that the writer does not support; the programs may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnsupportedToken(pub(super) String);

impl UnsupportedToken {
    pub(super) fn word(word: &str) -> Self {
        Self(format!("\"{word}\""))
    }
}

/// The tokens of a rule that are still to be parsed.
#[derive(Clone, Debug)]
pub(super) struct Tokens<'a>(&'a str);

impl<'a> Tokens<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self(text)
    }

    /// The next one; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Cow<'a, str>>, UnsupportedToken> {
        if self.0.is_empty() {
            return Ok(None);
        }
        if let Some(quoted) = self.0.strip_prefix('"') {
            return self.quoted(quoted).map(Some);
        }
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        if word.is_empty() || word.contains(['"', '\'', '\\', '\t']) {
            return Err(UnsupportedToken::word(word));
        }
        self.0 = rest;
        Ok(Some(Cow::Borrowed(word)))
    }

    /// The next one, which must be there.
    pub(super) fn need(&mut self) -> Result<Cow<'a, str>, UnsupportedToken> {
        self.next()?
            .ok_or_else(|| UnsupportedToken("it ends too early".to_owned()))
    }

    /// What follows this word, where it is the next one.
    pub(super) fn option(&mut self, name: &str) -> Result<Option<Cow<'a, str>>, UnsupportedToken> {
        match self.0.strip_prefix(name).and_then(|rest| rest.strip_prefix(' ')) {
            Some(rest) => {
                self.0 = rest;
                self.need().map(Some)
            }
            None => Ok(None),
        }
    }

    /// Whether what follows is meant; the word that negates it is taken away.
    pub(super) fn holds(&mut self) -> bool {
        match self.0.strip_prefix("! ") {
            Some(rest) => {
                self.0 = rest;
                false
            }
            None => true,
        }
    }

    /// The next word must be this one.
    pub(super) fn expect(&mut self, name: &str) -> Result<(), UnsupportedToken> {
        let word = self.need()?;
        if word == name {
            Ok(())
        } else {
            Err(UnsupportedToken::word(&word))
        }
    }

    fn quoted(&mut self, quoted: &'a str) -> Result<Cow<'a, str>, UnsupportedToken> {
        let mut word = String::new();
        let mut letters = quoted.char_indices();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\\' => word.extend(letters.next().map(|(_, letter)| letter)),
                '"' => {
                    let rest = &quoted[at + 1..];
                    self.0 = rest.strip_prefix(' ').unwrap_or(rest);
                    let is_apart = rest.is_empty() || rest.starts_with(' ');
                    return if is_apart {
                        Ok(Cow::Owned(word))
                    } else {
                        Err(UnsupportedToken::word(&word))
                    };
                }
                letter => word.push(letter),
            }
        }
        Err(UnsupportedToken("a quote without an end".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Result<Vec<String>, UnsupportedToken> {
        let mut words = Tokens::of(text);
        let mut found = Vec::new();
        while let Some(word) = words.next()? {
            found.push(word.into_owned());
        }
        Ok(found)
    }

    #[test]
    fn quotes_hold_blanks_and_other_quotes() {
        let rows: [(&str, &[&str]); 4] = [
            ("", &[]),
            ("-j DROP", &["-j", "DROP"]),
            (
                r#"--comment "a \"b\" \\ 'c'" -j X"#,
                &["--comment", "a \"b\" \\ 'c'", "-j", "X"],
            ),
            (r#"--comment """#, &["--comment", ""]),
        ];
        for (text, words) in rows {
            assert_eq!(all(text).unwrap(), words, "{text}");
        }
    }

    #[test]
    fn unfamiliar_notation_is_refused() {
        for text in [
            "a  b", "\"a", "\"a\"b", "a\"b\"", "'a b'", "a\\ b", " a", "a\tb", "\"a\\",
        ] {
            assert!(all(text).is_err(), "{text}");
        }
    }
}
