//! How rules use sets: what a member of a set opens or closes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egret_shared::name::NamePattern;

use crate::model::{Action, Direction};
use crate::rules::{PeerMatch, SetId};

use super::directions::Directions;
use super::set_content::NamedSet;

/// A set that rules name, and what its members do for them.
#[derive(Clone, Debug)]
pub(crate) struct SetUse {
    pub(crate) set: Arc<NamedSet>,
    /// Directions in which a member may open something: it stands in an Allow or Pass.
    pub(crate) opens: Directions,
    /// Directions in which a member may close something: it stands in a Deny or Pass.
    pub(crate) closes: Directions,
    /// Directions in which a member has all rules asked, those over names as well ([`crate::rules::Names`]). By itself that neither opens
    /// nor closes.
    pub(crate) has_names_asked: Directions,
}

impl SetUse {
    /// A set that nothing is done with yet.
    pub(super) fn none_of(set: &Arc<NamedSet>) -> Self {
        Self {
            set: Arc::clone(set),
            opens: Directions::default(),
            closes: Directions::default(),
            has_names_asked: Directions::default(),
        }
    }

    /// Whether no rule names the set any more.
    pub(super) const fn does_nothing(&self) -> bool {
        self.opens.is_empty() && self.closes.is_empty() && self.has_names_asked.is_empty()
    }
}

/// Sets with one name are one set.
impl PartialEq for SetUse {
    fn eq(&self, other: &Self) -> bool {
        let does = |used: &Self| (used.set.id, used.opens, used.closes, used.has_names_asked);
        does(self) == does(other)
    }
}

/// The sets that were named so far.
#[derive(Debug, Default)]
pub(super) struct SetUses {
    pub(super) sets: BTreeMap<SetId, SetUse>,
    pub(super) patterns: Vec<Arc<BTreeSet<NamePattern>>>,
}

impl SetUses {
    pub(super) fn add(&mut self, set: &Arc<NamedSet>, action: Action, direction: Direction) -> PeerMatch {
        let (opens, closes) = match action {
            Action::Allow => (true, false),
            Action::Deny => (false, true),
            Action::Pass => (true, true),
        };
        self.note(set, (opens, closes), direction);
        PeerMatch::In(set.id)
    }

    /// A member of an exception does the opposite of what the rule does.
    pub(super) fn add_exception(
        &mut self,
        set: &Arc<NamedSet>,
        action: Action,
        direction: Direction,
    ) -> SetId {
        let (opens, closes) = match action {
            Action::Allow => (false, true),
            Action::Deny => (true, false),
            Action::Pass => (true, true),
        };
        self.note(set, (opens, closes), direction);
        set.id
    }

    fn note(&mut self, set: &Arc<NamedSet>, (opens, closes): (bool, bool), direction: Direction) {
        let used = self.sets.entry(set.id).or_insert_with(|| SetUse::none_of(set));
        if opens {
            used.opens.set(direction, true);
        }
        if closes {
            used.closes.set(direction, true);
        }
    }
}
