//! The chains that all pods share, and the maps that lead a packet to the chains of its pod: by the interface that it comes from or
//! goes to, whatever address it carries. Where several pods share an interface, the address counts as well.
//!
//! ```text
//!  prerouting, before conntrack ─ iifname vmap @source ▸ goto EGRET-SOURCE-BY: has the packet an address of its pod?
//!  forward ─ egress  ─ revoked ▸ deny ─ replies ▸ accept ─ iifname vmap @egress ─ unknown pods ─ rewritten, of no pod ▸ goto EGRET-E-n
//!  forward ─ ingress ─ replies ▸ accept ─ oifname vmap @ingress ─ unknown pods
//!  input   ─ egress, as above
//!  output, with IPVS ─ egress by source address; ingress
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_kernel::Family;
use egret_kernel::iptables::{InterfaceName, InterfacePattern};
use egret_kernel::nftables::{
    BaseChain, ConnState, Element, ElementKey, Key, NfHook, NftRule, SetKind, SetSpec, Statement, Verdict,
};
use egret_policies::rules::{Direction, PodRules, Tier};
use egret_shared::net::IpNet;

use super::denial::{self, Ends, unknown_chain};
use super::pod::rules_chain;
use super::rules::{ICMP_V6, Rendered, SCTP, TCP, UDP, behind, goto, icmp, jump, labelled, to};
use crate::backend::netfilter::denials::label::Label;
use crate::backend::netfilter::denials::{Cause, Denial, Outcome};
use crate::backend::netfilter::marks::Marks;
use crate::backend::netfilter::model::attachment::{PodAttachment, PodInterface};
use crate::backend::netfilter::model::settings::NflogSettings;
use crate::backend::netfilter::model::unknown_pods::ClosedInterfaces;
use crate::backend::netfilter::names::{self, PodChains};
use crate::backend::{Action, Decider};

/// What the shared chains depend on. It changes where a pod comes, goes or moves, and not with what its rules say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    pub(super) attached: Vec<PodAttachment>,
    pub(super) closed: ClosedInterfaces,
    /// UDP ports at which the node takes packets out of datagrams.
    pub(super) encapsulation_ports: BTreeSet<u16>,
    /// Whether the node has rules for clients outside.
    pub(super) is_exposed: bool,
    /// None where there is no IPVS.
    pub(super) ipvs: Option<Vec<IpvsPod>>,
}

/// A pod whose packets IPVS may forward, or that may be an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IpvsPod {
    attached: PodAttachment,
    /// Whether egress rules judge it.
    has_egress: bool,
    /// Whether it may reach itself whatever its rules say.
    meets_itself: bool,
}

impl IpvsPod {
    pub(super) fn of(attached: &PodAttachment, rules: &PodRules) -> Self {
        Self {
            attached: attached.clone(),
            has_egress: !rules.egress.tiers.is_empty(),
            meets_itself: rules
                .ingress
                .tiers
                .iter()
                .all(|tier| tier.tier == Tier::NetworkPolicy),
        }
    }
}

/// A set or map of the dispatch, with its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lookup {
    pub(super) keys: Vec<Key>,
    /// Verdicts of a map; none of a set.
    pub(super) elements: BTreeMap<ElementKey, Option<Verdict>>,
    is_map: bool,
}

impl Lookup {
    pub(super) fn map(keys: &[Key]) -> Self {
        Self {
            keys: keys.to_vec(),
            elements: BTreeMap::new(),
            is_map: true,
        }
    }

    pub(super) fn set(keys: &[Key]) -> Self {
        Self {
            is_map: false,
            ..Self::map(keys)
        }
    }

    /// The first one counts.
    pub(super) fn add(&mut self, key: ElementKey, verdict: Option<Verdict>) {
        self.elements.entry(key).or_insert(verdict);
    }

    /// The same without elements.
    pub(super) fn emptied(&self) -> Self {
        Self {
            elements: BTreeMap::new(),
            keys: self.keys.clone(),
            is_map: self.is_map,
        }
    }

