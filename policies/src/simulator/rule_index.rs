//! Finds the few rules of a list that may match a destination. Which of them does is asked of them as without it.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use egret_shared::net::IpNet;
use egret_shared::pod::PodKey;

use crate::rules::{DirectionRules, Member, PeerMatch, SetId, SetKind};

use super::Simulator;

/// Positions of rules by what their sets hold, for rules that stay and sets that change by records alone.
#[derive(Debug, Default)]
pub(crate) struct RuleIndex {
    sets: SetIndex,
    /// For each pod with rules its egress, in force and in audit.
    pods: HashMap<PodKey, [Vec<ListIndex>; 2]>,
}

#[derive(Debug, Default)]
struct SetIndex {
    addresses: HashMap<IpAddr, Vec<SetId>>,
    /// By the length of the prefix.
    networks: BTreeMap<u8, HashMap<IpNet, Vec<SetId>>>,
}

/// The rules of a tier.
#[derive(Debug, Default)]
struct ListIndex {
    by_set: HashMap<SetId, Vec<usize>>,
    /// Those that may match any destination: peers without a set, and sets of records, whose members come and go.
    always: Vec<usize>,
}

/// Which rules of a pod's egress.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RuleList {
    InForce,
    Audit,
}

impl RuleIndex {
    pub(crate) fn new(simulator: &Simulator) -> Self {
        let mut index = Self::default();
        for (id, set) in &simulator.sets {
            for member in set.members.keys() {
                index.sets.add(*member, *id);
            }
        }
        let is_record = |id: &SetId| {
            let set = simulator.sets.get(id);
            set.is_some_and(|set| set.spec.kind == SetKind::Records)
        };
        for rules in simulator.pods.values() {
            let lists = [&rules.egress, &rules.audit.egress].map(|rules| ListIndex::all(rules, is_record));
            index.pods.insert(rules.pod.clone(), lists);
        }
        index
    }

    /// The positions of the rules of a tier that may match, in order. None where the pod has no such tier.
    pub(crate) fn candidates(
        &self,
        pod: &PodKey,
        list: RuleList,
        tier: usize,
        address: IpAddr,
    ) -> Option<Vec<usize>> {
        let [in_force, audit] = self.pods.get(pod)?;
        let rules = match list {
            RuleList::InForce => in_force.get(tier)?,
            RuleList::Audit => audit.get(tier)?,
        };
        let of_sets = self.sets.holding(address).into_iter();
        let mut positions: Vec<usize> = of_sets
            .filter_map(|set| rules.by_set.get(&set))
            .flatten()
            .chain(&rules.always)
            .copied()
            .collect();
        positions.sort_unstable();
        positions.dedup();
        Some(positions)
    }
}

impl SetIndex {
    fn add(&mut self, member: Member, set: SetId) {
        match member {
            Member::Address(address) | Member::AddressPort(address, ..) => {
                self.addresses.entry(address).or_default().push(set);
            }
            Member::Network(network) | Member::NetworkPort(network, ..) => {
                let of_length = self.networks.entry(network.prefix_len()).or_default();
                of_length.entry(network.trunc()).or_default().push(set);
            }
        }
    }

    fn holding(&self, address: IpAddr) -> Vec<SetId> {
        let mut sets: Vec<SetId> = self
            .addresses
            .get(&address)
            .into_iter()
            .flatten()
            .copied()
            .collect();
        for (length, networks) in &self.networks {
            // A prefix that is too long is one of the other family.
            if let Ok(network) = IpNet::new(address, *length) {
                sets.extend(networks.get(&network.trunc()).into_iter().flatten());
            }
        }
        sets
    }
}

impl ListIndex {
    fn all(rules: &DirectionRules, is_record: impl Fn(&SetId) -> bool) -> Vec<Self> {
        let of_tier = |tier: &crate::rules::TierRules| {
            let mut index = Self::default();
            for (position, rule) in tier.rules.iter().enumerate() {
                match rule.peer {
                    PeerMatch::In(set) if !is_record(&set) => {
                        index.by_set.entry(set).or_default().push(position);
                    }
                    PeerMatch::In(_) | PeerMatch::Any | PeerMatch::OwnNode | PeerMatch::Itself => {
                        index.always.push(position);
                    }
                }
            }
            index
        };
        rules.tiers.iter().map(of_tier).collect()
    }
}
