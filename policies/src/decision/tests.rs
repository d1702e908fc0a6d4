use std::num::NonZeroU16;

use egret_shared::net::{PortRange, Transport};
use proptest::prelude::*;

use super::*;
use crate::rules::DefaultAction;

type Sets = BTreeMap<SetId, (SetKind, Vec<Member>)>;

/// Where a packet goes: an address, and a TCP port or something without ports.
#[derive(Clone, Copy, Debug)]
struct Packet {
    address: IpAddr,
    port: Option<u16>,
}

impl Packet {
    fn is_in(self, member: &Member) -> bool {
        let is_at = |transport: &Transport, port: &NonZeroU16| {
            *transport == Transport::Tcp && self.port == Some(port.get())
        };
        match member {
            Member::Address(address) => *address == self.address,
            Member::Network(network) => network.contains(&self.address),
            Member::AddressPort(address, transport, port) => {
                *address == self.address && is_at(transport, port)
            }
            Member::NetworkPort(network, transport, port) => {
                network.contains(&self.address) && is_at(transport, port)
            }
        }
    }

    fn matches(self, rule: &Rule, sets: &Sets) -> bool {
        let holds = |id: &SetId| {
            sets.get(id)
                .is_some_and(|(_, members)| members.iter().any(|member| self.is_in(member)))
        };
        let is_peer = match &rule.peer {
            PeerMatch::Any => true,
            PeerMatch::In(id) => holds(id),
            PeerMatch::OwnNode | PeerMatch::Itself => false,
        };
        let is_port = match (rule.port, self.port) {
            (PortMatch::Any, _) | (PortMatch::Icmp, None) => true,
            (PortMatch::Range(transport, range), Some(port)) => {
                transport == Transport::Tcp && range.contains(port)
            }
            (PortMatch::Icmp, Some(_)) | (PortMatch::Range(..), None) => false,
        };
        is_peer && is_port && !rule.except.as_ref().is_some_and(holds)
    }

    /// What decides: the tier, the action, and of what is denied the rule.
    fn verdict(self, rules: &DirectionRules, sets: &Sets) -> Option<(Tier, Action, Option<Origin>)> {
        let is_told = |id: SetId| sets[&id].1.iter().any(|member| self.is_in(member));
        rules.tiers_for(is_told).iter().find_map(|tier| {
            let first = tier.rules.iter().find(|rule| self.matches(rule, sets))?;
            let mut named = first.attribution.iter().flat_map(|rules| rules.iter());
            let mut origin = || {
                named
                    .find(|rule| self.matches(rule, sets))
                    .unwrap_or(first)
                    .origin
                    .clone()
            };
            match first.action {
                Action::Pass => None,
                Action::Allow => Some((tier.tier, Action::Allow, None)),
                Action::Deny => Some((tier.tier, Action::Deny, Some(origin()))),
            }
        })
    }
}

fn packets() -> impl Iterator<Item = Packet> {
    let ports = [None, Some(80), Some(81), Some(443), Some(5000)];
    let addresses = (0..20_u8)
        .map(|last| IpAddr::from([10, 0, 0, last]))
        .chain((0..4_u16).map(|last| IpAddr::from([1, 0, 0, 0, 0, 0, 0, last])));
    addresses.flat_map(move |address| ports.map(|port| Packet { address, port }))
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        5 => (0..20_u8).prop_map(|last| IpAddr::from([10, 0, 0, last])),
        1 => (0..4_u16).prop_map(|last| IpAddr::from([1, 0, 0, 0, 0, 0, 0, last])),
    ]
}

fn network() -> impl Strategy<Value = Member> {
    (address(), prop::sample::select(vec![0, 1, 2, 4, 32])).prop_map(|(address, short)| {
        let most: u8 = if address.is_ipv4() { 32 } else { 128 };
        Member::Network(ipnet::IpNet::new(address, most - short).unwrap().trunc())
    })
}

/// A set that rules name; which of them is said by its content, or by its number where that changes.
#[derive(Clone, Debug)]
enum Peer {
    Any,
    Fixed(BTreeSet<Member>),
    Changing(usize),
}

/// Sets that change: addresses, addresses with ports, and what a pod was told.
const CHANGING: [SetKind; 7] = [
    SetKind::Addresses,
    SetKind::Addresses,
    SetKind::Addresses,
    SetKind::AddressPorts,
    SetKind::AddressPorts,
    SetKind::Records,
    SetKind::Records,
];

/// The set of what a pod was told for all names.
fn told() -> SetId {
    SetId::of_content("told")
}

fn changing(number: usize) -> SetId {
    SetId::of_content(&format!("changing {number}"))
}

