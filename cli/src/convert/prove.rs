//! That two lists of policies mean the same: the rules of both are compared for every peer and for all ports.
//!
//! Pods that the rules of neither tell from each other are compared once (twice for connections among themselves).
//! Manifests seldom have a pod for every selector, so pods are made up for those: what is proved holds for pods that
//! are still to come, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use egret_policies::compiler::DnsStandIn;
use egret_policies::model::cluster::Namespace;
use egret_policies::model::{Direction, Enforcement, Policy};
use egret_shared::net::{Family, IpNet};

use crate::cluster::PodMember;
use crate::manifests::Manifests;
use crate::reach::addresses::{Addresses, address_of, partition};
use crate::reach::decision::RuleDecision;
use crate::reach::fold::{Folding, Unit};
use crate::reach::load::LoadedCluster;
use crate::reach::ports::PortSet;
use crate::reach::{FactsId, PortVerdicts, Reach, RulesId};

mod made_up_pods;

use made_up_pods::make_up_pods;

/// The differences that are printed.
const MOST_DIFFERENCES: usize = 10;
/// The pods of a class that are compared.
const MOST_OF_CLASS: usize = 2;

/// What was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Connections, each as one of its pods sees it, and for all ports that one rule decides.
    pub connections: usize,
    /// Pods of the manifests.
    pub pods: usize,
    /// Pods that were made up.
    pub made_up: usize,
}

/// Connections whose verdict differs.
#[derive(Clone, Debug)]
pub struct Difference {
    pod: String,
    direction: Direction,
    peer: String,
    ports: PortSet,
    before: RuleDecision,
    after: RuleDecision,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pod,
            direction,
            peer,
            ports,
            before,
            after,
        } = self;
        let preposition = match direction {
            Direction::Egress => "to",
            Direction::Ingress => "from",
        };
        let direction = direction.word();
        write!(
            f,
            "{direction} of {pod} {preposition} {peer}, {ports}: was {before}; would be {after}"
        )
    }
}

/// What differs.
#[derive(Clone, Debug)]
pub struct Differences {
    /// The first.
    pub first: Vec<Difference>,
    /// How many there are.
    pub count: usize,
}

/// Compares two lists of all policies, in the cluster of the manifests, where dnsd stands in for a Service. What is in audit
/// is in both, and means the same once it is in force.
///
/// # Errors
/// They do not mean the same.
pub fn prove(
    manifests: &Manifests,
    dns: &DnsStandIn,
    before: &[Policy],
    after: &[Policy],
) -> Result<Proof, Differences> {
    let comparison = Comparison::of(manifests, dns, [before.to_vec(), after.to_vec()])?;
    if !before
        .iter()
        .chain(after)
        .any(|policy| policy.enforcement.is_audit())
    {
        return Ok(comparison);
    }
    Comparison::of(manifests, dns, [before, after].map(enforced))
}

fn enforced(policies: &[Policy]) -> Vec<Policy> {
    let enforced = policies.iter().map(|policy| Policy {
        enforcement: Enforcement::Enforced,
        ..policy.clone()
    });
    enforced.collect()
}

/// A pod before and after.
type UnitPair<'a> = [&'a Unit; 2];

/// Who may be at the other end, with what rules ask about it before and after.
type Peer = (String, [FactsId; 2]);

struct Comparison {
    reaches: [Reach; 2],
    connections: usize,
    first: Vec<Difference>,
    count: usize,
}

impl Comparison {
    fn of(manifests: &Manifests, dns: &DnsStandIn, policies: [Vec<Policy>; 2]) -> Result<Proof, Differences> {
        let (pods, namespaces) = make_up_pods(manifests, &policies.concat());
        let made_up = pods.len();
        let mut manifests = Manifests {
            // No conversion changes a Namespace, so what its annotation says is left out.
            namespaces: manifests
                .namespaces
                .iter()
                .filter(|one| namespaces.iter().all(|new| new.name != one.name))
                .chain(&namespaces)
                .map(|namespace| Namespace {
                    enforcement: Enforcement::Enforced,
                    ..namespace.clone()
                })
                .collect(),
            ..manifests.clone()
        };
        let is_compared = |member: &&PodMember| member.is_policed() && !member.pod.addresses.is_empty();
        let compared = manifests.members.values().filter(is_compared).count();
        manifests.members.extend(pods.into_iter().map(|pod| {
            let member = PodMember {
                pod,
                is_ready: false,
                is_made_up: true,
            };
            (member.pod.key.clone(), member)
        }));
        let reach = |policies| {
            let manifests = Manifests {
                policies,
                ..manifests.clone()
            };
            Reach::new(LoadedCluster::of(manifests, &BTreeMap::new(), dns.clone()))
        };
        let mut comparison = Self {
            reaches: policies.map(reach),
            connections: 0,
            first: Vec::new(),
            count: 0,
        };
        comparison.compare_all();
        match comparison.count {
            0 => Ok(Proof {
                connections: comparison.connections,
                pods: compared,
                made_up,
            }),
            count => Err(Differences {
                first: comparison.first,
                count,
            }),
        }
    }

