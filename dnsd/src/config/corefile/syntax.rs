//! Parses text into server blocks: words, braces, snippets, imports and variables, as CoreDNS' caddyfile does.

mod environment;
mod lexer;
mod parser;
mod write;

use std::io;
use std::path::Path;

use crate::config::corefile::position::{Diagnostics, Error, Position};

pub(super) use write::write;

/// The sources of files and variables.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub(super) file: &'a str,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    pub(super) load: &'a dyn Fn(&Path) -> io::Result<String>,
}

/// A word, or a quoted text.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) position: Position,
    pub(super) text: String,
    /// Whether it is the first of its line.
    pub(super) starts_line: bool,
    /// The depth of imports.
    depth: u16,
}

impl Token {
    /// An error at this token.
    pub(super) fn error(&self, wrong: impl Into<String>, accepted: impl Into<String>) -> Error {
        Error {
            position: self.position.clone(),
            wrong: wrong.into(),
            accepted: accepted.into(),
        }
    }
}

/// Keys and directives.
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

/// A line of a block.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) name: Token,
    pub(super) args: Vec<Token>,
}

/// Parses the text of `sources.file`.
pub(super) fn read(
    text: &str,
    sources: &Sources<'_>,
    diagnostics: &mut Diagnostics,
) -> Result<Vec<Block>, Error> {
    let tokens = lexer::tokens(text, sources.file)?;
    parser::Parser::new(tokens, sources, diagnostics).blocks()
}
