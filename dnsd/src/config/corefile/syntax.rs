//! From text to server blocks: words, braces, snippets, imports and variables, as CoreDNS' caddyfile has them.

mod environment;
mod lexer;
mod parser;
mod write;

use std::io;
use std::path::Path;

use crate::config::corefile::position::{Error, Notes, Place};

pub(super) use write::write;

/// Where texts and values come from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub(super) file: &'a str,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    pub(super) load: &'a dyn Fn(&Path) -> io::Result<String>,
}

/// A word, or what stood between quotes.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) place: Place,
    pub(super) text: String,
    /// Whether it is the first of its line.
    pub(super) starts_line: bool,
    /// How many imports it came through.
    depth: u16,
}

impl Token {
    /// That this word is wrong.
    pub(super) fn error(&self, wrong: impl Into<String>, accepted: impl Into<String>) -> Error {
        Error {
            place: self.place.clone(),
            wrong: wrong.into(),
            accepted: accepted.into(),
        }
    }
}

/// Keys, and what is said for them.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) keys: Vec<Token>,
    pub(super) directives: Vec<Directive>,
}

/// A directive with its block, if it has one.
#[derive(Clone, Debug)]
pub(super) struct Directive {
    pub(super) head: Line,
    pub(super) body: Option<Vec<Line>>,
}

/// What is said on one line.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) name: Token,
    pub(super) args: Vec<Token>,
}

/// Reads the text of `sources.file`.
pub(super) fn read(text: &str, sources: &Sources<'_>, notes: &mut Notes) -> Result<Vec<Block>, Error> {
    let tokens = lexer::tokens(text, sources.file)?;
    parser::Parser::new(tokens, sources, notes).blocks()
}
