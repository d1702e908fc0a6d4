//! What backends count: verdicts, and what they write into the kernel.

use std::collections::BTreeMap;

use egret_policies::decision::RuleCounts;
use metrics::{Counter, counter, gauge};

use super::{VerdictCount, VerdictKey};
use crate::metrics::{Description, as_gauge, describe_counters, describe_gauges};

const COUNTERS: [Description; 4] = [
    (
        "egret_enforcer_verdicts_total",
        "Packets that were judged: the first of each allowed connection, and every refused one, by tier, action and direction.",
    ),
    (
        "egret_enforcer_rule_packets_total",
        "Packets that a single rule decided; only with ruleMetrics, up to so many series, the rest as policy other.",
    ),
    (
        "egret_enforcer_restored_chains_total",
        "Chains that were written or removed, of both families: only what changed.",
    ),
    (
        "egret_enforcer_restored_bytes_total",
        "Octets of the text of changes, as iptables-restore takes it, whoever writes them.",
    ),
];

const GAUGES: [Description; 3] = [
    ("egret_enforcer_backend", "1 for the backend in use."),
    (
        "egret_enforcer_backend_limits",
        "1 for each thing that the backend in use does not do.",
    ),
    (
        "egret_enforcer_ordered_rules",
        "Rules of pods in tiers with an order, by how packets meet them: looked_up in sets of verdicts, or walked one after the other.",
    ),
];

/// Describes the metrics of backends and sets counters to 0.
pub fn register_metrics() {
    describe_counters(&COUNTERS);
    describe_gauges(&GAUGES);
    for key in VerdictKey::all() {
        verdicts(key).absolute(0);
    }
    restored(0, 0);
}

/// Publishes which backend is in use.
pub fn publish_backend(backend: &'static str) {
    gauge!("egret_enforcer_backend", "backend" => backend).set(1.0);
}

/// Publishes what a backend does not do.
pub(crate) fn publish_limits(backend: &'static str, limits: &[&'static str]) {
    for limit in limits {
        gauge!("egret_enforcer_backend_limits", "backend" => backend, "limit" => *limit).set(1.0);
    }
}

/// Counts a change of the packet filter that was written, by netlink or by `iptables-restore`.
pub(crate) fn restored(chains: u64, bytes: u64) {
    counter!("egret_enforcer_restored_chains_total").increment(chains);
    counter!("egret_enforcer_restored_bytes_total").increment(bytes);
}

/// Publishes how many ordered rules are looked up, and how many are walked.
pub(crate) fn ordered_rules(counts: RuleCounts) {
    let rules =
        |evaluated: &'static str| metrics::gauge!("egret_enforcer_ordered_rules", "evaluated" => evaluated);
    rules("looked_up").set(as_gauge(counts.looked_up));
    rules("walked").set(as_gauge(counts.walked));
}

/// Publishes verdicts; with `rules` also those of single rules, and all others as one series.
pub fn publish_verdicts(counts: &[VerdictCount], rules: bool) {
    let mut by_key: BTreeMap<VerdictKey, u64> = BTreeMap::new();
    for count in counts {
        *by_key.entry(count.key).or_default() += count.packets;
    }
    for (key, packets) in by_key {
        verdicts(key).absolute(packets);
    }
    for count in counts.iter().filter(|_| rules) {
        let (policy, rule) = match &count.origin {
            Some((policy, rule)) => (policy.to_string(), rule.to_string()),
            None => ("other".to_owned(), String::new()),
        };
        rule_packets(count.key, policy, rule).absolute(count.packets);
    }
}

fn verdicts(key: VerdictKey) -> Counter {
    counter!(
        "egret_enforcer_verdicts_total",
        "tier" => key.decider.word(), "action" => key.action_word(), "direction" => key.direction.word()
    )
}

fn rule_packets(key: VerdictKey, policy: String, rule: String) -> Counter {
    counter!(
        "egret_enforcer_rule_packets_total",
        "tier" => key.decider.word(), "action" => key.action_word(), "direction" => key.direction.word(),
        "policy" => policy, "rule" => rule
    )
}