    pub(super) fn spec(&self, name: &str) -> SetSpec {
        SetSpec {
            name: name.to_owned(),
            keys: self.keys.clone(),
            kind: if self.is_map {
                SetKind::Verdicts
            } else {
                SetKind::Plain
            },
            comment: String::new(),
        }
    }
}

/// An element as it is written.
pub(super) fn element(key: &ElementKey, verdict: Option<&Verdict>) -> Element {
    match verdict {
        Some(verdict) => Element::verdict(key.clone(), verdict.clone()),
        None => Element::lasting(key.clone()),
    }
}

pub(super) type Lookups = BTreeMap<&'static str, Lookup>;

const SOURCE: &str = "source";
const FORWARD_EGRESS: &str = "forward-egress";
const FORWARD_INGRESS: &str = "forward-ingress";
const INPUT: &str = "input";
const OUTPUT_EGRESS: &str = "output-egress";
const OUTPUT_INGRESS: &str = "output-ingress";

/// Before connections are tracked (-200), and before the table `raw` of iptables (-300).
const BEFORE_CONNTRACK: i32 = -310;
/// Before the table `filter` of iptables, and what others call filter: 0.
const FILTER: i32 = -10;

/// The chains that the kernel calls.
pub(super) fn base_chains(shared: &Shared) -> Vec<BaseChain> {
    let chain = |name: &str, hook, priority| BaseChain {
        name: name.to_owned(),
        hook,
        priority,
    };
    let mut chains = vec![
        chain(SOURCE, NfHook::Prerouting, BEFORE_CONNTRACK),
        chain(FORWARD_EGRESS, NfHook::Forward, FILTER),
        chain(FORWARD_INGRESS, NfHook::Forward, FILTER + 1),
        chain(INPUT, NfHook::Input, FILTER),
    ];
    if shared.ipvs.is_some() {
        chains.push(chain(OUTPUT_EGRESS, NfHook::Output, FILTER));
        chains.push(chain(OUTPUT_INGRESS, NfHook::Output, FILTER + 1));
    }
    chains
}

/// How shared chains are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) marks: Marks,
    pub(super) ends: Ends,
}

/// The shared chains, and their sets and maps.
pub(super) fn render(shared: &Shared, style: Style) -> (Rendered, Lookups) {
    let mut out = Rendered::default();
    let mut lookups = Lookups::new();
    put_ends(shared, style, &mut out);
    let (egress, ingress) = (
        by_pod(shared, Direction::Egress, &mut lookups),
        by_pod(shared, Direction::Ingress, &mut lookups),
    );
    let marks = style.marks;
    let judged = [
        to(
            goto(names::revoked().as_str()),
            [Statement::Mark(marks.going_on(), false)],
        ),
        reply(),
    ];
    let exposed = shared.is_exposed.then(|| {
        let unmarked = Statement::Mark(marks.unmarked(Direction::Egress), true);
        to(exposed_chain(), [Statement::IsDnat, unmarked])
    });
    let neighbours_over_bridges = has_bridges(shared).then(neighbours);
    let forward = neighbours_over_bridges.clone().into_iter().chain(judged.clone());
    let forward = forward.chain(egress.clone()).chain(exposed.clone());
    out.put(FORWARD_EGRESS, forward.collect());
    let forward = neighbours_over_bridges.into_iter().chain([reply()]);
    out.put(FORWARD_INGRESS, forward.chain(ingress.clone()).collect());
    let input = std::iter::once(neighbours())
        .chain(judged)
        .chain(egress)
        .chain(exposed);
    out.put(INPUT, input.collect());
    put_source_check(shared, style, &mut out, &mut lookups);
    if let Some(pods) = &shared.ipvs {
        put_ipvs(shared, pods, style.ends, ingress, &mut out, &mut lookups);
    }
    (out, lookups)
}

