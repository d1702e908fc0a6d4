//! The layouts of `bpf/maps.h`.

use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;
use std::time::Duration;

use egret_policies::rules::{Digest, Direction, Member, SetId, Tier};
use egret_shared::net::{IpNet, PortRange, Transport};
use egret_shared::time::Timestamp;
use ipnet::Ipv4Net;

use crate::backend::Action;

/// `RULES_PER_CHUNK`.
pub(super) const RULES_PER_CHUNK: usize = 64;
/// The longest list of rules: `MAX_CHUNKS` chunks.
pub(super) const MAX_RULES: usize = 1024 * RULES_PER_CHUNK;
/// `MAX_MEMBERS`: of each map of members.
pub(super) const MAX_MEMBERS: usize = 262_144;
/// `MAX_LIST_CHUNKS`: of all lists together.
pub(super) const MAX_CHUNKS_OF_ALL: usize = 16_384;
/// `MAX_KNOWN_PODS`.
pub(super) const MAX_KNOWN_PODS: usize = 16_384;
/// `MAX_NODE_ADDRESSES`.
pub(super) const MAX_NODE_ADDRESSES: usize = 4096;
/// `MAX_TRANSLATED`.
pub(super) const MAX_TRANSLATED: usize = 65_536;
/// `MAX_OWN_ADDRESSES`: further ones are judged like any other.
pub(super) const MAX_OWN_ADDRESSES: usize = 4;
/// `sizeof(struct pod)`.
pub(super) const POD_SIZE: usize = 184;
/// `sizeof(struct guard)`.
pub(super) const GUARD_SIZE: usize = 16;
/// `sizeof(struct chunk)`.
pub(super) const CHUNK_SIZE: usize = RULES_PER_CHUNK * RULE_SIZE;
/// `sizeof(struct chunk_key)`.
pub(super) const CHUNK_KEY_SIZE: usize = 20;
const RULE_SIZE: usize = 68;
const NANOSECONDS_PER_MILLISECOND: u64 = 1_000_000;

/// A map of members, by the layout of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Table {
    /// `egret_members`: addresses, and records with their expiry.
    Members,
    /// `egret_networks`.
    Networks,
    /// `egret_ports`.
    Ports,
    /// `egret_net_ports`.
    NetworkPorts,
    /// `egret_node`: no set, the node's own addresses.
    Node,
    /// `egret_translated`: no set, the addresses of Services and those of the node.
    Translated,
}

impl Table {
    pub(super) const ALL: [Self; 6] = [
        Self::Members,
        Self::Networks,
        Self::Ports,
        Self::NetworkPorts,
        Self::Node,
        Self::Translated,
    ];

    /// Octets of a key and of a value.
    pub(super) const fn sizes(self) -> (usize, usize) {
        match self {
            Self::Members => (36, 8),
            Self::Networks => (40, 1),
            Self::Ports => (40, 1),
            Self::NetworkPorts => (44, 1),
            Self::Node | Self::Translated => (20, 1),
        }
    }
}

/// The key of an element in a map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ElementKey {
    pub(super) table: Table,
    pub(super) key: Vec<u8>,
}

impl ElementKey {
    /// The element of a member.
    pub(super) fn of(set: SetId, member: &Member) -> Self {
        let digest = set.digest();
        let set = digest.as_str().as_bytes();
        match member {
            Member::Address(peer) => Self {
                table: Table::Members,
                key: [set, &address(*peer)].concat(),
            },
            Member::Network(network) => Self {
                table: Table::Networks,
                key: network_key(set, &[], network),
            },
            Member::NetworkPort(network, transport, port) => {
                let [high, low] = port.get().to_ne_bytes();
                Self {
                    table: Table::NetworkPorts,
                    key: network_key(set, &[high, low, transport.number(), 0], network),
                }
            }
            Member::AddressPort(peer, transport, port) => {
                let port = port.get().to_ne_bytes();
                let key = [set, &address(*peer), &port, &[transport.number(), 0]].concat();
                Self {
                    table: Table::Ports,
                    key,
                }
            }
        }
    }

