//! APIServerEgressPolicy `policy.egret.dev/v1alpha1`: what the API server may connect to by its network proxy. What cannot
//! be understood refuses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::name::NamePattern;
use egret_shared::net::IpNet;

use super::rule::{self, RuleLabel};
use super::{admin, enforcement, firewall, network, port, selector, spec};
use crate::api::{Field, Notes, Object, Refused};
use crate::diagnostic::Code;
use crate::model::api_server::{
    ApiServerAction, ApiServerPolicy, ApiServerRule, Selection, ServerNames, TunnelLimits,
};
use crate::model::{Action, NamespaceSelector, Peer, Peers, Ports, Selector};

const VERSION: &str = "policy.egret.dev/v1alpha1";
const CLOSED: &str = "every connection is refused";
const UNSOUND: &str = "Deny rules count with priority 0 for every selection, the others match nothing";
const ACTIONS: &str = "Allow, Deny or Audit";
const SELECTIONS: &str = "a list of controlplane, cluster, etcd";
const DEFAULT_PRIORITY: u32 = 500;

/// Lowers an object of any version: one that is not known is closed.
pub(super) fn lower(object: &Object, notes: &mut Notes) -> ApiServerPolicy {
    let mark = notes.mark();
    spec::outside(object, notes);
    notes.enforce(mark, "as if the field were not there");
    let enforcement = enforcement::of(object, notes);
    let mark = notes.mark();
    if &*object.api_version != VERSION {
        let found = format!("{} of {:?}", object.kind_name, object.api_version);
        Field::root(&object.body).tell(Code::UnknownVersion, found, VERSION, CLOSED, notes);
        return closed(object);
    }
    let spec = Field::policy(&object.body, notes.reading).require("spec", "a mapping", notes);
    let whole = spec.and_then(|spec| {
        spec.only(&["selections", "priority", "rules"], notes)?;
        let rules = spec.require("rules", "1 to 1000 rules", notes)?;
        Ok((spec, rules.some_items(1000, notes)?))
    });
    notes.enforce(mark, CLOSED);
    let Ok((spec, items)) = whole else {
        return closed(object);
    };
    let priority = match spec.get("priority") {
        None => Ok(DEFAULT_PRIORITY),
        Some(_) => admin::priority(&spec, notes),
    };
    let selections = selections(&spec, notes);
    notes.enforce(mark, UNSOUND);
    let is_sound = priority.is_ok() && selections.is_ok();
    let each = items.iter().enumerate();
    let rules = each.map(|(index, item)| rule(item, index, is_sound, notes));
    ApiServerPolicy {
        rules: rules.collect(),
        priority: if is_sound { priority.unwrap_or(0) } else { 0 },
        selections: selections.unwrap_or_else(|Refused| every_selection()),
        enforcement,
        name: Arc::clone(&object.metadata.name),
    }
}

fn closed(object: &Object) -> ApiServerPolicy {
    let label = RuleLabel { index: 0, name: None };
    ApiServerPolicy {
        name: Arc::clone(&object.metadata.name),
        priority: 0,
        selections: every_selection(),
        rules: vec![denying(&label)],
        // Whatever its annotation says: that may be what was not understood.
        enforcement: crate::model::Enforcement::Enforced,
    }
}

fn every_selection() -> BTreeSet<Selection> {
    BTreeSet::from(Selection::ALL)
}

fn denying(label: &RuleLabel) -> ApiServerRule {
    let rule = rule::deny_all(label);
    ApiServerRule {
        index: rule.index,
        name: rule.name,
        action: ApiServerAction::Deny,
        peers: rule.peers,
        ports: rule.ports,
        server_names: ServerNames::Any,
        limits: TunnelLimits::default(),
    }
}

fn selections(spec: &Field<'_>, notes: &mut Notes) -> Result<BTreeSet<Selection>, Refused> {
    let Some(field) = spec.get("selections") else {
        return Ok(every_selection());
    };
    let items = field.some_items(Selection::ALL.len(), notes)?;
    let selection = |item: &Field<'_>| {
        let text = item.text(notes)?;
        text.parse()
            .map_err(|_invalid| item.refuse(Code::UnknownAlternative, SELECTIONS, notes))
    };
    items.iter().map(selection).collect()
}