/// Ends of packets that no rule of a pod denies.
fn put_ends(shared: &Shared, style: Style, out: &mut Rendered) {
    let ends = style.ends;
    ends.put(out);
    let revoked = Direction::ALL.map(|direction| {
        let denial = Denial {
            outcome: Outcome::Denied,
            cause: Cause::Revoked,
            direction,
        };
        let end = ends.target(Some(denial), out);
        to(end, [Statement::Mark(style.marks.ended(direction), true)])
    });
    let end = to(ends.denied(), []);
    out.put(
        names::revoked().as_str(),
        revoked.into_iter().chain([end]).collect(),
    );
    out.put(NEIGHBOURS, neighbour_types());
    let encapsulated = encapsulation(&shared.encapsulation_ports, ends, out);
    out.put(names::encapsulation().as_str(), encapsulated);
    for direction in Direction::ALL {
        let label = Label::of_no_policy(Decider::UnknownPod, Action::Deny, direction);
        let end = ends.target(Denial::of_label(&label, false), out);
        let mut lines = vec![neighbours()];
        if direction == Direction::Ingress {
            lines.extend(related());
        }
        lines.push(labelled(end, [], &label));
        out.put(unknown_chain(direction), lines);
    }
}

/// The lines that find the pod of a packet.
fn by_pod(shared: &Shared, direction: Direction, lookups: &mut Lookups) -> Vec<NftRule> {
    let [own_name, v4_name, v6_name] = match direction {
        Direction::Egress => ["egress", "egress-4", "egress-6"],
        Direction::Ingress => ["ingress", "ingress-4", "ingress-6"],
    };
    let interface = match direction {
        Direction::Egress => Key::Input,
        Direction::Ingress => Key::Output,
    };
    let address = |family| match direction {
        Direction::Egress => Key::Source(family),
        Direction::Ingress => Key::Destination(family),
    };
    let mut own = Lookup::map(&[interface]);
    let mut by_address = Family::ALL.map(|family| Lookup::map(&[interface, address(family)]));
    let judged = shared
        .attached
        .iter()
        .map(|pod| (pod, pod.chains.entry(direction).as_str().to_owned()));
    let refused = shared
        .closed
        .pods
        .iter()
        .map(|pod| (pod, unknown_chain(direction)));
    for (pod, chain) in judged.chain(refused) {
        for port in &pod.interfaces {
            match port {
                PodInterface::Own(name) => {
                    own.add(ElementKey::Interface(name.clone()), Some(goto(chain.clone())))
                }
                PodInterface::Shared(name) | PodInterface::BridgePort { bridge: name, .. } => {
                    for address in &pod.addresses {
                        let key = ElementKey::InterfaceAddress(name.clone(), *address);
                        let map = &mut by_address[place(*address)];
                        map.add(key, Some(goto(chain.clone())));
                    }
                }
            }
        }
    }
    let mut lines = vec![to_map(own_name, &own.keys)];
    lookups.insert(own_name, own);
    for ((family, name), map) in Family::ALL.into_iter().zip([v4_name, v6_name]).zip(by_address) {
        if !map.elements.is_empty() {
            lines.push(behind(&[Statement::Family(family)], &to_map(name, &map.keys)));
            lookups.insert(name, map);
        }
    }
    lines.extend(closed_lines(&shared.closed, direction));
    lines
}

fn place(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => 1,
    }
}

fn to_map(name: &str, keys: &[Key]) -> NftRule {
    super::rules::rule([Statement::Map(keys.to_vec(), name.to_owned())])
}

/// Unknown pods, behind the known ones. Uplinks of the node whose names match are no pods'.
fn closed_lines(closed: &ClosedInterfaces, direction: Direction) -> Vec<NftRule> {
    let lines = closed.interfaces.iter().map(|pattern| {
        let mut when = vec![through(direction, pattern.clone())];
        if !closed.excluded.is_empty() {
            let keys = match direction {
                Direction::Egress => vec![Key::Input],
                Direction::Ingress => vec![Key::Output],
            };
            when.push(Statement::In(keys, EXCLUDED.to_owned(), false));
        }
        to(goto(unknown_chain(direction)), when)
    });
    lines.collect()
}

