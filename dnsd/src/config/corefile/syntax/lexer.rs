//! Words. They end at white space; what begins with a quote ends at the next one, and only a quote can be escaped
//! in it; a `#` before a word makes the rest of the line a comment.

use std::iter::Peekable;
use std::str::Chars;
use std::sync::Arc;

use super::Token;
use crate::config::corefile::position::{Error, Place};

/// The words of a text.
pub(super) fn tokens(text: &str, file: &str) -> Result<Vec<Token>, Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lexer = Lexer {
        rest: text.chars().peekable(),
        here: Place {
            file: Arc::from(file),
            line: 1,
            column: 1,
        },
        starts_line: true,
    };
    let mut tokens = Vec::new();
    while let Some(token) = lexer.next()? {
        tokens.push(token);
    }
    Ok(tokens)
}

struct Lexer<'a> {
    rest: Peekable<Chars<'a>>,
    here: Place,
    starts_line: bool,
}

impl Lexer<'_> {
    fn next(&mut self) -> Result<Option<Token>, Error> {
        self.skip_blank();
        let Some(first) = self.rest.peek().copied() else {
            return Ok(None);
        };
        let place = self.here.clone();
        let starts_line = std::mem::replace(&mut self.starts_line, false);
        let text = if first == '"' {
            self.quoted(&place)?
        } else {
            self.word(&place)?
        };
        Ok(Some(Token {
            place,
            text,
            starts_line,
            depth: 0,
        }))
    }

    fn skip_blank(&mut self) {
        let mut comment = false;
        while let Some(next) = self.rest.peek().copied() {
            comment |= next == '#';
            if !comment && !next.is_whitespace() {
                return;
            }
            if next == '\n' {
                (comment, self.starts_line) = (false, true);
            }
            self.step();
        }
    }

    fn quoted(&mut self, start: &Place) -> Result<String, Error> {
        self.step();
        let mut text = String::new();
        loop {
            match self.step() {
                Some('"') => return Ok(text),
                Some('\\') => match self.step() {
                    Some('"') => text.push('"'),
                    Some(other) => text.extend(['\\', other]),
                    None => return Err(open_quote(start)),
                },
                Some(other) => text.push(other),
                None => return Err(open_quote(start)),
            }
        }
    }

    fn word(&mut self, start: &Place) -> Result<String, Error> {
        let mut text = String::new();
        while let Some(next) = self.rest.peek().copied() {
            match next {
                // As CoreDNS reads it: nothing, even in a word.
                '\r' => {}
                '#' => return Err(comment_in_word(&self.here)),
                blank if blank.is_whitespace() => break,
                other => text.push(other),
            }
            self.step();
        }
        if text == "\\" {
            return Err(continuation(start));
        }
        Ok(text)
    }

    fn step(&mut self) -> Option<char> {
        let next = self.rest.next()?;
        if next == '\n' {
            (self.here.line, self.here.column) = (self.here.line.saturating_add(1), 1);
        } else {
            self.here.column = self.here.column.saturating_add(1);
        }
        Some(next)
    }
}

fn open_quote(start: &Place) -> Error {
    Error {
        place: start.clone(),
        wrong: "this quote is not closed".to_owned(),
        accepted: "a closing \" (a \" inside is written \\\")".to_owned(),
    }
}

fn comment_in_word(place: &Place) -> Error {
    Error {
        place: place.clone(),
        wrong: "a # inside a word".to_owned(),
        accepted: "a space before the comment, or quotes around the word".to_owned(),
    }
}

fn continuation(place: &Place) -> Error {
    Error {
        place: place.clone(),
        wrong: "a \\ does not continue a line".to_owned(),
        accepted: "all words of an option on one line".to_owned(),
    }
}
