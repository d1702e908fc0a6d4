//! Who may connect to whom, computed from the rules of all pods: not by asking about samples, but for all
//! ports and all addresses that rules can tell apart.
//!
//! ```text
//!  manifests ──▶ load ──▶ rules (per direction, with what each says of all ports)
//!                 │                       ▲
//!                 └─────▶ facts (which sets an address is in) ──▶ points ──▶ merge ──▶ rows
//! ```
//!
//! Of pods that have equal rules and are in the same sets nothing is computed twice.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use egret_policies::model::Direction;
use egret_policies::model::cluster::{Entity, PodLife};
use egret_policies::rules::{Member as SetMember, SetId, SetKind};
use egret_policies::simulator::Decision;
use egret_shared::net::{IpNet, PortRange};
use egret_shared::pod::PodKey;

pub mod addresses;
pub mod decision;
pub mod fold;
pub mod load;
pub mod json;
pub mod merge;
pub mod ends;
pub mod connection_end;
pub mod points;
pub mod ports;
pub mod ranges;
pub mod rules;

use load::LoadedCluster;
use ports::PortSet;
use rules::{DecidedPorts, Facts, RuleSet, allowed};

/// The rules and sets of a cluster, ready to be asked.
#[derive(Debug)]
pub struct Reach {
    /// What was read.
    pub loaded: LoadedCluster,
    /// Nodes by name, with the addresses that are theirs.
    pub nodes: BTreeMap<Arc<str>, BTreeSet<IpAddr>>,
    sets: SetMembership,
    records: BTreeMap<SetId, Arc<str>>,
    known_rules: RefCell<Interner<RuleSet>>,
    known_facts: RefCell<Interner<Facts>>,
    verdicts: RefCell<HashMap<(RulesId, FactsId), CachedVerdicts>>,
    /// The same by what of the facts the rules ask for.
    verdicts_by_relevant_facts: RefCell<HashMap<(RulesId, Facts), CachedVerdicts>>,
    /// The sets that rules name.
    named: RefCell<HashMap<RulesId, HashSet<SetId>>>,
    known_ports: RefCell<Interner<PortSet>>,
    /// What the rules allow, by the numbers of rules and facts.
    ports: RefCell<Vec<Vec<Option<PortsId>>>>,
    both: RefCell<HashMap<(PortsId, PortsId), Rc<PortSet>>>,
    outside: RefCell<HashMap<OutsidePeer, FactsId>>,
}

/// An address outside, and the name that it was asked by.
type OutsidePeer = (IpAddr, Option<Arc<str>>);

/// What rules say of somebody, and the ports that they let through.
type CachedVerdicts = (Rc<PortVerdicts>, PortsId);

/// Equal rules have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RulesId(usize);

/// Equal facts have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FactsId(usize);

/// Equal sets of ports have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PortsId(usize);

/// The verdicts of rules for all ports.
#[derive(Debug, PartialEq, Eq)]
pub struct PortVerdicts {
    /// Which ports are allowed.
    pub allowed: PortSet,
    /// What was decided, port by port.
    pub slices: Vec<DecidedPorts>,
}

impl From<Vec<DecidedPorts>> for PortVerdicts {
    fn from(slices: Vec<DecidedPorts>) -> Self {
        Self {
            allowed: allowed(&slices),
            slices,
        }
    }
}

impl PortVerdicts {
    /// What is decided for some of the ports: each decision once, with the ports.
    pub fn decisions<'a>(&'a self, ports: &'a PortSet) -> impl Iterator<Item = (PortSet, &'a Decision)> {
        self.slices
            .iter()
            .map(|slice| (slice.ports.intersection(ports), &slice.decision))
            .filter(|(ports, _)| !ports.is_empty())
    }
}

impl Reach {
    /// Of what was read.
    #[must_use]
    pub fn new(loaded: LoadedCluster) -> Self {
        let nodes = nodes(&loaded);
        let records = loaded
            .simulator
            .sets()
            .filter(|set| set.kind == SetKind::Records)
            .map(|set| (set.id, Arc::clone(&set.description)))
            .collect();
        Self {
            sets: SetMembership::of(&loaded, &nodes),
            nodes,
            records,
            known_rules: RefCell::default(),
            known_facts: RefCell::default(),
            verdicts: RefCell::default(),
            verdicts_by_relevant_facts: RefCell::default(),
            named: RefCell::default(),
            known_ports: RefCell::default(),
            ports: RefCell::default(),
            both: RefCell::default(),
            outside: RefCell::default(),
            loaded,
        }
    }

    /// The networks that the rules compare addresses with, and the addresses of nobody here.
    #[must_use]
    pub fn networks(&self, rules: RulesId) -> BTreeSet<IpNet> {
        let rules = self.known_rules.borrow().get(rules.0);
        let sets: BTreeSet<SetId> = rules.sets().collect();
        let networks = sets.iter().filter_map(|set| self.sets.networks.get(set));
        let singles = self
            .sets
            .of_nobody
            .iter()
            .filter(|(_, of)| of.keys().any(|set| sets.contains(set)));
        let singles = singles.map(|(address, _)| IpNet::from(*address));
        networks.flatten().copied().chain(singles).collect()
    }

