//! From policies to the rules of one pod. Policies are made into templates once; a pod picks the
//! templates that select it and fills in what depends on the pod: its own named ports, and the set of
//! what it was told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egret_shared::name::NamePattern;
use egret_shared::net::{PortRange, Transport};

use crate::compiler::PodToOwnNode;
use crate::index::LivePod;
use crate::model::{Action, Direction, Labels, PolicyId, Rank, Tier};
use crate::rules::{
    DirectionRules, Origin, Otherwise, PeerMatch, PodRules, PortMatch, Rule, SetId, TierRules,
};

mod content;
mod template;
mod firewall;

pub(crate) use content::{NamedSet, SetContent};
pub(crate) use template::{DnsRules, Template};

use template::{PeerTemplate, PortTemplate, RuleTemplate, TemplateEffect};

/// Policies in the order of evaluation.
pub(crate) type Templates = BTreeMap<(Rank, PolicyId), Template>;

/// What a pod's policies come to.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) rules: PodRules,
    pub(crate) uses: BTreeMap<SetId, Use>,
    pub(crate) patterns: BTreeSet<NamePattern>,
}

/// A set that a pod's rules name, and what its members do for them.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) set: Arc<NamedSet>,
    /// Directions in which a member may open something: it stands in an Allow or Pass.
    pub(crate) opens: BTreeSet<Direction>,
    /// Directions in which a member may close something: it stands in a Deny or Pass.
    pub(crate) closes: BTreeSet<Direction>,
}

/// What rules depend on besides policies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings<'a> {
    /// What an isolated pod may ask of its node.
    pub(crate) pod_to_own_node: PodToOwnNode,
    /// The labels of the pod's node; none for a pod that is on none.
    pub(crate) own_node: Option<&'a Labels>,
}

/// The rules of a pod.
pub(crate) fn compile(pod: &LivePod<'_>, templates: &Templates, around: Surroundings<'_>) -> Compiled {
    let selecting: Vec<(Rank, &Template)> = templates
        .iter()
        .filter(|(_, template)| pod.is_selected(&template.subject.namespaces, &template.subject.pods))
        .map(|((rank, _), template)| (*rank, template))
        .collect();
    let mut uses = Uses::default();
    let mut direction = |direction| DirectionRules {
        tiers: Tier::ALL
            .into_iter()
            .flat_map(|tier| match tier {
                Tier::ClusterEgressFirewall => {
                    firewall::compile_firewalls(pod, &selecting, direction, around, &mut uses)
                }
                Tier::Admin | Tier::NetworkPolicy | Tier::Baseline => {
                    let rules = compile_tier(pod, &selecting, tier, direction, around, &mut uses);
                    rules.into_iter().collect()
                }
            })
            .collect(),
    };
    let (egress, ingress) = (direction(Direction::Egress), direction(Direction::Ingress));
    Compiled {
        rules: PodRules {
            pod: pod.pod.key.clone(),
            uid: pod.pod.uid.clone(),
            addresses: pod.addresses.to_vec(),
            egress,
            ingress,
        },
        uses: uses.sets,
        patterns: uses.patterns,
    }
}

fn compile_tier(
    pod: &LivePod<'_>,
    selecting: &[(Rank, &Template)],
    tier: Tier,
    direction: Direction,
    around: Surroundings<'_>,
    uses: &mut Uses,
) -> Option<TierRules> {
    let templates: Vec<&Template> = selecting
        .iter()
        .filter(|(rank, _)| rank.tier == tier)
        .map(|(_, template)| *template)
        .collect();
    let is_annotated = templates.iter().any(|template| template.is_annotation(direction));
    let mut says_something = false;
    let mut rules = Vec::new();
    for template in templates {
        let effect = match template.effect(direction) {
            TemplateEffect::None => continue,
            TemplateEffect::Opens(_) if !is_annotated => continue,
            TemplateEffect::Opens(effect) | TemplateEffect::Rules(effect) => effect,
        };
        says_something = true;
        for template in effect {
            push_rules(&mut rules, pod, template, direction, around, uses);
        }
    }
    let is_isolated = tier == Tier::NetworkPolicy && says_something;
    if is_isolated && direction == Direction::Egress {
        rules.extend(own_node_rules(around.pod_to_own_node));
    }
    (is_isolated || !rules.is_empty()).then_some(TierRules {
        tier,
        rules,
        otherwise: if is_isolated {
            Otherwise::Deny
        } else {
            Otherwise::NextTier
        },
    })
}

