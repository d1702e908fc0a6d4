//! Connections that a change of set members may forbid. Rules stay as they are, so only flows from or to a
//! changed member can be affected; these are re-evaluated, and no rule is written. Decision 19 shows that
//! none is missed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use egret_kernel::Family;
use egret_kernel::conntrack::Flow;
use egret_policies::rules::{Batch, Direction, Member};
use egret_shared::net::IpNet;
use egret_shared::pod::PodKey;

use super::flow_dump::FlowQuery;
use crate::backend::netfilter::model::ipvs::has_ipvs;

/// Pods and directions that are re-evaluated, and the changed members that they may be connected to.
#[derive(Clone, Debug, Default)]
pub(in crate::backend) struct AffectedConnections {
    pods: BTreeSet<(PodKey, Direction)>,
    peers: Peers,
}

/// Changed members: addresses of the other end.
#[derive(Clone, Debug, Default)]
struct Peers {
    hosts: BTreeSet<IpAddr>,
    networks: BTreeSet<IpNet>,
}

impl AffectedConnections {
    /// Those of a batch. Where a pod has new rules as well, more than these members may be concerned.
    pub(in crate::backend) fn of(batch: &Batch) -> Self {
        let replaced: BTreeSet<&PodKey> = batch.rules_replaced.iter().map(|rules| &rules.pod).collect();
        let suspected = batch.by_members.iter().filter(|(pod, _)| !replaced.contains(pod));
        let mut affected = Self {
            pods: suspected.cloned().collect(),
            peers: Peers::default(),
        };
        if !affected.is_empty() {
            let added = batch.members_changed.iter().flat_map(|change| &change.added);
            let removed = batch.members_changed.iter().flat_map(|change| &change.removed);
            let members = added.map(|(member, _)| member).chain(removed);
            members.for_each(|member| affected.peers.insert(*member));
        }
        affected
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    pub(in crate::backend) const fn pods(&self) -> &BTreeSet<(PodKey, Direction)> {
        &self.pods
    }

    /// Those whose pod is one of these.
    pub(super) fn among(&self, is_there: impl Fn(&PodKey) -> bool) -> Self {
        let mut some = self.clone();
        some.pods.retain(|(pod, _)| is_there(pod));
        some
    }

    pub(in crate::backend) fn has(&self, reevaluated: &(PodKey, Direction)) -> bool {
        self.pods.contains(reevaluated)
    }

    /// Whether a changed member is at an end of it, before or behind any translation.
    pub(super) fn touch(&self, flow: &Flow) -> bool {
        self.peers.touch(flow)
    }

    /// Whether a flow of a pod is affected.
    pub(super) fn concern(&self, pod: &PodKey, direction: Direction, flow: &Flow) -> bool {
        self.peers.touch(flow) && self.has(&(pod.clone(), direction))
    }

    pub(super) fn extend(&mut self, other: Self) {
        if other.is_empty() {
            return;
        }
        self.pods.extend(other.pods);
        self.peers.hosts.extend(other.peers.hosts);
        self.peers.networks.extend(other.peers.networks);
    }

    /// The query that finds their flows. With IPVS a flow's tuples may lack the address that the rules saw, so all are queried.
    pub(super) fn query(&self) -> FlowQuery {
        if self.is_empty() {
            return FlowQuery::default();
        }
        let ends = |host: &IpAddr| Direction::ALL.map(|direction| (direction, *host));
        let mut query = FlowQuery::about(self.peers.hosts.iter().flat_map(ends).collect());
        let networks = self.peers.networks.iter();
        query
            .families
            .extend(networks.map(|network| Family::of(network.addr())));
        if has_ipvs() {
            query.families.extend(Family::ALL);
        }
        query
    }
}

impl Peers {
    fn insert(&mut self, member: Member) {
        match member {
            Member::Address(address) | Member::AddressPort(address, ..) => {
                self.hosts.insert(address);
            }
            Member::Network(network) | Member::NetworkPort(network, ..)
                if network.prefix_len() == network.max_prefix_len() =>
            {
                self.hosts.insert(network.addr());
            }
            Member::Network(network) | Member::NetworkPort(network, ..) => {
                self.networks.insert(network);
            }
        }
    }

    /// Whether one of them is at an end, before or behind any translation.
    fn touch(&self, flow: &Flow) -> bool {
        let tuples = [flow.original, flow.reply].into_iter();
        let mut ends = tuples.flat_map(|tuple| [tuple.source, tuple.destination]);
        ends.any(|end| {
            self.hosts.contains(&end) || self.networks.iter().any(|network| network.contains(&end))
        })
    }
}
