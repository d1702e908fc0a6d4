//! NodeAddressReport and APIServerAddresses of `policy.egret.dev/v1alpha1`: what agents and platforms tell of
//! addresses that no object of Kubernetes lists.

use std::net::IpAddr;
use std::sync::Arc;

use super::{network, spec};
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

const OBJECT: [&str; 7] = [
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    "status",
    "addresses",
    "observedTime",
];
const INSIDE: [&str; 2] = ["addresses", "observedTime"];
const ITEM: [&str; 3] = ["ip", "interface", "scope"];

/// `addresses` of the object or of its spec or status; an item is an address or has one in `ip`.
fn addresses(object: &Object, notes: &mut Notes) -> Vec<IpAddr> {
    let root = Field::root(&object.body);
    spec::warn_of_unknown(&root, &OBJECT, notes);
    let inside: Vec<_> = ["spec", "status"]
        .into_iter()
        .flat_map(|key| root.get(key))
        .collect();
    for mapping in &inside {
        spec::warn_of_unknown(mapping, &INSIDE, notes);
    }
    let lists = [root]
        .into_iter()
        .chain(inside)
        .flat_map(|field| field.get("addresses"));
    let mut texts = Vec::new();
    for list in lists {
        for item in list.items(notes).unwrap_or_default() {
            texts.push(address(item, notes));
        }
    }
    network::addresses(texts, notes)
}

fn address<'a>(item: Field<'a>, notes: &mut Notes) -> Field<'a> {
    // A text has no fields, and is none the worse for it.
    let mut ignored = Notes::new(notes.reading);
    if item.entries(&mut ignored).is_ok() {
        spec::warn_of_unknown(&item, &ITEM, notes);
    }
    item.get("ip").unwrap_or(item)
}
