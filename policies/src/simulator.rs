//! A backend made of maps: it applies batches and decides connections from the rules, as a kernel would.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use crate::compiler::{Compiler, InSync};
use crate::rules::{Batch, ExpiredMembers, Member, NodeRules, PodRules, SetId, SetKind, SetSpec};

mod connection;
mod decide;
mod rule_index;

pub(crate) use rule_index::{RuleIndex, RuleList};

pub use connection::{
    Connection, ConnectionDecision, ConnectionEnd, Decision, EndKind, ForwardedConnection, Protocol, Verdict,
};

/// Sets and rules, as a backend holds them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulator {
    sets: BTreeMap<SetId, Set>,
    pods: BTreeMap<PodKey, PodRules>,
    node: Option<NodeRules>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Set {
    spec: SetSpec,
    members: BTreeMap<Member, Option<Timestamp>>,
    /// Records that are over: what they opened stays open.
    lapsed: BTreeSet<Member>,
}

/// Why a batch cannot be applied: a defect of the compiler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBatch {
    /// A set is made a second time.
    #[error("the set {0:?} is there already")]
    SetExists(SetId),
    /// Something is said of a set that is not there.
    #[error("there is no set {0:?}")]
    NoSet(SetId),
    /// A set is taken away that a rule names.
    #[error("the set {set:?} is still named by a rule of {owner}")]
    SetInUse {
        /// The set.
        set: SetId,
        /// Whose rules name it: a pod, or `the node`.
        owner: String,
    },
    /// A rule names a set that is not there.
    #[error("a rule of {owner} names the set {set:?}, which is not there")]
    RuleWithoutSet {
        /// Whose rules: a pod's, or `the node`'s.
        owner: String,
        /// The set.
        set: SetId,
    },
    /// A member that is not what the set holds, or has an expiry where there is none.
    #[error("{member:?} does not belong in the set {set:?}")]
    WrongMember {
        /// The set.
        set: SetId,
        /// The member.
        member: Member,
    },
    /// A member is taken out that was not in. Of records any may be: they end on their own.
    #[error("{member:?} is not in the set {set:?}")]
    NoMember {
        /// The set.
        set: SetId,
        /// The member.
        member: Member,
    },
    /// The expiry of a record was moved to an earlier time.
    #[error("{member:?} of the set {set:?} would live shorter than before")]
    Shortened {
        /// The set.
        set: SetId,
        /// The member.
        member: Member,
    },
    /// A pod's rules have no address to be found by.
    #[error("the rules of {0} have no address")]
    NoAddress(PodKey),
    /// A pod is taken away that was not there.
    #[error("there are no rules of {0}")]
    NoPod(PodKey),
}

impl Simulator {
    /// A kernel without any of our rules.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What all batches of a compiler lead to.
    ///
    /// # Panics
    /// When a batch cannot be applied: a mistake of the compiler.
    #[must_use]
    pub fn of(compiler: &mut Compiler<InSync>, now: Timestamp) -> Self {
        let mut simulator = Self::new();
        while let Some(batch) = compiler.poll_batch(now) {
            simulator
                .apply(&batch, now)
                .expect("every batch of the compiler can be applied");
        }
        simulator
    }

    /// Applies a batch from top to bottom.
    ///
    /// # Errors
    /// When a step would leave the kernel in a state that no prefix of a batch may have.
    pub fn apply(&mut self, batch: &Batch, now: Timestamp) -> Result<(), InvalidBatch> {
        self.expire(now);
        for spec in &batch.sets_created {
            self.create(spec)?;
        }
        for changed in &batch.members_changed {
            for member in &changed.removed {
                self.remove(changed.set, *member)?;
            }
            for (member, until) in &changed.added {
                self.add(changed.set, *member, *until)?;
            }
        }
        for lapsed in &batch.expired {
            self.remember(lapsed)?;
        }
        for rules in &batch.rules_replaced {
            self.replace(rules)?;
        }
        if let Some(rules) = &batch.node_rules {
            self.check_sets(rules.sets(), NODE)?;
            self.node = Some(rules.clone()).filter(|rules| !rules.exposed.tiers.is_empty());
        }
        for pod in &batch.pods_removed {
            if self.pods.remove(pod).is_none() {
                return Err(InvalidBatch::NoPod(pod.clone()));
            }
        }
        for id in &batch.sets_destroyed {
            self.destroy(*id)?;
        }
        Ok(())
    }

    /// Drops the records whose time is over, as the kernel does on its own.
    pub fn expire(&mut self, now: Timestamp) {
        for set in self.sets.values_mut() {
            if set.spec.kind == SetKind::Records {
                let lapsed = set
                    .members
                    .extract_if(.., |_, until| until.is_some_and(|until| until <= now));
                set.lapsed.extend(lapsed.map(|(member, _)| member));
            }
        }
    }

    /// The rules of a pod.
    #[must_use]
    pub fn pod(&self, pod: &PodKey) -> Option<&PodRules> {
        self.pods.get(pod)
    }