impl Peer {
    fn set(&self) -> Option<SetId> {
        match self {
            Self::Any => None,
            Self::Fixed(members) => Some(SetId::of_content(&format!("{members:?}"))),
            Self::Changing(number) => Some(changing(*number)),
        }
    }
}

fn peer() -> impl Strategy<Value = Peer> {
    prop_oneof![
        1 => Just(Peer::Any),
        60 => prop::collection::btree_set(network(), 1..3).prop_map(Peer::Fixed),
        8 => (0..CHANGING.len()).prop_map(Peer::Changing),
    ]
}

fn port() -> impl Strategy<Value = PortMatch> {
    let range = |first, last| PortMatch::Range(Transport::Tcp, PortRange::new(first, last).unwrap());
    let udp = PortMatch::Range(Transport::Udp, PortRange::single(80).unwrap());
    prop_oneof![
        20 => Just(PortMatch::Any),
        10 => prop::sample::select(vec![range(80, 80), range(443, 443), range(80, 81), udp]),
        1 => prop::sample::select(vec![range(1, 1000), PortMatch::Icmp]),
    ]
}

#[derive(Clone, Debug)]
struct Said {
    action: Action,
    peer: Peer,
    except: Option<Peer>,
    port: PortMatch,
}

fn said() -> impl Strategy<Value = Said> {
    let action = prop::sample::select(vec![Action::Allow, Action::Deny, Action::Deny, Action::Pass]);
    let except = prop::option::weighted(0.02, peer());
    (action, peer(), except, port()).prop_map(|(action, peer, except, port)| Said {
        action,
        peer,
        except,
        port,
    })
}

fn rules(tiers: &[Vec<Said>]) -> DirectionRules {
    let rule = |(place, said): (usize, &Said)| Rule {
        action: said.action,
        peer: said.peer.set().map_or(PeerMatch::Any, PeerMatch::In),
        except: said.except.as_ref().and_then(Peer::set),
        port: said.port,
        origin: Origin {
            policy: format!("ClusterNetworkPolicy//p{place}").into(),
            rule: place,
            name: None,
        },
        attribution: None,
    };
    let is_name = |said: &Said| match said.peer {
        Peer::Changing(number) => CHANGING[number] == SetKind::Records,
        Peer::Any | Peer::Fixed(_) => false,
    };
    let has_names = tiers.iter().flatten().any(is_name);
    let tiers = tiers.iter().zip([Tier::Admin, Tier::Baseline]);
    let tiers = tiers.map(|(said, tier)| TierRules {
        tier,
        rules: said.iter().enumerate().map(rule).collect(),
        default_action: DefaultAction::NextTier,
    });
    DirectionRules {
        tiers: tiers.collect(),
        names: has_names.then(|| Names {
            records: told(),
            without: None,
        }),
    }
}

fn fixed_sets(tiers: &[Vec<Said>]) -> Sets {
    let peers = tiers
        .iter()
        .flatten()
        .flat_map(|said| std::iter::once(&said.peer).chain(&said.except));
    let fixed = peers.filter_map(|peer| match peer {
        Peer::Fixed(members) => Some((
            peer.set()?,
            (SetKind::Networks, members.iter().copied().collect()),
        )),
        Peer::Any | Peer::Changing(_) => None,
    });
    fixed.collect()
}

fn decided(tiers: &[Vec<Said>], sets: &Sets) -> Decided {
    let content = |id: SetId| {
        let (kind, members) = sets.get(&id)?;
        match kind {
            SetKind::Networks => Some(Content::Fixed(members)),
            SetKind::Records | SetKind::Addresses | SetKind::AddressPorts | SetKind::NetworkPorts => {
                Some(Content::Changing(*kind))
            }
        }
    };
    decide(&rules(tiers), content, |_| None)
}

/// The sets of a table, as a backend keeps them.
fn with_keys(sets: &Sets, decided: &Decided) -> Sets {
    let mut all = sets.clone();
    for table in &decided.tables {
        let members = |id: SetId| sets.get(&id).map(|(_, members)| members.as_slice());
        let mut entries = BTreeMap::new();
        for packet in packets() {
            entries.extend(table.entries_at(packet.address, members));
        }
        assert_eq!(table.entries(members), entries);
        for lookup in table.lookups() {
            let of_kind = |member: &Member| match member {
                Member::Address(_) => lookup.kind == SetKind::Addresses,
                Member::AddressPort(..) => lookup.kind == SetKind::AddressPorts,
                Member::Network(_) | Member::NetworkPort(..) => false,
            };
            let keys = entries
                .iter()
                .filter(|(member, action)| **action == lookup.action && of_kind(member));
            let keys = keys.map(|(member, _)| *member);
            let keys: BTreeSet<Member> = lookup.fixed.iter().flatten().copied().chain(keys).collect();
            all.insert(lookup.set, (lookup.kind, keys.into_iter().collect()));
        }
        for (key, action) in entries {
            let is_in = |lookup: &&Lookup| lookup.action == action && all[&lookup.set].1.contains(&key);
            assert!(
                table.lookups().iter().any(|lookup| is_in(&lookup)),
                "{key:?} is in no set"
            );
        }
    }
    all
}

