//! Matching and rewriting of names as text.

use crate::config::model::{Expression, NameMatch};
use crate::dns::message::WireName;

/// The new name, if the rule matches.
pub(super) fn replaced(of: &NameMatch, to: &str, name: &str) -> Option<String> {
    match of {
        NameMatch::Exact(from) => (name == from).then(|| to.to_owned()),
        NameMatch::Prefix(from) => name.strip_prefix(from.as_str()).map(|rest| format!("{to}{rest}")),
        NameMatch::Suffix(from) => name.strip_suffix(from.as_str()).map(|rest| format!("{rest}{to}")),
        NameMatch::Substring(from) => name
            .contains(from.as_str())
            .then(|| name.replace(from.as_str(), to)),
        NameMatch::Regex(expression) => filled_in(expression, to, name),
    }
}

/// Whether the rule matches.
pub(super) fn matches(of: &NameMatch, name: &str) -> bool {
    match of {
        NameMatch::Exact(from) => name == from,
        NameMatch::Prefix(from) => name.starts_with(from.as_str()),
        NameMatch::Suffix(from) => name.ends_with(from.as_str()),
        NameMatch::Substring(from) => name.contains(from.as_str()),
        NameMatch::Regex(expression) => expression.regex().is_match(name),
    }
}

/// `to` with the groups of the match for `{1}`, …; `{0}` is the whole match. Braces inside a group are not expanded
/// again.
pub(super) fn filled_in(expression: &Expression, to: &str, name: &str) -> Option<String> {
    let groups = expression.regex().captures(name)?;
    let (mut filled, mut rest) = (String::with_capacity(to.len() + name.len()), to);
    while let Some(at) = rest.find('{') {
        filled.push_str(&rest[..at]);
        let place = rest[at + 1..].split_once('}').and_then(|(number, after)| {
            let is_number = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
            let number: usize = number.parse().ok().filter(|_| is_number)?;
            (number < groups.len()).then_some((number, after))
        });
        match place {
            Some((number, after)) => {
                filled.push_str(groups.get(number).map_or("", |group| group.as_str()));
                rest = after;
            }
            None => {
                filled.push('{');
                rest = &rest[at + 1..];
            }
        }
    }
    filled.push_str(rest);
    Some(filled)
}

/// The reversal of a name rewrite in an answer.
#[derive(Clone, Debug)]
pub(super) enum NameRevert {
    /// This name, and the suffix of names below it, becomes the other.
    Name(String, String),
    /// This suffix becomes the other.
    Suffix(String, String),
    /// Names that match become the text.
    Matching(Expression, String),
}

impl NameRevert {
    /// The new name, if it differs.
    pub(super) fn apply(&self, name: &WireName) -> Option<WireName> {
        let text = name.to_string();
        let changed = match self {
            Self::Name(from, to) if text == *from => Some(to.clone()),
            Self::Name(from, to) => {
                let rest = text
                    .strip_suffix(from.as_str())
                    .filter(|rest| rest.ends_with('.'));
                rest.map(|rest| below(rest, to))
            }
            Self::Suffix(from, to) => text.strip_suffix(from.as_str()).map(|rest| format!("{rest}{to}")),
            Self::Matching(expression, to) => filled_in(expression, to, &text),
        };
        WireName::parse(&changed?).ok()
    }
}

/// `a.` below `b.test.` is `a.b.test.`; below the root it is unchanged.
fn below(rest: &str, zone: &str) -> String {
    if zone == "." {
        rest.to_owned()
    } else {
        format!("{rest}{zone}")
    }
}
