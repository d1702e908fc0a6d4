//! The negative tree: the states of candidate names, found by one hash look-up, in bounded memory.

use std::sync::Arc;
use std::time::Duration;

use egret_shared::time::Timestamp;

use super::PROVEN;
use super::denial::Denial;
use crate::cache::nxdomain_cut::ancestors::{Ancestors, Level, label};
use crate::hash::HashMap;

/// The state of a candidate name.
#[derive(Clone, Debug)]
pub(super) enum NodeState {
    /// The name exists: names below it are queried. `is_proven`: a name below it exists.
    Open { until: Timestamp, is_proven: bool },
    /// It does not exist, nor does anything below it.
    Denied { denial: Arc<Denial>, until: Timestamp },
}

impl NodeState {
    const fn until(&self) -> Timestamp {
        match self {
            Self::Open { until, .. } | Self::Denied { until, .. } => *until,
        }
    }

    /// Whether it is in force, or was within the hour.
    fn is_remembered(&self, now: Timestamp) -> bool {
        now < self.until().after(PROVEN)
    }

    fn is_live(&self, now: Timestamp) -> bool {
        now < self.until()
    }
}

/// All states, by DO and CD.
#[derive(Debug, Default)]
pub(super) struct NegativeTree {
    nodes: [HashMap<Box<[u8]>, Node>; 4],
    tree: usize,
    swept: Option<Timestamp>,
}

/// An upper name, and the lower ones in it by label, sorted.
#[derive(Debug, Default)]
struct Node {
    own: Option<NodeState>,
    below: Vec<(Box<[u8]>, NodeState)>,
}

/// The most lower names of an upper one: the list is searched in no time.
const MOST_BELOW: usize = 256;
/// The interval between sweeps of a full tree.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(1);

impl NegativeTree {
    /// The most names. A node has its names and an SOA: 100 to 200 octets in a cluster, at most 1,100.
    pub(super) const MOST: usize = 4_096;

    /// The denial above a name.
    pub(super) fn denial(
        &self,
        class: u8,
        ancestors: &Ancestors<'_>,
        now: Timestamp,
    ) -> Option<&Arc<Denial>> {
        let node = self.node(class, ancestors)?;
        let lower = || ancestors.lower.and_then(|lower| node.at(lower));
        match (&node.own, lower) {
            (Some(NodeState::Denied { denial, until }), _) if now < *until => Some(denial),
            (_, lower) => match lower() {
                Some(NodeState::Denied { denial, until }) if now < *until => Some(denial),
                Some(NodeState::Denied { .. } | NodeState::Open { .. }) | None => None,
            },
        }
    }

    /// The highest candidate without a state, unless one above it is denied.
    pub(super) fn unknown(&self, class: u8, ancestors: &Ancestors<'_>, now: Timestamp) -> Option<Level> {
        for level in [Level::Upper, Level::Lower] {
            ancestors.at(level)?;
            match self
                .get(class, ancestors, level)
                .filter(|state| state.is_live(now))
            {
                None => return Some(level),
                Some(NodeState::Denied { .. }) => return None,
                Some(NodeState::Open { .. }) => {}
            }
        }
        None
    }

    /// Whether a denial of the name has ended within the hour.
    pub(super) fn was_denied(
        &self,
        class: u8,
        ancestors: &Ancestors<'_>,
        level: Level,
        now: Timestamp,
    ) -> bool {
        let state = self.get(class, ancestors, level);
        state.is_some_and(|state| matches!(state, NodeState::Denied { .. }) && state.is_remembered(now))
    }

    /// Whether a name below it exists now.
    pub(super) fn is_proven(
        &self,
        class: u8,
        ancestors: &Ancestors<'_>,
        level: Level,
        now: Timestamp,
    ) -> bool {
        matches!(self.get(class, ancestors, level), Some(NodeState::Open { until, is_proven: true }) if now < *until)
    }

    /// Sets a state; returns whether there is room for it.
    pub(super) fn set(
        &mut self,
        class: u8,
        ancestors: &Ancestors<'_>,
        level: Level,
        state: NodeState,
        now: Timestamp,
    ) -> bool {
        if ancestors.at(level).is_none() {
            return false;
        }
        if let Some(known) = self.get_mut(class, ancestors, level) {
            *known = state;
            return true;
        }
        if !self.has_room(class, ancestors) {
            self.sweep(now);
        }
        let has_room = self.has_room(class, ancestors);
        if has_room {
            let nodes = &mut self.nodes[usize::from(class)];
            nodes
                .entry(ancestors.upper.into())
                .or_default()
                .add(ancestors, level, state);
            self.tree += 1;
        }
        has_room
    }