    /// The names that the rules have.
    #[must_use]
    pub fn names(&self, rules: RulesId) -> BTreeSet<Arc<str>> {
        self.known_rules.borrow().get(rules.0).names()
    }

    /// What the rules say of an end.
    #[must_use]
    pub fn judge(&self, rules: RulesId, facts: FactsId) -> Rc<PortVerdicts> {
        self.judge_and_intern(rules, facts).0
    }

    /// What the rules of both ends allow, where the destination is served at every port.
    #[must_use]
    pub fn allowed(&self, egress: (RulesId, FactsId), ingress: (RulesId, FactsId)) -> Rc<PortSet> {
        let (by_source, by_destination) = (self.ports(egress), self.ports(ingress));
        let known = self.known_ports.borrow();
        let intersect = || Rc::new(known.get(by_source.0).intersection(&known.get(by_destination.0)));
        let mut both = self.both.borrow_mut();
        Rc::clone(both.entry((by_source, by_destination)).or_insert_with(intersect))
    }

    /// The ports that rules allow an end. Asked for every pair of pods, so it is kept where it is found by counting.
    fn ports(&self, (rules, facts): (RulesId, FactsId)) -> PortsId {
        let known = |all: &Vec<Vec<Option<PortsId>>>| *all.get(rules.0)?.get(facts.0)?;
        if let Some(ports) = known(&self.ports.borrow()) {
            return ports;
        }
        let of_end = self.known_facts.borrow().get(facts.0);
        let (_, ports) = self.judge_relevant_facts(rules, &of_end);
        let mut all = self.ports.borrow_mut();
        if all.len() <= rules.0 {
            all.resize(rules.0 + 1, Vec::new());
        }
        let of_rules = &mut all[rules.0];
        if of_rules.len() <= facts.0 {
            of_rules.resize(facts.0 + 1, None);
        }
        of_rules[facts.0] = Some(ports);
        ports
    }

    fn judge_and_intern(&self, rules: RulesId, facts: FactsId) -> (Rc<PortVerdicts>, PortsId) {
        let key = (rules, facts);
        if let Some((judged, ports)) = self.verdicts.borrow().get(&key) {
            return (Rc::clone(judged), *ports);
        }
        let facts = self.known_facts.borrow().get(facts.0);
        let (judged, ports) = self.judge_relevant_facts(rules, &facts);
        self.verdicts
            .borrow_mut()
            .insert(key, (Rc::clone(&judged), ports));
        (judged, ports)
    }

    /// Rules name few of the sets that an address is in: of ends that differ in others they say the same.
    fn judge_relevant_facts(&self, id: RulesId, facts: &Facts) -> (Rc<PortVerdicts>, PortsId) {
        let rules = self.known_rules.borrow().get(id.0);
        let relevant = {
            let mut named = self.named.borrow_mut();
            let named = named.entry(id).or_insert_with(|| rules.sets().collect());
            facts.relevant(named)
        };
        let mut judged = self.verdicts_by_relevant_facts.borrow_mut();
        let (judged, ports) = judged.entry((id, relevant)).or_insert_with_key(|(_, relevant)| {
            let judged = PortVerdicts::from(rules.judge(relevant));
            let ports = PortsId(self.known_ports.borrow_mut().intern(judged.allowed.clone()));
            (Rc::new(judged), ports)
        });
        (Rc::clone(judged), *ports)
    }

    /// How often rules were gone through so far.
    #[must_use]
    pub fn evaluation_count(&self) -> usize {
        self.verdicts_by_relevant_facts.borrow().len()
    }

    /// What is to be known of an address of a pod or node.
    #[must_use]
    pub fn facts_of(&self, address: IpAddr, is_own_node: bool) -> FactsId {
        let mut facts = Facts {
            sets: self.sets.of_networks(address),
            name: None,
            is_own_node,
        };
        facts
            .sets
            .extend(self.sets.by_address.get(&address).cloned().unwrap_or_default());
        self.intern_facts(facts)
    }

    /// What is to be known of an address that is nobody's here, maybe told for a name.
    #[must_use]
    pub fn facts_outside(&self, address: IpAddr, name: Option<&Arc<str>>) -> FactsId {
        // Rules of many pods cut the outside at the same places.
        let key = (address, name.cloned());
        if let Some(facts) = self.outside.borrow().get(&key) {
            return *facts;
        }
        let mut sets = self.sets.of_networks(address);
        sets.extend(self.sets.of_nobody.get(&address).cloned().unwrap_or_default());
        let facts = self.intern_facts(Facts {
            sets,
            name: name.cloned(),
            is_own_node: false,
        });
        self.outside.borrow_mut().insert(key, facts);
        facts
    }

