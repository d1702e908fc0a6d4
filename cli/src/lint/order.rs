//! Policies side by side: rules that are never reached, and priorities that do not say who goes first.

use egret_policies::diagnostic::ObjectRef;
use egret_policies::lower::equal_priorities;
use egret_policies::model::api_server::ApiServerPolicy;
use egret_policies::model::{Action, Direction, Peers, Policy, Ports, Tier};

use super::code::NEVER_REACHED;
use super::cover::{are_disjoint, covers_peers, covers_ports, covers_subject};
use super::finding::Finding;
use super::scope::{LintScope, RuleRef, rules};

/// Rules behind others that match all that they match.
pub(super) fn never_reached(scope: &LintScope<'_>) -> Vec<Finding> {
    // An audited form has the rules of the other one as well.
    let of_api_server = ApiServerPolicy::lower(&scope.loaded.manifests.api_server_policies);
    let of_api_server = of_api_server
        .into_iter()
        .filter(|policy| !policy.enforcement.is_audit());
    let mut found = never_reached_among(scope, scope.policies());
    found.extend(never_reached_among(scope, &of_api_server.collect::<Vec<_>>()));
    found
}

fn never_reached_among(scope: &LintScope<'_>, policies: &[Policy]) -> Vec<Finding> {
    let mut policies: Vec<&Policy> = policies.iter().collect();
    policies.sort_by(|one, other| (one.rank, &one.id).cmp(&(other.rank, &other.id)));
    let mut found = Vec::new();
    for (place, policy) in policies.iter().enumerate() {
        let wider: Vec<&Policy> = policies[..=place]
            .iter()
            .filter(|earlier| is_asked_before(earlier, policy))
            .copied()
            .collect();
        for direction in Direction::ALL {
            found.extend(never_reached_in(scope, policy, direction, &wider));
        }
    }
    found
}

/// Whether rules of the first keep connections of all pods of the second from its rules. ClusterEgressFirewalls
/// are a list each, and NetworkPolicies have no order.
fn is_asked_before(earlier: &Policy, policy: &Policy) -> bool {
    match policy.rank.tier {
        Tier::Admin | Tier::Baseline => {
            earlier.rank.tier == policy.rank.tier && covers_subject(&earlier.subject, &policy.subject)
        }
        Tier::ClusterEgressFirewall => earlier.id == policy.id,
        Tier::NetworkPolicy => false,
    }
}

fn never_reached_in(
    scope: &LintScope<'_>,
    policy: &Policy,
    direction: Direction,
    wider: &[&Policy],
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut rest: Vec<RuleRef<'_>> = rules(policy, direction).collect();
    while let Some(first) = rest.first().copied() {
        // A rule with named ports and peers of two sorts is two, of one index.
        let (parts, others): (Vec<_>, Vec<_>) = rest
            .into_iter()
            .partition(|place| place.rule.index == first.rule.index);
        rest = others;
        let before: Vec<RuleRef<'_>> = wider
            .iter()
            .flat_map(|wider| rules(wider, direction))
            .filter(|earlier| earlier.policy.id != policy.id || earlier.rule.index < first.rule.index)
            // Connections of other names reach the rules behind it.
            .filter(|earlier| {
                let policy = earlier.policy.id.to_string();
                !scope
                    .loaded
                    .manifests
                    .asks_for_server_name(&policy, earlier.rule.index)
            })
            .collect();
        let hidden_by = |part: &RuleRef<'_>| before.iter().find(|earlier| hides(earlier, part)).copied();
        let hiding: Option<Vec<RuleRef<'_>>> = parts.iter().map(hidden_by).collect();
        if let Some(hiding) = hiding.as_deref().and_then(<[_]>::first) {
            found.push(scope.in_rule(NEVER_REACHED, &first, said(hiding, &first)));
        }
    }
    found
}

fn hides(earlier: &RuleRef<'_>, later: &RuleRef<'_>) -> bool {
    !matches_nothing(later)
        && covers_peers(&earlier.rule.peers, &later.rule.peers)
        && covers_ports(&earlier.rule.ports, &later.rule.ports)
}

/// What is closed has a diagnostic of its own.
fn matches_nothing(place: &RuleRef<'_>) -> bool {
    let no_peers = matches!(&place.rule.peers, Peers::OneOf(peers) if peers.is_empty());
    let no_ports = matches!(&place.rule.ports, Ports::OneOf(ports) if ports.is_empty());
    no_peers || no_ports
}

fn said(earlier: &RuleRef<'_>, later: &RuleRef<'_>) -> String {
    let same = if earlier.rule.action == later.rule.action {
        ", as this one would"
    } else {
        ""
    };
    let (index, does) = (earlier.rule.index, verb(earlier.rule.action));
    let of = if earlier.policy.id == later.policy.id {
        String::new()
    } else {
        format!(" of {}", earlier.policy.id)
    };
    format!("rule {index}{of} comes first and {does} all that it matches{same}")
}

const fn verb(action: Action) -> &'static str {
    match action {
        Action::Allow => "allows",
        Action::Deny => "denies",
        Action::Pass => "passes",
    }
}

/// Policies of one priority that may be about one pod.
pub(super) fn equal(scope: &LintScope<'_>) -> Vec<Finding> {
    let ordered = |policy: &&Policy| matches!(policy.rank.tier, Tier::Admin | Tier::Baseline);
    let policies: Vec<&Policy> = scope.policies().iter().filter(ordered).collect();
    let mut found = Vec::new();
    for policy in &policies {
        let rivals = policies
            .iter()
            .filter(|other| other.rank == policy.rank && !are_disjoint(&other.subject, &policy.subject));
        let object = ObjectRef::from(&policy.id);
        let diagnostics = equal_priorities(rivals.copied());
        let own = diagnostics
            .iter()
            .filter(|diagnostic| diagnostic.object == object);
        found.extend(own.map(|diagnostic| Finding::of_diagnostic(diagnostic, scope.objects)));
    }
    found
}