fn changing_sets() -> impl Strategy<Value = Vec<BTreeSet<Member>>> {
    let member = |kind| {
        move |(address, port): (IpAddr, u16)| match kind {
            SetKind::AddressPorts => Member::AddressPort(address, Transport::Tcp, port.try_into().unwrap()),
            _ => Member::Address(address),
        }
    };
    let port = || prop::sample::select(vec![80_u16, 81, 443]);
    CHANGING
        .map(|kind| prop::collection::btree_set((address(), port()).prop_map(member(kind)), 0..8))
        .into_iter()
        .collect::<Vec<_>>()
}

fn story() -> impl Strategy<Value = Vec<Vec<Said>>> {
    let lengths = prop_oneof![1 => 0..12_usize, 2 => 12..40_usize];
    lengths.prop_flat_map(|length| prop::collection::vec(prop::collection::vec(said(), 0..=length), 1..=2))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_packet_has_the_verdict_of_the_first_rule_that_matches_it(tiers in story(), changing_members in changing_sets()) {
        let mut sets = fixed_sets(&tiers);
        let changing_members = changing_members.into_iter().enumerate();
        sets.extend(changing_members.map(|(number, members)| (changing(number), (CHANGING[number], members.into_iter().collect()))));
        let of_names = sets.values().filter(|(kind, _)| *kind == SetKind::Records).flat_map(|(_, members)| members);
        let of_names = of_names.copied().collect();
        sets.insert(told(), (SetKind::Records, of_names));
        let rules = rules(&tiers);
        let decided = decided(&tiers, &sets);
        let with_keys = with_keys(&sets, &decided);
        for packet in packets() {
            prop_assert_eq!(
                packet.verdict(&decided.rules, &with_keys),
                packet.verdict(&rules, &sets),
                "{:?}", packet
            );
        }
    }
}

fn network_rule(action: Action, network: &str, port: PortMatch) -> Said {
    Said {
        action,
        peer: Peer::Fixed(BTreeSet::from([Member::Network(network.parse().unwrap())])),
        except: None,
        port,
    }
}

fn shape(tiers: &[Vec<Said>], sets: Sets) -> Vec<(Action, SetKind, usize)> {
    let mut all = fixed_sets(tiers);
    all.extend(sets);
    let decided = decided(tiers, &all);
    let lookups = decided.tables.iter().flat_map(|table| table.lookups());
    let shape: Vec<_> = lookups
        .map(|lookup| {
            (
                lookup.action,
                lookup.kind,
                lookup.fixed.as_ref().map_or(0, Vec::len),
            )
        })
        .collect();
    let in_rules = decided
        .rules
        .tiers
        .iter()
        .map(|tier| tier.rules.len())
        .sum::<usize>();
    assert_eq!(in_rules, shape.len(), "nothing is walked");
    shape
}

#[test]
fn allow_and_deny_in_turn_are_one_lookup_each() {
    let rule = |number: u8| {
        let action = [Action::Allow, Action::Deny][usize::from(number % 2)];
        network_rule(action, &format!("10.{number}.0.0/16"), PortMatch::Any)
    };
    let rules: Vec<Said> = (0..200).map(rule).collect();
    assert_eq!(
        shape(&[rules], Sets::new()),
        [
            (Action::Deny, SetKind::Networks, 100),
            (Action::Allow, SetKind::Networks, 100)
        ]
    );
}

#[test]
fn a_port_for_each_rule_is_one_lookup_for_all() {
    let rule = |number: u16| {
        let port = PortMatch::Range(Transport::Tcp, PortRange::single(1000 + number).unwrap());
        network_rule(Action::Deny, &format!("10.{number}.0.0/16"), port)
    };
    let rules: Vec<Said> = (0..200).map(rule).collect();
    assert_eq!(
        shape(&[rules], Sets::new()),
        [(Action::Deny, SetKind::NetworkPorts, 200)]
    );
}

#[test]
fn an_exception_in_a_wider_network_is_asked_first() {
    let mut rules: Vec<Said> = (0..20)
        .map(|number| network_rule(Action::Allow, &format!("10.{number}.5.0/24"), PortMatch::Any))
        .collect();
    rules.extend(
        (0..20).map(|number| network_rule(Action::Deny, &format!("10.{number}.0.0/16"), PortMatch::Any)),
    );
    assert_eq!(
        shape(&[rules], Sets::new()),
        [
            (Action::Allow, SetKind::Networks, 20),
            (Action::Deny, SetKind::Networks, 20)
        ]
    );
}

