//! Explanations: what is answered, in the words of programs. The text for people is made from the same.

use std::net::IpAddr;

use egret_policies::model::{Action, Tier};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::manifests::note::Note;
use crate::verdict::row::{EndVerdict, VerdictWord};

/// Why a probe has its verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The probe's id.
    pub id: Value,
    /// Who connects.
    pub from: String,
    /// Where to.
    pub to: String,
    /// With what.
    pub protocol: String,
    /// How many seconds after the records were learned.
    pub at: f64,
    /// The answer.
    pub verdict: VerdictWord,
    /// Why there is no verdict, or one that no rule gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Each connection that the probe asks about: several for a Service or a name.
    pub connections: Vec<ConnectionPath>,
    /// What would give the probe a verdict.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub change: Vec<String>,
    /// What should be known about the policies that select an end, and about how this was answered.
    pub diagnostics: Vec<Note>,
}

/// The way of one connection.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionPath {
    /// The source.
    pub source: IpAddr,
    /// The destination, behind any Service.
    pub destination: IpAddr,
    /// The port there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The address that the source was told, if it asked for a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told: Option<IpAddr>,
    /// The answer.
    pub verdict: VerdictWord,
    /// What the source's policies say.
    pub egress: PathEnd,
    /// What the destination's policies say.
    pub ingress: PathEnd,
    /// What to change for the other verdict.
    pub change: SuggestedChange,
}

/// What the policies of one end say.
#[derive(Clone, Debug, Serialize)]
pub struct PathEnd {
    /// Whose policies: a pod, or who else is there.
    pub of: String,
    /// The other end as they see it.
    pub peer: IpAddr,
    /// The port of the destination as they see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The decision.
    #[serde(flatten)]
    pub end: EndVerdict,
    /// The decision in a sentence.
    pub because: String,
    /// The tiers in order; none where policies are not asked.
    pub tiers: Vec<TierStep>,
    /// The policies in audit that speak of the direction: they are as if they were not there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub audit: Vec<String>,
}

/// What to change for the other verdict.
#[derive(Clone, Debug, Serialize)]
pub struct SuggestedChange {
    /// The other verdict.
    pub to: VerdictWord,
    /// What to do.
    pub how: Vec<String>,
}

/// One tier.
#[derive(Clone, Debug, Serialize)]
pub struct TierStep {
    /// Which one.
    #[serde(serialize_with = "as_word")]
    pub tier: Tier,
    /// What came of it.
    pub outcome: TierOutcome,
    /// The policies that select the pod and speak of the direction, in order.
    pub policies: Vec<PolicyStep>,
}

fn as_word<S: Serializer>(tier: &Tier, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(tier.word())
}

/// What came of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TierOutcome {
    /// It has no policy for the pod and direction.
    NoPolicy,
    /// No rule matches: the next tier is asked.
    NoMatch,
    /// A rule matches that passes on to the next tier.
    Passes,
    /// It decides.
    Decides,
    /// An earlier tier has decided.
    NotReached,
}

impl TierOutcome {
    /// As people read it.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::NoPolicy => "no policy",
            Self::NoMatch => "no match",
            Self::Passes => "passes on",
            Self::Decides => "decides",
            Self::NotReached => "not reached",
        }
    }
}

/// One policy.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyStep {
    /// `Kind/namespace/name` or `Kind/name`; `own-node` for the exemption of a pod's own node.
    pub policy: String,
    /// Its priority, where the kind has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Its rules for the direction; empty where the tier was not reached.
    pub rules: Vec<RuleStep>,
}

/// One rule.
#[derive(Clone, Debug, Serialize)]
pub struct RuleStep {
    /// Its index in the list of the object, from 0.
    pub rule: usize,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What a match does.
    #[serde(serialize_with = "as_verb")]
    pub action: Action,
    /// What came of it.
    pub result: RuleOutcome,
    /// What came of its peers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<MatchResult>,
    /// What came of its ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<MatchResult>,
    /// Whether it would match if it was asked.
    #[serde(skip)]
    pub would_match: bool,
    /// The names among its peers.
    #[serde(skip)]
    pub names: Option<String>,
}

impl RuleStep {
    /// The rule in words: `rule 1 (by-name)`.
    #[must_use]
    pub fn title(&self) -> String {
        match &self.name {
            Some(name) => format!("rule {} ({name})", self.rule),
            None => format!("rule {}", self.rule),
        }
    }
}

fn as_verb<S: Serializer>(action: &Action, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(verb(*action))
}

/// An action in a word.
#[must_use]
pub const fn verb(action: Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Deny => "deny",
        Action::Pass => "pass",
    }
}

/// What came of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleOutcome {
    /// It matches.
    Match,
    /// It does not.
    NoMatch,
    /// A rule before it has matched.
    NotAsked,
}

/// What came of one half of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MatchResult {
    /// Whether it matches.
    pub matches: bool,
    /// Why, or why not.
    pub because: String,
}

impl MatchResult {
    pub(super) fn passed(because: impl Into<String>) -> Self {
        Self {
            matches: true,
            because: because.into(),
        }
    }

    pub(super) fn failed(because: impl Into<String>) -> Self {
        Self {
            matches: false,
            because: because.into(),
        }
    }

    /// Of several alternatives: the first that matches, else all reasons why none does.
    pub(super) fn any_of(tests: impl IntoIterator<Item = Self>, of_none: &str) -> Self {
        const SHOWN: usize = 4;
        let mut reasons: Vec<String> = Vec::new();
        for test in tests {
            if test.matches {
                return test;
            }
            if !reasons.contains(&test.because) {
                reasons.push(test.because);
            }
        }
        if reasons.is_empty() {
            return Self::failed(of_none);
        }
        let more = reasons.len().saturating_sub(SHOWN);
        reasons.truncate(SHOWN);
        if more > 0 {
            reasons.push(format!("and {more} more"));
        }
        Self::failed(reasons.join("; "))
    }
}
