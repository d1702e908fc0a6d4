//! Rows: what is answered, in the words of programs. The table is made from the same rows.

use std::net::IpAddr;

use egret_policies::rules::OWN_NODE;
use egret_policies::simulator::{Decision, Verdict};
use egret_shared::pod::PodKey;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::manifests::note::Note;

/// The answer to a probe.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The probe's id.
    pub id: Value,
    /// The answer.
    pub verdict: VerdictWord,
    /// Why there is no verdict, or one that no rule gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the source's side says; of several connections, that of the first that is denied, else of the first.
    pub egress: Option<EndVerdict>,
    /// What the destination's side says; likewise.
    pub ingress: Option<EndVerdict>,
    /// Each endpoint, if the probe asked for a Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Vec<ConnectionVerdict>>,
    /// Each address that the source was told, if the probe asked for a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<ConnectionVerdict>>,
    /// What should be known about the policies that select an end, and about how this was answered.
    pub diagnostics: Vec<Note>,
}

/// One of several connections.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionVerdict {
    /// The destination.
    pub address: IpAddr,
    /// The port there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The pod that has the address.
    #[serde(serialize_with = "as_text")]
    pub pod: Option<PodKey>,
    /// The answer.
    pub verdict: VerdictWord,
    /// Why there is no verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the source's side says.
    pub egress: Option<EndVerdict>,
    /// What the destination's side says.
    pub ingress: Option<EndVerdict>,
}

fn as_text<S: Serializer>(pod: &Option<PodKey>, serializer: S) -> Result<S::Ok, S::Error> {
    match pod {
        Some(pod) => serializer.collect_str(pod),
        None => serializer.serialize_none(),
    }
}

/// An answer in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VerdictWord {
    /// The connection goes through.
    Allow,
    /// It is dropped.
    Deny,
    /// Nobody can say.
    Error,
}

impl VerdictWord {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Error => "error",
        }
    }

    /// Of several: nothing goes through unless all do; what cannot be judged is left out.
    pub(super) fn of_all(words: impl IntoIterator<Item = Self>) -> Option<Self> {
        words
            .into_iter()
            .filter(|word| *word != Self::Error)
            .reduce(|all, word| if word == Self::Deny { word } else { all })
    }
}

impl From<Verdict> for VerdictWord {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allow => Self::Allow,
            Verdict::Deny => Self::Deny,
        }
    }
}

/// What one side says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndVerdict {
    /// Whether it lets the connection through.
    pub verdict: VerdictWord,
    /// `cef`, `admin`, `np`, `baseline`, `default`, `exempt`, or `none` where that end is no policed pod.
    pub tier: &'static str,
    /// `Kind/namespace/name` or `Kind/name`; null where no rule matched.
    pub policy: Option<String>,
    /// The rule's index in its list, from 0.
    pub rule: Option<usize>,
    /// The rule's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule_name: Option<String>,
    /// What would deny it if the policies in audit were in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_deny: Option<WouldDeny>,
}

impl WouldDeny {
    /// As people read it.
    #[must_use]
    pub fn words(&self) -> String {
        let name = self.rule_name.as_ref().map(|name| format!(" ({name})"));
        let name = name.unwrap_or_default();
        match (&self.policy, self.rule) {
            (Some(policy), Some(rule)) => {
                format!(
                    "rule {rule}{name} of {policy} would deny it in tier {}",
                    self.tier
                )
            }
            (Some(policy), None) => format!("{policy} would deny it in tier {}", self.tier),
            (None, _) => "it would be isolated, and no rule matches".to_owned(),
        }
    }
}

/// What would deny a connection that is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WouldDeny {
    /// `cef`, `admin`, `np`, `baseline`.
    pub tier: &'static str,
    /// `Kind/namespace/name` or `Kind/name`; null where the pod would be isolated and no rule matches.
    pub policy: Option<String>,
    /// The rule's index in its list, from 0.
    pub rule: Option<usize>,
    /// The rule's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule_name: Option<String>,
}

impl EndVerdict {
    /// With what policies in audit would do.
    #[must_use]
    pub fn with_audit(self, would: Option<&Decision>) -> Self {
        let would_deny = would.map(|decision| WouldDeny {
            tier: decision.tier,
            policy: decision.policy().map(ToString::to_string),
            rule: decision.rule(),
            rule_name: decision.name().map(ToString::to_string),
        });
        Self { would_deny, ..self }
    }
}

impl From<&Decision> for EndVerdict {
    fn from(decision: &Decision) -> Self {
        let policy = decision.policy().map(ToString::to_string);
        let is_rule = policy.as_deref() != Some(OWN_NODE);
        Self {
            verdict: decision.verdict.into(),
            tier: decision.tier,
            policy,
            rule: decision.rule().filter(|_| is_rule),
            rule_name: decision.name().map(ToString::to_string),
            would_deny: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_goes_through_unless_all_do() {
        use VerdictWord::{Allow, Deny, Error};
        for (words, all) in [
            (vec![Allow, Allow], Some(Allow)),
            (vec![Allow, Deny], Some(Deny)),
            (vec![Deny, Error], Some(Deny)),
            (vec![Error, Allow], Some(Allow)),
            (vec![Error, Error], None),
            (vec![], None),
        ] {
            assert_eq!(VerdictWord::of_all(words.clone()), all, "{words:?}");
        }
    }
}
