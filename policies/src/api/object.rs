//! An API object: what it is, who it is, and the tree of its fields.

use std::sync::Arc;

use super::field::Field;
use super::node::Node;
use super::notes::{Notes, Refused};
use crate::diagnostic::{Code, ObjectRef, Position};
use crate::model::{self, Labels};

/// An object of a kind that policy depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// What it is.
    pub kind: Kind,
    /// Its `apiVersion`, as written.
    pub api_version: Arc<str>,
    /// Its `kind`, as written.
    pub kind_name: Arc<str>,
    /// Who it is.
    pub metadata: Metadata,
    /// All its fields.
    pub body: Node,
}

impl Object {
    /// The object for messages.
    #[must_use]
    pub fn reference(&self) -> ObjectRef {
        ObjectRef {
            kind: Arc::clone(&self.kind_name),
            namespace: self.metadata.namespace.clone(),
            name: Arc::clone(&self.metadata.name),
        }
    }

    /// Where it begins.
    #[must_use]
    pub const fn position(&self) -> Position {
        self.body.position
    }
}

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// v1 Namespace.
    Namespace,
    /// v1 Pod.
    Pod,
    /// v1 Node.
    Node,
    /// v1 Service.
    Service,
    /// `discovery.k8s.io` EndpointSlice.
    EndpointSlice,
    /// v1 Endpoints, the older form of EndpointSlice, in which endpoints are still written by hand.
    Endpoints,
    /// `policy.egret.dev` NodeAddressReport.
    NodeAddressReport,
    /// `policy.egret.dev` APIServerAddresses.
    ApiServerAddresses,
    /// A workload with `spec.template`: Deployment, StatefulSet, DaemonSet, ReplicaSet, Job,
    /// ReplicationController.
    Workload,
    /// A workload of workloads: CronJob.
    CronJob,
    /// `policy.egret.dev` APIServerEgressPolicy.
    ApiServerEgressPolicy,
    /// A policy.
    Policy(PolicyForm),
}

