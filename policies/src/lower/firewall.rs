//! ClusterEgressFirewall `policy.egret.dev/v1alpha1`: what no pod may reach outside its cluster, whatever
//! other policies say. It only restricts, so what cannot be understood denies everything external.

use std::net::IpAddr;

use egret_shared::net::{IpNet, Ipv6Net};

use super::admin::{self, DENY_ALL, NOTHING};
use super::rule::{self, RuleLabel};
use super::{id_of, network, port, selector, spec};
use crate::api::{Field, Notes, Object, Refused};
use crate::diagnostic::Code;
use crate::model::{
    Action, Effect, Enforcement, Exposure, Kind, Peer, Peers, Policy, Ports, Rank, Rule, Selector, Tier,
};

const CLOSED: &str = "everything external is denied to all pods";
const UNSOUND: &str = "Deny rules count with priority 0, allow rules match nothing";
const ACTIONS: &str = "Allow or Deny";
const DEFAULT_PRIORITY: u32 = 500;

/// Lowers an object of a version that is known.
pub(super) fn lower(object: &Object, notes: &mut Notes) -> Policy {
    let mark = notes.mark();
    let Ok(spec) = spec::required(object, notes) else {
        notes.enforce(mark, CLOSED);
        return closed(object);
    };
    // Everything is read before anything is given up, so that all that is wrong is said at once.
    let known = spec.only(&["priority", "rules", "services"], notes);
    let items = spec
        .require("rules", "1 to 100 rules", notes)
        .and_then(|rules| rules.some_items(100, notes));
    notes.enforce(mark, CLOSED);
    let policy = items.map(|items| read(object, &spec, &items, notes));
    match known.and(policy) {
        Ok(policy) => policy,
        Err(Refused) => {
            notes.overrule(mark, CLOSED);
            closed(object)
        }
    }
}

fn read(object: &Object, spec: &Field<'_>, items: &[Field<'_>], notes: &mut Notes) -> Policy {
    let mark = notes.mark();
    let exposure = exposure(spec, notes);
    let priority = match spec.get("priority") {
        None => Ok(DEFAULT_PRIORITY),
        Some(_) => admin::priority(spec, notes),
    };
    notes.enforce(mark, UNSOUND);
    let reader = FirewallReader {
        sound: priority.is_ok(),
    };
    tell_of_equal_names(items, notes);
    let each = items.iter().enumerate();
    let rules = each
        .map(|(index, item)| reader.rule(item, index, notes))
        .collect();
    policy(object, priority.unwrap_or(0), rules, exposure)
}

/// Lowers an object of a version that is not known.
pub(super) fn lower_unknown(object: &Object, notes: &mut Notes) -> Policy {
    let found = format!("{} of {:?}", object.kind_name, object.api_version);
    let accepted = "policy.egret.dev/v1alpha1";
    Field::root(&object.body).tell(Code::UnknownVersion, found, accepted, CLOSED, notes);
    closed(object)
}

fn closed(object: &Object) -> Policy {
    let rules = vec![deny_external(&RuleLabel { index: 0, name: None })];
    policy(object, 0, rules, Exposure::Reject)
}

fn policy(object: &Object, priority: u32, rules: Vec<Rule>, exposure: Exposure) -> Policy {
    Policy {
        id: id_of(object, Kind::ClusterEgressFirewall),
        rank: Rank {
            tier: Tier::ClusterEgressFirewall,
            priority,
        },
        subject: rule::every_pod(),
        egress: Effect::Rules(rules.into()),
        ingress: Effect::None,
        exposure,
        enforcement: Enforcement::Enforced,
    }
}

/// What a Deny becomes that cannot be understood.
fn deny_external(label: &RuleLabel) -> Rule {
    Rule {
        peers: Peers::OneOf(external().into()),
        ..rule::deny_all(label)
    }
}

