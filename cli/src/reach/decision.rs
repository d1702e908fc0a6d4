//! What rules decide, in the words of people and programs.

use std::fmt;

use egret_policies::rules::{OWN_NODE, Origin};
use egret_policies::simulator::{Decision, Verdict};
use serde::Serialize;

/// A verdict with the rule that decided it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleDecision {
    verdict: &'static str,
    tier: &'static str,
    policy: Option<String>,
    rule: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule_name: Option<String>,
    /// The policies that isolate, where no rule decided because of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    isolated_by: Vec<String>,
}

impl RuleDecision {
    /// The policies that isolate the pod are asked for where none of their rules decided.
    #[must_use]
    pub fn new(decision: &Decision, isolating: impl FnOnce() -> Vec<String>) -> Self {
        let origin = |origin: &Origin| (origin.policy.to_string(), origin.rule);
        let (policy, rule) = decision.origin.as_ref().map(origin).unzip();
        let is_isolated = decision.tier == "np" && decision.verdict == Verdict::Deny && policy.is_none();
        Self {
            verdict: match decision.verdict {
                Verdict::Allow => "allow",
                Verdict::Deny => "deny",
            },
            tier: decision.tier,
            rule: rule.filter(|_| policy.as_deref() != Some(OWN_NODE)),
            policy,
            rule_name: decision.name().map(ToString::to_string),
            isolated_by: if is_isolated { isolating() } else { Vec::new() },
        }
    }
}

impl fmt::Display for RuleDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            "allow" => "allowed",
            _ => "denied",
        };
        match (&self.policy, self.tier) {
            (Some(policy), _) if policy == OWN_NODE => write!(f, "{verdict}, the own node is exempt"),
            (Some(policy), _) => {
                write!(f, "{verdict} by {policy}")?;
                self.rule.iter().try_for_each(|rule| write!(f, ", rule {rule}"))?;
                self.rule_name.iter().try_for_each(|name| write!(f, " ({name})"))
            }
            (None, _) if !self.isolated_by.is_empty() => {
                write!(f, "{verdict}, isolated by {}", self.isolated_by.join(" and "))
            }
            (None, "default") => write!(f, "{verdict} by default"),
            (None, "exempt") => write!(f, "{verdict}, never judged"),
            (None, tier) => write!(f, "{verdict} in tier {tier}"),
        }
    }
}
