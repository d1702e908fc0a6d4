//! Words of a plan: zones and regular expressions.

use std::fmt;

use crate::message::WireName;

/// A zone: a name and all below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A regular expression; two are equal if they are written alike.
#[derive(Clone, Debug)]
pub struct Expression(regex::Regex);

impl Expression {
    /// Compiles it. The syntax is that of Go's `regexp` (RE2) as far as both agree.
    ///
    /// # Errors
    /// Where it does not compile.
    pub fn new(text: &str) -> Result<Self, regex::Error> {
        regex::Regex::new(text).map(Self)
    }

    /// To match with.
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