    fn intern_facts(&self, facts: Facts) -> FactsId {
        FactsId(self.known_facts.borrow_mut().intern(facts))
    }

    /// The rules of a pod's direction; none for a pod that has no rules at all.
    fn rules_of(&self, pod: &PodKey, direction: Direction) -> Option<RulesId> {
        let rules = self.loaded.simulator.pod(pod)?.direction(direction);
        let rules = RuleSet::new(pod, rules, &self.records);
        Some(RulesId(self.known_rules.borrow_mut().intern(rules)))
    }
}

/// Gives equal values one number.
#[derive(Debug)]
struct Interner<T> {
    values: Vec<Rc<T>>,
    numbers: HashMap<Rc<T>, usize>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            numbers: HashMap::new(),
        }
    }
}

impl<T: Eq + std::hash::Hash> Interner<T> {
    fn intern(&mut self, value: T) -> usize {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        let (number, value) = (self.values.len(), Rc::new(value));
        self.values.push(Rc::clone(&value));
        self.numbers.insert(value, number);
        number
    }

    fn get(&self, number: usize) -> Rc<T> {
        Rc::clone(&self.values[number])
    }
}

/// Members of sets, with the ports at which they are members.
#[derive(Debug, Default)]
struct SetMembership {
    /// Pods and nodes.
    by_address: HashMap<IpAddr, BTreeMap<SetId, PortSet>>,
    /// Single addresses of sets that are neither a pod's nor a node's.
    of_nobody: BTreeMap<IpAddr, BTreeMap<SetId, PortSet>>,
    networks: BTreeMap<SetId, BTreeSet<IpNet>>,
}

impl SetMembership {
    fn of(loaded: &LoadedCluster, nodes: &BTreeMap<Arc<str>, BTreeSet<IpAddr>>) -> Self {
        let mut sets = Self::default();
        let simulator = &loaded.simulator;
        let members = simulator
            .sets()
            .flat_map(|set| simulator.members(set.id).map(|(member, _)| (set.id, member)));
        for (set, member) in members {
            match member {
                SetMember::Address(address) => sets.add(address, set, &PortSet::everything()),
                SetMember::AddressPort(address, transport, port) => {
                    let port = PortRange::single(port.get()).expect("a port that is not 0 is a range");
                    sets.add(address, set, &PortSet::range(transport, port));
                }
                // The compiler makes no networks with ports.
                SetMember::Network(network) | SetMember::NetworkPort(network, ..) => {
                    sets.networks.entry(set).or_default().insert(network);
                }
            }
        }
        let of_nodes: BTreeSet<IpAddr> = nodes.values().flatten().copied().collect();
        let is_nobodys = |address: IpAddr| loaded.cluster.is_nobodys(address) && !of_nodes.contains(&address);
        let all = sets.by_address.iter();
        sets.of_nobody = all
            .filter(|(address, _)| is_nobodys(**address))
            .map(|(address, of)| (*address, of.clone()))
            .collect();
        sets
    }

    fn add(&mut self, address: IpAddr, set: SetId, ports: &PortSet) {
        let of_address = self.by_address.entry(address.to_canonical()).or_default();
        let known = of_address.entry(set).or_default();
        *known = known.union(ports);
    }

    fn of_networks(&self, address: IpAddr) -> BTreeMap<SetId, PortSet> {
        self.networks
            .iter()
            .filter(|(_, networks)| networks.iter().any(|network| network.contains(&address)))
            .map(|(set, _)| (*set, PortSet::everything()))
            .collect()
    }
}

/// Nodes, with the addresses that only pods of their network show.
fn nodes(loaded: &LoadedCluster) -> BTreeMap<Arc<str>, BTreeSet<IpAddr>> {
    let mut nodes: BTreeMap<Arc<str>, BTreeSet<IpAddr>> = BTreeMap::new();
    for node in &loaded.manifests.nodes {
        let addresses = nodes.entry(Arc::clone(&node.name)).or_default();
        addresses.extend(node.addresses.iter().map(IpAddr::to_canonical));
    }
    for place in &loaded.manifests.address_reports {
        if let Entity::NodeAddressReport(report) = place {
            let addresses = report.addresses.iter().map(IpAddr::to_canonical);
            let of_node = addresses.filter(|address| loaded.cluster.pod_at(*address).is_none());
            nodes.entry(Arc::clone(&report.node)).or_default().extend(of_node);
        }
    }
    for member in loaded.manifests.members.values() {
        let pod = &member.pod;
        if pod.life == PodLife::Live && pod.host_network && !pod.addresses.is_empty() {
            let name = pod.node.clone().unwrap_or_else(|| "?".into());
            let addresses = nodes.entry(name).or_default();
            addresses.extend(pod.addresses.iter().map(IpAddr::to_canonical));
        }
    }
    nodes
}
