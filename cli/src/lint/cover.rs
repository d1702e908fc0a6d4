//! Whether one part of a policy matches all that another matches. "No" is the answer in every doubt: then
//! nothing is said about a rule that is reached.

use std::sync::Arc;

use egret_policies::model::{
    NAME_LABEL, NamespaceSelector, Peer, Peers, Port, Ports, Requirement, Selector, Subject, Values,
};
use egret_shared::name::NamePattern;
use egret_shared::net::{Family, IpNet};

/// Whether every pod of the second is one of the first.
pub(super) fn covers_subject(wide: &Subject, narrow: &Subject) -> bool {
    covers_namespaces(&wide.namespaces, &narrow.namespaces) && covers_selector(&wide.pods, &narrow.pods)
}

/// Whether no pod can be of both.
pub(super) fn are_disjoint(one: &Subject, other: &Subject) -> bool {
    let (one_in, other_in) = (as_selector(&one.namespaces), as_selector(&other.namespaces));
    contradict(&one_in, &other_in) || contradict(&one.pods, &other.pods)
}

/// Whether every peer of the second is one of the first.
pub(super) fn covers_peers(wide: &Peers, narrow: &Peers) -> bool {
    match (wide, narrow) {
        (Peers::Any, _) => true,
        (Peers::OneOf(wide), Peers::Any) => has_all_addresses(wide),
        (Peers::OneOf(wide), Peers::OneOf(narrow)) => {
            has_all_addresses(wide) || narrow.iter().all(|peer| covers_peer(wide, peer))
        }
    }
}

/// Whether every port of the second is one of the first.
pub(super) fn covers_ports(wide: &Ports, narrow: &Ports) -> bool {
    match (wide, narrow) {
        (Ports::Any, _) => true,
        (Ports::OneOf(_), Ports::Any) => false,
        (Ports::OneOf(wide), Ports::OneOf(narrow)) => narrow
            .iter()
            .all(|port| wide.iter().any(|wide| covers_port(wide, port))),
    }
}

fn as_selector(namespaces: &NamespaceSelector) -> Selector {
    match namespaces {
        NamespaceSelector::Named(name) => {
            let names = Values::from([Arc::clone(name)]);
            Selector::all_of([Requirement::In(NAME_LABEL.into(), names)])
        }
        NamespaceSelector::Matching(selector) => selector.clone(),
    }
}

fn covers_namespaces(wide: &NamespaceSelector, narrow: &NamespaceSelector) -> bool {
    covers_selector(&as_selector(wide), &as_selector(narrow))
}

fn covers_selector(wide: &Selector, narrow: &Selector) -> bool {
    wide.requirements()
        .all(|needed| narrow.requirements().any(|given| implies(given, needed)))
}

/// Whether what fulfils the first fulfils the second.
fn implies(given: &Requirement, needed: &Requirement) -> bool {
    use Requirement::{DoesNotExist, Exists, In, NotIn};
    match (given, needed) {
        (In(key, values), In(other, wider)) => key == other && values.is_subset(wider),
        (In(key, values), NotIn(other, without)) => key == other && values.is_disjoint(without),
        (NotIn(key, without), NotIn(other, fewer)) => key == other && fewer.is_subset(without),
        (In(key, _) | Exists(key), Exists(other))
        | (DoesNotExist(key), DoesNotExist(other) | NotIn(other, _)) => key == other,
        (NotIn(..), In(..) | Exists(_) | DoesNotExist(_))
        | (In(..), DoesNotExist(_))
        | (Exists(_), In(..) | NotIn(..) | DoesNotExist(_))
        | (DoesNotExist(_), In(..) | Exists(_)) => false,
    }
}

fn contradict(one: &Selector, other: &Selector) -> bool {
    one.requirements().any(|this| {
        other
            .requirements()
            .any(|that| excludes(this, that) || excludes(that, this))
    })
}

fn excludes(this: &Requirement, that: &Requirement) -> bool {
    use Requirement::{DoesNotExist, Exists, In, NotIn};
    match (this, that) {
        (In(key, values), In(other, others)) => key == other && values.is_disjoint(others),
        (In(key, values), NotIn(other, without)) => key == other && values.is_subset(without),
        (In(key, _) | Exists(key), DoesNotExist(other)) => key == other,
        (In(..), Exists(_))
        | (Exists(_), In(..) | NotIn(..) | Exists(_))
        | (NotIn(..) | DoesNotExist(_), In(..) | NotIn(..) | Exists(_) | DoesNotExist(_)) => false,
    }
}

