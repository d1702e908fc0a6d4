//! The kinds of objects that policy depends on, and which version of each an API server serves.

use kube::Client;
use kube::api::{ApiResource, GroupVersionKind};

/// A kind of objects.
#[derive(Debug)]
pub(super) struct ResourceType {
    pub(super) group: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    /// The versions that are understood, best first. Where none of them is served, another one is watched: its
    /// objects are enforced closed, with a diagnostic.
    versions: &'static [&'static str],
    /// What the API server filters, so that it sends only what counts.
    pub(super) field_selector: Option<&'static str>,
    pub(super) shape: Shape,
}

/// How much of an object is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// All of it: a policy with a field that nobody knows is enforced closed.
    Whole,
    /// What policy depends on, a thirtieth of a Pod.
    Pod,
    /// The same of a Node, which also lists its images.
    Node,
}

const CORE: ResourceType = ResourceType {
    group: "",
    kind: "",
    plural: "",
    versions: &["v1"],
    field_selector: None,
    shape: Shape::Whole,
};

/// Every kind, one watch each.
pub(super) const RESOURCE_TYPES: [ResourceType; 12] = [
    ResourceType {
        kind: "Namespace",
        plural: "namespaces",
        ..CORE
    },
    ResourceType {
        kind: "Pod",
        plural: "pods",
        // A pod that is done is neither subject nor peer: to the watch it is deleted.
        field_selector: Some("status.phase!=Succeeded,status.phase!=Failed"),
        shape: Shape::Pod,
        ..CORE
    },
    ResourceType {
        kind: "Node",
        plural: "nodes",
        shape: Shape::Node,
        ..CORE
    },
    ResourceType {
        kind: "Service",
        plural: "services",
        ..CORE
    },
    ResourceType {
        group: "discovery.k8s.io",
        kind: "EndpointSlice",
        plural: "endpointslices",
        ..CORE
    },
    ResourceType {
        group: "networking.k8s.io",
        kind: "NetworkPolicy",
        plural: "networkpolicies",
        ..CORE
    },
    ResourceType {
        group: "policy.networking.k8s.io",
        kind: "AdminNetworkPolicy",
        plural: "adminnetworkpolicies",
        versions: &["v1alpha1"],
        ..CORE
    },
    ResourceType {
        group: "policy.networking.k8s.io",
        kind: "BaselineAdminNetworkPolicy",
        plural: "baselineadminnetworkpolicies",
        versions: &["v1alpha1"],
        ..CORE
    },
    ResourceType {
        group: "policy.networking.k8s.io",
        kind: "ClusterNetworkPolicy",
        plural: "clusternetworkpolicies",
        versions: &["v1alpha2"],
        ..CORE
    },
    ResourceType {
        group: "policy.egret.dev",
        kind: "ClusterEgressFirewall",
        plural: "clusteregressfirewalls",
        versions: &["v1alpha1"],
        ..CORE
    },
    ResourceType {
        group: "policy.egret.dev",
        kind: "NodeAddressReport",
        plural: "nodeaddressreports",
        versions: &["v1alpha1"],
        ..CORE
    },
    ResourceType {
        group: "policy.egret.dev",
        kind: "APIServerAddresses",
        plural: "apiserveraddresses",
        versions: &["v1alpha1"],
        ..CORE
    },
];

/// The number of kinds; a kind is known by its index in [`RESOURCE_TYPES`].
pub(super) const KINDS: usize = RESOURCE_TYPES.len();

/// The index of NodeAddressReport.
pub(super) const NODE_ADDRESS_REPORTS: usize = 10;

/// Groups that are there only when somebody installs them.
const CUSTOM_GROUPS: [&str; 2] = ["policy.networking.k8s.io", "policy.egret.dev"];

/// The kinds that are policies.
const POLICIES: [&str; 5] = [
    "NetworkPolicy",
    "AdminNetworkPolicy",
    "BaselineAdminNetworkPolicy",
    "ClusterNetworkPolicy",
    "ClusterEgressFirewall",
];

