//! What a NodePolicyReport says, as it is written and as it is read.

use std::collections::BTreeMap;

use kube::api::{ApiResource, GroupVersionKind};
use serde_json::{Value as Json, json};

use crate::engine::{RejectedObject, Report};

/// The longest text of a field.
const MOST_CHARACTERS: usize = 1024;

/// What is programmed on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// By kind: objects up to this `metadata.resourceVersion` are in the kernel.
    pub realized: BTreeMap<String, u64>,
    /// Why later ones are not; none where nothing is missing.
    pub behind: Option<String>,
    /// Limits that were reached, and what that means.
    pub limits: Vec<String>,
    /// Objects that are not in force as they are written.
    pub exceptions: Vec<ObjectException>,
    /// How many more there are.
    pub omitted: u64,
}

/// An object that is not in force as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectException {
    /// Its kind.
    pub kind: String,
    /// Its namespace; none for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// The code of the diagnostic.
    pub code: String,
    /// The diagnostic.
    pub message: String,
}

impl NodeReport {
    /// What the engine says now. While it is behind, no more is said to be in the kernel than before.
    pub fn follow(&mut self, report: &Report) {
        if report.behind.is_none() {
            let versions = report.source.versions.iter();
            self.realized = versions
                .map(|(kind, version)| ((*kind).to_owned(), *version))
                .collect();
        }
        self.behind = report.behind.as_deref().map(shortened);
        self.exceptions = report.source.rejected.iter().map(ObjectException::from).collect();
        let omitted = report
            .source
            .rejected_number
            .saturating_sub(self.exceptions.len());
        self.omitted = u64::try_from(omitted).unwrap_or(u64::MAX);
    }

    /// Whether an object of which this was the version is in the kernel, as it is written.
    #[must_use]
    pub fn has(&self, kind: &str, namespace: Option<&str>, name: &str, version: u64) -> bool {
        let is_realized = self
            .realized
            .get(kind)
            .is_some_and(|realized| *realized >= version);
        let is_it = |exception: &ObjectException| {
            exception.kind == kind && exception.namespace.as_deref() == namespace && exception.name == name
        };
        is_realized && version > 0 && !self.exceptions.iter().any(is_it)
    }

    pub(super) fn object(&self, node: &str, owner: Option<&Json>) -> Json {
        let realized: Vec<Json> = self
            .realized
            .iter()
            .map(|(kind, version)| json!({"kind": kind, "resourceVersion": version.to_string()}))
            .collect();
        let exceptions: Vec<Json> = self.exceptions.iter().map(ObjectException::json).collect();
        let resource = resource();
        let mut object = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": node},
            "realized": realized,
        });
        if let Some(owner) = owner {
            object["metadata"]["ownerReferences"] = json!([owner]);
        }
        if let Some(behind) = &self.behind {
            object["behind"] = json!(behind);
        }
        if !self.limits.is_empty() {
            object["limits"] = json!(self.limits);
        }
        if !exceptions.is_empty() {
            object["exceptions"] = json!(exceptions);
        }
        if self.omitted > 0 {
            object["exceptionsOmitted"] = json!(self.omitted);
        }
        object
    }

    /// As it was read. What cannot be read says nothing: then nothing is counted as programmed.
    #[must_use]
    pub fn read(object: &Json) -> Self {
        let list = |field: &str| object.get(field).and_then(Json::as_array).into_iter().flatten();
        let realized = list("realized").filter_map(|item| {
            let version = text(item, "resourceVersion")?.parse().ok()?;
            Some((text(item, "kind")?, version))
        });
        Self {
            realized: realized.collect(),
            behind: text(object, "behind"),
            limits: list("limits")
                .filter_map(|limit| limit.as_str().map(ToOwned::to_owned))
                .collect(),
            exceptions: list("exceptions").filter_map(ObjectException::read).collect(),
            omitted: object
                .get("exceptionsOmitted")
                .and_then(Json::as_u64)
                .unwrap_or(0),
        }
    }
}