    /// The element of an address in a table without sets.
    pub(super) fn of_address(table: Table, own: IpAddr) -> Self {
        Self {
            table,
            key: address(own).to_vec(),
        }
    }

    /// The digest of the set, if it is a member.
    pub(super) fn set(&self) -> Option<&[u8]> {
        match self.table {
            Table::Members | Table::Ports => Some(&self.key[..16]),
            Table::Networks | Table::NetworkPorts => Some(&self.key[4..20]),
            Table::Node | Table::Translated => None,
        }
    }

    /// The address of a member of [`Table::Members`].
    pub(super) fn address(&self) -> Option<IpAddr> {
        parse_address(self.key.get(16..)?)
    }

    /// Ranges that hold the members of a set. For networks that is the whole map, because keys begin with the prefix
    /// length.
    pub(super) fn ranges_of(set: SetId) -> [Range<Self>; 4] {
        let digest = set.digest();
        let set = digest.as_str().as_bytes();
        let range = |table, first: &[u8], last: &[u8]| {
            Self {
                table,
                key: first.to_vec(),
            }..Self {
                table,
                key: last.to_vec(),
            }
        };
        let behind = [set, &[u8::MAX; 24]].concat();
        [
            range(Table::Members, set, &behind),
            range(Table::Networks, &[], &[u8::MAX; 45]),
            range(Table::NetworkPorts, &[], &[u8::MAX; 45]),
            range(Table::Ports, set, &behind),
        ]
    }

    /// The element's value.
    pub(super) fn value(&self, expires: Option<Timestamp>) -> Vec<u8> {
        match self.table {
            Table::Members => expires.map_or(0, nanoseconds).to_ne_bytes().to_vec(),
            Table::Networks | Table::Ports | Table::NetworkPorts | Table::Node | Table::Translated => vec![1],
        }
    }
}

/// A timestamp as the programs compare it. Never 0, which means no expiry.
fn nanoseconds(moment: Timestamp) -> u64 {
    moment
        .as_millis()
        .saturating_mul(NANOSECONDS_PER_MILLISECOND)
        .max(1)
}

/// The later of two expiries of [`Table::Members`]; without an expiry the new value counts.
pub(super) fn later(held: &[u8], value: Vec<u8>) -> Vec<u8> {
    let number = |octets: &[u8]| octets.try_into().map_or(0, u64::from_ne_bytes);
    if number(&value) != 0 && number(held) > number(&value) {
        held.to_vec()
    } else {
        value
    }
}

/// When a value of [`Table::Members`] expires, if it does.
pub(super) fn expiry(value: &[u8]) -> Option<Timestamp> {
    let expires = value.try_into().map_or(0, u64::from_ne_bytes);
    (expires != 0).then(|| Timestamp::from_millis(expires / NANOSECONDS_PER_MILLISECOND))
}

/// Whether a value of [`Table::Members`] has expired.
pub(super) fn has_expired(value: &[u8], now: Timestamp) -> bool {
    has_expired_for(value, now, Duration::ZERO)
}

/// Whether a value of [`Table::Members`] expired that long ago.
pub(super) fn has_expired_for(value: &[u8], now: Timestamp, time: Duration) -> bool {
    value.try_into().is_ok_and(|octets| {
        let expires = u64::from_ne_bytes(octets);
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        expires != 0 && expires.saturating_add(time) <= nanoseconds(now)
    })
}

/// `struct address`. A v4-mapped address is an IPv4 address.
pub(super) fn address(address: IpAddr) -> [u8; 20] {
    let mut octets = [0; 20];
    let family: u32 = match address.to_canonical() {
        IpAddr::V4(address) => {
            octets[4..8].copy_from_slice(&address.octets());
            1
        }
        IpAddr::V6(address) => {
            octets[4..20].copy_from_slice(&address.octets());
            2
        }
    };
    octets[..4].copy_from_slice(&family.to_ne_bytes());
    octets
}

