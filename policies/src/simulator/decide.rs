//! Deciding from rules.

use std::net::IpAddr;

use egret_shared::time::Timestamp;

use crate::decision::is_over_name;
use crate::model::{Action, Direction};
use crate::rules::{DefaultAction, Member, Origin, PeerMatch, PortMatch, Rule, SetId, SetKind, TierRules};

use super::connection::{
    Connection, ConnectionDecision, ConnectionEnd, Decision, EndKind, ForwardedConnection, Protocol, Verdict,
};
use super::{RuleIndex, RuleList, Set, Simulator};

impl Simulator {
    /// What a pod's rules say of a connection. What it sends to itself comes to them by a Service only: with one of its
    /// own addresses this says what becomes of it then.
    #[must_use]
    pub fn decide(&self, connection: &Connection, now: Timestamp) -> Decision {
        self.judge(connection, now, RecordState::Live)
    }

    /// What a pod's rules say of a connection that was allowed when it began, when they are asked again: that a
    /// record is over ends nothing.
    #[must_use]
    pub fn decide_open(&self, connection: &Connection, now: Timestamp) -> Decision {
        self.judge(connection, now, RecordState::LiveOrExpired)
    }

    /// What would deny a connection that is allowed if policies in audit were in force.
    #[must_use]
    pub fn would_deny(&self, connection: &Connection, now: Timestamp) -> Option<Decision> {
        let rules = self.pod(&connection.pod)?;
        let is_exempt = connection.direction == Direction::Ingress && connection.peer_is_own_node;
        if is_exempt || self.decide(connection, now).verdict == Verdict::Deny {
            return None;
        }
        let other = PeerEnd::of(connection, &rules.addresses, RecordState::Live);
        let tiers = &rules.audit.direction(connection.direction).tiers;
        let decision = tiers.iter().find_map(|tier| self.decide_tier(tier, other, now));
        decision.filter(|decision| decision.verdict == Verdict::Deny)
    }

    /// What the rules of a pod's egress say, or those in audit, as far as they are asked: of those that an index finds, or of
    /// all. None where none matches.
    #[must_use]
    pub(crate) fn decide_by(
        &self,
        (list, index): (RuleList, Option<&RuleIndex>),
        connection: &Connection,
        now: Timestamp,
        is_asked: &dyn Fn(&Origin) -> bool,
    ) -> Option<Decision> {
        let rules = self.pod(&connection.pod)?;
        let other = PeerEnd::of(connection, &rules.addresses, RecordState::Live);
        let tiers = match list {
            RuleList::InForce => &rules.egress.tiers,
            RuleList::Audit => &rules.audit.egress.tiers,
        };
        tiers.iter().enumerate().find_map(|(position, tier)| {
            let is_asked = |rule: &&Rule| is_asked(&rule.origin);
            let Some(index) = index else {
                return self.decide_among(tier, tier.rules.iter().filter(is_asked), other, now);
            };
            let candidates = index.candidates(&connection.pod, list, position, other.address)?;
            let rules = candidates
                .into_iter()
                .filter_map(|position| tier.rules.get(position));
            self.decide_among(tier, rules.filter(is_asked), other, now)
        })
    }

    fn judge(&self, connection: &Connection, now: Timestamp, record: RecordState) -> Decision {
        let Some(rules) = self.pod(&connection.pod) else {
            return Decision::allow("none");
        };
        if connection.direction == Direction::Ingress && connection.peer_is_own_node {
            return Decision::allow("exempt");
        }
        let other = PeerEnd::of(connection, &rules.addresses, record);
        let rules = rules.direction(connection.direction);
        // As backends have it, so that a record which is missing there is seen here.
        let names = rules.names.as_ref();
        let has_names_asked = names.is_none_or(|names| self.holds(names.records, other, now));
        let is_of_records = |id| {
            let set = self.sets.get(&id);
            set.is_some_and(|set| set.spec.kind == SetKind::Records)
        };
        let decision = rules
            .tiers_for(|_records| has_names_asked)
            .iter()
            .find_map(|tier| {
                let is_asked =
                    |rule: &&Rule| has_names_asked || !is_over_name(tier.tier, rule, is_of_records);
                self.decide_among(tier, tier.rules.iter().filter(is_asked), other, now)
            });
        decision.unwrap_or_else(|| Decision::allow("default"))
    }

    /// What the node's rules say of a connection that a Service passes on.
    #[must_use]
    pub fn decide_entering(&self, entering: ForwardedConnection, now: Timestamp) -> Decision {
        let other = PeerEnd {
            address: entering.destination.to_canonical(),
            is_own_node: entering.destination_is_own_node,
            is_itself: false,
            protocol: entering.protocol,
            record: RecordState::Live,
        };
        let mut tiers = self.node().into_iter().flat_map(|rules| &rules.exposed.tiers);
        tiers
            .find_map(|tier| self.decide_tier(tier, other, now))
            .unwrap_or_else(|| Decision::allow("none"))
    }

    /// What both ends of a connection say. What a pod sends to itself, without a Service, is never judged.
    #[must_use]
    pub fn decide_connection(
        &self,
        from: &ConnectionEnd,
        to: &ConnectionEnd,
        protocol: Protocol,
        now: Timestamp,
    ) -> ConnectionDecision {
        if matches!((&from.kind, &to.kind), (EndKind::Pod(from), EndKind::Pod(to)) if from == to) {
            let (egress, ingress) = (Decision::allow("exempt"), Decision::allow("exempt"));
            return ConnectionDecision { egress, ingress };
        }
        ConnectionDecision {
            egress: self.decide_end(Direction::Egress, from, to, protocol, now),
            ingress: self.decide_end(Direction::Ingress, to, from, protocol, now),
        }
    }

