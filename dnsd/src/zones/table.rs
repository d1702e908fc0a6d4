//! Which block answers for a name: the one with the longest zone that holds it.

use std::sync::Arc;

use crate::dns::message::{Question, WireName};

use super::ZoneBinding;

/// A type whose records stand in the zone above the name (RFC 4035 §3.1.4.1).
const DS: u16 = 43;

/// The zones of one address.
#[derive(Debug, Default)]
pub struct ZoneBindings {
    /// The longest first: the first that holds a name is the longest that does.
    entries: Vec<Arc<ZoneBinding>>,
}

impl ZoneBindings {
    pub(super) fn new(mut entries: Vec<ZoneBinding>) -> Self {
        entries.sort_by_key(|binding| std::cmp::Reverse(binding.zone.apex().as_octets().len()));
        Self {
            entries: entries.into_iter().map(Arc::new).collect(),
        }
    }

    /// All of them, the longest first.
    pub(super) fn entries(&self) -> &[Arc<ZoneBinding>] {
        &self.entries
    }

    /// Who answers a question; nobody where no zone holds its name.
    #[must_use]
    pub fn find(&self, question: &Question) -> Option<&Arc<ZoneBinding>> {
        let mut holding = self.holding(&question.name);
        let first = holding.next()?;
        // What a zone says of its child stands in the parent, if that is here, too.
        if question.kind == DS && *first.zone.apex() == question.name {
            return Some(holding.next().unwrap_or(first));
        }
        Some(first)
    }

    fn holding(&self, name: &WireName) -> impl Iterator<Item = &Arc<ZoneBinding>> {
        self.entries
            .iter()
            .filter(move |binding| binding.zone.holds(name))
    }
}
