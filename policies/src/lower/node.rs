//! Nodes.

use std::sync::Arc;

use super::network;
use super::pod::{list, optional_text};
use crate::api::{Field, Notes, Object};
use crate::model::cluster::Node;

pub(super) fn lower(object: &Object, notes: &mut Notes) -> Node {
    let root = Field::root(&object.body);
    let status = root.get("status");
    let listed = status
        .map(|status| list(&status, "addresses", notes))
        .unwrap_or_default();
    let reachable: Vec<_> = listed.iter().filter_map(|item| reachable(item, notes)).collect();
    let networks = pod_cidrs(&root, notes);
    Node {
        name: Arc::clone(&object.metadata.name),
        labels: object.metadata.labels.clone(),
        addresses: network::addresses(reachable, notes),
        pod_networks: networks
            .iter()
            .flat_map(|field| network::cidr(field, notes))
            .collect(),
    }
}

/// Of the address types only these two are addresses; a Hostname may look like one and is none.
fn reachable<'a>(item: &Field<'a>, notes: &mut Notes) -> Option<Field<'a>> {
    match optional_text(item, "type", notes).as_deref() {
        Some("InternalIP" | "ExternalIP") => item.get("address"),
        Some(_) | None => None,
    }
}

fn pod_cidrs<'a>(root: &Field<'a>, notes: &mut Notes) -> Vec<Field<'a>> {
    let Some(spec) = root.get("spec") else {
        return Vec::new();
    };
    let several = list(&spec, "podCIDRs", notes);
    if several.is_empty() {
        spec.get("podCIDR").into_iter().collect()
    } else {
        several
    }
}