const EXCLUDED: &str = "uplinks";

fn through(direction: Direction, pattern: InterfacePattern) -> Statement {
    match direction {
        Direction::Egress => Statement::Input(pattern),
        Direction::Ingress => Statement::Output(pattern),
    }
}

fn exposed_chain() -> Verdict {
    goto(PodChains::of_node().entry(Direction::Egress).as_str())
}

/// Replies pass: the first packet of the connection was judged.
pub(super) fn reply() -> NftRule {
    to(
        Verdict::Accept,
        [
            Statement::State(&[ConnState::Established], true),
            Statement::IsReply,
        ],
    )
}

/// ICMP errors about a connection.
pub(super) fn related() -> [NftRule; 2] {
    Family::ALL.map(|family| {
        let is_icmp = [Statement::Family(family), Statement::Protocol(icmp(family))];
        let related = [Statement::State(&[ConnState::Related], true)];
        to(Verdict::Accept, [&is_icmp[..], &related].concat())
    })
}

const NEIGHBOURS: &str = "EGRET-NEIGHBOURS";

fn neighbours() -> NftRule {
    to(
        jump(NEIGHBOURS),
        [Statement::Family(Family::V6), Statement::Protocol(ICMP_V6)],
    )
}

/// Neighbour discovery (RFC 4861: 133 to 137) and listener reports (RFC 2710, RFC 3810: 130 to 132, 143).
pub(super) fn neighbour_types() -> Vec<NftRule> {
    let types = [130, 131, 132, 133, 134, 135, 136, 137, 143];
    types
        .map(|kind| to(Verdict::Accept, [Statement::IcmpType(kind)]))
        .into()
}

fn has_bridges(shared: &Shared) -> bool {
    let mut ports = shared.attached.iter().flat_map(|pod| &pod.interfaces);
    ports.any(|port| match port {
        PodInterface::BridgePort { .. } => true,
        PodInterface::Own(_) | PodInterface::Shared(_) => false,
    })
}

/// Packets to the node inside of which there is another.
fn encapsulation(ports: &BTreeSet<u16>, ends: Ends, out: &mut Rendered) -> Vec<NftRule> {
    let label = Label::of_no_policy(Decider::Encapsulation, Action::Deny, Direction::Egress);
    let end = ends.target(Denial::of_label(&label, false), out);
    let plain = |number| to(Verdict::Return, [Statement::Protocol(number)]);
    let tunnels = ports.iter().map(|port| {
        let when = [Statement::Protocol(UDP), Statement::Ports(*port, *port)];
        labelled(end.clone(), when, &label)
    });
    let mut lines = vec![plain(TCP)];
    lines.extend(tunnels);
    lines.push(plain(UDP));
    for family in Family::ALL {
        let when = [Statement::Family(family), Statement::Protocol(icmp(family))];
        lines.push(to(Verdict::Return, when));
    }
    lines.push(plain(SCTP));
    lines.push(labelled(end, [], &label));
    lines
}

