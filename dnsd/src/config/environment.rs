//! The cluster's Services in the environment, which the kubelet sets.

use std::collections::BTreeSet;
use std::net::IpAddr;

/// The addresses in `*_SERVICE_HOST`.
#[must_use]
pub fn services() -> BTreeSet<IpAddr> {
    let hosts = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        name.ends_with("_SERVICE_HOST").then_some(())?;
        value.into_string().ok()?.parse().ok()
    });
    hosts.collect()
}
