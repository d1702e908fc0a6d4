//! The tokens of a record: separated by blanks, quoted, over several lines within parentheses, with comments.

use super::{InvalidRecord, Reason};

/// A token with its offset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'a> {
    at: usize,
    raw: &'a str,
    is_quoted: bool,
}

/// The tokens that are not read yet.
#[derive(Debug)]
pub(super) struct Words<'a> {
    words: std::vec::IntoIter<Word<'a>>,
    end: usize,
}

impl<'a> Word<'a> {
    /// As written, with escapes.
    pub(super) const fn raw(&self) -> &'a str {
        self.raw
    }

    /// Its text, for tokens that are not binary.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.octets()).into_owned()
    }

    /// Its octets: `\X` is X, `\DDD` is the octet with this number.
    pub(super) fn octets(&self) -> Vec<u8> {
        let raw = self.raw.as_bytes();
        let (mut octets, mut at) = (Vec::with_capacity(raw.len()), 0);
        while let Some(octet) = raw.get(at) {
            let digits = raw.get(at + 1..at + 4).and_then(|digits| {
                let text = std::str::from_utf8(digits).ok()?;
                text.bytes()
                    .all(|digit| digit.is_ascii_digit())
                    .then(|| text.parse::<u8>().ok())?
            });
            let (value, step) = match (octet, digits, raw.get(at + 1)) {
                (b'\\', Some(number), _) => (number, 4),
                (b'\\', None, Some(next)) => (*next, 2),
                (other, _, _) => (*other, 1),
            };
            octets.push(value);
            at += step;
        }
        octets
    }

    pub(super) const fn wrong(&self, reason: Reason) -> InvalidRecord {
        InvalidRecord { at: self.at, reason }
    }

    pub(super) fn is_not(&self, what: &'static str) -> InvalidRecord {
        self.wrong(Reason::Not(self.raw.to_owned(), what))
    }

    /// As a number.
    pub(super) fn number<T: std::str::FromStr>(&self, what: &'static str) -> Result<T, InvalidRecord> {
        self.raw.parse().map_err(|_error| self.is_not(what))
    }
}

impl<'a> Words<'a> {
    pub(super) fn new(text: &'a str) -> Result<Self, InvalidRecord> {
        let (mut words, mut at, mut open) = (Vec::new(), 0, None);
        let octets = text.as_bytes();
        while let Some(octet) = octets.get(at) {
            match octet {
                b';' => {
                    at += octets[at..]
                        .iter()
                        .position(|octet| *octet == b'\n')
                        .unwrap_or(octets.len() - at)
                }
                b'(' => {
                    open = Some(at);
                    at += 1;
                }
                b')' => {
                    open = None;
                    at += 1;
                }
                blank if blank.is_ascii_whitespace() => at += 1,
                _other => {
                    let word = word(text, at)?;
                    at = word.at + word.raw.len() + usize::from(word.is_quoted);
                    words.push(word);
                }
            }
        }
        match open {
            Some(at) => Err(InvalidRecord {
                at,
                reason: Reason::Open("the parenthesis"),
            }),
            None => Ok(Self {
                words: words.into_iter(),
                end: text.len(),
            }),
        }
    }

    /// The next word.
    pub(super) fn next(&mut self, what: &'static str) -> Result<Word<'a>, InvalidRecord> {
        self.words.next().ok_or(InvalidRecord {
            at: self.end,
            reason: Reason::Ends(what),
        })
    }

    /// The remaining tokens.
    pub(super) fn rest(&mut self) -> impl Iterator<Item = Word<'a>> + use<'_, 'a> {
        self.words.by_ref()
    }

    /// The next token, without consuming it.
    pub(super) fn peek(&self) -> Option<Word<'a>> {
        self.words.as_slice().first().copied()
    }

    /// An error if a token is left.
    pub(super) fn end(&mut self) -> Result<(), InvalidRecord> {
        match self.words.next() {
            Some(word) => Err(word.wrong(Reason::Rest(word.raw.to_owned()))),
            None => Ok(()),
        }
    }
}

/// The token at `start`, without surrounding quotes. A quote inside a token (`alpn="h2"`) protects blanks.
fn word(text: &str, start: usize) -> Result<Word<'_>, InvalidRecord> {
    let octets = text.as_bytes();
    let is_quoted = octets[start] == b'"';
    let (mut at, mut in_quotes) = (start + usize::from(is_quoted), is_quoted);
    let from = at;
    while let Some(octet) = octets.get(at) {
        match octet {
            b'\\' => at += 1,
            b'"' if is_quoted => break,
            b'"' => in_quotes = !in_quotes,
            b'(' | b')' | b';' if !in_quotes => break,
            blank if blank.is_ascii_whitespace() && !in_quotes => break,
            _other => {}
        }
        at += 1;
    }
    let is_closed = if is_quoted {
        octets.get(at) == Some(&b'"')
    } else {
        !in_quotes
    };
    text.get(from..at.min(text.len()))
        .filter(|_| is_closed)
        .map(|raw| Word {
            at: from,
            raw,
            is_quoted,
        })
        .ok_or(InvalidRecord {
            at: start,
            reason: Reason::Open("the quote"),
        })
}
