//! What is counted of the watches. Everything is there from the start of the source, at 0.

use metrics::{counter, describe_counter, describe_gauge, gauge};

use super::resources::RESOURCE_TYPES;

const FAILURES: &str = "egret_enforcer_source_watch_failures_total";
const EXPIRED: &str = "egret_enforcer_source_watches_expired_total";
const NOT_REPORTED: &str = "egret_enforcer_address_report_failures_total";
const OBJECTS: &str = "egret_enforcer_source_objects";

pub(super) fn register() {
    describe_counter!(
        FAILURES,
        "Watches of the API server that broke, or could not be begun, by kind."
    );
    describe_counter!(
        EXPIRED,
        "Watches that the API server could not go on with, after which all objects of the kind were listed."
    );
    describe_counter!(
        NOT_REPORTED,
        "Attempts to report this node's addresses to the API server that failed."
    );
    counter!(NOT_REPORTED).absolute(0);
    describe_gauge!(OBJECTS, "Objects that are known of the API server, by kind.");
    for resource in &RESOURCE_TYPES {
        counter!(FAILURES, "kind" => resource.kind).absolute(0);
        counter!(EXPIRED, "kind" => resource.kind).absolute(0);
        gauge!(OBJECTS, "kind" => resource.kind).set(0.0);
    }
}

pub(super) fn failed(kind: usize) {
    counter!(FAILURES, "kind" => RESOURCE_TYPES[kind].kind).increment(1);
}

pub(super) fn expired(kind: usize) {
    counter!(EXPIRED, "kind" => RESOURCE_TYPES[kind].kind).increment(1);
}

pub(super) fn not_reported() {
    counter!(NOT_REPORTED).increment(1);
}

pub(super) fn objects(kind: usize, count: usize) {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    gauge!(OBJECTS, "kind" => RESOURCE_TYPES[kind].kind).set(f64::from(count));
}
