//! NodePolicyReport, as the enforcer of a node writes it and the controller reads it. Nodes read none of it.

use super::shape::{SchemaNode, count, keyed, kind, list, object, optional, required, text};
use super::{Definition, age, column};

/// What is programmed on a node. The object has the node's name.
pub(super) fn definition() -> Definition {
    Definition {
        kind: "NodePolicyReport",
        plural: "nodepolicyreports",
        singular: "nodepolicyreport",
        short: &[],
        columns: vec![
            column(
                "Behind",
                "string",
                ".behind",
                "Why the node is behind; empty where it is not",
            ),
            column(
                "Limits",
                "string",
                ".limits",
                "Limits that were reached; empty where none was",
            ),
            column(
                "Exceptions",
                "string",
                ".exceptions[*].name",
                "Objects that are not in force as they are written",
            ),
            age(),
        ],
        has_status: false,
        schema: kind(
            "Which policies the node of the same name has programmed. Its enforcer writes it; the controller counts \
             nodes by it.",
            vec![
                // Server-side apply drops a list that has become empty: a node may come to have no policies.
                optional(
                    "realized",
                    keyed(realized(), "kind", 16).says("How far each kind is in the kernel."),
                ),
                optional(
                    "behind",
                    text(1024)
                        .says("Why later objects are not in the kernel; absent where nothing is missing."),
                ),
                optional(
                    "limits",
                    list(text(1024), 0, 16).says("Limits that were reached in the last ten minutes."),
                ),
                optional(
                    "exceptions",
                    list(exception(), 0, 100).says("Objects that are not in force as they are written."),
                ),
                optional("exceptionsOmitted", count().says("How many more there are.")),
            ],
        ),
    }
}

fn realized() -> SchemaNode {
    object(vec![
        required("kind", text(63)),
        required(
            "resourceVersion",
            text(20).says("Objects of the kind up to this metadata.resourceVersion are in the kernel."),
        ),
    ])
}

fn exception() -> SchemaNode {
    object(vec![
        required("kind", text(63)),
        optional("namespace", text(63)),
        required("name", text(253)),
        required("code", text(16).says("The code of the diagnostic.")),
        required("message", text(1024).says("The diagnostic.")),
    ])
}
