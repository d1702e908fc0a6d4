//! From policies to the rules of one pod. A policy that selects a pod is made into a template once; what depends on the
//! pod (its own named ports, the set of what it was told) is filled in for each, and from these parts its rules are put
//! together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use egret_shared::name::NamePattern;
use egret_shared::net::{PortRange, Transport};

use crate::compiler::PodToOwnNode;
use crate::index::LivePod;
use crate::model::{Action, Direction, Enforcement, Labels};
use crate::rules::{ITSELF, NodeRules, OWN_NODE, Origin, PeerMatch, PortMatch, Rule, SetId};

mod content;
mod template;
mod part;
mod assemble;
mod firewall;
mod directions;

pub(crate) use assemble::Compiled;
pub(crate) use content::{NamedSet, SetContent};
pub(crate) use directions::Directions;
pub(crate) use firewall::compile_exposed;
pub(crate) use part::Filled;
pub(crate) use template::{DnsRules, Template};

use template::{PeerTemplate, PortTemplate, RuleTemplate};

/// What the policies come to for the node, whichever pods it has.
#[derive(Debug)]
pub(crate) struct CompiledNode {
    pub(crate) rules: NodeRules,
    pub(crate) uses: BTreeMap<SetId, Use>,
}

/// A set that rules name, and what its members do for them.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) set: Arc<NamedSet>,
    /// Directions in which a member may open something: it stands in an Allow or Pass.
    pub(crate) opens: Directions,
    /// Directions in which a member may close something: it stands in a Deny or Pass.
    pub(crate) closes: Directions,
}

impl Use {
    /// Whether no rule names the set any more.
    const fn does_nothing(&self) -> bool {
        self.opens.is_empty() && self.closes.is_empty()
    }
}

/// Sets with one name are one set.
impl PartialEq for Use {
    fn eq(&self, other: &Self) -> bool {
        (self.set.id, self.opens, self.closes) == (other.set.id, other.opens, other.closes)
    }
}

/// What rules depend on besides policies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings<'a> {
    /// What an isolated pod may ask of its node.
    pub(crate) pod_to_own_node: PodToOwnNode,
    /// The labels of the pod's node; none for a pod that is on none.
    pub(crate) own_node: Option<&'a Labels>,
    /// How many runs of the pod ended whose sets a backend may still have.
    pub(crate) lost: u32,
    /// Whether policies are enforced on this node at all.
    pub(crate) enforcement: Enforcement,
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
            uses.patterns.push(Arc::clone(patterns));
            let set = NamedSet::new(SetContent::Records {
                pod: pod.pod.key.clone(),
                uid: pod.pod.uid.clone(),
                lost: around.lost,
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

/// A pod "cannot block access to itself" by NetworkPolicy (concepts/services-networking/network-policies), not even
/// where a Service leads it there. The cluster-wide tiers before and behind it are asked about that, "regardless of the
/// datapath" (network-policy-api, ClusterNetworkPolicy).
fn itself_rule() -> Rule {
    Rule {
        action: Action::Allow,
        peer: PeerMatch::Itself,
        except: None,
        port: PortMatch::Any,
        origin: Origin {
            policy: ITSELF.into(),
            rule: 0,
            name: None,
        },
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
            policy: OWN_NODE.into(),
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
    patterns: Vec<Arc<BTreeSet<NamePattern>>>,
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
            opens: Directions::default(),
            closes: Directions::default(),
        });
        if opens {
            used.opens.set(direction, true);
        }
        if closes {
            used.closes.set(direction, true);
        }
    }
}
