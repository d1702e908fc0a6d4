//! Leases of servers (coordination.k8s.io/v1), in the form of upstream's.

use std::time::Duration;

use kube::api::{ApiResource, GroupVersionKind};
use serde_json::Value;

use super::Watched;
use crate::core::Lease;

/// Thousands of agents watch.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where servers' Leases are, and how they are told from others.
#[derive(Clone, Debug)]
pub(crate) struct LeasePlace {
    pub(crate) namespace: String,
    pub(crate) labels: Vec<(String, String)>,
}

impl LeasePlace {
    pub(crate) fn selector(&self) -> String {
        let pairs = self.labels.iter().map(|(key, value)| format!("{key}={value}"));
        pairs.collect::<Vec<_>>().join(",")
    }

    pub(crate) fn watched(&self) -> Watched {
        let kind = GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease");
        Watched {
            resource: ApiResource::from_gvk_with_plural(&kind, "leases"),
            namespace: Some(self.namespace.clone()),
            labels: Some(self.selector()),
            fields: None,
            patience: PATIENCE,
        }
    }
}

/// What counts of a Lease; none of one that was never held, or says not for how long.
pub(crate) fn read_lease(spec: &Value, resource_version: &str) -> Option<Lease> {
    let renewed = spec["renewTime"].as_str();
    let renewed = renewed.or_else(|| spec["acquireTime"].as_str())?;
    let seconds = spec["leaseDurationSeconds"].as_u64()?;
    Some(Lease {
        renewed: renewed.to_owned(),
        duration: Duration::from_secs(seconds),
        resource_version: resource_version.to_owned(),
    })
}
