//! Zones and regular expressions of a plan.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dns::message::WireName;

/// A zone: a name and all names below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Zone(WireName);

impl Zone {
    /// The zone of this name.
    #[must_use]
    pub const fn new(apex: WireName) -> Self {
        Self(apex)
    }

    /// Its highest name.
    #[must_use]
    pub const fn apex(&self) -> &WireName {
        &self.0
    }

    /// Whether a name is in it.
    #[must_use]
    pub fn holds(&self, name: &WireName) -> bool {
        name.is_within(&self.0)
    }
}

impl Zone {
    /// All names.
    #[must_use]
    pub fn root() -> Self {
        Self(WireName::parse(".").expect("the root is a name"))
    }
}

impl TryFrom<String> for Zone {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        WireName::parse(&text)
            .map(Self)
            .map_err(|error| format!("{text:?} is not a domain name: {error}"))
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> Self {
        zone.to_string()
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A regular expression; equal if the text is equal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Expression(regex::Regex);

impl Expression {
    /// The longest expression, in octets (CoreDNS' limit).
    pub const LONGEST: usize = 10_000;

    /// Compiles it. The syntax is the common part of Go's `regexp` (RE2) and the crate `regex`.
    ///
    /// # Errors
    /// A syntax error.
    pub fn new(text: &str) -> Result<Self, regex::Error> {
        regex::Regex::new(text).map(Self)
    }

    /// Whether the expression has all groups (`{1}`) of a text, by CoreDNS' count.
    #[must_use]
    pub fn has_groups_for(&self, text: &str) -> bool {
        let used = (0..=100).filter(|group| text.contains(&format!("{{{group}}}")));
        used.count() < self.0.captures_len()
    }

    /// The compiled expression.
    #[must_use]
    pub const fn regex(&self) -> &regex::Regex {
        &self.0
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl TryFrom<String> for Expression {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.len() > Self::LONGEST {
            return Err(format!(
                "an expression of {} octets; {} at most",
                text.len(),
                Self::LONGEST
            ));
        }
        Self::new(&text).map_err(|error| {
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default().trim();
            format!("{text:?} is not a regular expression (RE2): {reason}")
        })
    }
}

impl From<Expression> for String {
    fn from(expression: Expression) -> Self {
        expression.0.as_str().to_owned()
    }
}
