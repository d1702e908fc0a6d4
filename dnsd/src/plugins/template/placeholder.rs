//! Values of placeholders.

use std::fmt;

use regex::Captures;

use super::{MatchedTemplate, RecordFailure, class_name, type_name};
use crate::config::model::{Expression, Zone};
use crate::dns::message::{Query, flag};
use crate::plugins::QueryEndpoints;

/// A placeholder of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Placeholder {
    Text(String),
    Number(u64),
    Zone,
    Name,
    Class,
    Type,
    Regex,
    Remote,
    /// A named group.
    Group(String),
    /// A named group; empty if there is none of that name.
    GroupAt(Box<Self>),
    /// The group with this number.
    Match(Box<Self>),
    QuestionName,
    QuestionType,
    QuestionClass,
    MessageId,
    MessageFlag(u16),
    /// `parseInt`: text, base, bits.
    ParseInt(Box<[Self; 3]>),
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Number(u64),
    Bool(bool),
}

/// A query that matches a template.
pub(super) struct MatchedQuery<'a> {
    pub(super) zone: &'a Zone,
    pub(super) name: &'a str,
    pub(super) class: u16,
    pub(super) kind: u16,
    pub(super) query: &'a Query<'a>,
    pub(super) endpoints: &'a QueryEndpoints,
    /// The expression and its groups; `None` if the template has no expression.
    pub(super) captured: Option<(&'a Expression, Captures<'a>)>,
}

/// The type of a value, known when the file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Number,
    Bool,
}

impl Placeholder {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Text(_)
            | Self::Zone
            | Self::Name
            | Self::Class
            | Self::Type
            | Self::Regex
            | Self::Remote
            | Self::Group(_)
            | Self::GroupAt(_)
            | Self::Match(_)
            | Self::QuestionName => Kind::Text,
            Self::Number(_)
            | Self::QuestionType
            | Self::QuestionClass
            | Self::MessageId
            | Self::ParseInt(_) => Kind::Number,
            Self::MessageFlag(_) => Kind::Bool,
        }
    }

    /// Whether the value depends on the client.
    pub(super) fn depends_on_client(&self) -> bool {
        match self {
            Self::Remote | Self::MessageId => true,
            Self::GroupAt(placeholder) | Self::Match(placeholder) => placeholder.depends_on_client(),
            Self::ParseInt(placeholders) => placeholders.iter().any(Self::depends_on_client),
            Self::Text(_)
            | Self::Number(_)
            | Self::Zone
            | Self::Name
            | Self::Class
            | Self::Type
            | Self::Regex
            | Self::Group(_)
            | Self::QuestionName
            | Self::QuestionType
            | Self::QuestionClass
            | Self::MessageFlag(_) => false,
        }
    }

    /// The value. `None` is an error: the client gets SERVFAIL.
    pub(super) fn value(&self, found: &MatchedQuery<'_>) -> Option<Value> {
        let question = &found.query.question;
        Some(match self {
            Self::Text(text) => Value::Text(text.clone()),
            Self::Number(number) => Value::Number(*number),
            Self::Zone => Value::Text(found.zone.to_string()),
            Self::Name | Self::QuestionName => Value::Text(found.name.to_owned()),
            Self::Class => Value::Text(class_name(found.class)),
            Self::Type => Value::Text(type_name(found.kind)),
            Self::Regex => {
                let expression = found.captured.as_ref().map(|(expression, _)| *expression);
                Value::Text(
                    expression
                        .map_or(".*", |expression| expression.regex().as_str())
                        .to_owned(),
                )
            }
            Self::Remote => Value::Text(found.endpoints.client.ip().to_canonical().to_string()),
            Self::Group(name) => Value::Text(found.group(name)?),
            Self::GroupAt(name) => {
                let name = name.value(found)?.to_string();
                Value::Text(found.group(&name).unwrap_or_default())
            }
            Self::Match(number) => match number.value(found)? {
                Value::Number(number) => Value::Text(found.matched(usize::try_from(number).ok()?)?),
                Value::Text(_) | Value::Bool(_) => return None,
            },
            Self::QuestionType => Value::Number(question.kind.into()),
            Self::QuestionClass => Value::Number(question.class.into()),
            Self::MessageId => Value::Number(found.query.id.into()),
            Self::MessageFlag(flag) => Value::Bool(found.query.flags & flag != 0),
            Self::ParseInt(arguments) => {
                let [text, base, bits] = &**arguments;
                let (Value::Text(text), Value::Number(base), Value::Number(bits)) =
                    (text.value(found)?, base.value(found)?, bits.value(found)?)
                else {
                    return None;
                };
                Value::Number(parse_int(&text, base, bits)?)
            }
        })
    }

    /// The header flag of a field of miekg/dns.
    pub(super) fn message_flag(name: &str) -> Option<Self> {
        let flag = match name {
            "Response" => flag::QR,
            "Authoritative" => flag::AA,
            "Truncated" => flag::TC,
            "RecursionDesired" => flag::RD,
            "RecursionAvailable" => flag::RA,
            "AuthenticatedData" => flag::AD,
            "CheckingDisabled" => flag::CD,
            _other => return None,
        };
        Some(Self::MessageFlag(flag))
    }
}