/// The address in a `struct address`.
pub(super) fn parse_address(octets: &[u8]) -> Option<IpAddr> {
    let family = u32::from_ne_bytes(octets.get(..4)?.try_into().ok()?);
    match family {
        1 => <[u8; 4]>::try_from(octets.get(4..8)?).ok().map(IpAddr::from),
        2 => <[u8; 16]>::try_from(octets.get(4..20)?).ok().map(IpAddr::from),
        _ => None,
    }
}

/// `struct network_key` and `struct network_port_key`: the prefix counts the bits of set, port and family as well.
fn network_key(set: &[u8], port: &[u8], network: &IpNet) -> Vec<u8> {
    let network = canonical(network);
    let before = u32::try_from(set.len() + port.len() + 4).expect("some octets");
    let prefix = before * 8 + u32::from(network.prefix_len());
    [&prefix.to_ne_bytes(), set, port, &address(network.network())].concat()
}

/// A network inside `::ffff:0:0/96` is an IPv4 network.
fn canonical(network: &IpNet) -> IpNet {
    let mapped = |address: Ipv6Addr| address.to_ipv4_mapped();
    match network {
        IpNet::V6(v6) if v6.prefix_len() >= 96 => mapped(v6.network())
            .and_then(|v4| Ipv4Net::new(v4, v6.prefix_len() - 96).ok())
            .map_or(*network, IpNet::V4),
        IpNet::V4(_) | IpNet::V6(_) => *network,
    }
}

/// `struct counter_key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CounterKey {
    pub(super) tier: CounterTier,
    pub(super) action: Action,
    pub(super) direction: Direction,
    /// The rule's digest; none for what no rule decided and for removed rules.
    pub(super) digest: Option<Digest>,
}

/// The tiers of policies, and the two ends of a rule list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CounterTier {
    Policy(Tier),
    /// `TIER_DEFAULT`: behind the last rule.
    Default,
    /// `TIER_UNPROGRAMMED`: the pod has no rules yet.
    Unprogrammed,
}

impl CounterKey {
    pub(super) const SIZE: usize = 20;

    pub(super) fn to_octets(self) -> [u8; Self::SIZE] {
        let mut octets = [0; Self::SIZE];
        octets[0] = tier_number(self.tier);
        octets[1] = action_number(self.action);
        octets[2] = match self.direction {
            Direction::Egress => 0,
            Direction::Ingress => 1,
        };
        if let Some(digest) = self.digest {
            octets[4..].copy_from_slice(digest.as_str().as_bytes());
        }
        octets
    }
}

const fn tier_number(tier: CounterTier) -> u8 {
    match tier {
        CounterTier::Policy(Tier::ClusterEgressFirewall) => 0,
        CounterTier::Policy(Tier::Admin) => 1,
        CounterTier::Policy(Tier::NetworkPolicy) => 2,
        CounterTier::Policy(Tier::Baseline) => 3,
        CounterTier::Default => 4,
        CounterTier::Unprogrammed => 5,
    }
}

const fn action_number(action: Action) -> u8 {
    match action {
        Action::Allow => 1,
        Action::Deny => 2,
        Action::Pass => 3,
        Action::WouldDeny => 4,
    }
}

/// `struct rule`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleValue {
    pub(super) counter: CounterKey,
    pub(super) peer: PeerValue,
    pub(super) ports: PortValue,
    /// Where a Pass continues.
    pub(super) next: u32,
    /// The rules for which a Deny stands.
    pub(super) attribution: ListName,
}

/// `enum peer`, with its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerValue {
    Any,
    Addresses(SetId),
    Networks(SetId),
    AddressPorts(SetId),
    NetworkPorts(SetId),
    OwnNode,
    /// Where a Service leads back to the pod.
    Itself,
}

/// Which protocols and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortValue {
    Any,
    Range(Transport, PortRange),
    /// ICMP or ICMPv6, by the family of the peer.
    Icmp,
}

