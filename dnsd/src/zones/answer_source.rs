//! The plugin that made an answer.

use serde::{Deserialize, Serialize};

/// The plugin that made an answer; the label `plugin`. Its numbers are part of the takeover's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

labels! {
    AnswerSource: Server => "", Cache => "cache", Forward => "forward", Template => "template", Hosts => "hosts",
    Dns64 => "dns64", Whoami => "whoami"
}