impl MatchedQuery<'_> {
    pub(super) fn counted(&self, failure: Option<RecordFailure>) -> MatchedTemplate {
        MatchedTemplate {
            zone: *self.zone,
            class: self.class,
            kind: self.kind,
            failure,
        }
    }

    /// The text of a group by name or number; empty if it is not part of the match, as in Go.
    fn group(&self, name: &str) -> Option<String> {
        let Some((expression, groups)) = &self.captured else {
            return (name == "0").then(|| self.name.to_owned());
        };
        let by_number = || name.parse().ok().filter(|number| *number < groups.len());
        let mut names = expression.regex().capture_names();
        let number = names.rposition_of(name).or_else(by_number)?;
        Some(groups.get(number).map_or("", |group| group.as_str()).to_owned())
    }

    fn matched(&self, number: usize) -> Option<String> {
        match &self.captured {
            Some((_, groups)) if number < groups.len() => {
                Some(groups.get(number).map_or("", |group| group.as_str()).to_owned())
            }
            None if number == 0 => Some(self.name.to_owned()),
            Some(_) | None => None,
        }
    }
}

trait LastPosition {
    fn rposition_of(&mut self, name: &str) -> Option<usize>;
}

impl<'n, I: Iterator<Item = Option<&'n str>>> LastPosition for I {
    fn rposition_of(&mut self, name: &str) -> Option<usize> {
        self.enumerate()
            .filter(|(_, known)| *known == Some(name))
            .map(|(index, _)| index)
            .last()
    }
}

/// Go's `strconv.ParseUint`: no sign; base 0 goes by the prefix; bits 0 means 64.
fn parse_int(text: &str, base: u64, bits: u64) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (digits, base) = match (base, lower.get(..2)) {
        (0, Some("0x")) => (&lower[2..], 16),
        (0, Some("0o")) => (&lower[2..], 8),
        (0, Some("0b")) => (&lower[2..], 2),
        (0, _) if lower.len() > 1 && lower.starts_with('0') => (&lower[1..], 8),
        (0, _) => (lower.as_str(), 10),
        (base @ 2..=36, _) => (lower.as_str(), u32::try_from(base).ok()?),
        _other => return None,
    };
    let is_plain = digits.bytes().all(|digit| digit.is_ascii_alphanumeric());
    let number = u64::from_str_radix(digits, base).ok().filter(|_| is_plain)?;
    let fits = match bits {
        0 | 64 => true,
        1..64 => number >> bits == 0,
        _more => false,
    };
    fits.then_some(number)
}

/// As Go prints it.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
            Self::Bool(is) => write!(f, "{is}"),
        }
    }
}
