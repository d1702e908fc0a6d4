//! A policy as far as it can be compiled without knowing the pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use egret_shared::name::NamePattern;
use egret_shared::net::{PortRange, Transport};

use crate::model::{
    self, Action, Direction, Effect, NamespaceSelector, Peer, Peers, Policy, Port, Ports, Selector, Subject,
    Tier,
};
use crate::rules::Origin;

use super::content::{NamedSet, SetContent};

/// A policy, ready for any pod that it selects.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) subject: Subject,
    egress: Option<Vec<RuleTemplate>>,
    ingress: Option<Vec<RuleTemplate>>,
}

/// One rule per set and port of a model's rule.
#[derive(Debug)]
pub(crate) struct RuleTemplate {
    pub(super) action: Action,
    pub(super) peer: PeerTemplate,
    pub(super) port: PortTemplate,
    pub(super) origin: Origin,
}

#[derive(Clone, Debug)]
pub(super) enum PeerTemplate {
    Any,
    Set(Arc<NamedSet>),
    /// What the subject pod was told.
    Names(Arc<BTreeSet<NamePattern>>),
}

#[derive(Clone, Debug)]
pub(super) enum PortTemplate {
    Any,
    Range(Transport, PortRange),
    /// The subject pod's port of this name.
    OfSubject {
        name: Arc<str>,
        transport: Option<Transport>,
    },
}

impl Template {
    /// The template of a policy.
    pub(crate) fn new(policy: &Policy) -> Self {
        let name: Arc<str> = policy.id.to_string().into();
        let effect = |direction| match policy.effect(direction) {
            Effect::None => None,
            Effect::Rules(rules) => Some(rule_templates(rules, policy.rank.tier, direction, &name)),
        };
        Self {
            subject: policy.subject.clone(),
            egress: effect(Direction::Egress),
            ingress: effect(Direction::Ingress),
        }
    }

    /// What it says of a direction; nothing is not the same as no rules.
    pub(super) const fn effect(&self, direction: Direction) -> Option<&Vec<RuleTemplate>> {
        match direction {
            Direction::Egress => self.egress.as_ref(),
            Direction::Ingress => self.ingress.as_ref(),
        }
    }
}

fn rule_templates(
    rules: &[model::Rule],
    tier: Tier,
    direction: Direction,
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
            matches_of(rule, direction)
                .into_iter()
                .map(|(peer, port)| RuleTemplate {
                    action,
                    peer,
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

fn matches_of(rule: &model::Rule, direction: Direction) -> Vec<(PeerTemplate, PortTemplate)> {
    let peers = PeerSource::list(&rule.peers);
    match &rule.ports {
        Ports::Any => peers
            .iter()
            .map(|peer| (peer.template(), PortTemplate::Any))
            .collect(),
        Ports::OneOf(ports) => ports
            .iter()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .flat_map(|port| peers.iter().filter_map(|peer| at_port(peer, port, direction)))
            .collect(),
    }
}

fn at_port(peer: &PeerSource, port: &Port, direction: Direction) -> Option<(PeerTemplate, PortTemplate)> {
    match (port, direction) {
        (Port::Range(transport, range), Direction::Egress | Direction::Ingress) => {
            Some((peer.template(), PortTemplate::Range(*transport, *range)))
        }
        (Port::Named { name, transport }, Direction::Ingress) => {
            let (name, transport) = (Arc::clone(name), *transport);
            Some((peer.template(), PortTemplate::OfSubject { name, transport }))
        }
        (Port::Named { name, transport }, Direction::Egress) => {
            let (namespaces, pods) = peer.pods()?;
            let set = NamedSet::new(SetContent::PodPorts {
                namespaces,
                pods,
                name: Arc::clone(name),
                transport: *transport,
            });
            Some((PeerTemplate::Set(set), PortTemplate::Any))
        }
    }
}

/// The peers of a rule, as many as there will be sets.
enum PeerSource {
    Any,
    Pods(NamespaceSelector, Selector, Arc<NamedSet>),
    /// Not pods by their nature: a named port never matches there.
    Set(Arc<NamedSet>),
    Names(Arc<BTreeSet<NamePattern>>),
}

impl PeerSource {
    fn list(peers: &Peers) -> Vec<Self> {
        let Peers::OneOf(peers) = peers else {
            return vec![Self::Any];
        };
        let mut sources = Vec::new();
        let (mut networks, mut names) = (BTreeSet::new(), BTreeSet::new());
        for peer in peers {
            match peer {
                Peer::Pods { namespaces, pods } => sources.push(Self::of_pods(namespaces, pods)),
                Peer::Nodes(selector) => {
                    sources.push(Self::Set(NamedSet::new(SetContent::Nodes(selector.clone()))));
                }
                Peer::Networks(nets) => networks.extend(nets.iter().map(ipnet::IpNet::trunc)),
                Peer::Names(patterns) => names.extend(patterns.iter().cloned()),
            }
        }
        if !networks.is_empty() {
            sources.push(Self::Set(NamedSet::new(SetContent::Networks(networks))));
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
            Self::Pods(_, _, set) | Self::Set(set) => PeerTemplate::Set(Arc::clone(set)),
            Self::Names(patterns) => PeerTemplate::Names(Arc::clone(patterns)),
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
            Self::Set(_) | Self::Names(_) => None,
        }
    }
}