impl ResourceType {
    /// Whether its objects are policies.
    pub(super) fn is_policy(&self) -> bool {
        POLICIES.contains(&self.kind)
    }

    /// Whether a CustomResourceDefinition declares it.
    pub(super) fn is_custom(&self) -> bool {
        CUSTOM_GROUPS.contains(&self.group)
    }

    /// The name of its CustomResourceDefinition.
    pub(super) fn definition(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    pub(super) fn at(&self, version: &str) -> ApiResource {
        let kind = GroupVersionKind::gvk(self.group, version, self.kind);
        ApiResource::from_gvk_with_plural(&kind, self.plural)
    }

    /// The version to watch, of those that serve the kind in the server's order.
    fn choose(&self, served: &[&str]) -> Option<ApiResource> {
        let understood = self.versions.iter().find(|version| served.contains(version));
        understood
            .or_else(|| served.first())
            .map(|version| self.at(version))
    }
}

/// What the API server says of the kinds.
#[derive(Debug)]
pub(super) struct Discovered {
    /// The version of each kind that is to be watched; none where it is not served. Kubernetes' own are not asked for.
    pub(super) resources: [Option<ApiResource>; KINDS],
    /// Something is served of the kind's group, and the API server cannot say what: an extension API server is away.
    pub(super) is_unknown: [bool; KINDS],
    /// Why.
    pub(super) failure: Option<String>,
}

/// Asks which version of each kind is served.
///
/// # Errors
/// When the API server does not answer. A group that it cannot describe is no error: the others go on.
pub(super) async fn discover(client: &Client) -> kube::Result<Discovered> {
    let mut served: Vec<(String, String, String)> = Vec::new();
    let mut unknown: Vec<String> = Vec::new();
    let mut failure = None;
    for group in client.list_api_groups().await?.groups {
        if !CUSTOM_GROUPS.contains(&group.name.as_str()) {
            continue;
        }
        for version in group.versions {
            match client.list_api_group_resources(&version.group_version).await {
                Ok(list) => served.extend(
                    list.resources
                        .into_iter()
                        .map(|resource| (group.name.clone(), version.version.clone(), resource.name)),
                ),
                // Gone since the groups were listed.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(kube::Error::Api(status)) => {
                    failure = Some(format!("{}: {}", version.group_version, status.message));
                    unknown.push(group.name.clone());
                }
                Err(error) => return Err(error),
            }
        }
    }
    let resources = std::array::from_fn(|index| {
        let resource = &RESOURCE_TYPES[index];
        if !resource.is_custom() {
            return resource.choose(resource.versions);
        }
        let of_kind =
            |entry: &&(String, String, String)| entry.0 == resource.group && entry.2 == resource.plural;
        let versions: Vec<&str> = served
            .iter()
            .filter(of_kind)
            .map(|entry| entry.1.as_str())
            .collect();
        resource.choose(&versions)
    });
    Ok(Discovered {
        resources,
        is_unknown: std::array::from_fn(|index| {
            unknown.iter().any(|group| group == RESOURCE_TYPES[index].group)
        }),
        failure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(kind: &str, served: &[&str]) -> Option<String> {
        let resource = RESOURCE_TYPES
            .iter()
            .find(|resource| resource.kind == kind)
            .unwrap();
        resource.choose(served).map(|chosen| chosen.api_version)
    }

    #[test]
    fn the_kind_that_is_written_is_where_it_is_looked_for() {
        assert_eq!(RESOURCE_TYPES[NODE_ADDRESS_REPORTS].kind, "NodeAddressReport");
    }

    #[test]
    fn the_version_that_is_understood_is_watched_and_else_any() {
        let group = |version: &str| Some(format!("policy.networking.k8s.io/{version}"));
        assert_eq!(
            chosen("ClusterNetworkPolicy", &["v1beta1", "v1alpha2"]),
            group("v1alpha2")
        );
        assert_eq!(chosen("ClusterNetworkPolicy", &["v1", "v1beta1"]), group("v1"));
        assert_eq!(chosen("ClusterNetworkPolicy", &[]), None);
    }
}