fn rule(item: &Field<'_>, index: usize, is_sound: bool, notes: &mut Notes) -> ApiServerRule {
    let mark = notes.mark();
    let name = admin::name(item, notes);
    let action = action(item, notes);
    let label = RuleLabel {
        index,
        name: name.clone().unwrap_or_default(),
    };
    // Everything is read before anything is given up, so that all that is wrong is said at once.
    let known = item.only(
        &["name", "action", "to", "protocols", "serverNames", "limits"],
        notes,
    );
    let peers = peers(item, action, notes);
    let items = item
        .get("protocols")
        .map(|field| field.some_items(25, notes))
        .transpose();
    let ports = items.and_then(|items| port::all(items, port::firewall_protocol, notes));
    let server_names = server_names(item, notes);
    let limits = limits(item, action, notes);
    let body = name
        .and(known)
        .and_then(|()| Ok((peers?, ports?, server_names?, limits?)));
    let matches_nothing = |action| ApiServerRule {
        action,
        peers: Peers::OneOf([].into()),
        ports: Ports::OneOf([].into()),
        ..denying(&label)
    };
    let (rule, enforced) = match (action, body) {
        (Ok(ApiServerAction::Allow), Err(Refused)) => {
            (matches_nothing(ApiServerAction::Allow), admin::NOTHING)
        }
        (Ok(action @ (ApiServerAction::Allow | ApiServerAction::Audit)), Ok(_)) if !is_sound => {
            (matches_nothing(action), admin::NOTHING)
        }
        (Ok(action), Ok((peers, ports, server_names, limits))) => {
            let rule = ApiServerRule {
                index,
                name: label.name.clone(),
                action,
                peers,
                ports,
                server_names,
                limits,
            };
            (rule, "the rule as it is")
        }
        (Ok(_) | Err(Refused), _) => (denying(&label), admin::DENY_ALL),
    };
    notes.enforce(mark, enforced);
    rule
}

fn action(item: &Field<'_>, notes: &mut Notes) -> Result<ApiServerAction, Refused> {
    let field = item.require("action", ACTIONS, notes)?;
    match field.text(notes)? {
        "Allow" => Ok(ApiServerAction::Allow),
        "Deny" => Ok(ApiServerAction::Deny),
        "Audit" => Ok(ApiServerAction::Audit),
        _ => Err(field.refuse(Code::InvalidAction, ACTIONS, notes)),
    }
}

fn peers(
    item: &Field<'_>,
    action: Result<ApiServerAction, Refused>,
    notes: &mut Notes,
) -> Result<Peers, Refused> {
    // To readers of other kinds an audited rule is one that denies.
    let action = action.map(|action| match action {
        ApiServerAction::Allow => Action::Allow,
        ApiServerAction::Deny | ApiServerAction::Audit => Action::Deny,
    });
    let list = item.require("to", "1 to 50 destinations", notes)?;
    let items = list.some_items(50, notes)?;
    let peers: Vec<_> = items.iter().map(|item| peer(item, action, notes)).collect();
    let peers: Vec<Vec<Peer>> = peers.into_iter().collect::<Result<_, _>>()?;
    Ok(Peers::OneOf(peers.into_iter().flatten().collect()))
}

const PEERS: [&str; 6] = ["networks", "nodes", "pods", "services", "external", "domainNames"];

fn peer(item: &Field<'_>, action: Result<Action, Refused>, notes: &mut Notes) -> Result<Vec<Peer>, Refused> {
    let (word, field) = rule::one_of(item, &PEERS, notes)?;
    match word {
        "networks" => networks(&field, notes).map(|networks| vec![networks]),
        "nodes" => firewall::nodes(&field, notes).map(|nodes| vec![nodes]),
        "pods" => pods(&field, notes).map(|pods| vec![pods]),
        "services" => services(&field, notes).map(|services| vec![services]),
        "external" => field.only(&[], notes).map(|()| firewall::external()),
        _ => admin::domain_names(&field, action, notes).map(|names| vec![names]),
    }
}

