//! Why a connection changes: which rules decided before, and which decide now.

use std::fmt;

use egret_policies::rules::{Direction, Origin};
use egret_policies::simulator::{Decision, Verdict};
use serde::Serialize;

/// Why a connection changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Cause {
    /// It is new or gone, and with it all its connections.
    End(String),
    /// Other rules decide, or the same decide otherwise.
    #[serde(untagged)]
    Rules(Box<Rules>),
}

/// What decided in a direction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Rules {
    #[serde(serialize_with = "as_word")]
    pub(super) direction: Direction,
    pub(super) before: Said,
    pub(super) after: Said,
}

fn as_word<S: serde::Serializer>(direction: &Direction, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(direction.word())
}

/// What was decided, and by what.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Said {
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

/// The name that stands for a policy where the pod's own node is exempt.
const OWN_NODE: &str = "own-node";

impl Said {
    /// The policies that isolate the pod are asked for where none of their rules decided.
    pub(super) fn new(decision: &Decision, isolating: impl FnOnce() -> Vec<String>) -> Self {
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

impl fmt::Display for Said {
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

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End(text) => f.write_str(text),
            Self::Rules(rules) => {
                let direction = rules.direction.word();
                write!(f, "{direction}: {}; was {}", rules.after, rules.before)
            }
        }
    }
}
