//! Objects as they change, for those who write about them: the controller.

use std::sync::Arc;

use egret_policies::diagnostic::Diagnostic;
use egret_policies::model::cluster::Entity;
use kube::api::ApiResource;
use serde_json::{Map, Value as Json};

use super::object::ObjectName;
use super::resources::RESOURCE_TYPES;

/// A change of an object.
#[derive(Clone, Debug)]
pub enum ObjectChange {
    /// It is there, or changed.
    Applied(Box<ObjectState>),
    /// It is there no more.
    Deleted(ObjectId),
}

/// An object by kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// Its kind.
    pub kind: &'static str,
    /// Its namespace; none for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

/// An object as the API server has it, and what it means.
#[derive(Clone, Debug)]
pub struct ObjectState {
    /// Which one.
    pub id: ObjectId,
    /// Where the API server has it.
    pub resource: ApiResource,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`; 0 where the kind has none.
    pub generation: i64,
    /// `metadata.resourceVersion`.
    pub resource_version: u64,
    /// `status` of a policy; null of other objects.
    pub status: Json,
    /// `spec.taints` of a Node; null of other objects.
    pub taints: Json,
    /// What it means.
    pub entities: Box<[Arc<Entity>]>,
    /// What is wrong with it.
    pub diagnostics: Vec<Diagnostic>,
}

impl ObjectId {
    pub(super) fn of(kind: usize, name: &ObjectName) -> Self {
        Self {
            kind: RESOURCE_TYPES[kind].kind,
            namespace: name.namespace.clone(),
            name: name.name.clone(),
        }
    }
}

/// What of an object does not depend on its meaning.
pub(super) struct Header {
    id: ObjectId,
    resource: ApiResource,
    uid: String,
    generation: i64,
    /// 0 where it is no number, as of nobody's API server: then nothing is said to be realized.
    pub(super) resource_version: u64,
    status: Json,
    taints: Json,
}

impl Header {
    pub(super) fn of(kind: usize, name: &ObjectName, json: &Map<String, Json>) -> Self {
        let resource_type = &RESOURCE_TYPES[kind];
        let metadata = |field: &str| json.get("metadata").and_then(|metadata| metadata.get(field));
        let text = |field: &str| metadata(field).and_then(Json::as_str).unwrap_or_default();
        let api_version = json.get("apiVersion").and_then(Json::as_str).unwrap_or_default();
        let version = api_version.rsplit('/').next().unwrap_or_default();
        Self {
            id: ObjectId::of(kind, name),
            resource: resource_type.at(version),
            uid: text("uid").to_owned(),
            generation: metadata("generation").and_then(Json::as_i64).unwrap_or(0),
            resource_version: text("resourceVersion").parse().unwrap_or(0),
            status: match resource_type.is_policy() {
                true => json.get("status").cloned().unwrap_or_default(),
                false => Json::Null,
            },
            taints: match resource_type.kind {
                "Node" => json
                    .get("spec")
                    .map(|spec| spec["taints"].clone())
                    .unwrap_or_default(),
                _ => Json::Null,
            },
        }
    }

    pub(super) fn applied(self, entities: Box<[Arc<Entity>]>, diagnostics: Vec<Diagnostic>) -> ObjectChange {
        ObjectChange::Applied(Box::new(ObjectState {
            id: self.id,
            resource: self.resource,
            uid: self.uid,
            generation: self.generation,
            resource_version: self.resource_version,
            status: self.status,
            taints: self.taints,
            entities,
            diagnostics,
        }))
    }
}
