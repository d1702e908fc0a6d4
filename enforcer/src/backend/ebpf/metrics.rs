//! How full the maps are. A full map closes what a new entry would have opened.

use metrics::gauge;

use super::layout::{
    MAX_CHUNKS_OF_ALL, MAX_KNOWN_PODS, MAX_MEMBERS, MAX_NODE_ADDRESSES, MAX_TRANSLATED, Table,
};
use super::pod::Kernel;
use crate::metrics::{as_gauge, describe_gauges};

/// Describes the gauges.
pub(super) fn describe() {
    describe_gauges(&[
        (
            "egret_enforcer_ebpf_entries",
            "Entries of a map of the eBPF programs, as of the last half minute.",
        ),
        (
            "egret_enforcer_ebpf_entries_limit",
            "The most entries of that map. What finds no room stays closed, and its pods are pending.",
        ),
    ]);
}

/// Publishes the entries of all maps that have a limit.
pub(super) fn publish(kernel: &Kernel) {
    let sizes = kernel.tables.sizes();
    for table in Table::ALL {
        let (name, limit) = match table {
            Table::Members => ("members", MAX_MEMBERS),
            Table::Networks => ("networks", MAX_MEMBERS),
            Table::Ports => ("ports", MAX_MEMBERS),
            Table::NetworkPorts => ("network-ports", MAX_MEMBERS),
            Table::Node => ("node", MAX_NODE_ADDRESSES),
            Table::Translated => ("services", MAX_TRANSLATED),
        };
        set(name, sizes.get(&table).copied().unwrap_or(0), limit);
    }
    set("rules", kernel.lists.count(), MAX_CHUNKS_OF_ALL);
    set("pods", kernel.guard.known(), MAX_KNOWN_PODS);
}

fn set(map: &'static str, entries: usize, limit: usize) {
    gauge!("egret_enforcer_ebpf_entries", "map" => map).set(as_gauge(entries));
    gauge!("egret_enforcer_ebpf_entries_limit", "map" => map).set(as_gauge(limit));
}
