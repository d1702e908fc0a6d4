//! Why a connection changes: which rules decided before, and which decide now.

use std::fmt;

use egret_policies::rules::Direction;
use serde::Serialize;

use crate::reach::decision::RuleDecision;
use crate::reach::ports::PortSet;

/// Why a connection changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Cause {
    /// It is new or gone, and with it all its connections.
    End(String),
    /// Other rules decide, or the same decide otherwise.
    #[serde(untagged)]
    Rules(Box<DecidingRules>),
}

/// What decided in a direction, for some ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct DecidingRules {
    #[serde(serialize_with = "as_word")]
    pub(super) direction: Direction,
    pub(super) ports: PortSet,
    pub(super) before: RuleDecision,
    pub(super) after: RuleDecision,
}

fn as_word<S: serde::Serializer>(direction: &Direction, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(direction.word())
}

impl Cause {
    /// The ports that it is about; an end is there or not for all of them.
    pub(super) fn ports(&self) -> Option<&PortSet> {
        match self {
            Self::End(_) => None,
            Self::Rules(rules) => Some(&rules.ports),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End(text) => f.write_str(text),
            Self::Rules(rules) => {
                let direction = rules.direction.word();
                write!(f, "{direction}: {}; was {}", rules.after, rules.before)
            }
        }
    }
}
