//! Longest match: the zone that answers for a name is the longest one that holds it.

use std::sync::Arc;

use crate::dns::message::{Question, WireName};

use super::ZoneBinding;

/// The type whose records are in the parent zone (RFC 4035 §3.1.4.1).
const DS: u16 = 43;

/// The zone bindings of one address.
#[derive(Debug, Default)]
pub struct ZoneBindings {
    /// The longest zone first.
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

    /// The zone that answers a question; none where no zone holds its name.
    #[must_use]
    pub fn find(&self, question: &Question) -> Option<&Arc<ZoneBinding>> {
        let mut holding = self.holding(&question.name);
        let first = holding.next()?;
        // DS is answered by the parent zone, if dnsd has it.
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