/// What enters by a pod's interface has an address of that pod, or is dropped before conntrack sees it.
fn put_source_check(shared: &Shared, style: Style, out: &mut Rendered, lookups: &mut Lookups) {
    let mut checked = Lookup::map(&[Key::Input]);
    let mut valid = [
        Lookup::set(&[Key::Input, Key::Source(Family::V4)]),
        Lookup::set(&[Key::Input, Key::Source(Family::V6)]),
    ];
    let mut alone = Lookup::set(&[Key::Input]);
    let mut uplinks = Lookup::set(&[Key::Input]);
    let check = names::source_lookup();
    for pod in shared.attached.iter().chain(&shared.closed.pods) {
        for port in &pod.interfaces {
            let name = name_of(port);
            checked.add(ElementKey::Interface(name.clone()), Some(goto(check.as_str())));
            for address in &pod.addresses {
                let key = ElementKey::InterfaceAddress(name.clone(), *address);
                valid[place(*address)].add(key, None);
            }
            if matches!(port, PodInterface::Own(_)) {
                alone.add(ElementKey::Interface(name.clone()), None);
            }
        }
    }
    for name in &shared.closed.excluded {
        uplinks.add(ElementKey::Interface(name.clone()), None);
    }
    let patterns = shared.closed.interfaces.iter();
    let patterns = patterns.map(|pattern| to(goto(check.as_str()), [Statement::Input(pattern.clone())]));
    let lines = std::iter::once(to_map("checked", &checked.keys)).chain(patterns);
    out.put(SOURCE, lines.collect());
    let mut lines: Vec<NftRule> = Family::ALL
        .into_iter()
        .zip(["source-4", "source-6"])
        .map(|(family, set)| {
            let keys = vec![Key::Input, Key::Source(family)];
            let own = Statement::In(keys, set.to_owned(), true);
            to(Verdict::Accept, [Statement::Family(family), own])
        })
        .collect();
    // The node has routes to further addresses of a pod: those of an interface that is not in its status, and those of a pod that is
    // unknown yet.
    let link_local: IpNet = LINK_LOCAL.parse().expect("it is a network");
    lines.push(to(
        Verdict::Accept,
        [Statement::Family(Family::V4), Statement::ComesByItsRoute],
    ));
    lines.push(to(
        Verdict::Accept,
        [
            Statement::Family(Family::V6),
            Statement::Source(link_local, false),
            Statement::ComesByItsRoute,
        ],
    ));
    let is_alone = Statement::In(vec![Key::Input], "alone".to_owned(), true);
    lines.push(to(goto(names::spoofed().as_str()), [is_alone]));
    // A packet from where unknown pods are closed has no connection, so it is judged as an unknown pod's.
    let is_uplink = Statement::In(vec![Key::Input], EXCLUDED.to_owned(), true);
    lines.push(to(Verdict::Accept, [is_uplink]));
    let unknown = shared.closed.interfaces.iter();
    lines.extend(
        unknown.map(|pattern| super::rules::rule([Statement::Input(pattern.clone()), Statement::NoTrack])),
    );
    out.put(check.as_str(), lines);
    out.put(
        names::spoofed().as_str(),
        spoofed(style.ends.telling, Statement::Family),
    );
    let [v4, v6] = valid;
    lookups.extend([
        ("checked", checked),
        ("source-4", v4),
        ("source-6", v6),
        ("alone", alone),
        (EXCLUDED, uplinks),
    ]);
}

fn name_of(port: &PodInterface) -> &InterfaceName {
    match port {
        PodInterface::Own(name)
        | PodInterface::Shared(name)
        | PodInterface::BridgePort { bridge: name, .. } => name,
    }
}

const LINK_LOCAL: &str = "fe80::/10";

/// Drops packets with a spoofed source. A pod sends on its link before it has an address (RFC 4862, section 5.4: from the unspecified
/// address; RFC 2131, section 4.1: from 0.0.0.0) and from its link-local one; it is no router (RFC 4861, sections 4.2 and 4.5).
/// `is_of` says the family of a packet, where the rules are.
pub(super) fn spoofed(telling: Option<NflogSettings>, is_of: fn(Family) -> Statement) -> Vec<NftRule> {
    let net = |text: &str| text.parse::<IpNet>().expect("it is a network");
    let (v4, v6) = (is_of(Family::V4), is_of(Family::V6));
    let is_icmp = Statement::Protocol(ICMP_V6);
    let label = Label::of_no_policy(Decider::SpoofedSource, Action::Deny, Direction::Egress);
    let drop = |when: Vec<Statement>| labelled(Verdict::Drop, when, &label);
    let mut lines = vec![
        to(
            Verdict::Accept,
            [
                v4,
                Statement::Source(net("0.0.0.0/32"), true),
                Statement::Destination(net("255.255.255.255/32")),
                Statement::Protocol(UDP),
                Statement::Ports(67, 67),
            ],
        ),
        drop(vec![v6.clone(), is_icmp.clone(), Statement::IcmpType(134)]),
        drop(vec![v6.clone(), is_icmp.clone(), Statement::IcmpType(137)]),
        to(
            Verdict::Accept,
            [v6.clone(), Statement::Source(net(LINK_LOCAL), true)],
        ),
        to(
            Verdict::Accept,
            [v6, Statement::Source(net("::/128"), true), is_icmp],
        ),
    ];
    if let Some(telling) = telling {
        let denial = Denial {
            outcome: Outcome::Denied,
            cause: Cause::SpoofedSource,
            direction: Direction::Egress,
        };
        lines.push(denial::tell(&denial, telling));
    }
    lines.push(drop(Vec::new()));
    lines
}

