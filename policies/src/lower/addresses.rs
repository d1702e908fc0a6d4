//! NodeAddressReport and APIServerAddresses of `policy.egret.dev/v1alpha1`: what agents and platforms tell of
//! addresses that no object of Kubernetes lists.

use std::net::IpAddr;
use std::sync::Arc;

use super::network;
use crate::api::{Field, Notes, Object};
use crate::model::cluster::{ApiServerAddresses, NodeAddressReport};

/// All local addresses of the node of this name, as its agent sees them.
pub(super) fn report(object: &Object, notes: &mut Notes) -> NodeAddressReport {
    NodeAddressReport {
        node: Arc::clone(&object.metadata.name),
        addresses: addresses(object, notes),
    }
}

/// Addresses of the API server that the platform declares, such as a load balancer's.
pub(super) fn api_server(object: &Object, notes: &mut Notes) -> ApiServerAddresses {
    ApiServerAddresses {
        name: Arc::clone(&object.metadata.name),
        addresses: addresses(object, notes),
    }
}

/// `addresses` of the object or of its spec or status; an item is an address or has one in `ip`.
fn addresses(object: &Object, notes: &mut Notes) -> Vec<IpAddr> {
    let root = Field::root(&object.body);
    let inside = |key: &str| root.get(key).and_then(|field| field.get("addresses"));
    let lists = [root.get("addresses"), inside("spec"), inside("status")];
    let mut items = Vec::new();
    for list in lists.into_iter().flatten() {
        items.extend(list.items(notes).unwrap_or_default());
    }
    let texts: Vec<_> = items
        .into_iter()
        .map(|item| item.get("ip").unwrap_or(item))
        .collect();
    network::addresses(texts, notes)
}
