//! Splits text into words. White space ends a word. A quoted word ends at the next quote; only a quote can be escaped
//! in it. A `#` at the start of a word begins a comment.

use std::iter::Peekable;
use std::str::Chars;
use std::sync::Arc;

use super::Token;
use crate::config::corefile::position::{Error, Position};

/// The words of a text.
pub(super) fn tokens(text: &str, file: &str) -> Result<Vec<Token>, Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lexer = Lexer {
        rest: text.chars().peekable(),
        here: Position {
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
    here: Position,
    starts_line: bool,
}

impl Lexer<'_> {
    fn next(&mut self) -> Result<Option<Token>, Error> {
        self.skip_blank();
        let Some(first) = self.rest.peek().copied() else {
            return Ok(None);
        };
        let position = self.here.clone();
        let starts_line = std::mem::replace(&mut self.starts_line, false);
        let text = if first == '"' {
            self.quoted(&position)?
        } else {
            self.word(&position)?
        };
        Ok(Some(Token {
            position,
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

    fn quoted(&mut self, start: &Position) -> Result<String, Error> {
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

    fn word(&mut self, start: &Position) -> Result<String, Error> {
        let mut text = String::new();
        while let Some(next) = self.rest.peek().copied() {
            match next {
                // Dropped, even inside a word, as in CoreDNS.
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

fn open_quote(start: &Position) -> Error {
    Error {
        position: start.clone(),
        wrong: "this quote is not closed".to_owned(),
        accepted: "a closing \" (a \" inside is written \\\")".to_owned(),
    }
}

fn comment_in_word(position: &Position) -> Error {
    Error {
        position: position.clone(),
        wrong: "a # inside a word".to_owned(),
        accepted: "a space before the comment, or quotes around the word".to_owned(),
    }
}

fn continuation(position: &Position) -> Error {
    Error {
        position: position.clone(),
        wrong: "a \\ does not continue a line".to_owned(),
        accepted: "all words of an option on one line".to_owned(),
    }
}
