//! From what was written to what it means. Total: every object yields its entities, whatever is wrong
//! with it, and a diagnostic for everything that is.
//!
//! **What cannot be understood is enforced closed**, in the smallest unit whose meaning is lost:
//!
//! | what is lost | what is enforced |
//! |---|---|
//! | a rule | an allow matches nothing, Deny and Pass become Deny all (API text of both policy groups) |
//! | whom a policy is about, or when it is asked | the requirement counts as met, the strongest tier and priority count; allow rules match nothing, Pass becomes Deny all, Deny stays |
//! | a field of the spec that belongs to no rule | all rules are lost, in both directions |
//! | the whole object | NetworkPolicy: isolation in both directions; others: Deny all |
//!
//! A ClusterEgressFirewall speaks only of what is external: its Deny all is everything external. An object of the
//! form of 2016 can only allow: closed, it allows nothing.
//!
//! What the API's schema admits but no packet can match (an unknown protocol in a v1alpha1 port, a range
//! that ends before it starts, an invalid name) is understood: it matches nothing.

use std::sync::Arc;

use crate::api::{Kind, Note, Notes, Object, PolicyForm, UnknownFields};
use crate::diagnostic::Diagnostic;
use crate::model::api_server::ApiServerPolicy;
use crate::model::cluster::Entity;
use crate::model::{Kind as PolicyKind, PolicyId};

mod network_policy;
mod legacy;
mod admin;
mod firewall;
mod api_server;
mod spec;
mod rule;
mod selector;
mod network;
mod port;
mod namespace;
mod enforcement;
mod pod;
mod node;
mod addresses;
mod service;
mod compare;

pub use compare::equal_priorities;

/// What an object means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lowered {
    /// The entities that it stands for: one, but a namespace with the annotation of 2016 is also a policy.
    pub entities: Vec<Entity>,
    /// An APIServerEgressPolicy: it is about no pod, so it is none of the entities.
    pub api_server: Option<ApiServerPolicy>,
    /// What is wrong with it.
    pub diagnostics: Vec<Diagnostic>,
}

/// Lowers an object; fields that nobody knows are errors of its author.
#[must_use]
pub fn lower(object: &Object) -> Lowered {
    lower_as(object, UnknownFields::AsWritten)
}

/// Lowers an object.
#[must_use]
pub fn lower_as(object: &Object, reading: UnknownFields) -> Lowered {
    let mut notes = Notes::new(reading);
    let entities = entities(object, &mut notes);
    let is_api_server = object.kind == Kind::ApiServerEgressPolicy;
    let api_server = is_api_server.then(|| api_server::lower(object, &mut notes));
    notes.enforce(0, "as if it were not there");
    let diagnostics = notes
        .list
        .into_iter()
        .map(|note| diagnostic(object, note))
        .collect();
    Lowered {
        entities,
        api_server,
        diagnostics,
    }
}

fn entities(object: &Object, notes: &mut Notes) -> Vec<Entity> {
    match object.kind {
        Kind::Namespace => namespace::lower(object, notes),
        Kind::Pod => vec![Entity::Pod(pod::lower(object, notes))],
        Kind::Workload => vec![Entity::Pod(pod::lower_template(
            object,
            &["spec", "template"],
            notes,
        ))],
        Kind::CronJob => {
            let path = ["spec", "jobTemplate", "spec", "template"];
            vec![Entity::Pod(pod::lower_template(object, &path, notes))]
        }
        Kind::Node => vec![Entity::Node(node::lower(object, notes))],
        Kind::Service => vec![Entity::Service(service::lower(object, notes))],
        Kind::EndpointSlice => vec![Entity::EndpointSlice(service::lower_slice(object, notes))],
        Kind::Endpoints => service::lower_endpoints(object, notes)
            .into_iter()
            .map(Entity::EndpointSlice)
            .collect(),
        Kind::NodeAddressReport => vec![Entity::NodeAddressReport(addresses::report(object, notes))],
        Kind::ApiServerEgressPolicy => Vec::new(),
        Kind::ApiServerAddresses => vec![Entity::ApiServerAddresses(addresses::api_server(object, notes))],
        Kind::Policy(form) => {
            let mark = notes.mark();
            spec::outside(object, notes);
            notes.enforce(mark, "as if the field were not there");
            let enforcement = enforcement::of(object, notes);
            vec![Entity::Policy(crate::model::Policy {
                enforcement,
                ..policy(object, form, notes)
            })]
        }
    }
}

fn policy(object: &Object, form: PolicyForm, notes: &mut Notes) -> crate::model::Policy {
    match form {
        PolicyForm::NetworkPolicy => network_policy::lower(object, notes),
        PolicyForm::LegacyNetworkPolicy => legacy::lower(object, notes),
        PolicyForm::AdminNetworkPolicy => admin::lower(object, admin::Dialect::ADMIN, notes),
        PolicyForm::BaselineAdminNetworkPolicy => admin::lower(object, admin::Dialect::BASELINE, notes),
        PolicyForm::ClusterNetworkPolicy => admin::lower(object, admin::Dialect::CLUSTER, notes),
        PolicyForm::ClusterEgressFirewall => firewall::lower(object, notes),
        PolicyForm::OtherVersion(kind) => match kind {
            PolicyKind::NetworkPolicy | PolicyKind::LegacyNetworkPolicy => {
                network_policy::lower_unknown(object, notes)
            }
            PolicyKind::ClusterEgressFirewall => firewall::lower_unknown(object, notes),
            PolicyKind::AdminNetworkPolicy => admin::lower_unknown(object, admin::Dialect::ADMIN, notes),
            PolicyKind::BaselineAdminNetworkPolicy => {
                admin::lower_unknown(object, admin::Dialect::BASELINE, notes)
            }
            PolicyKind::ClusterNetworkPolicy => admin::lower_unknown(object, admin::Dialect::CLUSTER, notes),
            PolicyKind::AuditedApiServerEgressPolicy | PolicyKind::ApiServerEgressPolicy => {
                unreachable!("it is no form of a policy about pods: Kind::ApiServerEgressPolicy")
            }
        },
    }
}

fn id_of(object: &Object, kind: PolicyKind) -> PolicyId {
    PolicyId {
        kind,
        namespace: object.metadata.namespace.clone(),
        name: Arc::clone(&object.metadata.name),
    }
}

fn diagnostic(object: &Object, note: Note) -> Diagnostic {
    let Note {
        code,
        severity,
        position,
        field,
        found,
        accepted,
        enforced,
    } = note;
    Diagnostic {
        code,
        severity,
        object: object.reference(),
        position: (position.line > 0).then_some(position),
        field,
        found,
        accepted,
        enforced: enforced.unwrap_or_default(),
    }
}
