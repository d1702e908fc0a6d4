//! Why packets are denied: by which rule, or by no policy. Each reason has a chain of its own and an NFLOG prefix, its digest, by
//! which the reader of NFLOG finds it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_kernel::iptables::{ChainName, IpTables};
use egret_kernel::nftables::{TableName, TableReader};
use egret_policies::rules::{Digest, Direction, Tier};

use crate::backend::netfilter::names;
use crate::backend::{Action, BackendError, Decider};
use label::Label;

pub mod label;

/// The policy in the label of what an isolated pod is not allowed by any rule.
pub(crate) const ISOLATION: &str = "isolation";
/// The beginning of NFLOG prefixes.
const PREFIX: &str = "egret-";

/// Why a packet is denied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Denial {
    /// What becomes of it.
    pub outcome: Outcome,
    /// What denies, or would.
    pub cause: Cause,
    /// For connections that the pod opens, or to it.
    pub direction: Direction,
}

/// What happens to a logged packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// It ends.
    Denied,
    /// It goes on: only policies in audit would deny it.
    WouldBeDenied,
}

/// What denies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// A rule.
    Rule(RuleRef),
    /// A rule of a ClusterEgressFirewall, of a client outside whom a Service leads on.
    Exposure(RuleRef),
    /// The pod is isolated in the direction, and no rule allows it.
    Isolation,
    /// The connection was open when a change of policy forbade it.
    Revoked,
    /// It comes from or goes to an unknown pod.
    UnknownPod,
    /// Its source address is not of the pod that sends it.
    SpoofedSource,
    /// It is an ICMP error about a flow that is not of the pod that sends it.
    SpoofedError,
    /// It is encapsulated, goes to the node, and no policy allows it.
    Encapsulation,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleRef {
    /// Its tier.
    pub tier: Tier,
    /// Its object.
    pub policy: Arc<str>,
    /// Its index there.
    pub rule: usize,
}

impl Denial {
    /// What a label says that denies; none where it speaks of no denial.
    #[must_use]
    pub fn of_label(label: &Label, is_exposed: bool) -> Option<Self> {
        let said = |tier| RuleRef {
            tier,
            policy: Arc::clone(&label.policy),
            rule: label.rule,
        };
        let outcome = match label.key.action {
            Action::WouldDeny => Outcome::WouldBeDenied,
            // A rule that closes says what it is for.
            Action::Deny | Action::Allow | Action::Pass => Outcome::Denied,
        };
        let cause = match (label.key.decider, label.policy.as_ref()) {
            (Decider::UnknownPod, _) => Cause::UnknownPod,
            (Decider::SpoofedSource, _) => Cause::SpoofedSource,
            (Decider::SpoofedError, _) => Cause::SpoofedError,
            (Decider::Encapsulation, _) => Cause::Encapsulation,
            (Decider::Default, _) => return None,
            (Decider::Tier(tier), _) if is_exposed => Cause::Exposure(said(tier)),
            (Decider::Tier(_), ISOLATION) => Cause::Isolation,
            (Decider::Tier(tier), _) => Cause::Rule(said(tier)),
        };
        Some(Self {
            outcome,
            cause,
            direction: label.key.direction,
        })
    }

    /// The denials that come from no rule of a pod.
    fn independent_of_rules() -> impl Iterator<Item = Self> {
        let causes = [
            Cause::Revoked,
            Cause::UnknownPod,
            Cause::SpoofedSource,
            Cause::SpoofedError,
            Cause::Encapsulation,
        ];
        causes.into_iter().flat_map(|cause| {
            Direction::ALL.map(|direction| Self {
                outcome: Outcome::Denied,
                cause: cause.clone(),
                direction,
            })
        })
    }

    /// The word for what happened to the packet.
    #[must_use]
    pub const fn verdict(&self) -> &'static str {
        match self.outcome {
            Outcome::Denied => "deny",
            Outcome::WouldBeDenied => "would-deny",
        }
    }

    /// The denial chain of such packets.
    #[must_use]
    pub fn chain(&self) -> ChainName {
        match self.outcome {
            Outcome::Denied => names::denial(self.digest()),
            Outcome::WouldBeDenied => names::audit_denial(self.digest()),
        }
    }

    fn digest(&self) -> Digest {
        Digest::of(&self.to_string())
    }

    /// What the kernel says of such a packet.
    pub(in crate::backend) fn prefix(&self) -> String {
        format!("{PREFIX}{}", self.digest())
    }
}

/// Two different ones never read the same: kinds, names of objects and numbers hold no blanks.
impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verdict, direction) = (self.verdict(), self.direction.word());
        write!(f, "{verdict} {direction} {}", self.cause.word())?;
        match &self.cause {
            Cause::Rule(said) | Cause::Exposure(said) => {
                write!(f, " {} {} {}", said.tier.word(), said.rule, said.policy)
            }
            Cause::Isolation
            | Cause::Revoked
            | Cause::UnknownPod
            | Cause::SpoofedSource
            | Cause::SpoofedError
            | Cause::Encapsulation => Ok(()),
        }
    }
}

impl Cause {
    /// The word for it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Rule(_) => "rule",
            Self::Exposure(_) => "exposure",
            Self::Isolation => "isolation",
            Self::Revoked => "revoked",
            Self::UnknownPod => Decider::UnknownPod.word(),
            Self::SpoofedSource => Decider::SpoofedSource.word(),
            Self::SpoofedError => Decider::SpoofedError.word(),
            Self::Encapsulation => Decider::Encapsulation.word(),
        }
    }
}

/// The NFLOG prefix of a denial chain.
pub(in crate::backend) fn prefix_of(chain: &str) -> String {
    format!("{PREFIX}{}", names::denial_reason(chain).unwrap_or_default())
}

