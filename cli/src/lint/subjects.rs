//! What a policy is about: no pod at all, or pods of two families with rules for one.

use egret_policies::diagnostic::ObjectRef;
use egret_policies::model::cluster::Pod;
use egret_policies::model::{Action, Direction, Peer, Peers, Policy};
use egret_shared::net::Family;

use super::code::{IN_AUDIT, ONE_FAMILY, SELECTS_NOTHING};
use super::cover::has_all_of;
use super::finding::Finding;
use super::scope::{LintScope, RuleRef, pods, rules};

/// Policies that select no pod, where there are pods at all.
pub(super) fn selecting_nothing(scope: &LintScope<'_>) -> Vec<Finding> {
    let all = pods(scope.loaded).count();
    if all == 0 {
        return Vec::new();
    }
    let idle = scope
        .policies()
        .iter()
        .filter(|policy| scope.selected(policy).is_empty());
    idle.map(|policy| {
        let field = match policy.id.namespace {
            Some(_) => "spec.podSelector",
            None => "spec.subject",
        };
        let found =
            format!("selects none of the pods of the manifests ({all}, workloads counted as one each)");
        let object = ObjectRef::from(&policy.id);
        Finding::new(SELECTS_NOTHING, scope.objects, &object, field, found)
    })
    .collect()
}

/// What is tried.
pub(super) fn in_audit(scope: &LintScope<'_>) -> Vec<Finding> {
    let audited = scope.loaded.audited.iter();
    let found = audited.map(|object| {
        let found = "what it denies is told, and nothing is denied because of it".to_owned();
        Finding::new(IN_AUDIT, scope.objects, object, "metadata.annotations", found)
    });
    found.collect()
}

/// Rules about all of IPv4 or all of IPv6, for pods that have both.
pub(super) fn one_family(scope: &LintScope<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for policy in scope.policies() {
        let Some(pod) = scope.selected(policy).iter().find(|pod| is_dual_stack(pod)) else {
            continue;
        };
        for direction in Direction::ALL {
            for place in rules(policy, direction) {
                if let Some((there, missing)) =
                    half(&place).filter(|(_, family)| !elsewhere(policy, &place, *family))
                {
                    let does = verb(place.rule.action);
                    let message = format!(
                        "{does} {} but nothing says so of {}, and {} has addresses of both families",
                        all_of(there),
                        all_of(missing),
                        pod.key
                    );
                    found.push(scope.in_rule(ONE_FAMILY, &place, message));
                }
            }
        }
    }
    found
}

fn is_dual_stack(pod: &Pod) -> bool {
    let has = |family| pod.addresses.iter().any(|address| Family::of(*address) == family);
    has(Family::V4) && has(Family::V6)
}

fn half(place: &RuleRef<'_>) -> Option<(Family, Family)> {
    let peers = peers(place)?;
    match (has_all_of(peers, Family::V4), has_all_of(peers, Family::V6)) {
        (true, false) => Some((Family::V4, Family::V6)),
        (false, true) => Some((Family::V6, Family::V4)),
        (true, true) | (false, false) => None,
    }
}

/// Whether another rule of the policy does the same for all of the other family.
fn elsewhere(policy: &Policy, place: &RuleRef<'_>, family: Family) -> bool {
    rules(policy, place.direction).any(|other| {
        other.rule.action == place.rule.action && peers(&other).is_some_and(|peers| has_all_of(peers, family))
    })
}

fn peers<'a>(place: &RuleRef<'a>) -> Option<&'a [Peer]> {
    match &place.rule.peers {
        Peers::Any => None,
        Peers::OneOf(peers) => Some(peers),
    }
}

const fn all_of(family: Family) -> &'static str {
    match family {
        Family::V4 => "0.0.0.0/0",
        Family::V6 => "::/0",
    }
}

const fn verb(action: Action) -> &'static str {
    match action {
        Action::Allow => "allows",
        Action::Deny => "denies",
        Action::Pass => "passes",
    }
}
