//! What the comments of rules say, so that a counter in the kernel can be read back as a verdict.
//!
//! `np allow egress 0 NetworkPolicy/default/web`: tier, action, direction, index of the rule, object. The object
//! comes last: the kernel keeps 255 octets, and names may be longer.

use std::fmt;
use std::sync::Arc;

use egret_kernel::iptables::Chain;
use egret_policies::rules::{self, Direction, Origin, Tier};

use crate::backend::{Action, Decider, VerdictCount, VerdictKey};

/// The label of a rule that decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Tier, action, direction.
    pub key: VerdictKey,
    /// The index of the rule in its object.
    pub rule: usize,
    /// The object.
    pub policy: Arc<str>,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", key_words(self.key), self.rule, self.policy)
    }
}

impl Label {
    /// The label of a rule of a policy.
    pub(crate) fn of_policy(key: VerdictKey, origin: &Origin) -> Self {
        Self {
            key,
            rule: origin.rule,
            policy: Arc::clone(&origin.policy),
        }
    }

    /// The label of what is decided about a pod whatever its policies say.
    #[must_use]
    pub fn of_no_policy(decider: Decider, action: Action, direction: Direction) -> Self {
        Self {
            key: VerdictKey {
                decider,
                action,
                direction,
            },
            rule: 0,
            policy: "none".into(),
        }
    }

    /// Reads the label of a rule, as `iptables-save` prints the rule; none where it has no label.
    #[must_use]
    pub fn of_rule(text: &str) -> Option<Self> {
        Self::of_comment(comment_of(text)?)
    }

    /// Reads the text of a label; none where it is none.
    #[must_use]
    pub fn of_comment(comment: &str) -> Option<Self> {
        let mut words = comment.splitn(5, ' ');
        let key = key_of(&[words.next()?, words.next()?, words.next()?])?;
        Some(Self {
            key,
            rule: words.next()?.parse().ok()?,
            policy: words.next()?.into(),
        })
    }
}

/// Whether rules decide packets or only tell what they would decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleMode {
    /// The verdict of the policies in force.
    Enforced,
    /// The verdict as if the policies in audit were in force.
    Audit,
}

impl RuleMode {
    /// The verdict of a rule of a tier.
    #[must_use]
    pub fn verdict(self, tier: Tier, action: rules::Action, direction: Direction) -> VerdictKey {
        VerdictKey {
            decider: Decider::Tier(tier),
            action: match (self, action) {
                (Self::Audit, rules::Action::Deny) => Action::WouldDeny,
                (Self::Enforced | Self::Audit, action) => action.into(),
            },
            direction,
        }
    }

    /// Whether a rule with this verdict has its label, which counts it: in audit those alone that would deny.
    #[must_use]
    pub const fn is_labelled(self, verdict: VerdictKey) -> bool {
        match (self, verdict.action) {
            (Self::Enforced, _) | (Self::Audit, Action::WouldDeny) => true,
            (Self::Audit, Action::Allow | Action::Deny | Action::Pass) => false,
        }
    }
}

/// `np allow egress`.
#[must_use]
pub fn key_words(key: VerdictKey) -> String {
    format!(
        "{} {} {}",
        key.decider.word(),
        key.action_word(),
        key.direction.word()
    )
}

/// The inverse of [`key_words`].
#[must_use]
pub fn key_of(words: &[&str; 3]) -> Option<VerdictKey> {
    let [decider, action, direction] = *words;
    let decider = Decider::all().find(|known| known.word() == decider)?;
    let action = match action {
        "allow" => Action::Allow,
        "deny" => Action::Deny,
        "pass" => Action::Pass,
        "would-deny" => Action::WouldDeny,
        _ => return None,
    };
    let direction = *Direction::ALL.iter().find(|known| known.word() == direction)?;
    Some(VerdictKey {
        decider,
        action,
        direction,
    })
}

/// The text between the quotes of `--comment "…"`. Ours holds neither quotes nor backslashes: names of
/// objects cannot (RFC 1123 labels and subdomains).
#[must_use]
pub fn comment_of(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("--comment ")?;
    match rest.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').map(|(comment, _)| comment),
        None => rest.split(' ').next(),
    }
}

/// What the rules of a chain counted.
pub fn counts_of(chain: &Chain) -> impl Iterator<Item = VerdictCount> {
    chain.rules.iter().filter_map(|rule| {
        let label = Label::of_rule(&rule.text)?;
        Some(VerdictCount {
            key: label.key,
            origin: Some((label.policy, label.rule)),
            packets: rule.packets,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_is_read_back_from_the_rule_that_carries_it() {
        for key in VerdictKey::all() {
            let label = Label {
                key,
                rule: 7,
                policy: "NetworkPolicy/default/web".into(),
            };
            let rule = format!("-p tcp -m tcp --dport 80 -m comment --comment \"{label}\" -g EGRET-EA-x");
            assert_eq!(Label::of_rule(&rule), Some(label));
        }
    }

    #[test]
    fn a_rule_of_somebody_else_has_no_label() {
        for rule in [
            "-j DROP",
            "-m comment --comment egret -j X",
            "-m comment --comment \"np allow egress x y\" -j X",
        ] {
            assert_eq!(Label::of_rule(rule), None, "{rule}");
        }
    }
}
