//! What rules of all kinds share: exactly-one-of, the closed rules, and named ports.

use std::sync::Arc;

use crate::api::{Field, Notes, Refused};
use crate::diagnostic::Code;
use crate::model::{Action, Direction, NamespaceSelector, Peer, Peers, Port, Ports, Rule, Selector, Subject};

/// The one field of an item of which exactly one must be there. None of the known ones means a newer
/// version of the API, and is refused like several.
pub(super) fn one_of<'a>(
    item: &Field<'a>,
    known: &[&'static str],
    notes: &mut Notes,
) -> Result<(&'static str, Field<'a>), Refused> {
    item.only(known, notes)?;
    let mut present = known
        .iter()
        .filter_map(|&word| item.get(word).map(|field| (word, field)));
    let accepted = format!("exactly one of {}", known.join(", "));
    match (present.next(), present.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(item.refuse(Code::UnknownAlternative, &accepted, notes)),
        (Some(_), Some(_)) => Err(item.refuse(Code::SeveralAlternatives, &accepted, notes)),
    }
}

/// A rule's place and name.
#[derive(Clone, Debug)]
pub(super) struct RuleLabel {
    pub(super) index: usize,
    pub(super) name: Option<Arc<str>>,
}

/// A rule that matches nothing.
pub(super) fn nothing(label: &RuleLabel, action: Action) -> Rule {
    Rule {
        index: label.index,
        name: label.name.clone(),
        action,
        peers: Peers::OneOf([].into()),
        ports: Ports::OneOf([].into()),
    }
}

/// A rule that denies everything.
pub(super) fn deny_all(label: &RuleLabel) -> Rule {
    Rule {
        index: label.index,
        name: label.name.clone(),
        action: Action::Deny,
        peers: Peers::Any,
        ports: Ports::Any,
    }
}

/// Every pod of every namespace.
pub(super) const fn every_pod() -> Subject {
    Subject {
        namespaces: NamespaceSelector::Matching(Selector::everything()),
        pods: Selector::everything(),
    }
}

/// A rule of peers and ports. For egress a named port belongs to pods: with networks, nodes and names it
/// matches nothing, even where an address is a pod's, so such a rule becomes two, one for the pods and
/// one for the rest.
pub(super) fn rules(
    rule: &Field<'_>,
    label: &RuleLabel,
    (action, direction): (Action, Direction),
    (peers, ports): (Peers, Ports),
    notes: &mut Notes,
) -> Vec<Rule> {
    let whole = |peers, ports| Rule {
        index: label.index,
        name: label.name.clone(),
        action,
        peers,
        ports,
    };
    let (peers, ports) = match (direction, peers, ports) {
        (Direction::Egress, Peers::OneOf(peers), Ports::OneOf(ports)) if has_both(&peers, &ports) => {
            (peers, ports)
        }
        (_, peers, ports) => return vec![whole(peers, ports)],
    };
    let enforced = "the named port matches pods only";
    rule.tell(
        Code::NamedPortWithoutPod,
        names_of(&ports),
        "a port by number",
        enforced,
        notes,
    );
    let (pods, places): (Vec<_>, Vec<_>) = peers
        .iter()
        .cloned()
        .partition(|peer| matches!(peer, Peer::Pods { .. }));
    let numbers: Vec<Port> = ports
        .iter()
        .filter(|port| !matches!(port, Port::Named { .. }))
        .cloned()
        .collect();
    let mut rules = Vec::new();
    if !pods.is_empty() {
        rules.push(whole(Peers::OneOf(pods.into()), Ports::OneOf(ports)));
    }
    if !numbers.is_empty() {
        rules.push(whole(Peers::OneOf(places.into()), Ports::OneOf(numbers.into())));
    }
    if rules.is_empty() {
        rules.push(nothing(label, action));
    }
    rules
}

fn has_both(peers: &[Peer], ports: &[Port]) -> bool {
    peers.iter().any(|peer| !matches!(peer, Peer::Pods { .. }))
        && ports.iter().any(|port| matches!(port, Port::Named { .. }))
}

fn names_of(ports: &[Port]) -> String {
    let names: Vec<&str> = ports
        .iter()
        .filter_map(|port| match port {
            Port::Named { name, .. } => Some(&**name),
            Port::Range(..) | Port::Icmp => None,
        })
        .collect();
    format!(
        "the named port {:?} with peers that are no pods",
        names.join(", ")
    )
}