#[test]
fn where_each_network_would_be_a_key_at_each_port_the_rules_are_divided() {
    let everywhere = |port: u16| {
        let port = PortMatch::Range(Transport::Tcp, PortRange::single(port).unwrap());
        network_rule(Action::Deny, "0.0.0.0/0", port)
    };
    let mut rules: Vec<Said> = (1..=100).map(everywhere).collect();
    rules.extend(
        (0..100).map(|number| network_rule(Action::Allow, &format!("10.{number}.0.0/16"), PortMatch::Any)),
    );
    let sets = fixed_sets(&[rules.clone()]);
    let decided = decided(&[rules], &sets);
    let keys = |table: &Arc<DecisionTable>| {
        table
            .lookups()
            .iter()
            .map(|lookup| lookup.fixed.as_ref().map_or(0, Vec::len))
            .sum::<usize>()
    };
    assert_eq!(decided.tables.iter().map(keys).collect::<Vec<_>>(), [100, 100]);
}

#[test]
fn a_set_that_changes_and_is_named_in_two_tiers_stays_where_it_is() {
    let pods = |action| Said {
        action,
        peer: Peer::Changing(0),
        except: None,
        port: PortMatch::Any,
    };
    let list = |action| {
        let mut rules: Vec<Said> = (0..20)
            .map(|number| network_rule(Action::Deny, &format!("10.{number}.0.0/16"), PortMatch::Any))
            .collect();
        rules.push(pods(action));
        rules
    };
    let count = |tiers: &[Vec<Said>]| {
        let mut sets = fixed_sets(tiers);
        sets.insert(changing(0), (SetKind::Addresses, Vec::new()));
        decided(tiers, &sets)
            .tables
            .iter()
            .flat_map(|table| table.changing())
            .count()
    };
    assert_eq!(count(&[list(Action::Allow)]), 1);
    assert_eq!(count(&[list(Action::Allow), list(Action::Deny)]), 0);
}

#[test]
fn beside_networks_with_many_ports_addresses_that_come_and_go_stay_in_their_set() {
    let rule = |number: u16| {
        let port = PortMatch::Range(Transport::Tcp, PortRange::single(1000 + number).unwrap());
        network_rule(Action::Deny, &format!("10.{number}.0.0/16"), port)
    };
    let mut rules: Vec<Said> = (0..200).map(rule).collect();
    rules.push(Said {
        peer: Peer::Changing(0),
        ..network_rule(Action::Allow, "10.0.0.0/8", PortMatch::Any)
    });
    let mut sets = fixed_sets(&[rules.clone()]);
    sets.insert(changing(0), (SetKind::Addresses, Vec::new()));
    let decided = decided(&[rules], &sets);
    let peers: Vec<&PeerMatch> = decided.rules.tiers[0]
        .rules
        .iter()
        .map(|rule| &rule.peer)
        .collect();
    let counts = RuleCounts {
        looked_up: 200,
        walked: 1,
    };
    assert_eq!(decided.counts, counts);
    assert_eq!(
        peers,
        [
            &PeerMatch::In(decided.tables[0].lookups()[0].set),
            &PeerMatch::In(changing(0))
        ]
    );
}

#[test]
fn the_only_deny_of_a_table_is_not_named_where_one_behind_the_table_came_first() {
    let mut rules: Vec<Said> = (0..7)
        .map(|number| network_rule(Action::Allow, &format!("10.{number}.0.0/16"), PortMatch::Any))
        .collect();
    let name = Said {
        peer: Peer::Changing(5),
        ..network_rule(Action::Deny, "10.9.0.1/32", PortMatch::Any)
    };
    rules.extend([name, network_rule(Action::Deny, "10.9.0.0/16", PortMatch::Any)]);
    let lists = [rules];
    let mut all = fixed_sets(&lists);
    let address: IpAddr = "10.9.0.1".parse().unwrap();
    for set in [changing(5), told()] {
        all.insert(set, (SetKind::Records, vec![Member::Address(address)]));
    }
    let decided = decided(&lists, &all);
    let packet = Packet { address, port: None };
    let (_, _, origin) = packet
        .verdict(&decided.rules, &with_keys(&all, &decided))
        .unwrap();
    assert_eq!(origin.unwrap().rule, 7, "the name is the first rule that matches");
}

#[test]
fn few_rules_are_walked() {
    let rules: Vec<Said> = (0..7)
        .map(|number| network_rule(Action::Deny, &format!("10.{number}.0.0/16"), PortMatch::Any))
        .collect();
    let lists = [rules];
    let decided = decided(&lists, &fixed_sets(&lists));
    assert_eq!((decided.tables.len(), decided.rules.tiers[0].rules.len()), (0, 7));
}
