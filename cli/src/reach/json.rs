//! Ends for programs.

use egret_shared::net::Family;
use serde::Serialize;

use super::addresses::Addresses;
use super::connection_end::End;
use super::merge::Row;

/// An end: exactly one of `workload`, `ownNode`, `node` and `name`, or none of them: then it is what
/// `networks` says.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JsonEnd {
    /// `namespace/name` of pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<String>,
    /// The kind of the workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// Its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<Vec<String>>,
    /// The node on which the pod at the other end runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    own_node: Option<bool>,
    /// A node.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// A pattern of names.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The addresses, where they are not all that the rest says.
    #[serde(skip_serializing_if = "Option::is_none")]
    networks: Option<Addresses>,
}

/// Both ends.
#[derive(Clone, Debug, Serialize)]
pub struct JsonEnds {
    /// Who connects.
    pub from: JsonEnd,
    /// To whom.
    pub to: JsonEnd,
    /// The family, where others go otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
}

impl JsonEnds {
    /// The ends of a row.
    #[must_use]
    pub fn of<V>(row: &Row<V>) -> Self {
        Self {
            from: end(row, &row.ends.from),
            to: end(row, &row.ends.to),
            family: row.part.family(),
        }
    }
}

fn end<V>(row: &Row<V>, place: &End) -> JsonEnd {
    let some = || Some(row.part.addresses.clone()).filter(|_| !row.part.is_all);
    match place {
        End::Pods(workload) => JsonEnd {
            workload: Some(workload.to_string()),
            kind: Some(workload.kind.to_string()),
            pods: Some(workload.pods.iter().map(ToString::to_string).collect()),
            ..JsonEnd::default()
        },
        End::OwnNode => JsonEnd {
            own_node: Some(true),
            networks: some(),
            ..JsonEnd::default()
        },
        End::Node(name) => JsonEnd {
            node: Some(name.to_string()),
            networks: some(),
            ..JsonEnd::default()
        },
        End::Outside => JsonEnd {
            networks: Some(row.part.addresses.clone()),
            ..JsonEnd::default()
        },
        End::Name(pattern) => JsonEnd {
            name: Some(pattern.to_string()),
            networks: some(),
            ..JsonEnd::default()
        },
    }
}
