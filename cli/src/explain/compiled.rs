//! What a rule came to on the node: the sets in which the other end stands. For peers whose addresses are
//! found out from the whole cluster, this says what comparing again could only repeat.

use egret_policies::rules::{Member, PeerMatch, Rule, SetId};
use egret_policies::simulator::Protocol;

use super::viewpoint::Viewpoint;

/// The descriptions of the sets in which the other end stands for a rule of a policy, and `own node`.
pub(super) fn holding(view: &Viewpoint<'_>, policy: &str, index: usize) -> Vec<String> {
    let Some(rules) = view.asked.judge.simulator().pod(&view.subject.pod.key) else {
        return Vec::new();
    };
    let tiers = rules.direction(view.direction).tiers.iter();
    tiers
        .flat_map(|tier| tier.rules.iter())
        .filter(|rule| rule.origin.policy.as_ref() == policy && rule.origin.rule == index)
        .filter(|rule| !rule.except.is_some_and(|except| is_in(view, except)))
        .filter_map(|rule| held_by(view, rule))
        .collect()
}

/// What stands for the own node among the descriptions.
pub(super) const OWN_NODE: &str = "own node";

fn held_by(view: &Viewpoint<'_>, rule: &Rule) -> Option<String> {
    match rule.peer {
        PeerMatch::Any => None,
        PeerMatch::OwnNode => view.is_with_own_node().then(|| OWN_NODE.to_owned()),
        PeerMatch::Itself => None,
        PeerMatch::In(set) if is_in(view, set) => description(view, set),
        PeerMatch::In(_) => None,
    }
}

fn description(view: &Viewpoint<'_>, set: SetId) -> Option<String> {
    let mut sets = view.asked.judge.simulator().sets();
    sets.find(|spec| spec.id == set)
        .map(|spec| spec.description.to_string())
}

fn is_in(view: &Viewpoint<'_>, set: SetId) -> bool {
    view.asked
        .judge
        .simulator()
        .members(set)
        .filter(|(_, until)| until.is_none_or(|until| until > view.now))
        .any(|(member, _)| match member {
            Member::Address(address) => address == view.address,
            Member::Network(network) => network.contains(&view.address),
            Member::AddressPort(address, transport, port) => {
                address == view.address && view.protocol == Protocol::Port(transport, port.get())
            }
            Member::NetworkPort(network, transport, port) => {
                network.contains(&view.address) && view.protocol == Protocol::Port(transport, port.get())
            }
        })
}
