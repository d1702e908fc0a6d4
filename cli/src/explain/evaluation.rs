//! The tiers in the order in which they are asked, with every rule on the way.

use egret_policies::model::{Action, Direction, Effect, Kind, Peer, Peers, Policy, Rule, Tier};
use egret_policies::rules::OWN_NODE;
use egret_policies::simulator::Decision;

use super::compare::{RuleComparison, compare};
use super::records::list;
use super::report::{PolicyStep, RuleOutcome, RuleStep, TierOutcome, TierStep};
use super::viewpoint::Viewpoint;

/// Walks through the tiers of a direction with the policies that select the pod, in order.
pub(super) fn evaluate(view: &Viewpoint<'_>, policies: &[&Policy], decision: &Decision) -> Vec<TierStep> {
    let mut is_decided = false;
    let is_asked = |tier: &Tier| *tier != Tier::ClusterEgressFirewall || view.direction == Direction::Egress;
    Tier::ALL
        .into_iter()
        .filter(is_asked)
        .map(|tier| {
            let speaking = speaking(policies, tier, view.direction);
            let step = if is_decided {
                not_reached(tier, &speaking)
            } else {
                evaluate_tier(view, tier, &speaking, decides(tier, decision))
            };
            is_decided |= step.outcome == TierOutcome::Decides;
            step
        })
        .collect()
}

/// The policies of a tier that say something of a direction. Rules of the form of 2016 count only beside
/// its annotation, which is a policy of that kind that isolates.
fn speaking<'a>(policies: &[&'a Policy], tier: Tier, direction: Direction) -> Vec<(&'a Policy, &'a [Rule])> {
    let of_tier = || policies.iter().filter(move |policy| policy.rank.tier == tier);
    let is_annotated = of_tier().any(|policy| {
        policy.id.kind == Kind::LegacyNetworkPolicy && matches!(policy.effect(direction), Effect::Rules(_))
    });
    of_tier()
        .filter_map(|policy| match policy.effect(direction) {
            Effect::Rules(rules) => Some((*policy, &rules[..])),
            Effect::Opens(rules) if is_annotated => Some((*policy, &rules[..])),
            Effect::Opens(_) | Effect::None => None,
        })
        .collect()
}

fn not_reached(tier: Tier, speaking: &[(&Policy, &[Rule])]) -> TierStep {
    let policies = speaking.iter().map(|(policy, _)| PolicyStep {
        rules: Vec::new(),
        ..policy_step(policy)
    });
    TierStep {
        tier,
        outcome: TierOutcome::NotReached,
        policies: policies.collect(),
    }
}

/// What a NetworkPolicy denies and may not deny is exempt.
fn decides(tier: Tier, decision: &Decision) -> bool {
    tier.word() == decision.tier || (tier == Tier::NetworkPolicy && decision.tier == "exempt")
}

fn evaluate_tier(
    view: &Viewpoint<'_>,
    tier: Tier,
    speaking: &[(&Policy, &[Rule])],
    is_deciding: bool,
) -> TierStep {
    let mut matched = TierMatches::default();
    let mut policies: Vec<PolicyStep> = speaking
        .iter()
        .map(|(policy, rules)| {
            matched.enter(policy);
            PolicyStep {
                rules: rules
                    .iter()
                    .map(|rule| evaluate_rule(view, policy, rule, &mut matched))
                    .collect(),
                ..policy_step(policy)
            }
        })
        .collect();
    let is_isolated = tier == Tier::NetworkPolicy && !speaking.is_empty();
    if is_isolated && matched.last.is_none() && exempts_own_node(view) {
        policies.push(own_node_step());
    }
    let outcome = match matched.last {
        _ if is_deciding => TierOutcome::Decides,
        Some(_) => TierOutcome::Passes,
        None if speaking.is_empty() => TierOutcome::NoPolicy,
        None => TierOutcome::NoMatch,
    };
    TierStep {
        tier,
        outcome,
        policies,
    }
}

