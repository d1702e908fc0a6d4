//! A table: the keys of networks, computed once, and those of addresses, computed as they come.

use std::num::NonZeroU16;

use egret_shared::net::Transport;
use ipnet::IpNet;

use super::fixed::{FixedNetworks, Verdict, layers};
use super::run::{Entry, Ports};
use super::*;

/// The most layers of networks: each costs a packet a lookup for each action.
const MOST_LAYERS: usize = 4;
/// The most keys for each network that the rules have.
const MOST_KEYS: usize = 8;
/// The most ports of fixed networks beside addresses that come and go: an address may have a key for each.
const MOST_PORTS_BESIDE: usize = 8;

/// In the order in which a backend asks, should a packet be in two sets: while an address changes its verdict it is.
const ACTIONS: [Action; 3] = [Action::Deny, Action::Allow, Action::Pass];

type Port = (Transport, NonZeroU16);

/// What rules say of addresses, as sets of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionTable {
    id: Digest,
    sets: BTreeSet<SetId>,
    changing: Vec<Changing>,
    networks: FixedNetworks,
    ports: BTreeMap<Port, FixedNetworks>,
    lookups: Vec<Lookup>,
}

/// A rule over a set that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Changing {
    verdict: Verdict,
    set: SetId,
    kind: SetKind,
    ports: Ports,
}

/// A set of keys with one action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The set's name: the digest of what makes the table, with the set's place in it.
    pub set: SetId,
    /// What it holds.
    pub kind: SetKind,
    /// What happens to what it holds.
    pub action: Action,
    /// The ports that all of it is about.
    pub port: PortMatch,
    /// The members, if they never change.
    pub fixed: Option<Vec<Member>>,
}

/// Why rules are no table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TooLarge {
    /// There would be too many keys or lookups.
    Keys,
    /// An address that comes would have a key for each of many ports: without these sets it has not.
    Beside(BTreeSet<SetId>),
}

/// Keys of networks by layer.
type Layers = Vec<BTreeMap<Member, Action>>;

impl DecisionTable {
    pub(super) fn new(id: Digest, base: PortMatch, entries: Vec<Entry<'_>>) -> Result<Self, TooLarge> {
        let mut table = Self {
            id,
            sets: entries.iter().map(|entry| entry.set).collect(),
            changing: Vec::new(),
            networks: FixedNetworks::default(),
            ports: BTreeMap::new(),
            lookups: Vec::new(),
        };
        if let Some(sets) = beside(&entries) {
            return Err(TooLarge::Beside(sets));
        }
        let mut written = 0;
        for (place, entry) in entries.into_iter().enumerate() {
            written += table.take_in((place, entry.action), entry);
        }
        let with_ports = table.keys_with_ports(MOST_KEYS * written).ok_or(TooLarge::Keys)?;
        let keys = table.networks.networks().filter_map(|network| {
            let verdict = table.networks.verdict(*network);
            verdict.map(|(_, action)| (*network, action))
        });
        let without = layers(&keys.collect());
        let without: Layers = without
            .into_iter()
            .map(|layer| named(layer, Member::Network))
            .collect();
        if with_ports.len().max(without.len()) > MOST_LAYERS {
            return Err(TooLarge::Keys);
        }
        let changing = table.changing_lookups(SetKind::AddressPorts, PortMatch::Any);
        table.lookups.extend(changing);
        table.look_up_fixed(SetKind::NetworkPorts, PortMatch::Any, with_ports);
        let changing = table.changing_lookups(SetKind::Addresses, base);
        table.lookups.extend(changing);
        table.look_up_fixed(SetKind::Networks, base, without);
        Ok(table)
    }

    /// Takes in a rule; says how many networks it has.
    fn take_in(&mut self, verdict: Verdict, entry: Entry<'_>) -> usize {
        let members = match entry.content {
            Content::Changing(kind) => {
                self.changing.push(Changing {
                    verdict,
                    set: entry.set,
                    kind,
                    ports: entry.ports,
                });
                return 0;
            }
            Content::Fixed(members) => members,
        };
        let networks: Vec<IpNet> = members.iter().filter_map(network).collect();
        for network in &networks {
            match &entry.ports {
                Ports::Base => self.networks.add(*network, verdict),
                Ports::Listed(ports) => {
                    for port in ports {
                        self.ports.entry(*port).or_default().add(*network, verdict);
                    }
                }
            }
        }
        networks.len()
    }