/// A form in which policies are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyForm {
    /// `networking.k8s.io/v1` NetworkPolicy.
    NetworkPolicy,
    /// `extensions/v1beta1` NetworkPolicy.
    LegacyNetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha1` AdminNetworkPolicy.
    AdminNetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha1` BaselineAdminNetworkPolicy.
    BaselineAdminNetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha2` ClusterNetworkPolicy.
    ClusterNetworkPolicy,
    /// `policy.egret.dev` ClusterEgressFirewall.
    ClusterEgressFirewall,
    /// Another version of a kind that is known.
    OtherVersion(model::Kind),
}

impl PolicyForm {
    /// The kind of policy.
    #[must_use]
    pub const fn kind(self) -> model::Kind {
        match self {
            Self::NetworkPolicy => model::Kind::NetworkPolicy,
            Self::LegacyNetworkPolicy => model::Kind::LegacyNetworkPolicy,
            Self::AdminNetworkPolicy => model::Kind::AdminNetworkPolicy,
            Self::BaselineAdminNetworkPolicy => model::Kind::BaselineAdminNetworkPolicy,
            Self::ClusterNetworkPolicy => model::Kind::ClusterNetworkPolicy,
            Self::ClusterEgressFirewall => model::Kind::ClusterEgressFirewall,
            Self::OtherVersion(kind) => kind,
        }
    }
}

impl Kind {
    /// Whether objects of the kind belong to a namespace.
    #[must_use]
    pub const fn is_namespaced(self) -> bool {
        match self {
            Self::Namespace
            | Self::Node
            | Self::NodeAddressReport
            | Self::ApiServerAddresses
            | Self::ApiServerEgressPolicy => false,
            Self::Pod
            | Self::Service
            | Self::EndpointSlice
            | Self::Endpoints
            | Self::Workload
            | Self::CronJob => true,
            Self::Policy(form) => matches!(
                form.kind(),
                model::Kind::NetworkPolicy | model::Kind::LegacyNetworkPolicy
            ),
        }
    }
}

/// What `apiVersion` and `kind` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectClass {
    /// A kind that policy depends on.
    Known(Kind),
    /// A kind that is not known, in an API group whose policies are enforced.
    UnknownPolicy,
    /// A policy of another product.
    ForeignPolicy,
    /// Anything else.
    Irrelevant,
}

pub(super) fn classify(api_version: &str, kind: &str) -> ObjectClass {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let known = match group {
        "" => core(kind),
        "discovery.k8s.io" if kind == "EndpointSlice" => Some(Kind::EndpointSlice),
        "networking.k8s.io" | "extensions" if kind == "NetworkPolicy" => Some(network_policy(group, version)),
        "apps" | "extensions" | "batch" => workload(kind),
        "policy.networking.k8s.io" => cluster_policy(version, kind),
        "policy.egret.dev" => own(version, kind),
        _ => None,
    };
    known.map_or_else(|| unknown(group, kind), ObjectClass::Known)
}

/// A kind that is not known. A policy kind in one of Kubernetes' own groups is one of the wrong group or of
/// a newer version; in any other group it is another product's.
fn unknown(group: &str, kind: &str) -> ObjectClass {
    let kubernetes = !group.contains('.') || group.ends_with("k8s.io");
    let policies = matches!(group, "policy.networking.k8s.io" | "policy.egret.dev");
    match is_policy_by_name(kind) {
        _ if policies => ObjectClass::UnknownPolicy,
        true if kubernetes => ObjectClass::UnknownPolicy,
        true => ObjectClass::ForeignPolicy,
        false => ObjectClass::Irrelevant,
    }
}

fn core(kind: &str) -> Option<Kind> {
    match kind {
        "Namespace" => Some(Kind::Namespace),
        "Pod" => Some(Kind::Pod),
        "Node" => Some(Kind::Node),
        "Service" => Some(Kind::Service),
        "Endpoints" => Some(Kind::Endpoints),
        "ReplicationController" => Some(Kind::Workload),
        _ => None,
    }
}

fn workload(kind: &str) -> Option<Kind> {
    match kind {
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "Job" => Some(Kind::Workload),
        "CronJob" => Some(Kind::CronJob),
        _ => None,
    }
}

fn network_policy(group: &str, version: &str) -> Kind {
    Kind::Policy(match (group, version) {
        ("networking.k8s.io", "v1") => PolicyForm::NetworkPolicy,
        ("extensions", "v1beta1") => PolicyForm::LegacyNetworkPolicy,
        _ => PolicyForm::OtherVersion(model::Kind::NetworkPolicy),
    })
}

fn cluster_policy(version: &str, kind: &str) -> Option<Kind> {
    let form = match (version, kind) {
        ("v1alpha1", "AdminNetworkPolicy") => PolicyForm::AdminNetworkPolicy,
        ("v1alpha1", "BaselineAdminNetworkPolicy") => PolicyForm::BaselineAdminNetworkPolicy,
        ("v1alpha2", "ClusterNetworkPolicy") => PolicyForm::ClusterNetworkPolicy,
        (_, "AdminNetworkPolicy") => PolicyForm::OtherVersion(model::Kind::AdminNetworkPolicy),
        (_, "BaselineAdminNetworkPolicy") => {
            PolicyForm::OtherVersion(model::Kind::BaselineAdminNetworkPolicy)
        }
        (_, "ClusterNetworkPolicy") => PolicyForm::OtherVersion(model::Kind::ClusterNetworkPolicy),
        _ => return None,
    };
    Some(Kind::Policy(form))
}

/// Kinds of this project. Of an object that only lists addresses every version is read alike.
fn own(version: &str, kind: &str) -> Option<Kind> {
    match (version, kind) {
        ("v1alpha1", "ClusterEgressFirewall") => Some(Kind::Policy(PolicyForm::ClusterEgressFirewall)),
        (_, "ClusterEgressFirewall") => Some(Kind::Policy(PolicyForm::OtherVersion(
            model::Kind::ClusterEgressFirewall,
        ))),
        (_, "APIServerEgressPolicy") => Some(Kind::ApiServerEgressPolicy),
        (_, "NodeAddressReport") => Some(Kind::NodeAddressReport),
        (_, "APIServerAddresses") => Some(Kind::ApiServerAddresses),
        _ => None,
    }
}

/// Whatever the case: `networkpolicy` is no kind of an API server, and not what its author takes for skipped.
fn is_policy_by_name(kind: &str) -> bool {
    let kind = kind.trim().to_ascii_lowercase();
    [
        "networkpolicy",
        "networkpolicies",
        "egressfirewall",
        "egressfirewalls",
        "egresspolicy",
        "egresspolicies",
    ]
    .iter()
    .any(|name| kind.ends_with(name))
}

/// Who an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace, `default` where none is written; none for cluster-scoped kinds.
    pub namespace: Option<Arc<str>>,
    /// Its labels.
    pub labels: Labels,
    /// `uid`.
    pub uid: Option<Arc<str>>,
    /// `creationTimestamp`.
    pub created: Option<Arc<str>>,
}

/// Reads `metadata`; there is no object without a name or with labels that cannot be read.
pub(super) fn metadata(object: &Field<'_>, kind: Kind, notes: &mut Notes) -> Result<Metadata, Refused> {
    let accepted = "metadata with a name";
    let metadata = object
        .require("metadata", accepted, notes)
        .map_err(|refused| renamed(refused, notes))?;
    let name = name(&metadata, notes)?;
    Ok(Metadata {
        name,
        namespace: namespace(&metadata, kind, notes)?,
        labels: labels(metadata.get("labels").as_ref(), notes)?,
        uid: optional_text(&metadata, "uid", notes)?,
        created: optional_text(&metadata, "creationTimestamp", notes)?,
    })
}

/// The name, or what the server would begin it with.
fn name(metadata: &Field<'_>, notes: &mut Notes) -> Result<Arc<str>, Refused> {
    let generated = metadata.get("generateName");
    let (field, text) = match (metadata.get("name"), generated) {
        (Some(field), _) => (field.clone(), field.text(notes)?),
        (None, Some(field)) => (field.clone(), field.text(notes)?.trim_end_matches('-')),
        (None, None) => return Err(metadata.refuse(Code::NameMissing, "metadata with a name", notes)),
    };
    match text {
        "" => Err(field.refuse(Code::NameMissing, "metadata with a name", notes)),
        text => sound(&field, text, notes),
    }
}

/// The longest name of an object (DNS-1123 subdomain, k8s.io/apimachinery/pkg/util/validation).
pub(super) const MAX_NAME: usize = 253;

/// A name that can be shown: what no API server admits could fill a screen or command a terminal.
fn sound(field: &Field<'_>, name: &str, notes: &mut Notes) -> Result<Arc<str>, Refused> {
    if name.len() > MAX_NAME || name.contains(char::is_control) {
        let accepted = format!("at most {MAX_NAME} octets, none of them a control character");
        return Err(field.refuse(Code::Metadata, &accepted, notes));
    }
    Ok(name.into())
}

fn renamed(refused: Refused, notes: &mut Notes) -> Refused {
    if let Some(note) = notes.list.last_mut() {
        note.code = Code::NameMissing;
    }
    refused
}

fn namespace(metadata: &Field<'_>, kind: Kind, notes: &mut Notes) -> Result<Option<Arc<str>>, Refused> {
    if !kind.is_namespaced() {
        return Ok(None);
    }
    let Some(field) = metadata.get("namespace") else {
        return Ok(Some("default".into()));
    };
    match field.text(notes)? {
        "" => Ok(Some("default".into())),
        text => sound(&field, text, notes).map(Some),
    }
}

fn optional_text(object: &Field<'_>, key: &str, notes: &mut Notes) -> Result<Option<Arc<str>>, Refused> {
    object
        .get(key)
        .map(|field| field.text(notes).map(Arc::from))
        .transpose()
}

/// Reads labels. One whose value is null is not there.
pub(crate) fn labels(field: Option<&Field<'_>>, notes: &mut Notes) -> Result<Labels, Refused> {
    let mut labels = Labels::default();
    let Some(field) = field else {
        return Ok(labels);
    };
    for (key, value) in field.entries(notes)? {
        if !value.is_null() {
            labels.set(key, value.text(notes)?);
        }
    }
    Ok(labels)
}