impl RuleValue {
    fn write(&self, octets: &mut Vec<u8>) {
        let (peer, set) = match self.peer {
            PeerValue::Any => (1, None),
            PeerValue::Addresses(set) => (2, Some(set)),
            PeerValue::Networks(set) => (3, Some(set)),
            PeerValue::AddressPorts(set) => (4, Some(set)),
            PeerValue::OwnNode => (5, None),
            PeerValue::NetworkPorts(set) => (6, Some(set)),
            PeerValue::Itself => (7, None),
        };
        let (transport, first, last) = match self.ports {
            PortValue::Any => (0, 0, 0),
            PortValue::Range(transport, range) => (transport.number(), range.first(), range.last()),
            // `TRANSPORT_ICMP`.
            PortValue::Icmp => (1, 0, 0),
        };
        octets.extend(self.counter.to_octets());
        match set {
            Some(set) => octets.extend(set.digest().as_str().as_bytes()),
            None => octets.extend([0; 16]),
        }
        octets.extend(self.next.to_ne_bytes());
        octets.extend(first.to_ne_bytes());
        octets.extend(last.to_ne_bytes());
        octets.extend([action_number(self.counter.action), peer, transport, 0]);
        octets.extend(self.attribution.to_octets());
    }
}

/// A list of rules as chunks of the map `egret_rules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleList {
    pub(super) name: ListName,
    /// Keys and values.
    pub(super) chunks: Vec<(Vec<u8>, Vec<u8>)>,
}

/// `struct list`: the digest of a list, and how many rules it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListName {
    digest: Option<Digest>,
    count: u32,
}

impl RuleList {
    pub(super) fn of(rules: &[RuleValue]) -> Self {
        let mut octets = Vec::with_capacity(rules.len() * RULE_SIZE);
        rules.iter().for_each(|rule| rule.write(&mut octets));
        let digest = Digest::of(&octets);
        let chunk = |(index, rules): (usize, &[u8])| {
            let index = u32::try_from(index).expect("lists are bounded before they are written");
            let mut value = rules.to_vec();
            value.resize(CHUNK_SIZE, 0);
            ([digest.as_str().as_bytes(), &index.to_ne_bytes()].concat(), value)
        };
        Self {
            name: ListName {
                digest: (!rules.is_empty()).then_some(digest),
                count: u32::try_from(rules.len()).expect("lists are bounded before they are written"),
            },
            chunks: octets.chunks(CHUNK_SIZE).enumerate().map(chunk).collect(),
        }
    }
}

impl ListName {
    /// No rules.
    pub(super) const EMPTY: Self = Self {
        digest: None,
        count: 0,
    };

    /// A list that no map has: the programs deny.
    pub(super) const CLOSED: Self = Self {
        digest: None,
        count: 1,
    };

    fn to_octets(self) -> [u8; 20] {
        let mut octets = [0; 20];
        if let Some(digest) = self.digest {
            octets[..16].copy_from_slice(digest.as_str().as_bytes());
        }
        octets[16..].copy_from_slice(&self.count.to_ne_bytes());
        octets
    }
}

/// Who judges behind a pod's sockets, where the node has translated addresses of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Nobody: a Service is judged by its own address.
    Nothing,
    /// A program at FORWARD and LOCAL_IN of netfilter, where the kernel takes it: what pods send to Services and to the node.
    Services,
    /// A packet filter, which judges everything: the programs refuse what pods open and can be told of at the socket.
    Filter,
}

/// `struct pod`, programmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodValue {
    pub(super) id: u64,
    pub(super) generation: u32,
    pub(super) own: Vec<IpAddr>,
    pub(super) egress: ListName,
    pub(super) ingress: ListName,
    /// Of both directions, with the policies in audit.
    pub(super) audit: [ListName; 2],
    /// Who judges behind its sockets.
    pub(super) behind: Behind,
}

