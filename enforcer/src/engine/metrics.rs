//! The engine's metrics, and its report as gauges.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use egret_policies::diagnostic::Severity;
use metrics::{Counter, Gauge, Histogram, Unit, counter, describe_histogram, gauge, histogram};

use super::report::Report;
use crate::backend::bypass::{BypassKind, BypassReport};
use crate::backend::{EndedConnections, Pending, SyncStatus};
use crate::metrics::{Description, as_gauge, describe_counters, describe_gauges};

/// Buckets of `egret_enforcer_programming_seconds`: from a member of a set to many rewritten chains.
pub const PROGRAMMING_BUCKETS: [f64; 13] = [
    0.00001, 0.000_025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5,
];

/// Kinds of differences that a backend repairs.
const REPAIRS: [&str; 8] = [
    "chain_missing",
    "chain_changed",
    "chain_extra",
    "jump",
    "set_missing",
    "set_extra",
    "member_missing",
    "member_extra",
];

const COUNTERS: [Description; 12] = [
    ("egret_enforcer_observations_total", "Answers that dnsd told of."),
    (
        "egret_enforcer_observations_unattributed_total",
        "Answers for an address that is no local pod's.",
    ),
    (
        "egret_enforcer_batches_total",
        "Changes that were given to the backend, by what they touched.",
    ),
    (
        "egret_enforcer_kernel_repairs_total",
        "Differences between the kernel and what it should hold that were repaired, by kind.",
    ),
    (
        "egret_enforcer_kernel_refusals_total",
        "Attempts after which the kernel did not hold what it should, and that are made again, by whom they concern: a pod (each one counts), or the node.",
    ),
    (
        "egret_enforcer_flows_revoked_total",
        "Open connections that were ended because the policies do not allow them any more.",
    ),
    (
        "egret_enforcer_sockets_ended_total",
        "Sockets of pods' programs that were ended with their connections.",
    ),
    (
        "egret_enforcer_link_peers_dropped_total",
        "Connections of a dnsd that were ended because it did not read.",
    ),
    (
        "egret_enforcer_record_evictions_total",
        "Records that went before their time, by the limit that they exceeded.",
    ),
    (
        "egret_enforcer_records_expired_total",
        "Records that ended with their time to live.",
    ),
    (
        "egret_enforcer_records_protected_total",
        "Addresses in answers that no name may open.",
    ),
    (
        "egret_enforcer_records_lapsed_forgotten_total",
        "Records that ended and are not remembered for open connections any more, there being too many.",
    ),
];

const GAUGES: [Description; 22] = [
    (
        "egret_enforcer_ready",
        "1 when the kernel is as the policies say, else 0; /readyz has the reasons.",
    ),
    ("egret_enforcer_revision", "The revision of the last batch."),
    (
        "egret_enforcer_records",
        "Live records: addresses that a pod was told for a name.",
    ),
    (
        "egret_enforcer_records_limit",
        "The most records that there may be.",
    ),
    (
        "egret_enforcer_records_lapsed",
        "Records that ended and are remembered for the connections that they opened.",
    ),
    (
        "egret_enforcer_records_lapsed_limit",
        "The most records that are remembered after their end.",
    ),
    (
        "egret_enforcer_record_names_per_pod",
        "Names of the pod that has most.",
    ),
    (
        "egret_enforcer_record_names_per_pod_limit",
        "The most names that a pod may have.",
    ),
    (
        "egret_enforcer_record_addresses_per_name",
        "Addresses of the name that has most.",
    ),
    (
        "egret_enforcer_record_addresses_per_name_limit",
        "The most addresses that a name may have for one pod.",
    ),
    ("egret_enforcer_source_files", "Manifest files that were read."),
    (
        "egret_enforcer_source_bad_files",
        "Manifest files that cannot be taken; what they said before stays in force.",
    ),
    (
        "egret_enforcer_source_unreadable",
        "1 while the source cannot be read; what it said last stays in force.",
    ),
    (
        "egret_enforcer_source_recalled",
        "1 while the source was never read and counts as it was known last.",
    ),
    (
        "egret_enforcer_pods",
        "Pods of this node, by state: programmed, or pending.",
    ),
    (
        "egret_enforcer_diagnostics",
        "What is wrong with objects, by severity.",
    ),
    (
        "egret_enforcer_held_answers",
        "Answers that the connected dnsds hold, as they told last.",
    ),
    (
        "egret_enforcer_rules_in_front",
        "Rules of others in front of ours by which packets may pass unjudged.",
    ),
    (
        "egret_enforcer_foreign_mark_rules",
        "Rules of others that write bits of the connection mark that are ours.",
    ),
    ("egret_enforcer_link_peers", "Connected dnsds."),
    (
        "egret_enforcer_fast_paths",
        "Flowtables, and tc filters and BPF programs on pods' links, which may lead packets past the rules.",
    ),
    (
        "egret_enforcer_unjudged",
        "Bridges whose ports reach each other unseen, pods' interfaces that lead past the node, and what could not be looked at.",
    ),
];