    /// The keys of networks with ports. Where a network without a port lies inside of one with a port, it is a key too.
    fn keys_with_ports(&self, most: usize) -> Option<Layers> {
        let mut all = Layers::new();
        let mut count = 0;
        for (port, networks) in &self.ports {
            let inside = networks
                .networks()
                .flat_map(|network| self.networks.inside(*network));
            let keys: BTreeSet<IpNet> = networks.networks().chain(inside).copied().collect();
            count += keys.len();
            (count <= most).then_some(())?;
            let verdict = |network: IpNet| {
                let verdict = first(networks.verdict(network), self.networks.verdict(network));
                verdict.map(|(_, action)| (network, action))
            };
            let keys: BTreeMap<IpNet, Action> = keys.into_iter().filter_map(verdict).collect();
            for (place, layer) in layers(&keys).into_iter().enumerate() {
                if all.len() == place {
                    all.push(BTreeMap::new());
                }
                let with_port = |network| Member::NetworkPort(network, port.0, port.1);
                all[place].extend(named(layer, with_port));
            }
        }
        Some(all)
    }

    fn look_up_fixed(&mut self, kind: SetKind, port: PortMatch, layers: Layers) {
        for (place, layer) in layers.iter().enumerate() {
            for action in ACTIONS {
                let members = layer.iter().filter(|(_, of)| **of == action);
                let members: Vec<Member> = members.map(|(member, _)| *member).collect();
                if !members.is_empty() {
                    self.lookups.push(Lookup {
                        set: self.set(kind, place, action),
                        kind,
                        action,
                        port,
                        fixed: Some(members),
                    });
                }
            }
        }
    }

    /// A key of an address has another verdict than the networks around it by a rule over a set that changes: so these have the actions.
    fn changing_lookups(&self, kind: SetKind, port: PortMatch) -> Vec<Lookup> {
        let is_of = |changing: &&Changing| match kind {
            SetKind::Addresses => changing.is_of_addresses(),
            _ => !changing.is_of_addresses() || !self.ports.is_empty(),
        };
        let actions: BTreeSet<Action> = self
            .changing
            .iter()
            .filter(is_of)
            .map(|rule| rule.verdict.1)
            .collect();
        let asked = ACTIONS.into_iter().filter(|action| actions.contains(action));
        let lookup = |action| Lookup {
            set: self.set(kind, 0, action),
            kind,
            action,
            port,
            fixed: None,
        };
        asked.map(lookup).collect()
    }

    fn set(&self, kind: SetKind, layer: usize, action: Action) -> SetId {
        SetId::of_content(&format!("{} {kind:?} {layer} of table {}", word(action), self.id))
    }

    /// The digest of what makes it.
    #[must_use]
    pub const fn id(&self) -> Digest {
        self.id
    }

    /// The sets of keys, in the order in which they are to be asked.
    #[must_use]
    pub fn lookups(&self) -> &[Lookup] {
        &self.lookups
    }

    /// The sets that its rules name.
    #[must_use]
    pub const fn sets(&self) -> &BTreeSet<SetId> {
        &self.sets
    }

    /// The sets whose members come and go, as often as rules name them.
    pub fn changing(&self) -> impl Iterator<Item = SetId> {
        self.changing.iter().map(|rule| rule.set)
    }

