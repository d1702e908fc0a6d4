//! Every connection that may be asked about, as fine as rules can tell them apart, with what both ends say.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use egret_policies::model::Direction;
use egret_shared::net::{Family, IpNet};

use super::addresses::{address_of, partition};
use super::connection_end::{End, EndPair};
use super::fold::Unit;
use super::ports::PortSet;
use super::rules::allow_everything;
use super::{PortVerdicts, Reach};

/// One connection, for all ports.
#[derive(Clone, Debug)]
pub struct EndPairVerdicts {
    /// From whom to whom.
    pub ends: EndPair,
    /// The part of the way that this is about.
    pub extent: PartExtent,
    /// What both ends say.
    pub verdicts: EndVerdicts,
    /// What would be allowed if the address had not been told; only for names.
    pub without_record: Option<PortSet>,
}

impl EndPairVerdicts {
    /// Whether both ends allow the same ports as those of another.
    #[must_use]
    pub fn has_same_verdicts(&self, other: &Self) -> bool {
        let allowed = |judged: &Option<Rc<PortVerdicts>>, other: &Option<Rc<PortVerdicts>>| {
            judged.as_ref().map(|judged| &judged.allowed) == other.as_ref().map(|other| &other.allowed)
        };
        allowed(&self.verdicts.egress, &other.verdicts.egress)
            && allowed(&self.verdicts.ingress, &other.verdicts.ingress)
            && self.without_record == other.without_record
    }
}

/// The part of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartExtent {
    /// All there is of it.
    Whole,
    /// Pods in one family.
    Family(Family),
    /// One address of a node.
    Address(IpAddr),
    /// Addresses outside, from the first number to the last.
    Range(Family, (u128, u128)),
}

/// What the ends say; an end that is no pod with rules says nothing.
#[derive(Clone, Debug)]
pub struct EndVerdicts {
    /// What the rules of the source say.
    pub egress: Option<Rc<PortVerdicts>>,
    /// What the rules of the destination say.
    pub ingress: Option<Rc<PortVerdicts>>,
}

impl EndVerdicts {
    /// What one end says.
    #[must_use]
    pub const fn of(&self, direction: Direction) -> Option<&Rc<PortVerdicts>> {
        match direction {
            Direction::Egress => self.egress.as_ref(),
            Direction::Ingress => self.ingress.as_ref(),
        }
    }

    /// What both allow.
    #[must_use]
    pub fn allowed(&self) -> PortSet {
        match (&self.egress, &self.ingress) {
            (Some(egress), Some(ingress)) => egress.allowed.intersection(&ingress.allowed),
            (Some(judged), None) | (None, Some(judged)) => judged.allowed.clone(),
            (None, None) => PortSet::everything(),
        }
    }

    const fn egress(judged: Rc<PortVerdicts>) -> Self {
        Self {
            egress: Some(judged),
            ingress: None,
        }
    }

    const fn ingress(judged: Rc<PortVerdicts>) -> Self {
        Self {
            egress: None,
            ingress: Some(judged),
        }
    }
}

/// Networks and names at which rules divide the outside. Those of two clusters together make both comparable.
#[derive(Debug, Default)]
pub struct Boundaries {
    /// Networks of a unit's rules.
    pub networks: BTreeSet<IpNet>,
    /// Names of its rules.
    pub names: BTreeSet<Arc<str>>,
}

impl Reach {
    /// Where the rules of a unit cut the outside.
    #[must_use]
    pub fn boundaries(&self, unit: &Unit, direction: Direction) -> Boundaries {
        let rules = unit.rules(direction);
        Boundaries {
            networks: self.networks(rules),
            names: self.names(rules),
        }
    }

    /// What is allowed between pods, by family. There are as many of these as there are pairs of pods, so nothing else
    /// is made of them here.
    pub fn allowed_between(&self, from: &Unit, to: &Unit) -> impl Iterator<Item = (Family, Rc<PortSet>)> {
        let meet = !is_itself(from, to);
        from.facts
            .iter()
            .filter(move |_| meet)
            .filter_map(move |(family, source)| {
                let destination = to.facts.get(family)?;
                let allowed = self.allowed((from.egress, *destination), (to.ingress, *source));
                Some((*family, allowed))
            })
    }

    /// Connections between pods, as points.
    #[must_use]
    pub fn between_pods(&self, from: &Unit, to: &Unit) -> Vec<EndPairVerdicts> {
        if is_itself(from, to) {
            return Vec::new();
        }
        let way = way_between(from, to);
        let in_family = |(family, source): (&Family, &super::FactsId)| {
            let destination = to.facts.get(family)?;
            let said = EndVerdicts {
                egress: Some(self.judge(from.egress, *destination)),
                ingress: Some(self.judge(to.ingress, *source)),
            };
            Some(point(way.clone(), PartExtent::Family(*family), said))
        };
        from.facts.iter().filter_map(in_family).collect()
    }

