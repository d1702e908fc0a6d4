//! The rules of ClusterEgressFirewall, which concern all interfaces of a pod, also those that lead past the node.

use egret_policies::rules::{Rule, SetId, Tier, TierRules};

/// What is to be enforced inside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::backend) struct EgressFirewall {
    /// The lists of ClusterEgressFirewall.
    pub(in crate::backend) tiers: Vec<TierRules>,
}

impl EgressFirewall {
    /// The part of a pod's rules that concerns all its interfaces.
    pub(in crate::backend) fn of(tiers: &[TierRules]) -> Self {
        Self {
            tiers: tiers
                .iter()
                .filter(|tier| tier.tier == Tier::ClusterEgressFirewall)
                .cloned()
                .collect(),
        }
    }

    /// Whether there is nothing to enforce.
    pub(in crate::backend) fn is_empty(&self) -> bool {
        self.tiers.is_empty()
    }

    /// The sets that it names.
    pub(in crate::backend) fn sets(&self) -> impl Iterator<Item = SetId> {
        self.tiers
            .iter()
            .flat_map(|tier| tier.rules.iter())
            .flat_map(Rule::sets)
    }
}