    /// The keys of an address, with their actions, given what the sets hold that change, in order.
    #[must_use]
    pub fn entries_at<'a>(
        &self,
        address: IpAddr,
        members: impl Fn(SetId) -> Option<&'a [Member]>,
    ) -> BTreeMap<Member, Action> {
        let mut at = ChangingAt::default();
        for rule in &self.changing {
            let Some(members) = members(rule.set) else {
                continue;
            };
            match rule.kind {
                SetKind::AddressPorts => {
                    ports_at(members, address).for_each(|port| at.take_in_port(rule, port));
                }
                _ if members.binary_search(&Member::Address(address)).is_ok() => at.take_in(rule),
                _ => {}
            }
        }
        self.entries_of(address, &at)
    }

    /// The keys of all addresses, with their actions; members as above.
    #[must_use]
    pub fn entries<'a>(&self, members: impl Fn(SetId) -> Option<&'a [Member]>) -> BTreeMap<Member, Action> {
        let mut addresses: BTreeMap<IpAddr, ChangingAt> = BTreeMap::new();
        for rule in &self.changing {
            for member in members(rule.set).into_iter().flatten() {
                match member {
                    Member::Address(address) => addresses.entry(*address).or_default().take_in(rule),
                    Member::AddressPort(address, transport, port) => {
                        let at = addresses.entry(*address).or_default();
                        at.take_in_port(rule, (*transport, *port));
                    }
                    Member::Network(_) | Member::NetworkPort(..) => {}
                }
            }
        }
        let each = addresses
            .iter()
            .flat_map(|(address, at)| self.entries_of(*address, at));
        each.collect()
    }

    /// The keys of an address between two states: a packet that was denied and is not any more has its verdict of `after`, and one that
    /// is denied now and was not that of `before`. So a packet that is denied here is denied before and after.
    #[must_use]
    pub fn entries_between(
        &self,
        address: IpAddr,
        before: &BTreeMap<Member, Action>,
        after: &BTreeMap<Member, Action>,
    ) -> BTreeMap<Member, Action> {
        const DENIED: Option<Action> = Some(Action::Deny);
        let host = IpNet::from(address);
        let action = |verdict: Option<Verdict>| verdict.map(|(_, action)| action);
        let fixed = self.networks.verdict(host);
        let fixed_at = |port: &Port| {
            let at_port = self.ports.get(port).and_then(|networks| networks.verdict(host));
            at_port.and_then(|verdict| action(first(Some(verdict), fixed)))
        };
        let whole = |keys: &BTreeMap<Member, Action>| {
            let key = keys.get(&Member::Address(address));
            key.copied().or_else(|| action(fixed))
        };
        let anywhere = match (whole(before), whole(after)) {
            (DENIED, after) => after,
            (before, DENIED) => before,
            // Either will do. No key can take back at a port what the address has.
            (before, after) => before.and(after),
        };
        let mut entries = BTreeMap::new();
        if let Some(different) = anywhere.filter(|_| anywhere != action(fixed)) {
            entries.insert(Member::Address(address), different);
        }
        for member in before.keys().chain(after.keys()) {
            let Member::AddressPort(_, transport, port) = member else {
                continue;
            };
            let otherwise = fixed_at(&(*transport, *port));
            let verdict = |keys: &BTreeMap<Member, Action>| {
                keys.get(member).copied().or(otherwise).or_else(|| whole(keys))
            };
            let verdict = match (verdict(before), verdict(after)) {
                (DENIED, after) => after,
                (before, _) => before,
            };
            if let Some(different) = verdict.filter(|_| verdict != otherwise.or(anywhere)) {
                entries.insert(*member, different);
            }
        }
        entries
    }

    fn entries_of(&self, address: IpAddr, at: &ChangingAt) -> BTreeMap<Member, Action> {
        let mut entries = BTreeMap::new();
        let host = IpNet::from(address);
        let fixed = self.networks.verdict(host);
        let anywhere = first(at.anywhere, fixed);
        let action = |verdict: Option<Verdict>| verdict.map(|(_, action)| action);
        if let Some(different) = action(anywhere).filter(|_| action(anywhere) != action(fixed)) {
            entries.insert(Member::Address(address), different);
        }
        let beside = self.ports.keys().filter(|_| at.anywhere.is_some());
        let ports: BTreeSet<Port> = at.ports.keys().chain(beside).copied().collect();
        for port in ports {
            let at_port = self.ports.get(&port).and_then(|networks| networks.verdict(host));
            let otherwise = match at_port {
                Some(_) => first(at_port, fixed),
                None => anywhere,
            };
            let verdict = first(first(anywhere, at_port), at.ports.get(&port).copied());
            if let Some(different) = action(verdict).filter(|_| action(verdict) != action(otherwise)) {
                entries.insert(Member::AddressPort(address, port.0, port.1), different);
            }
        }
        entries
    }
}

