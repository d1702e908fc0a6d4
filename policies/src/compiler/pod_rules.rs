//! From policies to the rules of one pod. A policy that selects a pod is made into a template once; what depends on the
//! pod (its own named ports, the set of what it was told) is filled in for each, and from these parts its rules are put
//! together.

use std::collections::BTreeSet;
use std::sync::Arc;

use egret_shared::net::{PortRange, Transport};

use crate::model::{Action, Direction, Enforcement, Labels};
use crate::rules::{ITSELF, OWN_NODE, Origin, PeerMatch, PortMatch, Rule};

use super::index::LivePod;
use super::set_content::{NamedSet, SetContent};
use super::set_use::SetUses;
use super::settings::PodToOwnNode;

mod template;
mod filled;
mod compiled_pod;
mod firewall;

pub(super) use compiled_pod::CompiledPod;
pub(super) use filled::FilledTemplate;
pub(super) use firewall::in_lists;
pub(super) use template::{DnsRules, PeerTemplate, PortTemplate, RuleTemplate, Template, TemplateEffect};

/// What rules depend on besides policies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompileContext<'a> {
    /// What an isolated pod may ask of its node.
    pub(crate) pod_to_own_node: PodToOwnNode,
    /// The labels of the pod's node; none for a pod that is on none.
    pub(crate) own_node: Option<&'a Labels>,
    /// How many runs of the pod ended whose sets a backend may still have.
    pub(crate) ended_runs: u32,
    /// Whether policies are enforced on this node at all.
    pub(crate) enforcement: Enforcement,
}

fn push_rules(
    rules: &mut Vec<Rule>,
    pod: &LivePod<'_>,
    template: &RuleTemplate,
    direction: Direction,
    around: CompileContext<'_>,
    uses: &mut SetUses,
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
                ended_runs: around.ended_runs,
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
        attribution: None,
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
        attribution: None,
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
        attribution: None,
    };
    ports.into_iter().map(rule).collect()
}
