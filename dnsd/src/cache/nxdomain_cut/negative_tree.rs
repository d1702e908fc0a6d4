//! What is known of names above others: found by one hash, and bounded.

use std::sync::Arc;
use std::time::Duration;

use egret_shared::time::Timestamp;
use tokio::sync::watch;

use super::PROVEN;
use super::denial::Denial;
use crate::cache::nxdomain_cut::ancestors::{Level, Places, label};
use crate::cache::nxdomain_cut::public_suffix::is_public;
use crate::hash::HashMap;

/// What is known of a name.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    /// Names below it are asked for; proven where one of them exists.
    Open { until: Timestamp, is_proven: bool },
    /// It does not exist, nor does anything below it.
    Shut { denial: Arc<Denial>, until: Timestamp },
    /// It is being asked for, and questions below it wait for the end of that.
    Sought { until: Timestamp, end: End },
}

/// Comes when a name is not asked for any longer, whatever was heard.
pub(super) type End = watch::Receiver<()>;

/// What is to be done about a name above before a question is asked.
#[derive(Debug)]
pub(super) enum First {
    Ask(Level),
    Wait(End),
}

impl Fate {
    const fn until(&self) -> Timestamp {
        match self {
            Self::Open { until, .. } | Self::Shut { until, .. } | Self::Sought { until, .. } => *until,
        }
    }

    /// Whether it is known, or was so within the hour.
    fn is_remembered(&self, now: Timestamp) -> bool {
        now < self.until().after(PROVEN)
    }

    fn is_live(&self, now: Timestamp) -> bool {
        now < self.until()
    }
}

/// All that is known, by DO and CD.
#[derive(Debug, Default)]
pub(super) struct Fates {
    nodes: [HashMap<Box<[u8]>, Node>; 4],
    fates: usize,
    swept: Option<Timestamp>,
}

/// An upper place, and the lower ones in it by their labels, in order.
#[derive(Debug, Default)]
struct Node {
    own: Option<Fate>,
    below: Vec<(Box<[u8]>, Fate)>,
}

/// Lower places in one upper one: so many are searched in no time.
const MOST_BELOW: usize = 256;
/// Where there is no room, what has ended is looked for once in a while.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(1);

impl Fates {
    /// Of how many names something may be known. The names of the nodes and an SOA each, which have 100 to 200 octets in a
    /// cluster, and under 1,100 whatever they say.
    pub(super) const MOST: usize = 4_096;

    /// The denial that a name is below.
    pub(super) fn denial(&self, class: u8, places: &Places<'_>, now: Timestamp) -> Option<&Arc<Denial>> {
        let node = self.node(class, places)?;
        let lower = || places.lower.and_then(|lower| node.at(lower));
        match (&node.own, lower) {
            (Some(Fate::Shut { denial, until }), _) if now < *until => Some(denial),
            (_, lower) => match lower() {
                Some(Fate::Shut { denial, until }) if now < *until => Some(denial),
                Some(Fate::Shut { .. } | Fate::Open { .. } | Fate::Sought { .. }) | None => None,
            },
        }
    }

    /// The highest place of which nothing is known, unless one above is shut.
    pub(super) fn unknown(&self, class: u8, places: &Places<'_>, now: Timestamp) -> Option<Level> {
        for level in [Level::Upper, Level::Lower] {
            places.at(level)?;
            match self.get(class, places, level).filter(|fate| fate.is_live(now)) {
                None => return Some(level),
                Some(Fate::Shut { .. }) => return None,
                Some(Fate::Open { .. } | Fate::Sought { .. }) => {}
            }
        }
        None
    }

    /// Whether a name above comes before a question: one with a public label of which nothing was known for an hour, in a
    /// place that is known to be there. What was denied before is not asked for first again: the next question below it is
    /// asked, so that a name is found which its server denies those above.
    pub(super) fn first(&self, class: u8, places: &Places<'_>, now: Timestamp) -> Option<First> {
        for level in [Level::Upper, Level::Lower] {
            let place = places.at(level)?;
            let fate = self.get(class, places, level);
            match fate.filter(|fate| fate.is_remembered(now)) {
                None => return is_public(label(place)).then_some(First::Ask(level)),
                Some(Fate::Sought { end, until }) if now < *until => return Some(First::Wait(end.clone())),
                Some(Fate::Open { .. }) => {}
                Some(Fate::Shut { .. } | Fate::Sought { .. }) => return None,
            }
        }
        None
    }

    /// Whether a place was denied, which has ended within the hour.
    pub(super) fn was_shut(&self, class: u8, places: &Places<'_>, level: Level, now: Timestamp) -> bool {
        let fate = self.get(class, places, level);
        fate.is_some_and(|fate| matches!(fate, Fate::Shut { .. }) && fate.is_remembered(now))
    }

    /// Whether something is known to exist below a place at this moment.
    pub(super) fn is_proven(&self, class: u8, places: &Places<'_>, level: Level, now: Timestamp) -> bool {
        matches!(self.get(class, places, level), Some(Fate::Open { until, is_proven: true }) if now < *until)
    }