    fn compare_all(&mut self) {
        let units = self
            .reaches
            .each_ref()
            .map(|reach| reach.units(Folding::Pods, &BTreeSet::new()));
        let pairs: Vec<UnitPair<'_>> = units[0].iter().zip(&units[1]).map(<[_; 2]>::from).collect();
        let pairs = representatives(pairs);
        for pair in &pairs {
            for direction in Direction::ALL {
                let rules = pair.map(|unit| unit.rules(direction));
                let peers = self.peers(pair, direction, &pairs);
                for (peer, facts) in peers {
                    self.compare(pair[0], direction, rules, &peer, facts);
                }
            }
        }
    }

    fn compare(
        &mut self,
        unit: &Unit,
        direction: Direction,
        rules: [RulesId; 2],
        peer: &str,
        facts: [FactsId; 2],
    ) {
        let judge = |side: usize| self.reaches[side].judge(rules[side], facts[side]);
        let (was, is) = (judge(0), judge(1));
        self.connections += was.slices.len();
        for (ports, before, after) in differences(&was, &is) {
            self.count += 1;
            if self.first.len() < MOST_DIFFERENCES {
                self.first.push(Difference {
                    pod: unit.workload.to_string(),
                    direction,
                    peer: peer.to_owned(),
                    ports,
                    before,
                    after,
                });
            }
        }
    }

    fn peers(&self, pair: &UnitPair<'_>, direction: Direction, pairs: &[UnitPair<'_>]) -> Vec<Peer> {
        let mut peers = Vec::new();
        for other in pairs.iter().filter(|other| other[0].workload != pair[0].workload) {
            for (family, facts) in &other[0].facts {
                if let (true, Some(after)) = (pair[0].facts.contains_key(family), other[1].facts.get(family))
                {
                    peers.push((format!("{} ({family})", other[0].workload), [*facts, *after]));
                }
            }
        }
        for (name, addresses) in &self.reaches[0].nodes {
            for address in addresses {
                let facts = |is_own| {
                    self.reaches
                        .each_ref()
                        .map(|reach| reach.facts_of(*address, is_own))
                };
                peers.push((format!("node {name} ({address})"), facts(false)));
                // What the own node opens is never judged.
                if direction == Direction::Egress {
                    peers.push((format!("its own node at {address}"), facts(true)));
                }
            }
        }
        let (networks, names) = self.cuts(pair, direction);
        for family in &pair[0].families {
            for range in partition(*family, &networks) {
                let network = Addresses::range(*family, range);
                let address = address_of(*family, range.0);
                peers.push((network.to_string(), self.outside(address, None)));
                if direction == Direction::Egress {
                    let named = names
                        .iter()
                        .map(|name| (format!("{name} at {network}"), self.outside(address, Some(name))));
                    peers.extend(named);
                }
            }
        }
        peers
    }

    fn outside(&self, address: IpAddr, name: Option<&Arc<str>>) -> [FactsId; 2] {
        self.reaches
            .each_ref()
            .map(|reach| reach.facts_outside(address, name))
    }

    /// The networks and names that the rules of either compare with.
    fn cuts(&self, pair: &UnitPair<'_>, direction: Direction) -> (BTreeSet<IpNet>, BTreeSet<Arc<str>>) {
        let (mut networks, mut names) = (BTreeSet::new(), BTreeSet::new());
        for (reach, unit) in self.reaches.iter().zip(pair) {
            let cuts = reach.boundaries(unit, direction);
            networks.extend(cuts.networks);
            names.extend(cuts.names);
        }
        (networks, names)
    }
}

/// Up to two pods of each class: the rules of both lists make the same of all in a class.
fn representatives(pairs: Vec<UnitPair<'_>>) -> Vec<UnitPair<'_>> {
    type Class<'a> = (
        RulesId,
        RulesId,
        &'a BTreeMap<Family, FactsId>,
        &'a BTreeSet<Family>,
    );
    let mut classes: BTreeMap<[Class<'_>; 2], usize> = BTreeMap::new();
    let mut representatives = Vec::new();
    for pair in pairs {
        let class = pair.map(|unit| (unit.egress, unit.ingress, &unit.facts, &unit.families));
        let count = classes.entry(class).or_default();
        *count += 1;
        if *count <= MOST_OF_CLASS {
            representatives.push(pair);
        }
    }
    representatives
}

/// The ports that are decided otherwise, with both decisions.
fn differences(was: &PortVerdicts, is: &PortVerdicts) -> Vec<(PortSet, RuleDecision, RuleDecision)> {
    let changed = was
        .allowed
        .without(&is.allowed)
        .union(&is.allowed.without(&was.allowed));
    let mut differences = Vec::new();
    for (ports, before) in was.decisions(&changed) {
        for (ports, after) in is.decisions(&ports) {
            let [before, after] = [before, after].map(|decision| RuleDecision::new(decision, Vec::new));
            differences.push((ports, before, after));
        }
    }
    differences
}

#[cfg(test)]
mod tests;