/// Everything but pods and Services of the cluster; nodes are external, and so is whatever address the own
/// node has that nobody reported.
pub(super) fn external() -> Vec<Peer> {
    let everything = [
        IpNet::V4(ipnet::Ipv4Net::default()),
        IpNet::V6(Ipv6Net::default()),
    ];
    vec![
        Peer::External(everything.to_vec()),
        Peer::NodeAddresses(Selector::everything()),
    ]
}

/// What becomes of clients outside the cluster: refused, unless it is written that they are not.
fn exposure(spec: &Field<'_>, notes: &mut Notes) -> Exposure {
    let mark = notes.mark();
    let read = spec.get("services").map_or(Ok(None), |services| {
        services.only(&["exposure"], notes)?;
        services
            .get("exposure")
            .map(|field| exposure_word(&field, notes))
            .transpose()
    });
    notes.enforce(mark, "exposure is Reject");
    match read {
        Ok(Some(exposure)) => exposure,
        Ok(None) | Err(Refused) => Exposure::Reject,
    }
}

fn exposure_word(field: &Field<'_>, notes: &mut Notes) -> Result<Exposure, Refused> {
    match field.text(notes) {
        Ok("Reject") => Ok(Exposure::Reject),
        Ok("Ignore") => Ok(Exposure::Ignore),
        Ok(_) | Err(Refused) => Err(field.refuse(Code::InvalidExposure, "Reject or Ignore", notes)),
    }
}

