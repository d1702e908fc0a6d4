//! What the policies of one end say, and why.

use std::net::IpAddr;

use egret_policies::model::{Direction, Effect, Policy, Tier};
use egret_policies::rules::OWN_NODE;
use egret_policies::simulator::Decision;
use egret_shared::time::Timestamp;

use crate::cluster::selection::Selection;
use crate::verdict::judge::is_forwarded_from_outside;
use crate::verdict::questions::LoadedQuestions;
use crate::verdict::route::ProbeConnection;
use crate::verdict::row::{EndVerdict, VerdictWord};

use super::evaluation::evaluate;
use super::report::{PathEnd, TierOutcome, TierStep};
use super::viewpoint::{Viewpoint, name_of};

/// The side of a direction, and how its pod sees the connection, if there is one.
pub(super) fn side<'a>(
    asked: &'a LoadedQuestions,
    selection: &mut Selection,
    direction: Direction,
    (connection, told): (&ProbeConnection, Option<IpAddr>),
    decision: &Decision,
    now: Timestamp,
) -> (PathEnd, Option<Viewpoint<'a>>) {
    let seen = connection.seen(direction);
    let (address, peer) = match direction {
        Direction::Egress => (seen.source, seen.destination),
        Direction::Ingress => (seen.destination, seen.source),
    };
    let is_refused_by_node =
        direction == Direction::Egress && asked.judge.is_refused_by_node(&asked.cluster, connection, now);
    let view = Viewpoint::new(asked, direction, &seen, told, now)
        .filter(|_| decision.tier != "none" && !is_refused_by_node);
    let tiers = match &view {
        Some(view) if is_judged(view, decision) => {
            let policies: Vec<&Policy> = selection.policies_of(&view.subject.pod).collect();
            evaluate(view, &policies, decision)
        }
        Some(_) | None => Vec::new(),
    };
    let would = asked.judge.would_deny(&asked.cluster, connection, direction, now);
    let end = EndVerdict::from(decision).with_audit(would.as_ref());
    let tried = view.as_ref().map(|view| selection.audited_of(&view.subject.pod));
    let tried = tried
        .into_iter()
        .flatten()
        .filter(|policy| *policy.effect(direction) != Effect::None);
    let side = PathEnd {
        audit: tried.map(|policy| policy.id.to_string()).collect(),
        of: name_of(asked, address),
        peer,
        port: seen.port.map(|(_, port)| port.get()),
        because: match &view {
            Some(view) => because(view, &end, &tiers),
            None if direction == Direction::Egress
                && is_forwarded_from_outside(&asked.cluster, connection) =>
            {
                entering(address, &end)
            }
            None => no_pod(asked, address),
        },
        end,
        tiers,
    };
    (side, view)
}

/// What a Service leads back to the pod is judged, though a NetworkPolicy cannot deny it.
fn is_judged(view: &Viewpoint<'_>, decision: &Decision) -> bool {
    decision.tier != "exempt" || (view.is_forwarded && view.is_with_itself())
}

/// A client outside has no policies of its own: the node asks those that speak of it.
fn entering(address: IpAddr, end: &EndVerdict) -> String {
    match (&end.policy, end.rule) {
        (Some(policy), Some(rule)) => {
            let name = end.rule_name.as_ref().map(|name| format!(" ({name})"));
            format!(
                "a Service leads {address} there from outside, and rule {rule}{} of {policy} {}",
                name.unwrap_or_default(),
                verb_of(end.verdict)
            )
        }
        (Some(_), None) | (None, _) => format!(
            "a Service leads {address} there from outside, and no ClusterEgressFirewall with services.exposure Reject denies it"
        ),
    }
}

fn no_pod(asked: &LoadedQuestions, address: IpAddr) -> String {
    match asked.cluster.nodes_at(address) {
        Some(nodes) => format!("{address} is node {nodes}, and no policy is about nodes"),
        None if asked.cluster.is_dnsd(address) => {
            format!("dnsd answers at {address} on every node, and no policy is about nodes")
        }
        None => format!("{address} is no pod, so no policy is asked"),
    }
}

fn because(view: &Viewpoint<'_>, end: &EndVerdict, tiers: &[TierStep]) -> String {
    match (&end.policy, end.tier) {
        (Some(policy), _) if policy == OWN_NODE => {
            "a pod may reach its own node where only NetworkPolicies isolate it".to_owned()
        }
        (Some(policy), _) => {
            let name = end.rule_name.as_ref().map(|name| format!(" ({name})"));
            let rule = end
                .rule
                .map(|rule| format!("rule {rule}{} of ", name.unwrap_or_default()));
            format!("{}{policy} {}", rule.unwrap_or_default(), verb_of(end.verdict))
        }
        (None, "np") => format!("isolated by {}, and no rule matches", isolating(tiers)),
        (None, "exempt") => exemption(view).to_owned(),
        (None, _) => format!("no tier decides, which {}", verb_of(end.verdict)),
    }
}

const fn verb_of(verdict: VerdictWord) -> &'static str {
    match verdict {
        VerdictWord::Allow => "allows it",
        VerdictWord::Deny => "denies it",
        VerdictWord::Error => "says nothing of it",
    }
}

fn isolating(tiers: &[TierStep]) -> String {
    const SHOWN: usize = 3;
    let isolates =
        |step: &&TierStep| step.tier == Tier::NetworkPolicy && step.outcome == TierOutcome::Decides;
    let policies: Vec<&str> = tiers
        .iter()
        .filter(isolates)
        .flat_map(|step| &step.policies)
        .map(|policy| policy.policy.as_str())
        .collect();
    let more = policies.len().saturating_sub(SHOWN);
    let shown = policies
        .iter()
        .take(SHOWN)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    if more == 0 {
        shown
    } else {
        format!("{shown} and {more} more")
    }
}

fn exemption(view: &Viewpoint<'_>) -> &'static str {
    if view.is_with_itself() && view.is_forwarded {
        "a NetworkPolicy cannot deny what a Service leads back to the pod"
    } else if view.is_with_itself() {
        "what a pod sends to itself is not judged"
    } else {
        "what its own node sends to a pod is not judged"
    }
}