/// Handles of what the engine counts; clones share them.
#[derive(Clone, Debug)]
pub(super) struct Metrics(Arc<Handles>);

struct Handles {
    observations: Counter,
    record_batches: Counter,
    rule_batches: Counter,
    record_seconds: Histogram,
    rule_seconds: Histogram,
    peers: Gauge,
    peers_dropped: Counter,
    held: Gauge,
    rules_in_front: Gauge,
    foreign_mark_rules: Gauge,
    flows_revoked: Counter,
    sockets_ended: Counter,
}

impl fmt::Debug for Handles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handles").finish_non_exhaustive()
    }
}

/// When a batch was begun, by CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Started(Duration);

impl Metrics {
    /// Describes the engine's metrics and sets them to 0.
    pub(super) fn register() -> Self {
        describe_counters(&COUNTERS);
        describe_gauges(&GAUGES);
        describe_histogram!(
            "egret_enforcer_programming_seconds",
            Unit::Seconds,
            "How long a batch took to be in the kernel, by what it touched: sets alone, or rules as well."
        );
        for kind in REPAIRS {
            repairs(kind).absolute(0);
        }
        for concerned in ["node", "pod"] {
            refusals(concerned).absolute(0);
        }
        Report::default().publish();
        let batches = |touched: &'static str| counter!("egret_enforcer_batches_total", "touched" => touched);
        let seconds =
            |touched: &'static str| histogram!("egret_enforcer_programming_seconds", "touched" => touched);
        Self(Arc::new(Handles {
            observations: counter!("egret_enforcer_observations_total"),
            record_batches: batches("sets"),
            rule_batches: batches("rules"),
            record_seconds: seconds("sets"),
            rule_seconds: seconds("rules"),
            peers: gauge!("egret_enforcer_link_peers"),
            peers_dropped: counter!("egret_enforcer_link_peers_dropped_total"),
            held: gauge!("egret_enforcer_held_answers"),
            rules_in_front: zero("egret_enforcer_rules_in_front"),
            foreign_mark_rules: zero("egret_enforcer_foreign_mark_rules"),
            flows_revoked: counter!("egret_enforcer_flows_revoked_total"),
            sockets_ended: counter!("egret_enforcer_sockets_ended_total"),
        }))
    }

    pub(super) fn observed(&self) {
        self.0.observations.increment(1);
    }

    pub(super) fn ended(&self, ended: EndedConnections) {
        self.0.flows_revoked.increment(ended.flows);
        self.0.sockets_ended.increment(ended.sockets);
    }

    pub(super) fn start(&self) -> Started {
        Started(monotonic())
    }

    pub(super) fn programmed(&self, started: Started, touched_rules: bool) {
        let took = monotonic().saturating_sub(started.0);
        let (batches, seconds) = if touched_rules {
            (&self.0.rule_batches, &self.0.rule_seconds)
        } else {
            (&self.0.record_batches, &self.0.record_seconds)
        };
        batches.increment(1);
        seconds.record(took);
    }

    /// Counts what was repaired, and what others have in front of our rules.
    pub(super) fn status(&self, status: &SyncStatus) {
        for (kind, number) in &status.repaired {
            repairs(kind).increment(*number);
        }
        self.0.rules_in_front.set(as_gauge(status.bypassed_by.len()));
        self.0
            .foreign_mark_rules
            .set(as_gauge(status.foreign_marks.len()));
    }

