//! A policy as far as it can be compiled without knowing the pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use egret_shared::name::NamePattern;
use egret_shared::net::{PortRange, Transport};

use crate::model::{
    self, Action, Direction, Effect, Exposure, Kind, NamespaceSelector, Peer, Peers, Policy, Port, Ports,
    Selector, Tier,
};
use crate::rules::Origin;

use crate::compiler::set_content::{NamedSet, SetContent, is_about_dns};

/// A policy, ready for any pod that it selects.
#[derive(Debug)]
pub(crate) struct Template {
    is_legacy: bool,
    exposure: Exposure,
    egress: TemplateEffect,
    ingress: TemplateEffect,
}

/// [`Effect`], ready to be filled in.
#[derive(Debug)]
pub(crate) enum TemplateEffect {
    None,
    Rules(Vec<RuleTemplate>),
    Opens(Vec<RuleTemplate>),
}

/// One rule per set and port of a model's rule.
#[derive(Debug)]
pub(crate) struct RuleTemplate {
    pub(crate) action: Action,
    pub(crate) peer: PeerTemplate,
    /// Addresses for which it does not count.
    pub(crate) except: Option<Arc<NamedSet>>,
    pub(crate) port: PortTemplate,
    pub(crate) origin: Origin,
}

#[derive(Clone, Debug)]
pub(crate) enum PeerTemplate {
    Any,
    Set(Arc<NamedSet>),
    /// What the subject's node takes for its own, where the node has such labels.
    OwnNode(Selector),
    /// What the subject pod was told.
    Names(Arc<BTreeSet<NamePattern>>),
}

#[derive(Clone, Debug)]
pub(crate) enum PortTemplate {
    Any,
    Range(Transport, PortRange),
    Icmp,
    /// The subject pod's port of this name.
    OfSubject {
        name: Arc<str>,
        transport: Option<Transport>,
    },
}

/// What a template depends on besides the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DnsRules {
    /// Rules for pods are rules for these pods alone.
    PodsAlone,
    /// Where they are about port 53, they are about dnsd in the place of such pods as well.
    WithStandIn,
}

impl Template {
    /// The template of a policy.
    pub(crate) fn new(policy: &Policy, dns: DnsRules) -> Self {
        let name: Arc<str> = policy.id.to_string().into();
        let effect = |direction| {
            let templates = |rules| rule_templates(rules, policy.rank.tier, direction, dns, &name);
            match policy.effect(direction) {
                Effect::None => TemplateEffect::None,
                Effect::Rules(rules) => TemplateEffect::Rules(templates(rules)),
                Effect::Opens(rules) => TemplateEffect::Opens(templates(rules)),
            }
        };
        Self {
            is_legacy: policy.id.kind == Kind::LegacyNetworkPolicy,
            exposure: policy.exposure,
            egress: effect(Direction::Egress),
            ingress: effect(Direction::Ingress),
        }
    }

    /// What it says of a direction; nothing is not the same as no rules.
    pub(crate) const fn effect(&self, direction: Direction) -> &TemplateEffect {
        match direction {
            Direction::Egress => &self.egress,
            Direction::Ingress => &self.ingress,
        }
    }

    /// What becomes of clients that are no pods.
    pub(crate) const fn exposure(&self) -> Exposure {
        self.exposure
    }

    /// Whether it is the annotation of 2016, under which policies of that form count.
    pub(crate) const fn is_annotation(&self, direction: Direction) -> bool {
        self.is_legacy && matches!(self.effect(direction), TemplateEffect::Rules(_))
    }
}

fn rule_templates(
    rules: &[model::Rule],
    tier: Tier,
    direction: Direction,
    dns: DnsRules,
    policy: &Arc<str>,
) -> Vec<RuleTemplate> {
    let mut templates = Vec::new();
    for rule in rules {
        let Some(action) = action_in(tier, rule.action) else {
            continue;
        };
        let origin = Origin {
            policy: Arc::clone(policy),
            rule: rule.index,
            name: rule.name.clone(),
        };
        templates.extend(
            matches_of(rule, direction, dns)
                .into_iter()
                .map(|(peer, except, port)| RuleTemplate {
                    action,
                    peer,
                    except,
                    port,
                    origin: origin.clone(),
                }),
        );
    }
    templates
}

