//! The accepted part of Go's text/template.
//!
//! ```text
//!  text     = { literal | "{{" ["- "] pipeline [" -"] "}}" | "{{/*" comment "*/}}" }
//!  pipeline = command { "|" command }      the value before a bar is the last argument of the command after it
//!  command  = operand | "index" operand operand | "parseInt" operand operand operand | ".Meta" operand
//!  operand  = field | string | number | "(" pipeline ")"
//! ```

mod action;

use crate::config::model::Expression;
use crate::plugins::template::placeholder::Placeholder;

/// A part of a template, with its offset in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(usize, String),
    /// A placeholder, and its action in Go's spelling.
    Placeholder(usize, Placeholder, String),
}

impl Piece {
    /// Whether the value depends on the client.
    pub(super) fn depends_on_client(&self) -> bool {
        match self {
            Self::Text(..) => false,
            Self::Placeholder(_, placeholder, _) => placeholder.depends_on_client(),
        }
    }
}

/// Why a template is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// `{{` without `}}`.
    #[error("the action is not closed by }}}}")]
    Open,
    /// A string without its end.
    #[error("the string is not closed")]
    OpenString,
    /// An empty action.
    #[error("a value is missing; a field as .Name, index, parseInt, a string or a number is accepted")]
    Missing,
    /// An open parenthesis.
    #[error("the parenthesis is not closed")]
    OpenParenthesis,
    /// An unknown word.
    #[error("{0:?} is not accepted; fields, index, parseInt, strings, numbers, parentheses and | are")]
    Word(String),
    /// An unknown field.
    #[error(
        "there is no field {0:?}; .Zone, .Name, .Class, .Type, .Regex, .Remote, .Group.NAME, .Match (with index), .Meta, \
         .Question.Name, .Question.Qtype, .Question.Qclass, .Message.Id and the flags of .Message are there"
    )]
    Field(String),
    /// A group that no expression has.
    #[error("no expression of this template has the group {0:?}")]
    Group(String),
    /// ActionError arguments.
    #[error("{0} takes {1}")]
    Arguments(&'static str, &'static str),
}

/// A token of the record, as far as it is known before placeholders are filled in.
#[derive(Debug)]
pub(super) struct RecordToken<'a> {
    pub(super) at: usize,
    /// Its text; `None` if a part of it is a placeholder.
    pub(super) text: Option<String>,
    /// The placeholder, if the token is nothing else.
    pub(super) placeholder: Option<&'a Placeholder>,
}

/// Reads a template.
pub(super) fn parse(text: &str, matches: &[Expression]) -> Result<Vec<Piece>, (usize, Refused)> {
    let (mut pieces, mut at, mut trims) = (Vec::new(), 0, false);
    while let Some(open) = text[at..].find("{{") {
        let inner = at + open + 2;
        let close = closing(text, inner).ok_or((at + open, Refused::Open))?;
        let action = &text[inner..close];
        let (trims_before, trims_after) = (trims_left(action), trims_right(action));
        push_text(&mut pieces, text, at..at + open, trims, trims_before);
        let from = inner + usize::from(trims_before);
        let to = close - usize::from(trims_after);
        let code = text.get(from..to).unwrap_or_default();
        if !is_comment(code) {
            let placeholder = action::parse(code, matches)
                .map_err(|(placeholder, refused)| (from + placeholder, refused))?;
            pieces.push(Piece::Placeholder(
                at + open,
                placeholder,
                action::rewritten(code),
            ));
        }
        (at, trims) = (close + 2, trims_after);
    }
    push_text(&mut pieces, text, at..text.len(), trims, false);
    Ok(pieces)
}

/// The template in Go's spelling: CoreDNS counts by it.
pub(super) fn rewritten(pieces: &[Piece]) -> String {
    let written = |piece: &Piece| match piece {
        Piece::Text(_, text) => text.clone(),
        Piece::Placeholder(_, _, action) => format!("{{{{{action}}}}}"),
    };
    pieces.iter().map(written).collect()
}

/// The tokens of a template.
pub(super) fn words(pieces: &[Piece]) -> Vec<RecordToken<'_>> {
    let mut words: Vec<RecordToken<'_>> = Vec::new();
    let mut is_open = false;
    for piece in pieces {
        match piece {
            Piece::Placeholder(at, placeholder, _) if is_open => {
                if let Some(word) = words.last_mut() {
                    (word.text, word.placeholder) = (None, None);
                }
                let _where_it_goes_on = (at, placeholder);
            }
            Piece::Placeholder(at, placeholder, _) => {
                words.push(RecordToken {
                    at: *at,
                    text: None,
                    placeholder: Some(placeholder),
                });
                is_open = true;
            }
            Piece::Text(at, text) => {
                for (offset, character) in text.char_indices() {
                    if character.is_whitespace() {
                        is_open = false;
                    } else if is_open {
                        extend(words.last_mut(), character);
                    } else {
                        words.push(RecordToken {
                            at: at + offset,
                            text: Some(character.into()),
                            placeholder: None,
                        });
                        is_open = true;
                    }
                }
            }
        }
    }
    words
}

fn extend(word: Option<&mut RecordToken<'_>>, character: char) {
    if let Some(word) = word {
        word.placeholder = None;
        if let Some(text) = &mut word.text {
            text.push(character);
        }
    }
}

fn push_text(
    pieces: &mut Vec<Piece>,
    text: &str,
    range: std::ops::Range<usize>,
    trims_start: bool,
    trims_end: bool,
) {
    let whole = &text[range.clone()];
    let start = if trims_start { whole.trim_start() } else { whole };
    let at = range.start + whole.len() - start.len();
    let literal = if trims_end { start.trim_end() } else { start };
    match pieces.last_mut() {
        _nothing if literal.is_empty() => {}
        // Only a comment was between the two texts.
        Some(Piece::Text(_, before)) => before.push_str(literal),
        Some(Piece::Placeholder(..)) | None => pieces.push(Piece::Text(at, literal.to_owned())),
    }
}

/// The offset of the next `}}` outside strings and comments.
fn closing(text: &str, from: usize) -> Option<usize> {
    let octets = text.as_bytes();
    let trimmed = text[from..].trim_start_matches('-').trim_start();
    if trimmed.starts_with("/*") {
        let end = from + text[from..].find("*/")? + 2;
        return text[end..].find("}}").map(|at| end + at);
    }
    let (mut at, mut quote) = (from, None);
    while let Some(octet) = octets.get(at) {
        match (quote, octet) {
            (None, b'}') if octets.get(at + 1) == Some(&b'}') => return Some(at),
            (None, b'"' | b'`') => quote = Some(*octet),
            (Some(b'"'), b'\\') => at += 1,
            (Some(open), octet) if open == *octet => quote = None,
            _other => {}
        }
        at += 1;
    }
    None
}

/// Whether `{{- ` trims the blanks before it.
fn trims_left(action: &str) -> bool {
    let mut characters = action.chars();
    characters.next() == Some('-') && characters.next().is_some_and(char::is_whitespace)
}

fn trims_right(action: &str) -> bool {
    let mut characters = action.chars().rev();
    characters.next() == Some('-') && characters.next().is_some_and(char::is_whitespace)
}

fn is_comment(code: &str) -> bool {
    let code = code.trim();
    code.len() >= 4 && code.starts_with("/*") && code.ends_with("*/")
}
