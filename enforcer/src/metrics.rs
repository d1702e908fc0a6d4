//! What the enforcer counts, under the names that operators know. Everything is there from the start, at 0.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use egret_policies::diagnostic::Severity;
use egret_shared::time::Timestamp;
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use crate::apply::retry::Retry;
use crate::backend::outlook::{GapKind, Outlook};
use crate::backend::{Ended, Pending, Standing, VerdictCount, VerdictKey};
use crate::engine::Report;
use crate::link::MOST_PEERS;
use crate::state::Problem;

/// Buckets of `egret_enforcer_programming_seconds`: from a member of a set to many rewritten chains.
pub const BUCKETS: [f64; 13] = [
    0.00001, 0.000_025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5,
];

/// Differences that a backend repairs.
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

/// Handles of what the engine counts.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Handles>);

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

impl std::fmt::Debug for Handles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handles").finish_non_exhaustive()
    }
}

/// When something began.
#[derive(Clone, Copy, Debug)]
pub struct Started(Duration);

impl Metrics {
    /// Describes everything and puts it at 0.
    #[must_use]
    pub fn register() -> Self {
        describe();
        for kind in REPAIRS {
            counter!("egret_enforcer_kernel_repairs_total", "kind" => kind).absolute(0);
        }
        for key in VerdictKey::all() {
            verdicts(key).absolute(0);
        }
        for reason in Problem::REASONS {
            state_problems(reason).absolute(0);
        }
        for outcome in EVENTS {
            events(outcome, 0);
        }
        for concerned in ["node", "pod"] {
            refusals(concerned).absolute(0);
        }
        events_listen(false);
        report(&Report::default());
        gauge!("egret_enforcer_rules_in_front").set(0.0);
        gauge!("egret_enforcer_foreign_mark_rules").set(0.0);
        gauge!("egret_enforcer_link_peers_limit").set(as_gauge(MOST_PEERS));
        counter!("egret_enforcer_link_connections_total").absolute(0);
        restored(0, 0);
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
            rules_in_front: gauge!("egret_enforcer_rules_in_front"),
            foreign_mark_rules: gauge!("egret_enforcer_foreign_mark_rules"),
            flows_revoked: counter!("egret_enforcer_flows_revoked_total"),
            sockets_ended: counter!("egret_enforcer_sockets_ended_total"),
        }))
    }

    pub(crate) fn observed(&self) {
        self.0.observations.increment(1);
    }

    pub(crate) fn ended(&self, ended: Ended) {
        self.0.flows_revoked.increment(ended.flows);
        self.0.sockets_ended.increment(ended.sockets);
    }

    pub(crate) fn start(&self) -> Started {
        Started(monotonic())
    }

    pub(crate) fn programmed(&self, started: Started, touched_rules: bool) {
        let took = monotonic().saturating_sub(started.0);
        let (batches, seconds) = if touched_rules {
            (&self.0.rule_batches, &self.0.rule_seconds)
        } else {
            (&self.0.record_batches, &self.0.record_seconds)
        };
        batches.increment(1);
        seconds.record(took);
    }

    /// Counts what was repaired, and says when to try again.
    pub(crate) fn repaired(&self, standing: &Standing, retry: Retry, now: Timestamp) -> Retry {
        for (kind, number) in &standing.repaired {
            counter!("egret_enforcer_kernel_repairs_total", "kind" => *kind).increment(*number);
            // What is known by name is said by who knows whose doing it was.
            if standing.differences.is_empty() {
                tracing::warn!(
                    kind,
                    number,
                    "the kernel differed from what it should hold, and was repaired"
                );
            }
        }
        self.0.rules_in_front.set(as_gauge(standing.bypassed_by.len()));
        self.0
            .foreign_mark_rules
            .set(as_gauge(standing.foreign_marks.len()));
        retry.after(standing.wants_retry(), now)
    }

    /// Counts an attempt after which the kernel is not as it should be, to be made again.
    pub(crate) fn refused(&self, standing: &Standing) {
        if standing.broken.is_some() || standing.refused.is_some() {
            refusals("node").increment(1);
        }
        let refused = standing.pending.values();
        let refused = refused.filter(|pending| matches!(pending, Pending::Refused(_)));
        refusals("pod").increment(u64::try_from(refused.count()).unwrap_or(u64::MAX));
    }

    pub(crate) fn peers(&self, connected: usize, dropped: u64, held: u64) {
        self.0.peers.set(as_gauge(connected));
        self.0.peers_dropped.absolute(dropped);
        self.0
            .held
            .set(as_gauge(usize::try_from(held).unwrap_or(usize::MAX)));
    }
}

fn refusals(concerned: &'static str) -> Counter {
    counter!("egret_enforcer_kernel_refusals_total", "concerned" => concerned)
}

/// Counts a change that is written, by netlink or by `iptables-restore`.
pub(crate) fn restored(chains: u64, bytes: u64) {
    counter!("egret_enforcer_restored_chains_total").increment(chains);
    counter!("egret_enforcer_restored_bytes_total").increment(bytes);
}

/// What may become of a denied packet that the kernel tells of.
const EVENTS: [&str; 6] = ["told", "withheld", "suppressed", "lost", "unwritten", "foreign"];

/// Counts denied packets by what became of telling them.
pub(crate) fn events(outcome: &'static str, packets: u64) {
    counter!("egret_enforcer_events_total", "outcome" => outcome).increment(packets);
}

/// Says whether the kernel is listened to.
pub(crate) fn events_listen(is_so: bool) {
    gauge!("egret_enforcer_events_listening").set(as_gauge(usize::from(is_so)));
}