/// What an action comes to: a ClusterEgressFirewall only restricts, so its Allow leaves the tier; a
/// NetworkPolicy only allows, and what it does not allow is denied by isolation.
const fn action_in(tier: Tier, action: Action) -> Option<Action> {
    match (tier, action) {
        (Tier::ClusterEgressFirewall, Action::Allow) => Some(Action::Pass),
        (Tier::NetworkPolicy, Action::Deny | Action::Pass) => None,
        (
            Tier::ClusterEgressFirewall | Tier::Admin | Tier::NetworkPolicy | Tier::Baseline,
            Action::Allow | Action::Deny | Action::Pass,
        ) => Some(action),
    }
}

type Match = (PeerTemplate, Option<Arc<NamedSet>>, PortTemplate);

fn matches_of(rule: &model::Rule, direction: Direction, dns: DnsRules) -> Vec<Match> {
    let peers = PeerSource::list(&rule.peers);
    let has_stand_in = (direction, dns) == (Direction::Egress, DnsRules::WithStandIn);
    let stand_in = |peer: &PeerSource, port| has_stand_in.then(|| dns_in_place_of(peer, port)).flatten();
    match &rule.ports {
        Ports::Any => peers
            .iter()
            .flat_map(|peer| {
                let itself = (peer.template(), peer.except(), PortTemplate::Any);
                std::iter::once(itself).chain(stand_in(peer, None))
            })
            .collect(),
        Ports::OneOf(ports) => ports
            .iter()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .flat_map(|port| peers.iter().map(move |peer| (peer, port)))
            .flat_map(|(peer, port)| {
                let itself = at_port(peer, port, direction);
                itself
                    .into_iter()
                    .chain(stand_in(peer, Some(port)))
                    .chain(behind_service(peer, port))
            })
            .collect(),
    }
}

fn at_port(peer: &PeerSource, port: &Port, direction: Direction) -> Option<Match> {
    match (port, direction) {
        (Port::Range(transport, range), Direction::Egress | Direction::Ingress) => {
            let port = PortTemplate::Range(*transport, *range);
            Some((peer.template(), peer.except(), port))
        }
        (Port::Icmp, Direction::Egress | Direction::Ingress) => {
            Some((peer.template(), peer.except(), PortTemplate::Icmp))
        }
        (Port::Named { name, transport }, Direction::Ingress) => {
            let (name, transport) = (Arc::clone(name), *transport);
            let port = PortTemplate::OfSubject { name, transport };
            Some((peer.template(), peer.except(), port))
        }
        (Port::Named { name, transport }, Direction::Egress) => {
            let (namespaces, pods) = peer.pods()?;
            let set = NamedSet::new(SetContent::PodPorts {
                namespaces,
                pods,
                name: Arc::clone(name),
                transport: *transport,
            });
            Some((PeerTemplate::Set(set), None, PortTemplate::Any))
        }
    }
}

/// The API server, where connections to these ports of its Service come out: its own ports are others, and what is sent
/// to the Service cannot be told from what is sent there any more.
fn behind_service(peer: &PeerSource, port: &Port) -> Option<Match> {
    match (peer, port) {
        (PeerSource::Set(set), Port::Range(transport, range))
            if matches!(set.content, SetContent::ApiServer) && *range != PortRange::ALL =>
        {
            let set = NamedSet::new(SetContent::ApiServerBehind(*transport, *range));
            Some((PeerTemplate::Set(set), None, PortTemplate::Any))
        }
        (_, Port::Range(..) | Port::Icmp | Port::Named { .. }) => None,
    }
}

/// dnsd, where a rule for these pods at this port is about DNS. The set has the port, so that a rule for all ports
/// opens or closes no other one of dnsd's; a peer that is any peer is dnsd already, but for its named ports.
fn dns_in_place_of(peer: &PeerSource, port: Option<&Port>) -> Option<Match> {
    let (named, template) = match (peer, port) {
        (_, Some(Port::Named { name, transport })) => {
            (Some((Arc::clone(name), *transport)), PortTemplate::Any)
        }
        (PeerSource::Any, _) | (_, Some(Port::Icmp)) => return None,
        (_, Some(Port::Range(transport, range))) => {
            if !is_about_dns(*transport, *range) {
                return None;
            }
            (None, PortTemplate::Range(*transport, *range))
        }
        (_, None) => (None, PortTemplate::Any),
    };
    let (namespaces, pods) = peer.pods()?;
    let set = NamedSet::new(SetContent::DnsStandIn {
        namespaces,
        pods,
        named,
    });
    Some((PeerTemplate::Set(set), None, template))
}