fn exempts_own_node(view: &Viewpoint<'_>) -> bool {
    view.direction == Direction::Egress && view.is_with_own_node()
}

/// What has matched so far in a tier.
#[derive(Default)]
struct TierMatches {
    last: Option<Action>,
    /// The priority of the policy that matched.
    priority: Option<u32>,
    is_over: bool,
}

impl TierMatches {
    /// ClusterEgressFirewalls of equal priority are all asked: any that denies wins over those that allow.
    fn enter(&mut self, policy: &Policy) {
        if policy.rank.tier == Tier::ClusterEgressFirewall && self.priority == Some(policy.rank.priority) {
            self.is_over = false;
        }
    }

    const fn take(&mut self, action: Action, policy: &Policy) {
        self.last = Some(action);
        self.priority = Some(policy.rank.priority);
        self.is_over = true;
    }
}

fn evaluate_rule(view: &Viewpoint<'_>, policy: &Policy, rule: &Rule, matched: &mut TierMatches) -> RuleStep {
    let RuleComparison { peer, port } = compare(view, &policy.id.to_string(), rule);
    let action = action_in(policy.rank.tier, rule.action);
    let would_match = peer.matches && port.matches && action.is_some();
    let is_asked = !matched.is_over;
    let result = match (is_asked, would_match) {
        (false, _) => RuleOutcome::NotAsked,
        (true, true) => RuleOutcome::Match,
        (true, false) => RuleOutcome::NoMatch,
    };
    if let Some(action) = action.filter(|_| result == RuleOutcome::Match) {
        matched.take(action, policy);
    }
    RuleStep {
        rule: rule.index,
        name: rule.name.as_ref().map(ToString::to_string),
        action: action.unwrap_or(rule.action),
        result,
        peer: is_asked.then_some(peer),
        port: is_asked.then_some(port),
        would_match,
        names: names_of(rule),
    }
}

fn names_of(rule: &Rule) -> Option<String> {
    let Peers::OneOf(peers) = &rule.peers else {
        return None;
    };
    peers.iter().find_map(|peer| match peer {
        Peer::Names(patterns) => Some(list(patterns)),
        Peer::Pods { .. }
        | Peer::Networks(_)
        | Peer::Nodes(_)
        | Peer::NodeAddresses(_)
        | Peer::External(_)
        | Peer::ApiServer
        | Peer::Services { .. } => None,
    })
}

/// What an action comes to: a ClusterEgressFirewall only restricts, so its Allow leaves the tier; a
/// NetworkPolicy only allows, and what it does not allow is denied by isolation.
const fn action_in(tier: Tier, action: Action) -> Option<Action> {
    match (tier, action) {
        (Tier::ClusterEgressFirewall, Action::Allow) => Some(Action::Pass),
        (Tier::NetworkPolicy, Action::Deny | Action::Pass) => None,
        (
            Tier::ClusterEgressFirewall | Tier::Admin | Tier::NetworkPolicy | Tier::Baseline,
            Action::Allow | Action::Deny | Action::Pass,
        ) => Some(action),
    }
}

fn policy_step(policy: &Policy) -> PolicyStep {
    let priority = match policy.id.kind {
        Kind::ClusterEgressFirewall | Kind::ClusterNetworkPolicy | Kind::AdminNetworkPolicy => {
            Some(policy.rank.priority)
        }
        Kind::NetworkPolicy
        | Kind::LegacyNetworkPolicy
        | Kind::BaselineAdminNetworkPolicy
        // Its rank is its position among the others.
        | Kind::AuditedApiServerEgressPolicy
        | Kind::ApiServerEgressPolicy => None,
    };
    PolicyStep {
        policy: policy.id.to_string(),
        priority,
        rules: Vec::new(),
    }
}

/// The documentation of NetworkPolicy exempts traffic between a pod and its node.
fn own_node_step() -> PolicyStep {
    PolicyStep {
        policy: OWN_NODE.to_owned(),
        priority: None,
        rules: Vec::new(),
    }
}