    /// Counts an attempt after which the kernel does not hold what it should.
    pub(super) fn refused(&self, status: &SyncStatus) {
        if status.broken.is_some() || status.refused.is_some() {
            refusals("node").increment(1);
        }
        let refused = status.pending.values();
        let refused = refused.filter(|pending| matches!(pending, Pending::Refused(_)));
        refusals("pod").increment(u64::try_from(refused.count()).unwrap_or(u64::MAX));
    }

    pub(super) fn peers(&self, connected: usize, dropped: u64, held: u64) {
        self.0.peers.set(as_gauge(connected));
        self.0.peers_dropped.absolute(dropped);
        self.0
            .held
            .set(as_gauge(usize::try_from(held).unwrap_or(usize::MAX)));
    }
}

fn repairs(kind: &'static str) -> Counter {
    counter!("egret_enforcer_kernel_repairs_total", "kind" => kind)
}

fn refusals(concerned: &'static str) -> Counter {
    counter!("egret_enforcer_kernel_refusals_total", "concerned" => concerned)
}

fn zero(name: &'static str) -> Gauge {
    let gauge = gauge!(name);
    gauge.set(0.0);
    gauge
}

impl Report {
    /// Publishes it for the next scrape.
    pub fn publish(&self) {
        let records = &self.records;
        for (name, value) in [
            ("egret_enforcer_ready", usize::from(self.reasons.is_empty())),
            (
                "egret_enforcer_revision",
                usize::try_from(self.revision).unwrap_or(usize::MAX),
            ),
            ("egret_enforcer_records", records.records),
            ("egret_enforcer_records_limit", records.records_limit),
            ("egret_enforcer_records_lapsed", records.retained),
            ("egret_enforcer_records_lapsed_limit", records.retained_limit),
            (
                "egret_enforcer_record_names_per_pod",
                records.names_of_largest_pod,
            ),
            (
                "egret_enforcer_record_names_per_pod_limit",
                records.names_per_pod_limit,
            ),
            (
                "egret_enforcer_record_addresses_per_name",
                records.addresses_of_largest_name,
            ),
            (
                "egret_enforcer_record_addresses_per_name_limit",
                records.addresses_per_name_limit,
            ),
            ("egret_enforcer_source_files", self.source.files),
            ("egret_enforcer_source_bad_files", self.source.bad.len()),
            (
                "egret_enforcer_source_unreadable",
                usize::from(self.source.unreadable.is_some() || self.source.outdated.is_some()),
            ),
            (
                "egret_enforcer_source_recalled",
                usize::from(self.source.known_at.is_some()),
            ),
        ] {
            gauge!(name).set(as_gauge(value));
        }
        for (state, value) in [
            ("programmed", self.pods.saturating_sub(self.pods_pending)),
            ("pending", self.pods_pending),
        ] {
            gauge!("egret_enforcer_pods", "state" => state).set(as_gauge(value));
        }
        for severity in [Severity::Error, Severity::Warning, Severity::Info] {
            let number = self.source.diagnostics.get(&severity).copied().unwrap_or(0);
            gauge!("egret_enforcer_diagnostics", "severity" => severity.to_string()).set(as_gauge(number));
        }
        publish_bypasses(&self.bypass_report);
        for (limit, number) in [
            ("names_per_pod", records.evicted_names_per_pod),
            ("addresses_per_name", records.evicted_addresses_per_name),
            ("total", records.evicted_total),
        ] {
            counter!("egret_enforcer_record_evictions_total", "limit" => limit).absolute(number);
        }
        for (name, number) in [
            ("egret_enforcer_records_expired_total", records.expired),
            ("egret_enforcer_records_protected_total", records.protected),
            ("egret_enforcer_records_lapsed_forgotten_total", records.forgotten),
            (
                "egret_enforcer_observations_unattributed_total",
                records.unattributed,
            ),
        ] {
            counter!(name).absolute(number);
        }
    }
}

fn publish_bypasses(report: &BypassReport) {
    for kind in BypassKind::ALL {
        let number = report
            .bypasses
            .iter()
            .filter(|bypass| bypass.kind == kind)
            .count();
        let name = if kind.is_fast_path() {
            "egret_enforcer_fast_paths"
        } else {
            "egret_enforcer_unjudged"
        };
        gauge!(name, "kind" => kind.word()).set(as_gauge(number));
    }
}

fn monotonic() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .expect("every kernel has CLOCK_MONOTONIC");
    Duration::from(time)
}
