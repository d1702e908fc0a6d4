//! What the kubelet tells of the cluster in the environment.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// Services of which the kubelet told (`*_SERVICE_HOST`).
#[must_use]
pub fn services() -> BTreeSet<IpAddr> {
    let hosts = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        name.ends_with("_SERVICE_HOST").then_some(())?;
        value.into_string().ok()?.parse().ok()
    });
    hosts.collect()
}
