//! The plugin that made an answer.

use serde::{Deserialize, Serialize};

/// The plugin that made an answer; the label `plugin`. Its numbers are part of the takeover's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerSource {
    /// None: dnsd itself.
    Server,
    /// The cache.
    Cache,
    /// An upstream.
    Forward,
    /// A template.
    Template,
    /// The hosts file.
    Hosts,
    /// dns64.
    Dns64,
    /// whoami.
    Whoami,
}

impl AnswerSource {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Server,
        Self::Cache,
        Self::Forward,
        Self::Template,
        Self::Hosts,
        Self::Dns64,
        Self::Whoami,
    ];

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Server => "",
            Self::Cache => "cache",
            Self::Forward => "forward",
            Self::Template => "template",
            Self::Hosts => "hosts",
            Self::Dns64 => "dns64",
            Self::Whoami => "whoami",
        }
    }
}
