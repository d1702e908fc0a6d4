//! The part of Go's text/template that is understood.
//!
//! ```text
//!  text     = { literal | "{{" ["- "] pipeline [" -"] "}}" | "{{/*" comment "*/}}" }
//!  pipeline = command { "|" command }      what is before the bar is the last argument of what is behind
//!  command  = operand | "index" operand operand | "parseInt" operand operand operand | ".Meta" operand
//!  operand  = field | string | number | "(" pipeline ")"
//! ```

mod action;

use crate::config::model::Expression;
use crate::plugins::template::placeholder::Place;

/// A part of a template, with the octet of the text at which it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(usize, String),
    /// With its action as Go writes it.
    Place(usize, Place, String),
}

impl Piece {
    /// Whether it depends on who asks.
    pub(super) fn tells_the_client(&self) -> bool {
        match self {
            Self::Text(..) => false,
            Self::Place(_, place, _) => place.tells_the_client(),
        }
    }
}

/// What of a template is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// `{{` without `}}`.
    #[error("the action is not closed by }}}}")]
    Open,
    /// A string without its end.
    #[error("the string is not closed")]
    OpenString,
    /// An action without anything in it.
    #[error("a value is missing; a field as .Name, index, parseInt, a string or a number is accepted")]
    Missing,
    /// A parenthesis without the other.
    #[error("the parenthesis is not closed")]
    OpenParenthesis,
    /// A word of the language that is not understood.
    #[error("{0:?} is not accepted; fields, index, parseInt, strings, numbers, parentheses and | are")]
    Word(String),
    /// A field that there is not.
    #[error(
        "there is no field {0:?}; .Zone, .Name, .Class, .Type, .Regex, .Remote, .Group.NAME, .Match (with index), .Meta, \
         .Question.Name, .Question.Qtype, .Question.Qclass, .Message.Id and the flags of .Message are there"
    )]
    Field(String),
    /// A group that no expression has.
    #[error("no expression of this template has the group {0:?}")]
    Group(String),
    /// Arguments that do not fit.
    #[error("{0} takes {1}")]
    Arguments(&'static str, &'static str),
}

/// A word of the record, as far as it is known.
#[derive(Debug)]
pub(super) struct WordOf<'a> {
    pub(super) at: usize,
    /// Its text; nothing where a part of it is filled in.
    pub(super) text: Option<String>,
    /// What fills it in, if that is all of it.
    pub(super) place: Option<&'a Place>,
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
            let place = action::parse(code, matches).map_err(|(place, refused)| (from + place, refused))?;
            pieces.push(Piece::Place(at + open, place, action::rewritten(code)));
        }
        (at, trims) = (close + 2, trims_after);
    }
    push_text(&mut pieces, text, at..text.len(), trims, false);
    Ok(pieces)
}

/// The template as Go writes one that it has read: CoreDNS counts under this.
pub(super) fn rewritten(pieces: &[Piece]) -> String {
    let written = |piece: &Piece| match piece {
        Piece::Text(_, text) => text.clone(),
        Piece::Place(_, _, action) => format!("{{{{{action}}}}}"),
    };
    pieces.iter().map(written).collect()
}

/// The words of a template.
pub(super) fn words(pieces: &[Piece]) -> Vec<WordOf<'_>> {
    let mut words: Vec<WordOf<'_>> = Vec::new();
    let mut is_open = false;
    for piece in pieces {
        match piece {
            Piece::Place(at, place, _) if is_open => {
                if let Some(word) = words.last_mut() {
                    (word.text, word.place) = (None, None);
                }
                let _where_it_goes_on = (at, place);
            }
            Piece::Place(at, place, _) => {
                words.push(WordOf {
                    at: *at,
                    text: None,
                    place: Some(place),
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
                        words.push(WordOf {
                            at: at + offset,
                            text: Some(character.into()),
                            place: None,
                        });
                        is_open = true;
                    }
                }
            }
        }
    }
    words
}

fn extend(word: Option<&mut WordOf<'_>>, character: char) {
    if let Some(word) = word {
        word.place = None;
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
        // A comment stood between; what is behind it keeps no place of its own.
        Some(Piece::Text(_, before)) => before.push_str(literal),
        Some(Piece::Place(..)) | None => pieces.push(Piece::Text(at, literal.to_owned())),
    }
}

/// Where `}}` stands that is not within a string or a comment.
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

/// `{{- `: the blanks before it go.
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
