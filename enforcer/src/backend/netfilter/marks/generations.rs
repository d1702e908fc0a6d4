//! The generation of each pod and direction. Numbers come from one serial for the node, so an address that
//! gets another pod never meets a mark of the earlier one.

use std::collections::{BTreeMap, BTreeSet};

use egret_kernel::conntrack::{Conntrack, Flow, FlowFilter};
use egret_kernel::netlink;
use egret_policies::rules::{Direction, PodRules};
use egret_shared::pod::PodKey;

use super::PodMarks;
use super::{Generation, Marks};
use crate::backend::netfilter::names::PodChains;

/// So many numbers are taken off flows at once, with the same high bits, by which the kernel finds them: it walks its whole table
/// for each question, however few flows it answers with. A power of two.
const AT_ONCE: u16 = 64;

/// A mark with which the entry chain of a pod compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend) struct ChainMark<'a> {
    pub(in crate::backend) chain: &'a str,
    pub(in crate::backend) direction: Direction,
    pub(in crate::backend) value: u32,
    pub(in crate::backend) mask: u32,
}

/// The generations in force, by the chain in which they stand.
#[derive(Debug)]
pub(in crate::backend) struct Generations {
    marks: Marks,
    current: BTreeMap<String, Generation>,
    /// Numbers that were used before and that no flow bears now: they were taken off when no pod had them, and not drawn since.
    unused: BTreeSet<Generation>,
    /// Numbers that flows bore at the start, whoever gave them those.
    borne: BTreeSet<Generation>,
}

impl Generations {
    pub(in crate::backend) const fn new(marks: Marks) -> Self {
        Self {
            marks,
            current: BTreeMap::new(),
            unused: BTreeSet::new(),
            borne: BTreeSet::new(),
        }
    }

