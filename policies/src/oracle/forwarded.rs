//! Clients outside that a Service leads on, straight from the ClusterEgressFirewalls that are about them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::compiler::NodeScope;
use crate::model::cluster::Entity;
use crate::model::{
    Action, Direction, Effect, Enforcement, Exposure, Peer, Peers, Policy, Port, Ports, Rule, Selector,
};
use crate::simulator::{ForwardedConnection, Protocol, Verdict};

use super::World;
use super::cluster::selector_holds;
use super::matching::{network_has, serves};

impl World {
    /// What becomes of a connection that a Service passes on, by a client that is neither a pod of the node nor the
    /// node. The strongest priority that has an opinion decides, and there one that denies is enough.
    #[must_use]
    pub fn decide_entering(&self, entering: ForwardedConnection) -> Verdict {
        let asked: Vec<&Policy> = self
            .entities
            .values()
            .filter_map(|entity| match entity {
                Entity::Policy(policy) if policy.exposure == Exposure::Reject => Some(policy),
                _ => None,
            })
            .filter(|policy| {
                let says = [self.settings.enforcement, policy.enforcement];
                !says.contains(&Enforcement::Audited)
            })
            .collect();
        let priorities: BTreeSet<u32> = asked.iter().map(|policy| policy.rank.priority).collect();
        for priority in priorities {
            let same = asked.iter().filter(|policy| policy.rank.priority == priority);
            let opinions: Vec<Action> = same.filter_map(|policy| self.opinion(policy, entering)).collect();
            if opinions.contains(&Action::Deny) {
                return Verdict::Deny;
            }
            if !opinions.is_empty() {
                return Verdict::Allow;
            }
        }
        Verdict::Allow
    }

    fn opinion(&self, policy: &Policy, entering: ForwardedConnection) -> Option<Action> {
        let rules = match policy.effect(Direction::Egress) {
            Effect::Rules(rules) => &rules[..],
            Effect::None | Effect::Opens(_) => &[],
        };
        let first = rules.iter().find(|rule| self.leads_to(rule, entering));
        first.map(|rule| rule.action)
    }

    fn leads_to(&self, rule: &Rule, entering: ForwardedConnection) -> bool {
        let Peers::OneOf(peers) = &rule.peers else {
            return self.has_port(rule, entering, true);
        };
        peers.iter().any(|peer| {
            let is_pod = matches!(peer, Peer::Pods { .. });
            let address = entering.destination.to_canonical();
            (self.is_destination(peer, entering) && self.has_port(rule, entering, is_pod))
                || (*peer == Peer::ApiServer
                    && self.is_behind_api_server(address, entering.protocol, &rule.ports))
        })
    }

    fn is_destination(&self, peer: &Peer, entering: ForwardedConnection) -> bool {
        let address = entering.destination.to_canonical();
        let in_any = |networks: &[egret_shared::net::IpNet]| {
            networks.iter().any(|network| network_has(network, address))
        };
        match peer {
            Peer::Pods { namespaces, pods } => self
                .pod_at(address)
                .is_some_and(|pod| self.selects(namespaces, pods, pod)),
            Peer::Networks(networks) => in_any(networks),
            Peer::External(networks) => in_any(networks) && !self.is_of_cluster(address),
            Peer::Nodes(selector) => self.nodes().any(|node| {
                selector_holds(selector, &node.labels)
                    && node.addresses.iter().any(|one| one.to_canonical() == address)
            }),
            Peer::NodeAddresses(selector) => {
                self.is_at_node(selector, address)
                    || (entering.destination_is_own_node && self.is_here(selector, address))
            }
            Peer::ApiServer => self.is_at_api_server(address, entering.protocol),
            Peer::Services { namespace, name } => {
                self.is_of_service(namespace.as_deref(), name.as_deref(), address)
            }
            // Nobody outside was told anything.
            Peer::Names(_) => false,
        }
    }

    /// Whether the node of this world is selected, and the address is not one of the cluster that it also takes for
    /// its own.
    fn is_here(&self, selector: &Selector, address: IpAddr) -> bool {
        match &self.settings.node {
            NodeScope::One(name) => {
                selector_holds(selector, &self.node_labels(name)) && !self.is_of_cluster(address)
            }
            NodeScope::All => false,
        }
    }

    /// A named port is one of a pod at the destination.
    fn has_port(&self, rule: &Rule, entering: ForwardedConnection, is_pod: bool) -> bool {
        let Ports::OneOf(ports) = &rule.ports else {
            return true;
        };
        let pod = self
            .pod_at(entering.destination.to_canonical())
            .filter(|_| is_pod);
        ports.iter().any(|port| match (port, entering.protocol) {
            (Port::Icmp, Protocol::Icmp) => true,
            (Port::Range(of, range), Protocol::Port(transport, number)) => {
                *of == transport && range.first() <= number && number <= range.last()
            }
            (Port::Named { name, transport: of }, Protocol::Port(transport, number)) => {
                of.is_none_or(|of| of == transport)
                    && pod.is_some_and(|pod| serves(pod, name, transport, number))
            }
            (Port::Icmp, Protocol::Port(..) | Protocol::Other)
            | (Port::Range(..) | Port::Named { .. }, Protocol::Icmp | Protocol::Other) => false,
        })
    }
}