    /// Connections of pods with nodes.
    #[must_use]
    pub fn with_nodes(&self, unit: &Unit) -> Vec<EndPairVerdicts> {
        let mut points = self.with_own_node(unit);
        for (name, addresses) in &self.nodes {
            let of_family = |address: &&IpAddr| unit.facts.contains_key(&Family::of(**address));
            for address in addresses.iter().filter(of_family) {
                if !self.is_others(unit, *address) {
                    continue;
                }
                let facts = self.facts_of(*address, false);
                let (node, extent) = (End::Node(Arc::clone(name)), PartExtent::Address(*address));
                let (to, from) = both_ways(unit, node);
                points.push(point(
                    to,
                    extent,
                    EndVerdicts::egress(self.judge(unit.egress, facts)),
                ));
                points.push(point(
                    from,
                    extent,
                    EndVerdicts::ingress(self.judge(unit.ingress, facts)),
                ));
            }
        }
        points
    }

    /// What the own node opens is never judged.
    fn with_own_node(&self, unit: &Unit) -> Vec<EndPairVerdicts> {
        let mut points = Vec::new();
        let (to, from) = both_ways(unit, End::OwnNode);
        for (address, facts) in &unit.own {
            let extent = address.map_or(PartExtent::Whole, PartExtent::Address);
            points.push(point(
                to.clone(),
                extent,
                EndVerdicts::egress(self.judge(unit.egress, *facts)),
            ));
        }
        if !unit.own.is_empty() {
            let exempt = Rc::new(PortVerdicts::from(allow_everything("exempt")));
            points.push(point(from, PartExtent::Whole, EndVerdicts::ingress(exempt)));
        }
        points
    }

    /// Whether an address is another node's for some pod of the unit.
    fn is_others(&self, unit: &Unit, address: IpAddr) -> bool {
        let cluster = &self.loaded.cluster;
        unit.workload.pods.iter().any(|pod| {
            cluster
                .member(pod)
                .is_some_and(|member| !cluster.is_own_node(&member.pod, address))
        })
    }

    /// Connections of pods with addresses that are neither pods' nor nodes'.
    #[must_use]
    pub fn with_outside(&self, unit: &Unit, direction: Direction, cuts: &Boundaries) -> Vec<EndPairVerdicts> {
        let (to, from) = both_ways(unit, End::Outside);
        let way = match direction {
            Direction::Egress => to,
            Direction::Ingress => from,
        };
        let at = |(family, range): (Family, (u128, u128))| {
            let facts = self.facts_outside(address_of(family, range.0), None);
            let judged = self.judge(unit.rules(direction), facts);
            let said = match direction {
                Direction::Egress => EndVerdicts::egress(judged),
                Direction::Ingress => EndVerdicts::ingress(judged),
            };
            point(way.clone(), PartExtent::Range(family, range), said)
        };
        ranges(unit, cuts).map(at).collect()
    }

    /// Connections of pods with addresses that they were told for a name.
    #[must_use]
    pub fn with_names(&self, unit: &Unit, cuts: &Boundaries) -> Vec<EndPairVerdicts> {
        let mut points = Vec::new();
        if cuts.names.is_empty() {
            return points;
        }
        let ranges: Vec<(Family, (u128, u128))> = ranges(unit, cuts).collect();
        for name in &cuts.names {
            let (way, _) = both_ways(unit, End::Name(Arc::clone(name)));
            for (family, range) in ranges.iter().copied() {
                let address = address_of(family, range.0);
                let told = self.facts_outside(address, Some(name));
                let untold = self.facts_outside(address, None);
                let said = EndVerdicts::egress(self.judge(unit.egress, told));
                points.push(EndPairVerdicts {
                    without_record: Some(self.judge(unit.egress, untold).allowed.clone()),
                    ..point(way.clone(), PartExtent::Range(family, range), said)
                });
            }
        }
        points
    }
}

/// Of one pod with itself nothing is said: that is never judged.
fn is_itself(from: &Unit, to: &Unit) -> bool {
    !from.is_several && from.workload == to.workload
}

/// From pods to pods.
#[must_use]
pub fn way_between(from: &Unit, to: &Unit) -> EndPair {
    EndPair {
        from: End::Pods(Arc::clone(&from.workload)),
        to: End::Pods(Arc::clone(&to.workload)),
    }
}

/// To and from a place.
fn both_ways(unit: &Unit, place: End) -> (EndPair, EndPair) {
    let pods = End::Pods(Arc::clone(&unit.workload));
    let to = EndPair {
        from: pods.clone(),
        to: place.clone(),
    };
    let from = EndPair {
        from: place,
        to: pods,
    };
    (to, from)
}

fn ranges(unit: &Unit, cuts: &Boundaries) -> impl Iterator<Item = (Family, (u128, u128))> {
    unit.families.iter().flat_map(|family| {
        partition(*family, &cuts.networks)
            .into_iter()
            .map(|range| (*family, range))
    })
}

const fn point(way: EndPair, extent: PartExtent, said: EndVerdicts) -> EndPairVerdicts {
    EndPairVerdicts {
        ends: way,
        extent,
        verdicts: said,
        without_record: None,
    }
}