/// The peers of a rule, as many as there will be sets.
enum PeerSource {
    Any,
    Pods(NamespaceSelector, Selector, Arc<NamedSet>),
    /// Not pods by their nature: a named port never matches there.
    Set(Arc<NamedSet>),
    /// A set without what belongs to the cluster.
    Outside(Arc<NamedSet>),
    OwnNode(Selector),
    Names(Arc<BTreeSet<NamePattern>>),
}

impl PeerSource {
    fn list(peers: &Peers) -> Vec<Self> {
        let Peers::OneOf(peers) = peers else {
            return vec![Self::Any];
        };
        let mut sources = Vec::new();
        let (mut networks, mut outside, mut names) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for peer in peers.iter() {
            match peer {
                Peer::Pods { namespaces, pods } => sources.push(Self::of_pods(namespaces, pods)),
                Peer::Nodes(selector) => {
                    sources.push(Self::Set(NamedSet::new(SetContent::Nodes(selector.clone()))));
                }
                Peer::NodeAddresses(selector) => {
                    let set = NamedSet::new(SetContent::NodeAddresses(selector.clone()));
                    sources.extend([Self::Set(set), Self::OwnNode(selector.clone())]);
                }
                Peer::ApiServer => {
                    let sets = [SetContent::ApiServer, SetContent::ApiServerAddresses];
                    sources.extend(sets.map(|content| Self::Set(NamedSet::new(content))));
                }
                Peer::Services { namespace, name } => {
                    let (namespace, name) = (namespace.clone(), name.clone());
                    let set = NamedSet::new(SetContent::Services { namespace, name });
                    sources.push(Self::Set(set));
                }
                Peer::External(nets) => outside.extend(nets.iter().map(ipnet::IpNet::trunc)),
                Peer::Networks(nets) => networks.extend(nets.iter().map(ipnet::IpNet::trunc)),
                Peer::Names(patterns) => names.extend(patterns.iter().cloned()),
            }
        }
        if !networks.is_empty() {
            sources.push(Self::Set(NamedSet::new(SetContent::Networks(networks))));
        }
        if !outside.is_empty() {
            sources.push(Self::Outside(NamedSet::new(SetContent::Networks(outside))));
        }
        if !names.is_empty() {
            sources.push(Self::Names(Arc::new(names)));
        }
        sources
    }

    fn of_pods(namespaces: &NamespaceSelector, pods: &Selector) -> Self {
        let set = NamedSet::new(SetContent::Pods {
            namespaces: namespaces.clone(),
            pods: pods.clone(),
        });
        Self::Pods(namespaces.clone(), pods.clone(), set)
    }

    fn template(&self) -> PeerTemplate {
        match self {
            Self::Any => PeerTemplate::Any,
            Self::Pods(_, _, set) | Self::Set(set) | Self::Outside(set) => PeerTemplate::Set(Arc::clone(set)),
            Self::OwnNode(selector) => PeerTemplate::OwnNode(selector.clone()),
            Self::Names(patterns) => PeerTemplate::Names(Arc::clone(patterns)),
        }
    }

    /// What of the peers does not count. With IPVS the addresses of Services are local to every node, so the
    /// own node has an exception too.
    fn except(&self) -> Option<Arc<NamedSet>> {
        match self {
            Self::Outside(_) | Self::OwnNode(_) => Some(NamedSet::new(SetContent::Cluster)),
            Self::Any | Self::Pods(..) | Self::Set(_) | Self::Names(_) => None,
        }
    }

    /// The pods among the peers, where a named port can be looked for.
    fn pods(&self) -> Option<(NamespaceSelector, Selector)> {
        match self {
            Self::Any => Some((
                NamespaceSelector::Matching(Selector::everything()),
                Selector::everything(),
            )),
            Self::Pods(namespaces, pods, _) => Some((namespaces.clone(), pods.clone())),
            Self::Set(_) | Self::Outside(_) | Self::OwnNode(_) | Self::Names(_) => None,
        }
    }
}
