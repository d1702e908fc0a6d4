//! What becomes of a connection.

use serde::Serialize;

use crate::reach::ports::PortSet;

use super::cause::Cause;

/// What becomes of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Change {
    /// What was allowed.
    pub(super) before: PortSet,
    /// What is.
    pub(super) after: PortSet,
    /// Why.
    pub(super) because: Vec<Cause>,
}

/// A change in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ChangeKind {
    /// Nothing was allowed.
    Appears,
    /// Nothing is allowed any more.
    Vanishes,
    /// Something was and something is.
    Changes,
}

impl Change {
    pub(super) const fn kind(&self) -> ChangeKind {
        match (self.before.is_empty(), self.after.is_empty()) {
            (true, _) => ChangeKind::Appears,
            (false, true) => ChangeKind::Vanishes,
            (false, false) => ChangeKind::Changes,
        }
    }

    /// What is allowed now and was not.
    pub(super) fn added(&self) -> PortSet {
        self.after.without(&self.before)
    }

    /// What was allowed and is not any more.
    pub(super) fn removed(&self) -> PortSet {
        self.before.without(&self.after)
    }
}

impl ChangeKind {
    /// As it is written.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Appears => "appears",
            Self::Vanishes => "vanishes",
            Self::Changes => "changes",
        }
    }
}