/// `networks` are compared with addresses, whoever has them; those of what is external are not.
fn has_all_addresses(peers: &[Peer]) -> bool {
    let has = |family| networks(peers).any(|network| is_all_of(network, family));
    has(Family::V4) && has(Family::V6)
}

/// Whether all addresses of a family are among the networks of peers, or all that are external.
pub(super) fn has_all_of(peers: &[Peer], family: Family) -> bool {
    let mut all = networks(peers).chain(external(peers));
    all.any(|network| is_all_of(network, family))
}

fn is_all_of(network: &IpNet, family: Family) -> bool {
    network.prefix_len() == 0 && Family::of_net(network) == family
}

fn networks(peers: &[Peer]) -> impl Iterator<Item = &IpNet> {
    peers.iter().flat_map(|peer| match peer {
        Peer::Networks(networks) => networks.as_slice(),
        Peer::Pods { .. }
        | Peer::Nodes(_)
        | Peer::NodeAddresses(_)
        | Peer::External(_)
        | Peer::ApiServer
        | Peer::Services { .. }
        | Peer::Names(_) => &[],
    })
}

fn external(peers: &[Peer]) -> impl Iterator<Item = &IpNet> {
    peers.iter().flat_map(|peer| match peer {
        Peer::External(networks) => networks.as_slice(),
        Peer::Pods { .. }
        | Peer::Networks(_)
        | Peer::Nodes(_)
        | Peer::NodeAddresses(_)
        | Peer::ApiServer
        | Peer::Services { .. }
        | Peer::Names(_) => &[],
    })
}

fn covers_peer(wide: &[Peer], narrow: &Peer) -> bool {
    match narrow {
        Peer::Networks(narrow) => narrow
            .iter()
            .all(|narrow| networks(wide).any(|wide| wide.contains(narrow))),
        Peer::External(narrow) => narrow.iter().all(|narrow| {
            let mut all = networks(wide).chain(external(wide));
            all.any(|wide| wide.contains(narrow))
        }),
        Peer::Names(narrow) => narrow.iter().all(|narrow| {
            wide.iter().any(|wide| match wide {
                Peer::Names(wide) => wide.iter().any(|wide| covers_name(wide, narrow)),
                Peer::Networks(_)
                | Peer::Pods { .. }
                | Peer::Nodes(_)
                | Peer::NodeAddresses(_)
                | Peer::External(_)
                | Peer::ApiServer
                | Peer::Services { .. } => false,
            })
        }),
        Peer::Pods { namespaces, pods } => wide.iter().any(|wide| match wide {
            Peer::Pods {
                namespaces: in_wide,
                pods: of_wide,
            } => covers_namespaces(in_wide, namespaces) && covers_selector(of_wide, pods),
            Peer::Networks(_)
            | Peer::Names(_)
            | Peer::Nodes(_)
            | Peer::NodeAddresses(_)
            | Peer::External(_)
            | Peer::ApiServer
            | Peer::Services { .. } => false,
        }),
        Peer::Nodes(_) | Peer::NodeAddresses(_) | Peer::ApiServer | Peer::Services { .. } => {
            wide.contains(narrow)
        }
    }
}

fn covers_name(wide: &NamePattern, narrow: &NamePattern) -> bool {
    match (wide, narrow) {
        (wide, NamePattern::Exact(name)) => wide.matches(name),
        (NamePattern::Below(wide), NamePattern::Below(narrow)) => wide == narrow || narrow.is_below(wide),
        (NamePattern::Exact(_), NamePattern::Below(_)) => false,
    }
}

fn covers_port(wide: &Port, narrow: &Port) -> bool {
    match (wide, narrow) {
        (Port::Range(transport, wide), Port::Range(other, narrow)) => {
            transport == other && wide.first() <= narrow.first() && narrow.last() <= wide.last()
        }
        (Port::Icmp, Port::Icmp) => true,
        (
            Port::Named { name, transport },
            Port::Named {
                name: other,
                transport: of_other,
            },
        ) => name == other && (transport.is_none() || transport == of_other),
        (Port::Range(..), Port::Icmp | Port::Named { .. })
        | (Port::Icmp, Port::Range(..) | Port::Named { .. })
        | (Port::Named { .. }, Port::Range(..) | Port::Icmp) => false,
    }
}