/// IPVS takes a packet in behind INPUT, rewrites it, and sends it through OUTPUT with the sender's address and without a socket
/// (`ip_vs_nat_xmit` of net/netfilter/ipvs/ip_vs_xmit.c). The source check has verified the source address, so there it identifies
/// the pod. INPUT judged the address of the Service; OUTPUT judges the endpoint, each packet.
fn put_ipvs(
    shared: &Shared,
    pods: &[IpvsPod],
    ends: Ends,
    ingress: Vec<NftRule>,
    out: &mut Rendered,
    lookups: &mut Lookups,
) {
    let mut head = vec![neighbours(), reply()];
    head.extend(related());
    // A connection of the node in its last state has no socket either.
    head.push(to(Verdict::Accept, [Statement::HasSocket]));
    head.push(to(Verdict::Accept, [Statement::IsFromThisHost(true)]));
    let mut by_source = [
        Lookup::map(&[Key::Source(Family::V4)]),
        Lookup::map(&[Key::Source(Family::V6)]),
    ];
    let refused = shared.closed.pods.iter().flat_map(|pod| &pod.addresses);
    for address in refused {
        by_source[place(*address)].add(ElementKey::Address(*address), Some(ends.denied()));
    }
    for pod in pods.iter().filter(|pod| pod.has_egress) {
        for address in &pod.attached.addresses {
            let chain = rules_chain(pod.attached.chains, Direction::Egress, Family::of(*address));
            by_source[place(*address)].add(ElementKey::Address(*address), Some(goto(chain)));
        }
    }
    let mut egress = head.clone();
    for ((family, name), map) in Family::ALL
        .into_iter()
        .zip(["behind-4", "behind-6"])
        .zip(by_source)
    {
        egress.push(behind(&[Statement::Family(family)], &to_map(name, &map.keys)));
        lookups.insert(name, map);
    }
    egress.extend(shared.is_exposed.then(|| to(exposed_chain(), [])));
    out.put(OUTPUT_EGRESS, egress);
    let itself = pods.iter().filter(|pod| pod.meets_itself).flat_map(|pod| {
        let addresses = pod.attached.addresses.iter();
        addresses.flat_map(|address| {
            let back = |port: &PodInterface| {
                let net = IpNet::from(*address);
                let ends = [
                    Statement::Family(Family::of(*address)),
                    Statement::Source(net, true),
                    Statement::Destination(net),
                    Statement::Output(InterfacePattern::from(name_of(port).clone())),
                ];
                to(Verdict::Accept, ends)
            };
            pod.attached.interfaces.iter().map(back).collect::<Vec<_>>()
        })
    });
    let lines = head.into_iter().chain(itself).chain(ingress);
    out.put(OUTPUT_INGRESS, lines.collect());
}

/// Chains that an earlier life may have left where this one has none of these names.
pub(super) fn is_base(name: &str) -> bool {
    [
        SOURCE,
        FORWARD_EGRESS,
        FORWARD_INGRESS,
        INPUT,
        OUTPUT_EGRESS,
        OUTPUT_INGRESS,
    ]
    .contains(&name)
}