    /// The rules of all pods.
    pub fn pods(&self) -> impl Iterator<Item = &PodRules> {
        self.pods.values()
    }

    /// The rules of the node, if it has any.
    #[must_use]
    pub const fn node(&self) -> Option<&NodeRules> {
        self.node.as_ref()
    }

    /// All sets.
    pub fn sets(&self) -> impl Iterator<Item = &SetSpec> {
        self.sets.values().map(|set| &set.spec)
    }

    /// The members of a set; none where there is no such set.
    pub fn members(&self, id: SetId) -> impl Iterator<Item = (Member, Option<Timestamp>)> {
        self.sets
            .get(&id)
            .into_iter()
            .flat_map(|set| set.members.iter().map(|(member, until)| (*member, *until)))
    }

    fn create(&mut self, spec: &SetSpec) -> Result<(), InvalidBatch> {
        let set = Set {
            spec: spec.clone(),
            members: BTreeMap::new(),
            lapsed: BTreeSet::new(),
        };
        match self.sets.insert(spec.id, set) {
            None => Ok(()),
            Some(_) => Err(InvalidBatch::SetExists(spec.id)),
        }
    }

    fn add(&mut self, id: SetId, member: Member, until: Option<Timestamp>) -> Result<(), InvalidBatch> {
        let set = self.sets.get_mut(&id).ok_or(InvalidBatch::NoSet(id))?;
        if !fits(set.spec.kind, member, until) {
            return Err(InvalidBatch::WrongMember { set: id, member });
        }
        let before = set.members.insert(member, until);
        if before.is_some_and(|before| until < before) {
            return Err(InvalidBatch::Shortened { set: id, member });
        }
        Ok(())
    }

    fn remove(&mut self, id: SetId, member: Member) -> Result<(), InvalidBatch> {
        let set = self.sets.get_mut(&id).ok_or(InvalidBatch::NoSet(id))?;
        set.lapsed.remove(&member);
        let gone = set.members.remove(&member);
        match (gone, set.spec.kind) {
            (Some(_), _) | (None, SetKind::Records) => Ok(()),
            (
                None,
                SetKind::Addresses | SetKind::Networks | SetKind::AddressPorts | SetKind::NetworkPorts,
            ) => Err(InvalidBatch::NoMember { set: id, member }),
        }
    }

    fn remember(&mut self, lapsed: &ExpiredMembers) -> Result<(), InvalidBatch> {
        let set = self
            .sets
            .get_mut(&lapsed.set)
            .ok_or(InvalidBatch::NoSet(lapsed.set))?;
        let addresses = lapsed.addresses.iter();
        set.lapsed
            .extend(addresses.map(|(address, _)| Member::Address(*address)));
        Ok(())
    }

    fn replace(&mut self, rules: &PodRules) -> Result<(), InvalidBatch> {
        if rules.addresses.is_empty() {
            return Err(InvalidBatch::NoAddress(rules.pod.clone()));
        }
        self.check_sets(named_sets(rules), &rules.pod)?;
        self.pods.insert(rules.pod.clone(), rules.clone());
        Ok(())
    }

    fn check_sets(
        &self,
        mut named: impl Iterator<Item = SetId>,
        owner: impl Display,
    ) -> Result<(), InvalidBatch> {
        match named.find(|set| !self.sets.contains_key(set)) {
            Some(set) => Err(InvalidBatch::RuleWithoutSet {
                owner: owner.to_string(),
                set,
            }),
            None => Ok(()),
        }
    }

    fn destroy(&mut self, id: SetId) -> Result<(), InvalidBatch> {
        if let Some(owner) = self.owner_of_rule(id) {
            return Err(InvalidBatch::SetInUse { set: id, owner });
        }
        self.sets.remove(&id).map(|_| ()).ok_or(InvalidBatch::NoSet(id))
    }

    fn owner_of_rule(&self, id: SetId) -> Option<String> {
        let names_it = |rules: &&PodRules| named_sets(rules).any(|set| set == id);
        let pod = self.pods.values().find(names_it);
        let mut of_node = self.node.iter().flat_map(NodeRules::sets);
        pod.map(|rules| rules.pod.to_string())
            .or_else(|| of_node.any(|set| set == id).then(|| NODE.to_owned()))
    }
}

/// What the owner of its rules is called.
const NODE: &str = "the node";

fn named_sets(rules: &PodRules) -> impl Iterator<Item = SetId> {
    let decide = rules.egress.sets().chain(rules.ingress.sets());
    decide.chain(rules.audit.sets())
}

const fn fits(kind: SetKind, member: Member, until: Option<Timestamp>) -> bool {
    matches!(
        (kind, member, until),
        (SetKind::Addresses, Member::Address(_), None)
            | (SetKind::Records, Member::Address(_), Some(_))
            | (SetKind::Networks, Member::Network(_), None)
            | (SetKind::AddressPorts, Member::AddressPort(..), None)
            | (SetKind::NetworkPorts, Member::NetworkPort(..), None)
    )
}