impl Changing {
    /// Whether it is about addresses at all ports of the table.
    fn is_of_addresses(&self) -> bool {
        self.kind == SetKind::Addresses && self.ports == Ports::Base
    }
}

/// The first rules over sets that change which match an address.
#[derive(Debug, Default)]
struct ChangingAt {
    anywhere: Option<Verdict>,
    ports: BTreeMap<Port, Verdict>,
}

impl ChangingAt {
    /// Takes in a rule, in order, that matches the address.
    fn take_in(&mut self, rule: &Changing) {
        match &rule.ports {
            Ports::Base => {
                self.anywhere.get_or_insert(rule.verdict);
            }
            Ports::Listed(listed) => {
                for port in listed {
                    self.ports.entry(*port).or_insert(rule.verdict);
                }
            }
        }
    }

    /// The same of one that matches it at a port, if the rule is about the port.
    fn take_in_port(&mut self, rule: &Changing, port: Port) {
        let is_listed = match &rule.ports {
            Ports::Base => true,
            Ports::Listed(listed) => listed.contains(&port),
        };
        if is_listed {
            self.ports.entry(port).or_insert(rule.verdict);
        }
    }
}

/// Sets to leave out where addresses come and go beside networks with many ports: of the two the fewer.
fn beside(entries: &[Entry<'_>]) -> Option<BTreeSet<SetId>> {
    let is_changing = |entry: &&Entry<'_>| {
        matches!(
            (entry.content, &entry.ports),
            (Content::Changing(SetKind::Addresses), Ports::Base)
        )
    };
    let at_ports = |entry: &&Entry<'_>| {
        matches!(
            (entry.content, &entry.ports),
            (Content::Fixed(_), Ports::Listed(_))
        )
    };
    let addresses: Vec<SetId> = entries
        .iter()
        .filter(is_changing)
        .map(|entry| entry.set)
        .collect();
    let networks = entries.iter().filter(at_ports);
    let ports: BTreeSet<Port> = networks
        .clone()
        .flat_map(|entry| match &entry.ports {
            Ports::Base => Vec::new(),
            Ports::Listed(ports) => ports.clone(),
        })
        .collect();
    let networks: Vec<SetId> = networks.map(|entry| entry.set).collect();
    let fewer = if addresses.len() < networks.len() {
        addresses
    } else {
        networks
    };
    (ports.len() > MOST_PORTS_BESIDE)
        .then(|| fewer.into_iter().collect())
        .filter(|sets: &BTreeSet<SetId>| !sets.is_empty())
}

fn first(one: Option<Verdict>, other: Option<Verdict>) -> Option<Verdict> {
    one.into_iter().chain(other).min()
}

fn named(layer: BTreeMap<IpNet, Action>, member: impl Fn(IpNet) -> Member) -> BTreeMap<Member, Action> {
    layer
        .into_iter()
        .map(|(network, action)| (member(network), action))
        .collect()
}

fn network(member: &Member) -> Option<IpNet> {
    match member {
        Member::Network(network) => Some(network.trunc()),
        Member::Address(_) | Member::AddressPort(..) | Member::NetworkPort(..) => None,
    }
}

fn ports_at(members: &[Member], address: IpAddr) -> impl Iterator<Item = Port> {
    let least = Member::AddressPort(address, Transport::Tcp, NonZeroU16::MIN);
    let first = members.partition_point(|member| *member < least);
    let members = members[first..].iter().map_while(move |member| match member {
        Member::AddressPort(at, transport, port) if *at == address => Some((*transport, *port)),
        Member::Address(_) | Member::Network(_) | Member::AddressPort(..) | Member::NetworkPort(..) => None,
    });
    members.into_iter()
}
