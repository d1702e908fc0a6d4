//! Close first, then open. Between two steps of a batch a connection must never be allowed that neither
//! the old nor the new state allows; so what only closes comes before what only opens, and where rules
//! are replaced too, what opens comes after them.

use crate::compile::Use;
use crate::rules::{Batch, MembersChanged};

/// A batch, and what is to come after it.
#[derive(Debug)]
pub(crate) struct Batches {
    pub(crate) first: Batch,
    pub(crate) then: Batch,
}

/// What one more member of a set does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It stands in Allow rules only.
    Opens,
    /// It stands in Deny rules only.
    Closes,
    /// Both, or in a Pass, behind which anything may stand: then there is no right order, and all of a
    /// set changes in one step.
    Either,
}

impl Effect {
    pub(super) fn of<'a>(uses: impl Iterator<Item = &'a Use>) -> Self {
        let (mut opens, mut closes) = (false, false);
        for used in uses {
            opens |= !used.opens.is_empty();
            closes |= !used.closes.is_empty();
        }
        match (opens, closes) {
            (true, false) => Self::Opens,
            (false, true) => Self::Closes,
            (true, true) | (false, false) => Self::Either,
        }
    }

    /// The part of a change that closes, and the part that opens.
    pub(super) fn split(self, changed: MembersChanged) -> (Option<MembersChanged>, Option<MembersChanged>) {
        let MembersChanged { set, added, removed } = changed;
        let part = |added, removed| {
            let part = MembersChanged { set, added, removed };
            (!part.added.is_empty() || !part.removed.is_empty()).then_some(part)
        };
        match self {
            Self::Opens => (part(Vec::new(), removed), part(added, Vec::new())),
            Self::Closes => (part(added, Vec::new()), part(Vec::new(), removed)),
            Self::Either => (part(added, removed), None),
        }
    }
}