/// Denials by NFLOG prefix; shared with the NFLOG reader.
#[derive(Clone, Debug, Default)]
pub struct DenialRegistry(Arc<Mutex<RegisteredDenials>>);

/// What counts packets of a reason.
#[derive(Clone, Debug)]
enum Counted {
    /// The rules of its chains in these tables.
    Chains(Vec<IpTables>),
    /// Counters with names, in this table: of those that were logged, and of all.
    Named(TableName, fn(&Denial) -> [String; 2]),
}

impl Default for Counted {
    fn default() -> Self {
        Self::Chains(Vec::new())
    }
}

#[derive(Debug, Default)]
struct RegisteredDenials {
    /// What counts them.
    counted: Counted,
    desired: BTreeMap<String, Denial>,
    /// Denials that the last change removed: some of their packets may not have been read yet.
    removed: BTreeMap<String, Denial>,
}

impl DenialRegistry {
    /// Sets what these tables deny. Only the `touched` chains may differ from the last call; `why` gives the denial of a chain that
    /// is desired.
    pub(in crate::backend) fn set_desired<'a>(
        &self,
        tables: Vec<IpTables>,
        touched: BTreeSet<String>,
        why: impl Fn(&str) -> Option<&'a Denial>,
    ) {
        let mut registered = self.lock();
        registered.counted = Counted::Chains(tables);
        let independent: BTreeMap<String, Denial> = Denial::independent_of_rules()
            .map(|denial| (denial.prefix(), denial))
            .collect();
        let (mut was_added, mut gone) = (false, BTreeMap::new());
        for chain in touched {
            let prefix = prefix_of(&chain);
            if independent.contains_key(&prefix) {
                continue;
            }
            match why(&chain) {
                Some(denial) => was_added |= registered.desired.insert(prefix, denial.clone()).is_none(),
                None => gone.extend(registered.desired.remove_entry(&prefix)),
            }
        }
        if was_added || !gone.is_empty() {
            registered.removed = gone;
        }
        registered.desired.extend(independent);
    }

    /// The denial of an NFLOG prefix; none where it is not known.
    #[must_use]
    pub fn find(&self, prefix: &str) -> Option<Denial> {
        let registered = self.lock();
        registered
            .desired
            .get(prefix)
            .or_else(|| registered.removed.get(prefix))
            .cloned()
    }

    /// Sets what a table of nftables denies, where counters with these names count what was logged, and all.
    pub(in crate::backend) fn set_desired_in<'a>(
        &self,
        table: TableName,
        counters: fn(&Denial) -> [String; 2],
        denials: impl Iterator<Item = &'a Denial>,
    ) {
        let mut registered = self.lock();
        registered.counted = Counted::Named(table, counters);
        let desired = Denial::independent_of_rules().chain(denials.cloned());
        let desired = desired.map(|denial| (denial.prefix(), denial)).collect();
        let mut before = std::mem::replace(&mut registered.desired, desired);
        before.retain(|prefix, _| !registered.desired.contains_key(prefix));
        if !before.is_empty() {
            registered.removed = before;
        }
    }

    /// Packets of a reason that were denied and not logged since it is there. May be asked at any time.
    ///
    /// # Errors
    /// When the kernel's counters cannot be read.
    pub fn suppressed(&self, denial: &Denial) -> Result<u64, BackendError> {
        let counted = self.lock().counted.clone();
        let unread = |error: &dyn fmt::Display| BackendError::new("cannot read what was denied", error);
        match counted {
            Counted::Chains(tables) => {
                let mut suppressed = 0;
                for table in tables {
                    let counts = table
                        .count_chain(&denial.chain())
                        .map_err(|error| unread(&error))?;
                    if let Some([told, denied]) = counts.as_deref() {
                        suppressed += denied.saturating_sub(*told);
                    }
                }
                Ok(suppressed)
            }
            Counted::Named(table, counters) => {
                let mut reader = TableReader::open().map_err(|error| unread(&error))?;
                let [told, all] = counters(denial);
                let mut count = |name| reader.counter(table, name).map_err(|error| unread(&error));
                let (told, all) = (count(&told)?, count(&all)?);
                Ok(all.unwrap_or(0).saturating_sub(told.unwrap_or(0)))
            }
        }
    }

    /// Whether packets may still be denied for it.
    #[must_use]
    pub fn has(&self, denial: &Denial) -> bool {
        self.find(&denial.prefix()).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, RegisteredDenials> {
        // Each map is whole between any two steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_denials_have_different_chains() {
        let said = |policy: &str, rule| RuleRef {
            tier: Tier::Admin,
            policy: policy.into(),
            rule,
        };
        let causes = [
            Cause::Rule(said("a", 0)),
            Cause::Rule(said("a", 1)),
            Cause::Rule(said("b", 0)),
            Cause::Exposure(said("a", 0)),
            Cause::Isolation,
            Cause::Revoked,
            Cause::UnknownPod,
            Cause::SpoofedSource,
            Cause::SpoofedError,
            Cause::Encapsulation,
        ];
        let chains = causes.into_iter().flat_map(|cause| {
            Direction::ALL.map(|direction| Denial {
                outcome: Outcome::Denied,
                cause: cause.clone(),
                direction,
            })
        });
        let would = |denial: Denial| {
            let outcome = Outcome::WouldBeDenied;
            [denial.clone(), Denial { outcome, ..denial }]
        };
        let chains = chains.flat_map(would);
        let chains: BTreeSet<String> = chains.map(|denial| denial.chain().as_str().to_owned()).collect();
        assert_eq!(chains.len(), 40);
    }
}