fn tell_of_equal_names(items: &[Field<'_>], notes: &mut Notes) {
    let mut seen = std::collections::BTreeSet::new();
    for item in items {
        let mut ignored = Notes::new(notes.reading);
        let Some(field) = item.get("name") else { continue };
        if let Ok(name) = field.text(&mut ignored)
            && !seen.insert(name)
        {
            field.tell(
                Code::DuplicateRuleName,
                field.describe(),
                "a name of its own",
                "the rules as they are",
                notes,
            );
        }
    }
}

struct FirewallReader {
    /// Whether the priority is the one that was meant.
    sound: bool,
}

impl FirewallReader {
    fn rule(&self, item: &Field<'_>, index: usize, notes: &mut Notes) -> Rule {
        let mark = notes.mark();
        let name = admin::name(item, notes);
        let action = action(item, notes);
        let label = RuleLabel {
            index,
            name: name.clone().unwrap_or_default(),
        };
        // Everything is read before anything is given up, so that all that is wrong is said at once.
        let known = item.only(&["name", "action", "to", "protocols"], notes);
        let peers = peers(item, action, notes);
        let ports = ports(item, notes);
        let body = name.and(known).and_then(|()| Ok((peers?, ports?)));
        let (rule, enforced) = match (action, body) {
            (Ok(Action::Allow), Err(Refused)) => (rule::nothing(&label, Action::Allow), NOTHING),
            (Ok(Action::Allow), Ok(_)) if !self.sound => (rule::nothing(&label, Action::Allow), NOTHING),
            (Ok(action), Ok((peers, ports))) => {
                let index = label.index;
                let name = label.name;
                let rule = Rule {
                    index,
                    name,
                    action,
                    peers,
                    ports,
                };
                (rule, "the rule as it is")
            }
            (Ok(_) | Err(Refused), _) => (deny_external(&label), DENY_ALL),
        };
        notes.enforce(mark, enforced);
        rule
    }
}

fn action(item: &Field<'_>, notes: &mut Notes) -> Result<Action, Refused> {
    let field = item.require("action", ACTIONS, notes)?;
    match field.text(notes)? {
        "Allow" => Ok(Action::Allow),
        "Deny" => Ok(Action::Deny),
        _ => Err(field.refuse(Code::InvalidAction, ACTIONS, notes)),
    }
}

fn ports(item: &Field<'_>, notes: &mut Notes) -> Result<Ports, Refused> {
    let field = item.get("protocols");
    let items = field.map(|field| field.some_items(25, notes)).transpose()?;
    port::all(items, port::firewall_protocol, notes)
}

fn peers(item: &Field<'_>, action: Result<Action, Refused>, notes: &mut Notes) -> Result<Peers, Refused> {
    let list = item.require("to", "1 to 50 destinations", notes)?;
    let items = list.some_items(50, notes)?;
    let peers: Vec<_> = items.iter().map(|item| peer(item, action, notes)).collect();
    let peers: Vec<Vec<Peer>> = peers.into_iter().collect::<Result<_, _>>()?;
    Ok(Peers::OneOf(peers.into_iter().flatten().collect()))
}

const PEERS: [&str; 5] = ["networks", "nodes", "apiServer", "external", "domainNames"];

fn peer(item: &Field<'_>, action: Result<Action, Refused>, notes: &mut Notes) -> Result<Vec<Peer>, Refused> {
    let (word, field) = rule::one_of(item, &PEERS, notes)?;
    match word {
        "networks" => networks(&field, notes).map(|networks| vec![networks]),
        "nodes" => nodes(&field, notes).map(|nodes| vec![nodes]),
        "apiServer" => api_server(&field, action, notes),
        "external" => field.only(&[], notes).map(|()| external()),
        _ => admin::domain_names(&field, action, notes).map(|names| vec![names]),
    }
}

fn networks(field: &Field<'_>, notes: &mut Notes) -> Result<Peer, Refused> {
    let items = field.some_items(100, notes)?;
    let networks: Vec<_> = items.iter().map(|item| network::cidr(item, notes)).collect();
    let networks: Vec<_> = networks.into_iter().collect::<Result<_, _>>()?;
    for (network, item) in networks.iter().zip(&items) {
        if is_link_local(network) {
            let accepted = "a network that is routed";
            let enforced = "the network as it is, on every link";
            item.tell(Code::LinkLocalNetwork, item.describe(), accepted, enforced, notes);
        }
    }
    Ok(Peer::External(admin::once(networks, &items, notes)))
}

/// Inside `fe80::/10` (RFC 4291 §2.4): such an address means another host on every link.
fn is_link_local(network: &IpNet) -> bool {
    match network {
        IpNet::V6(network) => network.prefix_len() >= 10 && network.addr().is_unicast_link_local(),
        IpNet::V4(_) => false,
    }
}

pub(super) fn nodes(field: &Field<'_>, notes: &mut Notes) -> Result<Peer, Refused> {
    field.only(&["selector", "addresses"], notes)?;
    let selector = match field.get("selector") {
        None => Selector::everything(),
        Some(selector) => selector::selector(&selector, notes)?,
    };
    match field.get("addresses") {
        None => Ok(Peer::NodeAddresses(selector)),
        Some(addresses) => match addresses.text(notes)? {
            "All" => Ok(Peer::NodeAddresses(selector)),
            "Reported" => Ok(Peer::Nodes(selector)),
            _ => Err(addresses.refuse(Code::UnknownAlternative, "All or Reported", notes)),
        },
    }
}

/// Names are learnt from what pods ask, so they can only allow; a Deny that has them is closed.
fn api_server(
    field: &Field<'_>,
    action: Result<Action, Refused>,
    notes: &mut Notes,
) -> Result<Vec<Peer>, Refused> {
    field.only(&["additionalAddresses", "additionalNames"], notes)?;
    let mut peers = vec![Peer::ApiServer];
    if let Some(addresses) = field.get("additionalAddresses") {
        let items = addresses.items(notes)?;
        addresses.limit(items.len(), 32, notes);
        let read: Vec<_> = items.iter().map(|item| network::address(item, notes)).collect();
        let read: Vec<IpAddr> = read.into_iter().collect::<Result<_, _>>()?;
        peers.push(Peer::Networks(read.into_iter().map(IpNet::from).collect()));
    }
    if let Some(names) = field.get("additionalNames") {
        names.limit(names.items(notes)?.len(), 8, notes);
        peers.push(admin::domain_names(&names, action, notes)?);
    }
    Ok(peers)
}
