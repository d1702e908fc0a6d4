//! `status` of a ClusterEgressFirewall, as `controller` writes it. For people: nodes read none of it.

use super::shape::{
    SchemaNode, boolean, count, integer, keyed, list, moment, object, optional, required, set, text, word,
};

pub(super) fn shape() -> SchemaNode {
    object(vec![
        optional(
            "observedGeneration",
            count().says("The generation of the object that this is about."),
        ),
        optional("rules", integer(0, 100).says("How many rules the object has.")),
        optional(
            "conditions",
            keyed(condition(), "type", 8).says("Accepted, Resolved and Programmed."),
        ),
        optional(
            "resolvedRules",
            list(resolved_rule(), 0, 1000).says("The rules, with what they stand for now."),
        ),
        optional(
            "rejectedServices",
            list(rejected_service(), 0, 100).says("Services that lead to what is denied; the first hundred."),
        ),
    ])
    .says("What it comes to in this cluster.")
}

fn condition() -> SchemaNode {
    object(vec![
        required("type", text(316)),
        required("status", word(&["True", "False", "Unknown"])),
        required("reason", text(1024)),
        required("message", text(32768)),
        optional("lastTransitionTime", moment()),
    ])
}

fn resolved_rule() -> SchemaNode {
    let port = || integer(1, 65535);
    let ports = object(vec![
        required("protocol", word(&["TCP", "UDP", "SCTP"])),
        required("from", port()),
        required("to", port()),
    ]);
    object(vec![
        required("index", count().says("Its index in the list.")),
        optional("name", text(100)),
        required("action", word(&["Allow", "Deny"])),
        required(
            "cidrs",
            set(text(43), 0, 1000).says("The destinations, sorted and merged."),
        ),
        optional(
            "ports",
            list(ports, 0, 100).says("Sorted and merged; absent where every protocol and port is meant."),
        ),
        required("icmp", boolean().says("Whether ICMP is meant.")),
        required(
            "source",
            set(text(512), 0, 10_000).says("Where the destinations come from, such as Node/worker-1."),
        ),
        required(
            "truncated",
            boolean().says("Whether cidrs is only the beginning."),
        ),
        required("total", count().says("How many cidrs there are.")),
    ])
}

fn rejected_service() -> SchemaNode {
    object(vec![
        required("namespace", text(63)),
        required("name", text(63)),
        required("port", integer(1, 65535).says("The port at the endpoint.")),
        required("endpoint", text(45)),
        required(
            "rule",
            integer(0, 99).says("The index of the rule that denies it."),
        ),
    ])
}
