//! What can be said of policies only when they are side by side.

use std::collections::BTreeMap;

use crate::diagnostic::{Code, Diagnostic, ObjectRef};
use crate::model::{Policy, PolicyId, Rank, Tier};

/// Warns of policies of one tier and priority: the API leaves open which is asked first.
#[must_use]
pub fn equal_priorities<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> Vec<Diagnostic> {
    let mut by_rank: BTreeMap<Rank, Vec<&PolicyId>> = BTreeMap::new();
    for policy in policies {
        match policy.rank.tier {
            Tier::Admin | Tier::Baseline => by_rank.entry(policy.rank).or_default().push(&policy.id),
            // Neither has an order.
            Tier::ClusterEgressFirewall | Tier::NetworkPolicy => {}
        }
    }
    let mut diagnostics = Vec::new();
    for (rank, mut ids) in by_rank {
        ids.sort();
        if ids.len() > 1 {
            diagnostics.extend(ids.iter().map(|id| warning(rank, id, &ids)));
        }
    }
    diagnostics
}

fn warning(rank: Rank, id: &PolicyId, all: &[&PolicyId]) -> Diagnostic {
    let others: Vec<String> = all
        .iter()
        .filter(|other| **other != id)
        .map(ToString::to_string)
        .collect();
    let place = all
        .iter()
        .position(|other| *other == id)
        .map_or(0, |index| index + 1);
    Diagnostic {
        code: Code::EqualPriority,
        severity: Code::EqualPriority.severity(),
        object: ObjectRef::from(id),
        position: None,
        field: "spec.priority".to_owned(),
        found: format!(
            "{} in tier {}, as {}",
            rank.priority,
            rank.tier.word(),
            others.join(", ")
        ),
        accepted: "a priority of its own".to_owned(),
        enforced: format!("it is asked as number {place} of {}", all.len()),
    }
}
