//! What is counted of the controller. Everything is there from the start, at 0.

use metrics::{counter, describe_counter, describe_gauge, gauge};

const LEADER: &str = "egret_controller_leader";
const LEASE_FAILURES: &str = "egret_controller_lease_failures_total";
const WRITES: &str = "egret_controller_status_writes_total";
const CONFLICTS: &str = "egret_controller_status_conflicts_total";
const FAILURES: &str = "egret_controller_status_failures_total";
const EVENTS: &str = "egret_controller_events_total";
const EVENTS_DROPPED: &str = "egret_controller_events_dropped_total";
const REPORTS: &str = "egret_controller_node_reports";
const TAINTED: &str = "egret_controller_tainted_nodes";

pub(super) fn register() {
    describe_gauge!(LEADER, "Whether this replica is the leader: 1 or 0.");
    describe_counter!(
        LEASE_FAILURES,
        "Requests for the lease that failed, conflicts among them."
    );
    describe_counter!(WRITES, "Statuses that were written.");
    describe_counter!(
        CONFLICTS,
        "Statuses that were refused as conflicting (HTTP 409); they are written again."
    );
    describe_counter!(
        FAILURES,
        "Statuses that could not be written for another reason; they are written again."
    );
    describe_counter!(EVENTS, "Events that were written.");
    describe_counter!(
        EVENTS_DROPPED,
        "Events that were not written: too many at once, or refused."
    );
    describe_gauge!(REPORTS, "NodePolicyReports that are known.");
    describe_gauge!(
        TAINTED,
        "Nodes with the startup taint, as the leader last saw them."
    );
    for counted in [
        LEASE_FAILURES,
        WRITES,
        CONFLICTS,
        FAILURES,
        EVENTS,
        EVENTS_DROPPED,
    ] {
        counter!(counted).absolute(0);
    }
    gauge!(LEADER).set(0.0);
    gauge!(REPORTS).set(0.0);
    gauge!(TAINTED).set(0.0);
}

pub(super) fn leads(leads: bool) {
    gauge!(LEADER).set(if leads { 1.0 } else { 0.0 });
}

pub(super) fn lease_failed() {
    counter!(LEASE_FAILURES).increment(1);
}

pub(super) fn written() {
    counter!(WRITES).increment(1);
}

pub(super) fn conflicted() {
    counter!(CONFLICTS).increment(1);
}

pub(super) fn refused() {
    counter!(FAILURES).increment(1);
}

pub(super) fn event_written() {
    counter!(EVENTS).increment(1);
}

pub(super) fn event_dropped() {
    counter!(EVENTS_DROPPED).increment(1);
}

pub(super) fn reports(number: usize) {
    gauge!(REPORTS).set(number_of(number));
}

pub(super) fn tainted(number: usize) {
    gauge!(TAINTED).set(number_of(number));
}

fn number_of(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}