/// Whoever has the addresses: a pod and a Service as well.
fn networks(field: &Field<'_>, notes: &mut Notes) -> Result<Peer, Refused> {
    let items = field.some_items(100, notes)?;
    let networks: Vec<_> = items.iter().map(|item| network::cidr(item, notes)).collect();
    let networks: Vec<IpNet> = networks.into_iter().collect::<Result<_, _>>()?;
    Ok(Peer::Networks(admin::once(networks, &items, notes)))
}

fn pods(field: &Field<'_>, notes: &mut Notes) -> Result<Peer, Refused> {
    field.only(&["namespaceSelector", "podSelector"], notes)?;
    let mut read = |key: &str| match field.get(key) {
        Some(field) => selector::selector(&field, notes),
        None => Ok(Selector::everything()),
    };
    let (namespaces, pods) = (read("namespaceSelector"), read("podSelector"));
    Ok(Peer::Pods {
        namespaces: NamespaceSelector::Matching(namespaces?),
        pods: pods?,
    })
}

fn services(field: &Field<'_>, notes: &mut Notes) -> Result<Peer, Refused> {
    field.only(&["namespace", "name"], notes)?;
    let mut read = |key: &str| match field.get(key) {
        Some(field) => match field.text(notes)? {
            "" => Err(field.refuse(Code::WrongType, "a name", notes)),
            text => Ok(Some(Arc::from(text))),
        },
        None => Ok(None),
    };
    let (namespace, name) = (read("namespace")?, read("name")?);
    Ok(Peer::Services { namespace, name })
}

/// One that cannot be read would leave a rule that refuses with fewer: the rule is given up.
fn server_names(item: &Field<'_>, notes: &mut Notes) -> Result<ServerNames, Refused> {
    let Some(field) = item.get("serverNames") else {
        return Ok(ServerNames::Any);
    };
    let items = field.some_items(100, notes)?;
    let patterns: Vec<_> = items.iter().map(|item| server_name(item, notes)).collect();
    let patterns: Vec<NamePattern> = patterns.into_iter().collect::<Result<_, _>>()?;
    Ok(ServerNames::OneOf(admin::once(patterns, &items, notes)))
}

fn server_name(item: &Field<'_>, notes: &mut Notes) -> Result<NamePattern, Refused> {
    let text = item.text(notes)?;
    match text.parse::<NamePattern>() {
        Ok(pattern) if text.parse::<IpAddr>().is_err() => Ok(pattern),
        // No client sends an address (RFC 6066 §3).
        Ok(_) | Err(_) => {
            let accepted = "a name of two labels or more, optionally behind \"*.\"";
            Err(item.refuse(Code::InvalidDomain, accepted, notes))
        }
    }
}

fn limits(
    item: &Field<'_>,
    action: Result<ApiServerAction, Refused>,
    notes: &mut Notes,
) -> Result<TunnelLimits, Refused> {
    let Some(field) = item.get("limits") else {
        return Ok(TunnelLimits::default());
    };
    if let Ok(ApiServerAction::Deny | ApiServerAction::Audit) = action {
        let accepted = "limits only in rules that allow";
        return Err(field.refuse(Code::SeveralAlternatives, accepted, notes));
    }
    field.only(&["connections", "octets", "seconds"], notes)?;
    let mut read = |key: &str| match field.get(key) {
        None => Ok(None),
        Some(field) => {
            let number = field
                .maybe_integer()
                .and_then(|number| u64::try_from(number).ok());
            let number = number.filter(|&number| number > 0);
            let accepted = "a whole number from 1 on";
            number
                .map(Some)
                .ok_or_else(|| field.refuse(Code::WrongType, accepted, notes))
        }
    };
    let (connections, octets, seconds) = (read("connections")?, read("octets")?, read("seconds")?);
    Ok(TunnelLimits {
        // More than can be counted is more than there can be.
        connections: connections.map(|number| u32::try_from(number).unwrap_or(u32::MAX)),
        octets,
        duration: seconds.map(Duration::from_secs),
    })
}
