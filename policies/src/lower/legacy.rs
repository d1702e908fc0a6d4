//! The form of 2016: the annotation that closes a namespace, and `extensions/v1beta1` NetworkPolicy, which
//! opens what the annotation closed. Here an empty list means nothing and a missing one everything: the two
//! are kept apart, unlike in `networking.k8s.io/v1`.

use std::sync::Arc;

use super::network_policy::{RANK, own_namespace};
use super::rule::{self, RuleLabel};
use super::{id_of, port, selector, spec};
use crate::api::{Field, Notes, Object, Refused};
use crate::diagnostic::Code;
use crate::model::{
    Action, Effect, Enforcement, Exposure, Kind, NamespaceSelector, Peer, Peers, Policy, PolicyId, Ports,
    Rule, Selector, Subject,
};

const NO_RULES: &str = "the policy allows nothing";
const NOTHING: &str = "the rule matches nothing";

/// What the annotation of 2016 on a namespace means: no ingress for its pods.
pub(super) fn default_deny(namespace: &Arc<str>, name: &str) -> Policy {
    Policy {
        id: PolicyId {
            kind: Kind::LegacyNetworkPolicy,
            namespace: Some(Arc::clone(namespace)),
            name: name.into(),
        },
        rank: RANK,
        subject: Subject {
            namespaces: NamespaceSelector::Named(Arc::clone(namespace)),
            pods: Selector::everything(),
        },
        egress: Effect::None,
        ingress: Effect::Rules(Arc::default()),
        exposure: Exposure::Ignore,
        enforcement: Enforcement::Enforced,
    }
}

/// `extensions/v1beta1`. All that such a policy can do is to allow, so whatever cannot be understood in
/// it allows nothing.
pub(super) fn lower(object: &Object, notes: &mut Notes) -> Policy {
    let found = format!("{} of {:?}", object.kind_name, object.api_version);
    let enforced = "its rules count where the annotation net.beta.kubernetes.io/network-policy isolates the namespace; elsewhere it has no effect";
    Field::root(&object.body).tell(Code::LegacyForm, found, "networking.k8s.io/v1", enforced, notes);
    let mark = notes.mark();
    let own = own_namespace(object);
    let read = read(object, &own, notes);
    notes.enforce(mark, NO_RULES);
    let (pods, rules) = read.unwrap_or_else(|Refused| (Selector::everything(), Vec::new()));
    Policy {
        id: id_of(object, Kind::LegacyNetworkPolicy),
        rank: RANK,
        subject: Subject {
            namespaces: NamespaceSelector::Named(own),
            pods,
        },
        egress: Effect::None,
        ingress: Effect::Opens(rules.into()),
        exposure: Exposure::Ignore,
        enforcement: Enforcement::Enforced,
    }
}

/// The subject and the rules; a subject that is not sound takes no rules.
fn read(object: &Object, own: &Arc<str>, notes: &mut Notes) -> Result<(Selector, Vec<Rule>), Refused> {
    let Some(spec) = spec::spec(object, notes)? else {
        return Ok((Selector::everything(), Vec::new()));
    };
    let known = spec.only(&["podSelector", "ingress"], notes);
    let (pods, sound) = selector::widened(spec.get("podSelector").as_ref(), notes);
    let items = spec
        .get("ingress")
        .map_or(Ok(Vec::new()), |list| list.items(notes));
    let rules = items.map(|items| {
        let each = items.iter().enumerate();
        each.map(|(index, item)| rule_or_nothing(item, index, own, notes))
            .collect()
    });
    known?;
    Ok((pods, if sound { rules? } else { Vec::new() }))
}

fn rule_or_nothing(item: &Field<'_>, index: usize, own: &Arc<str>, notes: &mut Notes) -> Rule {
    let mark = notes.mark();
    let label = RuleLabel { index, name: None };
    let rule = rule(item, &label, own, notes);
    notes.enforce(mark, NOTHING);
    rule.unwrap_or_else(|Refused| rule::nothing(&label, Action::Allow))
}

fn rule(item: &Field<'_>, label: &RuleLabel, own: &Arc<str>, notes: &mut Notes) -> Result<Rule, Refused> {
    let known = item.only(&["ports", "from"], notes);
    let peers = peers(item.get("from").as_ref(), own, notes);
    let ports = ports(item.get("ports").as_ref(), notes);
    known?;
    Ok(Rule {
        index: label.index,
        name: None,
        action: Action::Allow,
        peers: peers?,
        ports: ports?,
    })
}

fn ports(field: Option<&Field<'_>>, notes: &mut Notes) -> Result<Ports, Refused> {
    let items = field.map(|field| field.items(notes)).transpose()?;
    port::all(items, port::legacy_port, notes)
}

fn peers(field: Option<&Field<'_>>, own: &Arc<str>, notes: &mut Notes) -> Result<Peers, Refused> {
    let Some(field) = field else {
        return Ok(Peers::Any);
    };
    let items = field.items(notes)?;
    let peers: Vec<_> = items.iter().map(|item| peer(item, own, notes)).collect();
    peers.into_iter().collect::<Result<_, _>>().map(Peers::OneOf)
}

/// Exactly one of two: this form has no "pods of namespaces".
fn peer(item: &Field<'_>, own: &Arc<str>, notes: &mut Notes) -> Result<Peer, Refused> {
    let (word, field) = rule::one_of(item, &["podSelector", "namespaceSelector"], notes)?;
    match word {
        "podSelector" => Ok(Peer::Pods {
            namespaces: NamespaceSelector::Named(Arc::clone(own)),
            pods: selector::selector(&field, notes)?,
        }),
        _ => Ok(Peer::Pods {
            namespaces: selector::namespaces(&field, notes)?,
            pods: Selector::everything(),
        }),
    }
}