/// Counts what is wrong with the state file.
pub(crate) fn state_problem(reason: &'static str) {
    state_problems(reason).increment(1);
}

fn state_problems(reason: &'static str) -> Counter {
    counter!("egret_enforcer_state_file_problems_total", "reason" => reason)
}

/// Puts what the engine reports where a scrape finds it.
pub fn report(report: &Report) {
    let records = &report.records;
    let ready = report.reasons.is_empty();
    for (name, value) in [
        ("egret_enforcer_ready", usize::from(ready)),
        (
            "egret_enforcer_revision",
            usize::try_from(report.revision).unwrap_or(usize::MAX),
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
        ("egret_enforcer_source_files", report.source.files),
        ("egret_enforcer_source_bad_files", report.source.bad.len()),
        (
            "egret_enforcer_source_recalled",
            usize::from(report.source.known_at.is_some()),
        ),
    ] {
        gauge!(name).set(as_gauge(value));
    }
    for (state, value) in [
        ("programmed", report.pods.saturating_sub(report.pods_pending)),
        ("pending", report.pods_pending),
    ] {
        gauge!("egret_enforcer_pods", "state" => state).set(as_gauge(value));
    }
    for severity in [Severity::Error, Severity::Warning, Severity::Info] {
        let number = report.source.diagnostics.get(&severity).copied().unwrap_or(0);
        gauge!("egret_enforcer_diagnostics", "severity" => severity.to_string()).set(as_gauge(number));
    }
    gaps(&report.outlook);
    for (reason, number) in [
        ("names_per_pod", records.evicted_names_per_pod),
        ("addresses_per_name", records.evicted_addresses_per_name),
        ("total", records.evicted_total),
    ] {
        counter!("egret_enforcer_record_evictions_total", "limit" => reason).absolute(number);
    }
    counter!("egret_enforcer_records_expired_total").absolute(records.expired);
    counter!("egret_enforcer_records_protected_total").absolute(records.protected);
    counter!("egret_enforcer_records_lapsed_forgotten_total").absolute(records.forgotten);
    counter!("egret_enforcer_observations_unattributed_total").absolute(records.unattributed);
}

fn gaps(outlook: &Outlook) {
    for kind in GapKind::ALL {
        let number = outlook.gaps.iter().filter(|gap| gap.kind == kind).count();
        let name = if kind.is_fast_path() {
            "egret_enforcer_fast_paths"
        } else {
            "egret_enforcer_unjudged"
        };
        gauge!(name, "kind" => kind.word()).set(as_gauge(number));
    }
}

/// Puts verdicts where a scrape finds them; with `rules`, also those of single rules, and the others as one.
pub fn verdict_counts(counts: &[VerdictCount], rules: bool) {
    let mut by_key: BTreeMap<VerdictKey, u64> = BTreeMap::new();
    for count in counts {
        *by_key.entry(count.key).or_default() += count.packets;
    }
    for (key, packets) in by_key {
        verdicts(key).absolute(packets);
    }
    for count in counts.iter().filter(|_| rules) {
        let series = match &count.origin {
            Some((policy, rule)) => rule_packets(count.key, policy.to_string(), rule.to_string()),
            None => rule_packets(count.key, "other".to_owned(), String::new()),
        };
        series.absolute(count.packets);
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

fn describe() {
    for (name, help) in COUNTERS {
        describe_counter!(name, Unit::Count, help);
    }
    for (name, help) in GAUGES {
        describe_gauge!(name, Unit::Count, help);
    }
    describe_histogram!(
        "egret_enforcer_programming_seconds",
        Unit::Seconds,
        "How long a batch took to be in the kernel, by what it touched: sets alone, or rules as well."
    );
}

const COUNTERS: [(&str, &str); 19] = [
    (
        "egret_enforcer_verdicts_total",
        "Packets that were judged: the first of each allowed connection, and every refused one, by tier, action and direction.",
    ),
    (
        "egret_enforcer_rule_packets_total",
        "Packets that a single rule decided; only with ruleMetrics, up to so many series, the rest as policy other.",
    ),
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
        "egret_enforcer_restored_chains_total",
        "Chains that were written or removed, of both families: only what changed.",
    ),
    (
        "egret_enforcer_restored_bytes_total",
        "Octets of the text of changes, as iptables-restore takes it, whoever writes them.",
    ),
    (
        "egret_enforcer_events_total",
        "Denied packets by what became of telling them: told, withheld (read, and more than is told), suppressed (more than the kernel tells), lost, unwritten, foreign (not ours).",
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
    (
        "egret_enforcer_link_connections_total",
        "Connections that a dnsd made.",
    ),
    (
        "egret_enforcer_state_file_problems_total",
        "Times that the file with what pods were told could not be used or written, by reason.",
    ),
];

const GAUGES: [(&str, &str); 23] = [
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
    (
        "egret_enforcer_events_listening",
        "1 while the kernel is listened to for denied packets.",
    ),
    ("egret_enforcer_source_files", "Manifest files that were read."),
    (
        "egret_enforcer_source_bad_files",
        "Manifest files that cannot be taken; what they said before stays in force.",
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
    (
        "egret_enforcer_link_peers_limit",
        "The most dnsds that may be connected.",
    ),
];

#[allow(
    clippy::cast_precision_loss,
    reason = "gauges are floating point, and no count here is near 2^52"
)]
fn as_gauge(number: usize) -> f64 {
    number as f64
}

fn monotonic() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .expect("every kernel has CLOCK_MONOTONIC");
    Duration::from(time)
}