    /// Notes what is known of a place, and whether there is room for it.
    pub(super) fn set(
        &mut self,
        class: u8,
        places: &Places<'_>,
        level: Level,
        fate: Fate,
        now: Timestamp,
    ) -> bool {
        if places.at(level).is_none() {
            return false;
        }
        if let Some(known) = self.get_mut(class, places, level) {
            *known = fate;
            return true;
        }
        if !self.has_room(class, places) {
            self.sweep(now);
        }
        let has_room = self.has_room(class, places);
        if has_room {
            let nodes = &mut self.nodes[usize::from(class)];
            nodes
                .entry(places.upper.into())
                .or_default()
                .add(places, level, fate);
            self.fates += 1;
        }
        has_room
    }

    /// Of how many names something is known.
    pub(super) const fn len(&self) -> usize {
        self.fates
    }

    fn has_room(&self, class: u8, places: &Places<'_>) -> bool {
        let is_full = |node: &Node| node.below.len() >= MOST_BELOW;
        self.fates < Self::MOST && !self.node(class, places).is_some_and(is_full)
    }

    /// Forgets what has ended, not too often: who fills it makes nobody else wait.
    fn sweep(&mut self, now: Timestamp) {
        if self.swept.is_some_and(|swept| now.since(swept) < BETWEEN_SWEEPS) {
            return;
        }
        self.swept = Some(now);
        for nodes in &mut self.nodes {
            nodes.retain(|_, node| node.sweep(now) > 0);
        }
        self.fates = self.nodes.iter().flat_map(HashMap::values).map(Node::len).sum();
    }

    fn node(&self, class: u8, places: &Places<'_>) -> Option<&Node> {
        self.nodes[usize::from(class)].get(places.upper)
    }

    fn get(&self, class: u8, places: &Places<'_>, level: Level) -> Option<&Fate> {
        let node = self.node(class, places)?;
        match level {
            Level::Upper => node.own.as_ref(),
            Level::Lower => node.at(places.lower?),
        }
    }

    fn get_mut(&mut self, class: u8, places: &Places<'_>, level: Level) -> Option<&mut Fate> {
        let node = self.nodes[usize::from(class)].get_mut(places.upper)?;
        match level {
            Level::Upper => node.own.as_mut(),
            Level::Lower => {
                let found = node.find(label(places.lower?)).ok()?;
                Some(&mut node.below[found].1)
            }
        }
    }
}

impl Node {
    /// What is known of a lower place, which is given whole.
    fn at(&self, lower: &[u8]) -> Option<&Fate> {
        let found = self.find(label(lower)).ok()?;
        Some(&self.below[found].1)
    }

    fn find(&self, label: &[u8]) -> Result<usize, usize> {
        self.below.binary_search_by(|(other, _)| (**other).cmp(label))
    }

    /// Adds what was not there.
    fn add(&mut self, places: &Places<'_>, level: Level, fate: Fate) {
        match (level, places.lower) {
            (Level::Lower, Some(lower)) => {
                let (Ok(place) | Err(place)) = self.find(label(lower));
                self.below.insert(place, (label(lower).into(), fate));
            }
            (Level::Upper, _) | (Level::Lower, None) => self.own = Some(fate),
        }
    }

    /// Forgets what has ended, and tells how much is left.
    fn sweep(&mut self, now: Timestamp) -> usize {
        self.own.take_if(|fate| !fate.is_live(now));
        self.below.retain(|(_, fate)| fate.is_live(now));
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

    fn open(seconds: u64) -> Fate {
        Fate::Open {
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
    fn there_is_a_bound_and_what_has_ended_makes_room() {
        let mut fates = Fates::default();
        let set = |fates: &mut Fates, number, fate, now| {
            let (upper, lower) = (name(number), None);
            let places = Places { upper: &upper, lower };
            fates.set(0, &places, Level::Upper, fate, now)
        };
        let kept = (0..2 * Fates::MOST).filter(|number| set(&mut fates, *number, open(10), NOW));
        assert_eq!(kept.count(), Fates::MOST);
        assert!(!set(
            &mut fates,
            Fates::MOST,
            open(20),
            NOW.after(Duration::from_secs(9))
        ));
        assert!(set(
            &mut fates,
            Fates::MOST,
            open(20),
            NOW.after(Duration::from_secs(11))
        ));
        assert_eq!(fates.len(), 1);
    }

    #[test]
    fn one_name_holds_so_many_others_and_no_more() {
        let mut fates = Fates::default();
        let kept = (0..2 * MOST_BELOW).filter(|number| {
            let lower = name(*number);
            let places = Places {
                upper: b"\x04test\0",
                lower: Some(&lower),
            };
            fates.set(0, &places, Level::Lower, open(10), NOW)
        });
        assert_eq!(kept.count(), MOST_BELOW);
    }
}