    /// Takes over the marks that stand in chains of an earlier life, as far as they were written with the same masks.
    pub(in crate::backend) fn adopt<'a>(&mut self, marks: impl Iterator<Item = ChainMark<'a>>) {
        for ChainMark {
            chain,
            direction,
            value,
            mask,
        } in marks
        {
            if let Some(generation) = self.marks.generation(direction, value, mask) {
                self.current.insert(chain.to_owned(), generation);
            }
        }
    }

    /// Looks which numbers flows bear: an earlier life, or another backend, gave them to pods that may be gone. They are drawn when no
    /// other is left.
    pub(in crate::backend) fn look_for_borne(&mut self) -> Result<(), netlink::Error> {
        for flow in Conntrack::open()?.dump(&FlowFilter::ALL)? {
            for direction in Direction::ALL {
                let mask = self.marks.unmarked(direction).mask().get();
                self.borne
                    .extend(self.marks.generation(direction, flow.mark, mask));
            }
        }
        Ok(())
    }

    /// The highest number that a pod has.
    pub(in crate::backend) fn highest(&self) -> u64 {
        let highest = self.current.values().max();
        highest.map_or(0, |generation| u64::from(generation.number()))
    }

    /// Whether no pod has any: there was no earlier life, or it left no rules.
    pub(in crate::backend) fn is_empty(&self) -> bool {
        self.current.is_empty()
    }

    pub(in crate::backend) fn has(&self, rules: &PodRules, direction: Direction) -> bool {
        self.current
            .contains_key(PodChains::of(&rules.pod).entry(direction).as_str())
    }

    pub(in crate::backend) fn set(&mut self, pod: PodChains, direction: Direction, generation: Generation) {
        self.current
            .insert(pod.entry(direction).as_str().to_owned(), generation);
    }

    pub(in crate::backend) fn forget(&mut self, pod: PodChains) {
        for direction in Direction::ALL {
            self.current.remove(pod.entry(direction).as_str());
        }
    }

    /// Keeps the generations of pods that are there; returns the pods that the earlier life, if there was one, did not know.
    pub(in crate::backend) fn retain<'a>(
        &mut self,
        pods: impl Iterator<Item = &'a PodKey>,
        rules: impl Iterator<Item = &'a PodRules>,
    ) -> BTreeSet<PodKey> {
        let had_pods = !self.current.is_empty();
        let kept: BTreeSet<String> = pods
            .map(PodChains::of)
            .flat_map(|pod| Direction::ALL.map(|direction| pod.entry(direction).as_str().to_owned()))
            .collect();
        self.current.retain(|name, _| kept.contains(name));
        let is_known = |rules: &PodRules| {
            Direction::ALL
                .into_iter()
                .any(|direction| self.has(rules, direction))
        };
        let new = rules.filter(|rules| had_pods && !is_known(rules));
        new.map(|rules| rules.pod.clone()).collect()
    }

    /// Gives these pods and directions, and those that have none yet, a generation that no flow and no other pod bears: what one pod
    /// marks counts for no other. Returns the marks that flows of the asked pods bear so far. For `serial` see [`Self::allocate`].
    pub(in crate::backend) fn renew<'a>(
        &mut self,
        rules: impl Iterator<Item = &'a PodRules>,
        asked: &BTreeSet<(PodKey, Direction)>,
        serial: &mut u64,
    ) -> Vec<(PodKey, PodMarks)> {
        let mut before = Vec::new();
        for rules in rules {
            let (pod, chains) = (&rules.pod, PodChains::of(&rules.pod));
            let is_asked = |direction| asked.contains(&(pod.clone(), direction));
            let mut drawn: Option<Generation> = None;
            if is_asked(Direction::Egress) {
                let marks = self.marks(chains);
                before.extend(marks.map(|marks| (pod.clone(), marks)));
            }
            for direction in Direction::ALL {
                if is_asked(direction) || !self.has(rules, direction) {
                    let generation = *drawn.get_or_insert_with(|| self.allocate(serial));
                    self.set(chains, direction, generation);
                }
            }
        }
        before
    }

    /// The marks of a pod's allowed flows; none while it has no generation.
    pub(in crate::backend) fn marks(&self, pod: PodChains) -> Option<PodMarks> {
        let mark = |direction| {
            let generation = self.current.get(pod.entry(direction).as_str())?;
            Some(self.marks.mark(direction, *generation))
        };
        Some(PodMarks {
            egress: mark(Direction::Egress)?,
            ingress: mark(Direction::Ingress)?,
        })
    }

    /// A number that no pod has and no flow bears. `serial` is that of the last one, and is moved on.
    pub(in crate::backend) fn allocate(&mut self, serial: &mut u64) -> Generation {
        let most = u64::from(self.marks.generations());
        let used: BTreeSet<Generation> = self.current.values().copied().collect();
        let mut draw = |excluded: &BTreeSet<Generation>| {
            (0..most).find_map(|_| {
                *serial += 1;
                let number = u16::try_from((*serial - 1) % most + 1).ok()?;
                Generation::new(number)
                    .filter(|generation| !used.contains(generation) && !excluded.contains(generation))
            })
        };
        let drawn = draw(&self.borne).or_else(|| draw(&BTreeSet::new()));
        // All numbers in use at once: then the next one is shared, which costs a flow its re-evaluation at worst
        // when its address goes from one pod to the other.
        let generation = drawn.unwrap_or_else(|| Generation::new(1).expect("1 is not 0"));
        let is_borne = self.borne.remove(&generation);
        if (*serial > most || is_borne) && !self.unused.remove(&generation) {
            self.clear_from_flows(generation, &used);
        }
        generation
    }

    /// Takes a number that is used again off the flows that still bear it, and those like it that no pod has: their next packet
    /// is judged anew.
    fn clear_from_flows(&mut self, generation: Generation, used: &BTreeSet<Generation>) {
        let first = generation.number() / AT_ONCE * AT_ONCE;
        let alike = (first..=first.saturating_add(AT_ONCE - 1)).filter_map(Generation::new);
        let unused = alike.filter(|like| !used.contains(like));
        let mut numbers: BTreeSet<Generation> = unused.chain([generation]).collect();
        let cleared = self.unmark(generation, &numbers);
        numbers.remove(&generation);
        self.unused = match cleared {
            Ok(()) => numbers,
            Err(error) => {
                let generation = generation.number();
                tracing::warn!(%error, generation, "flows of a generation that is used again could not be unmarked");
                BTreeSet::new()
            }
        };
    }

    fn unmark(&self, generation: Generation, numbers: &BTreeSet<Generation>) -> Result<(), netlink::Error> {
        let mut conntrack = Conntrack::open()?;
        for direction in Direction::ALL {
            let alike = FlowFilter {
                mark: self.marks.alike(direction, generation, AT_ONCE),
                ..FlowFilter::ALL
            };
            let unmarked = self.marks.unmarked(direction);
            let bears = |flow: &Flow| {
                let found = self.marks.generation(direction, flow.mark, unmarked.mask().get());
                found.is_some_and(|found| numbers.contains(&found))
            };
            let flows = conntrack.dump(&alike)?;
            let bearing: Vec<_> = flows.iter().filter(|flow| bears(flow)).collect();
            let marks: Vec<_> = bearing.into_iter().map(|flow| (flow, unmarked)).collect();
            conntrack.set_marks(&marks)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS};

    fn generations() -> Generations {
        Generations::new(Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).unwrap())
    }

    #[test]
    fn generations_rise_by_one_and_skip_those_of_pods() {
        let mut generations = generations();
        let mut serial = 0;
        generations.set(
            PodChains::of(&PodKey::new("a", "b")),
            Direction::Egress,
            Generation::new(2).unwrap(),
        );
        let drawn: Vec<u16> = (0..3)
            .map(|_| generations.allocate(&mut serial).number())
            .collect();
        assert_eq!((drawn, serial), (vec![1, 3, 4], 4));
    }

    #[test]
    fn generations_in_the_rules_are_adopted() {
        let mut one = generations();
        let pod = PodChains::of(&PodKey::new("a", "b"));
        for direction in Direction::ALL {
            one.set(pod, direction, Generation::new(77).unwrap());
        }
        let marks = one.marks(pod).unwrap();
        let chains = Direction::ALL.map(|direction| pod.entry(direction));
        let adopted = Direction::ALL.into_iter().zip(&chains).map(|(direction, chain)| {
            let mark = marks.of(direction);
            ChainMark {
                chain: chain.as_str(),
                direction,
                value: mark.value(),
                mask: mark.mask().get(),
            }
        });
        let mut other = generations();
        other.adopt(adopted);
        assert_eq!(other.marks(pod), Some(marks));
    }
}