    /// The number of names with a state.
    pub(super) const fn len(&self) -> usize {
        self.tree
    }

    fn has_room(&self, class: u8, ancestors: &Ancestors<'_>) -> bool {
        let is_full = |node: &Node| node.below.len() >= MOST_BELOW;
        self.tree < Self::MOST && !self.node(class, ancestors).is_some_and(is_full)
    }

    /// Removes expired states, at most once in the interval: whoever fills the tree delays no other query.
    fn sweep(&mut self, now: Timestamp) {
        if self.swept.is_some_and(|swept| now.since(swept) < BETWEEN_SWEEPS) {
            return;
        }
        self.swept = Some(now);
        for nodes in &mut self.nodes {
            nodes.retain(|_, node| node.sweep(now) > 0);
        }
        self.tree = self.nodes.iter().flat_map(HashMap::values).map(Node::len).sum();
    }

    fn node(&self, class: u8, ancestors: &Ancestors<'_>) -> Option<&Node> {
        self.nodes[usize::from(class)].get(ancestors.upper)
    }

    fn get(&self, class: u8, ancestors: &Ancestors<'_>, level: Level) -> Option<&NodeState> {
        let node = self.node(class, ancestors)?;
        match level {
            Level::Upper => node.own.as_ref(),
            Level::Lower => node.at(ancestors.lower?),
        }
    }

    fn get_mut(&mut self, class: u8, ancestors: &Ancestors<'_>, level: Level) -> Option<&mut NodeState> {
        let node = self.nodes[usize::from(class)].get_mut(ancestors.upper)?;
        match level {
            Level::Upper => node.own.as_mut(),
            Level::Lower => {
                let found = node.find(label(ancestors.lower?)).ok()?;
                Some(&mut node.below[found].1)
            }
        }
    }
}

impl Node {
    /// The state of a lower name, given in full.
    fn at(&self, lower: &[u8]) -> Option<&NodeState> {
        let found = self.find(label(lower)).ok()?;
        Some(&self.below[found].1)
    }

    fn find(&self, label: &[u8]) -> Result<usize, usize> {
        self.below.binary_search_by(|(other, _)| (**other).cmp(label))
    }

    /// Adds a state.
    fn add(&mut self, ancestors: &Ancestors<'_>, level: Level, state: NodeState) {
        match (level, ancestors.lower) {
            (Level::Lower, Some(lower)) => {
                let (Ok(ancestor) | Err(ancestor)) = self.find(label(lower));
                self.below.insert(ancestor, (label(lower).into(), state));
            }
            (Level::Upper, _) | (Level::Lower, None) => self.own = Some(state),
        }
    }

    /// Removes expired states, and returns how many are left.
    fn sweep(&mut self, now: Timestamp) -> usize {
        self.own.take_if(|state| !state.is_live(now));
        self.below.retain(|(_, state)| state.is_live(now));
        self.len()
    }

    fn len(&self) -> usize {
        self.below.len() + usize::from(self.own.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(0);

    fn open(seconds: u64) -> NodeState {
        NodeState::Open {
            until: NOW.after(Duration::from_secs(seconds)),
            is_proven: false,
        }
    }

    fn name(number: usize) -> Vec<u8> {
        let label = number.to_string();
        let length = u8::try_from(label.len()).unwrap();
        [&[length], label.as_bytes(), b"\x04test\0"].concat()
    }

    #[test]
    fn the_tree_is_bounded_and_expired_nodes_make_room() {
        let mut tree = NegativeTree::default();
        let set = |tree: &mut NegativeTree, number, state, now| {
            let (upper, lower) = (name(number), None);
            let ancestors = Ancestors { upper: &upper, lower };
            tree.set(0, &ancestors, Level::Upper, state, now)
        };
        let kept = (0..2 * NegativeTree::MOST).filter(|number| set(&mut tree, *number, open(10), NOW));
        assert_eq!(kept.count(), NegativeTree::MOST);
        assert!(!set(
            &mut tree,
            NegativeTree::MOST,
            open(20),
            NOW.after(Duration::from_secs(9))
        ));
        assert!(set(
            &mut tree,
            NegativeTree::MOST,
            open(20),
            NOW.after(Duration::from_secs(11))
        ));
        assert_eq!(tree.len(), 1);
    }

    #[test]
    fn the_children_of_a_node_are_bounded() {
        let mut tree = NegativeTree::default();
        let kept = (0..2 * MOST_BELOW).filter(|number| {
            let lower = name(*number);
            let ancestors = Ancestors {
                upper: b"\x04test\0",
                lower: Some(&lower),
            };
            tree.set(0, &ancestors, Level::Lower, open(10), NOW)
        });
        assert_eq!(kept.count(), MOST_BELOW);
    }
}