    fn decide_end(
        &self,
        direction: Direction,
        subject: &ConnectionEnd,
        peer: &ConnectionEnd,
        protocol: Protocol,
        now: Timestamp,
    ) -> Decision {
        let pod = match &subject.kind {
            EndKind::Pod(pod) => pod.clone(),
            EndKind::OwnNode | EndKind::Other => return Decision::allow("none"),
        };
        let connection = Connection {
            pod,
            direction,
            peer: peer.address,
            peer_is_own_node: peer.kind == EndKind::OwnNode,
            protocol,
        };
        self.decide(&connection, now)
    }

    fn decide_tier(&self, tier: &TierRules, other: PeerEnd, now: Timestamp) -> Option<Decision> {
        self.decide_among(tier, tier.rules.iter(), other, now)
    }

    fn decide_among<'a>(
        &self,
        tier: &TierRules,
        mut rules: impl Iterator<Item = &'a Rule>,
        other: PeerEnd,
        now: Timestamp,
    ) -> Option<Decision> {
        let word = tier.tier.word();
        let matching = rules.find(|rule| self.matches(rule, other, now));
        let matching = matching.map(|rule| {
            let mut named = rule.attribution.iter().flat_map(|rules| rules.iter());
            named.find(|rule| self.matches(rule, other, now)).unwrap_or(rule)
        });
        let decision = |verdict, rule: Option<&Rule>| {
            Some(Decision {
                verdict,
                tier: word,
                origin: rule.map(|rule| rule.origin.clone()),
            })
        };
        match (matching.map(|rule| rule.action), tier.default_action) {
            (Some(Action::Allow), _) => decision(Verdict::Allow, matching),
            (Some(Action::Deny), _) => decision(Verdict::Deny, matching),
            (None, DefaultAction::Deny) => decision(Verdict::Deny, None),
            (Some(Action::Pass), _) | (None, DefaultAction::NextTier) => None,
        }
    }

    fn matches(&self, rule: &Rule, other: PeerEnd, now: Timestamp) -> bool {
        port_matches(rule.port, other.protocol)
            && match rule.peer {
                PeerMatch::Any => true,
                PeerMatch::OwnNode => other.is_own_node,
                PeerMatch::Itself => other.is_itself,
                PeerMatch::In(id) => self.holds(id, other, now),
            }
            && !rule.except.is_some_and(|id| self.holds(id, other, now))
    }

    /// A set that is not there holds nothing; `apply` sees to it that there is none such.
    fn holds(&self, id: SetId, other: PeerEnd, now: Timestamp) -> bool {
        self.sets.get(&id).is_some_and(|set| {
            set.has(Member::Address(other.address), now)
                || (other.record == RecordState::LiveOrExpired && set.had(other.address))
                || set.has_network_of(other)
                || address_port(other.address, other.protocol).is_some_and(|member| set.has(member, now))
        })
    }
}

/// Which records count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RecordState {
    Live,
    LiveOrExpired,
}

/// The other end, with what is asked of it.
#[derive(Clone, Copy)]
struct PeerEnd {
    address: IpAddr,
    is_own_node: bool,
    /// Whether it is the pod whose rules are asked.
    is_itself: bool,
    protocol: Protocol,
    record: RecordState,
}

impl PeerEnd {
    fn of(connection: &Connection, own: &[IpAddr], record: RecordState) -> Self {
        let address = connection.peer.to_canonical();
        Self {
            address,
            is_itself: own.contains(&address),
            is_own_node: connection.peer_is_own_node,
            protocol: connection.protocol,
            record,
        }
    }
}

impl Set {
    fn has(&self, member: Member, now: Timestamp) -> bool {
        self.members
            .get(&member)
            .is_some_and(|until| until.is_none_or(|until| until > now))
    }

    /// Whether it is made of records and has the address, or had.
    fn had(&self, address: IpAddr) -> bool {
        let member = Member::Address(address);
        self.spec.kind == SetKind::Records
            && (self.members.contains_key(&member) || self.lapsed.contains(&member))
    }

    fn has_network_of(&self, other: PeerEnd) -> bool {
        matches!(self.spec.kind, SetKind::Networks | SetKind::NetworkPorts)
            && self.members.keys().any(|member| match member {
                Member::Network(network) => network.contains(&other.address),
                Member::NetworkPort(network, transport, port) => {
                    network.contains(&other.address)
                        && other.protocol == Protocol::Port(*transport, port.get())
                }
                Member::Address(_) | Member::AddressPort(..) => false,
            })
    }
}

fn port_matches(port: PortMatch, protocol: Protocol) -> bool {
    match (port, protocol) {
        (PortMatch::Any, _) => true,
        (PortMatch::Range(transport, range), Protocol::Port(asked, number)) => {
            transport == asked && range.contains(number)
        }
        (PortMatch::Icmp, Protocol::Icmp) => true,
        (PortMatch::Range(..), Protocol::Icmp | Protocol::Other)
        | (PortMatch::Icmp, Protocol::Port(..) | Protocol::Other) => false,
    }
}

fn address_port(address: IpAddr, protocol: Protocol) -> Option<Member> {
    match protocol {
        Protocol::Port(transport, port) => {
            Some(Member::AddressPort(address, transport, port.try_into().ok()?))
        }
        Protocol::Icmp | Protocol::Other => None,
    }
}