impl PodValue {
    pub(super) fn to_octets(&self) -> Vec<u8> {
        let own = &self.own[..self.own.len().min(MAX_OWN_ADDRESSES)];
        let own_count = u32::try_from(own.len()).expect("at most four");
        let mut octets = Vec::with_capacity(POD_SIZE);
        octets.extend(self.id.to_ne_bytes());
        octets.extend(1_u32.to_ne_bytes());
        octets.extend(self.generation.to_ne_bytes());
        octets.extend(self.egress.to_octets());
        octets.extend(self.ingress.to_octets());
        self.audit.iter().for_each(|list| octets.extend(list.to_octets()));
        octets.extend(own_count.to_ne_bytes());
        own.iter().for_each(|own| octets.extend(address(*own)));
        octets.resize(POD_SIZE - 4, 0);
        let behind: u32 = match self.behind {
            Behind::Nothing => 0,
            Behind::Services => 1,
            Behind::Filter => 2,
        };
        octets.extend(behind.to_ne_bytes());
        octets
    }
}

/// `struct guard`: the cookie of the node's network namespace, and a generation.
pub(super) fn guard_value(node: u64, generation: u32) -> [u8; GUARD_SIZE] {
    let mut octets = [0; GUARD_SIZE];
    octets[..8].copy_from_slice(&node.to_ne_bytes());
    octets[8..12].copy_from_slice(&generation.to_ne_bytes());
    octets
}

/// The generation of a `struct guard`.
pub(super) fn guard_generation(guard: &[u8]) -> Option<u32> {
    guard.get(8..12)?.try_into().ok().map(u32::from_ne_bytes)
}

/// The id of a `struct pod`.
pub(super) fn id_of(pod: &[u8]) -> Option<u64> {
    pod.get(..8)?.try_into().ok().map(u64::from_ne_bytes)
}

/// The generation of a pod in the kernel, if it is programmed.
pub(super) fn generation_of(pod: &[u8]) -> Option<u32> {
    let word = |at: usize| pod.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    (word(8)? == 1).then(|| word(12))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> SetId {
        SetId::of_content("a set")
    }

    #[test]
    fn a_mapped_address_or_network_is_ipv4() {
        let [mapped, plain] = ["::ffff:192.0.2.1", "192.0.2.1"]
            .map(|text| ElementKey::of(set(), &Member::Address(text.parse().unwrap())));
        assert_eq!(mapped, plain);
        for (a, b, equal) in [
            ("::ffff:192.0.2.0/120", "192.0.2.0/24", true),
            ("::/0", "0.0.0.0/0", false),
            ("192.0.2.7/24", "192.0.2.0/24", true),
        ] {
            let [left, clear_fault] =
                [a, b].map(|text| ElementKey::of(set(), &Member::Network(text.parse().unwrap())));
            assert_eq!(left == clear_fault, equal, "{a} {b}");
        }
    }

    #[test]
    fn an_expiry_is_never_written_as_for_ever() {
        let element = ElementKey::of(set(), &Member::Address("192.0.2.1".parse().unwrap()));
        let value = element.value(Some(Timestamp::from_millis(0)));
        assert_ne!(value, [0; 8]);
        assert!(has_expired(&value, Timestamp::from_millis(0)));
        assert!(!has_expired(
            &element.value(None),
            Timestamp::from_millis(u64::MAX)
        ));
        assert!(has_expired(
            &element.value(Some(Timestamp::from_millis(7))),
            Timestamp::from_millis(7)
        ));
        assert!(!has_expired(
            &element.value(Some(Timestamp::from_millis(7))),
            Timestamp::from_millis(6)
        ));
    }

    #[test]
    fn a_pod_has_the_size_of_its_struct() {
        let pod = PodValue {
            id: 1,
            generation: 7,
            own: vec!["2001:db8::1".parse().unwrap(); 5],
            egress: RuleList::of(&[]).name,
            ingress: ListName::CLOSED,
            audit: [ListName::EMPTY; 2],
            behind: Behind::Filter,
        };
        let octets = pod.to_octets();
        assert_eq!(octets.len(), POD_SIZE);
        assert_eq!(generation_of(&octets), Some(7));
        assert_eq!(generation_of(&[0; POD_SIZE]), None);
    }
}