fn push_rules(
    rules: &mut Vec<Rule>,
    pod: &LivePod<'_>,
    template: &RuleTemplate,
    direction: Direction,
    around: Surroundings<'_>,
    uses: &mut Uses,
) {
    let ports = fill_port(pod, &template.port);
    if ports.is_empty() {
        return;
    }
    let peer = match &template.peer {
        PeerTemplate::Any => PeerMatch::Any,
        PeerTemplate::Set(set) => uses.add(set, template.action, direction),
        PeerTemplate::OwnNode(selector) => match around.own_node {
            Some(labels) if selector.matches(labels) => PeerMatch::OwnNode,
            Some(_) | None => return,
        },
        PeerTemplate::Names(patterns) => {
            uses.patterns.extend(patterns.iter().cloned());
            let set = NamedSet::new(SetContent::Records {
                pod: pod.pod.key.clone(),
                uid: pod.pod.uid.clone(),
                patterns: Arc::clone(patterns),
            });
            uses.add(&set, template.action, direction)
        }
    };
    let except = template.except.as_ref();
    let except = except.map(|set| uses.add_exception(set, template.action, direction));
    rules.extend(ports.into_iter().map(|port| Rule {
        action: template.action,
        peer: peer.clone(),
        except,
        port,
        origin: template.origin.clone(),
    }));
}

/// The port, once the subject pod is known; nothing for a name that the pod does not serve.
fn fill_port(pod: &LivePod<'_>, port: &PortTemplate) -> Vec<PortMatch> {
    match port {
        PortTemplate::Any => vec![PortMatch::Any],
        PortTemplate::Range(transport, range) => vec![PortMatch::Range(*transport, *range)],
        PortTemplate::Icmp => vec![PortMatch::Icmp],
        PortTemplate::OfSubject { name, transport } => pod
            .pod
            .ports
            .iter()
            .filter(|port| port.name == *name && transport.is_none_or(|asked| asked == port.transport))
            .filter_map(|port| Some((port.transport, PortRange::single(port.number.get())?)))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(|(transport, range)| PortMatch::Range(transport, range))
            .collect(),
    }
}

/// The exemption of the pod's own node from isolation by a NetworkPolicy.
fn own_node_rules(own_node: PodToOwnNode) -> Vec<Rule> {
    let ports = match own_node {
        PodToOwnNode::Allow => vec![PortMatch::Any],
        PodToOwnNode::Dns => [Transport::Udp, Transport::Tcp]
            .into_iter()
            .filter_map(|transport| Some(PortMatch::Range(transport, PortRange::single(53)?)))
            .collect(),
        PodToOwnNode::Enforce => Vec::new(),
    };
    let rule = |port| Rule {
        action: Action::Allow,
        peer: PeerMatch::OwnNode,
        except: None,
        port,
        origin: Origin {
            policy: "own-node".into(),
            rule: 0,
            name: None,
        },
    };
    ports.into_iter().map(rule).collect()
}

/// The sets that were named so far.
#[derive(Debug, Default)]
struct Uses {
    sets: BTreeMap<SetId, Use>,
    patterns: BTreeSet<NamePattern>,
}

impl Uses {
    fn add(&mut self, set: &Arc<NamedSet>, action: Action, direction: Direction) -> PeerMatch {
        let (opens, closes) = match action {
            Action::Allow => (true, false),
            Action::Deny => (false, true),
            Action::Pass => (true, true),
        };
        self.note(set, (opens, closes), direction);
        PeerMatch::In(set.id)
    }

    /// A member of an exception does the opposite of what the rule does.
    fn add_exception(&mut self, set: &Arc<NamedSet>, action: Action, direction: Direction) -> SetId {
        let (opens, closes) = match action {
            Action::Allow => (false, true),
            Action::Deny => (true, false),
            Action::Pass => (true, true),
        };
        self.note(set, (opens, closes), direction);
        set.id
    }

    fn note(&mut self, set: &Arc<NamedSet>, (opens, closes): (bool, bool), direction: Direction) {
        let used = self.sets.entry(set.id).or_insert_with(|| Use {
            set: Arc::clone(set),
            opens: BTreeSet::new(),
            closes: BTreeSet::new(),
        });
        if opens {
            used.opens.insert(direction);
        }
        if closes {
            used.closes.insert(direction);
        }
    }
}