impl ObjectException {
    fn json(&self) -> Json {
        let mut json =
            json!({"kind": self.kind, "name": self.name, "code": self.code, "message": self.message});
        if let Some(namespace) = &self.namespace {
            json["namespace"] = json!(namespace);
        }
        json
    }

    fn read(json: &Json) -> Option<Self> {
        Some(Self {
            kind: text(json, "kind")?,
            namespace: text(json, "namespace"),
            name: text(json, "name")?,
            code: text(json, "code")?,
            message: text(json, "message")?,
        })
    }
}

impl From<&RejectedObject> for ObjectException {
    fn from(rejected: &RejectedObject) -> Self {
        Self {
            kind: rejected.object.kind.to_string(),
            namespace: rejected.object.namespace.as_deref().map(ToOwned::to_owned),
            name: rejected.object.name.to_string(),
            code: rejected.code.id().to_owned(),
            message: shortened(&rejected.message),
        }
    }
}

fn text(json: &Json, field: &str) -> Option<String> {
    json.get(field)?.as_str().map(ToOwned::to_owned)
}

fn shortened(text: &str) -> String {
    text.chars().take(MOST_CHARACTERS).collect()
}

/// Where the API server has reports.
#[must_use]
pub fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("policy.egret.dev", "v1alpha1", "NodePolicyReport");
    ApiResource::from_gvk_with_plural(&kind, "nodepolicyreports")
}

/// Nodes, in the API.
#[must_use]
pub fn node_resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Node"), "nodes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(version: u64, behind: Option<&str>) -> Report {
        let mut report = Report {
            behind: behind.map(ToOwned::to_owned),
            ..Report::default()
        };
        report.source.versions.insert("NetworkPolicy", version);
        report
    }

    #[test]
    fn an_engine_that_is_behind_has_realized_no_more_than_before() {
        let mut report = NodeReport::default();
        report.follow(&engine(7, None));
        report.follow(&engine(9, Some("the backend fails")));
        assert!(report.has("NetworkPolicy", Some("a"), "b", 7));
        assert!(!report.has("NetworkPolicy", Some("a"), "b", 8));
        assert_eq!(report.behind.as_deref(), Some("the backend fails"));
        report.follow(&engine(9, None));
        assert!(report.has("NetworkPolicy", Some("a"), "b", 9));
        assert_eq!(report.behind, None);
    }

    #[test]
    fn an_exception_and_an_object_of_unknown_version_are_not_programmed() {
        let mut report = NodeReport::default();
        report.follow(&engine(7, None));
        report.exceptions.push(ObjectException {
            kind: "NetworkPolicy".to_owned(),
            namespace: Some("a".to_owned()),
            name: "b".to_owned(),
            code: "EG0101".to_owned(),
            message: "closed".to_owned(),
        });
        assert!(!report.has("NetworkPolicy", Some("a"), "b", 7));
        assert!(report.has("NetworkPolicy", Some("a"), "c", 7));
        assert!(!report.has("NetworkPolicy", Some("a"), "c", 0));
        assert!(!report.has("AdminNetworkPolicy", None, "c", 1));
    }

    #[test]
    fn a_report_reads_as_it_was_written() {
        let mut report = NodeReport::default();
        report.follow(&engine(7, None));
        report.behind = Some("why".to_owned());
        report.limits.push("more than so many names".to_owned());
        report.omitted = 3;
        report.exceptions.push(ObjectException {
            kind: "ClusterEgressFirewall".to_owned(),
            namespace: None,
            name: "b".to_owned(),
            code: "EG0101".to_owned(),
            message: "closed".to_owned(),
        });
        assert_eq!(NodeReport::read(&report.object("node-1", None)), report);
        assert_eq!(NodeReport::read(&json!({"realized": "x"})), NodeReport::default());
    }
}
