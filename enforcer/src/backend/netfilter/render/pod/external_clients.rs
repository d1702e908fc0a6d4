//! Rules of the node for external clients of Services.
//!
//! ```text
//!  FORWARD ─ EGRET-FORWARD ─ … the pods' egress …
//!                          ├ rewritten, of no pod ─ EGRET-E-n ─ from the node itself ▸ return
//!                          │                                  ├ rule ▸ goto EGRET-DENY
//!                          │                                  └ goto the next list … EGRET-ED-n ▸ return
//!                          └ … the pods' ingress …
//! ```
//!
//! Every packet towards the destination is judged and none is marked: a new rule counts for open connections at once, and a
//! pod's mark still means that the pod's rules allowed the connection.

use egret_kernel::iptables::{InterfaceName, Rule as Line, Target};
use egret_policies::rules::{Action, Direction, DirectionRules, NodeRules, TierRules};

use super::tiers::TierGroup;
use super::{PodDirection, RenderContext};
use crate::backend::netfilter::denials::label::RuleMode;
use crate::backend::netfilter::names::PodChains;
use crate::backend::netfilter::render::chains::Chains;
use crate::backend::netfilter::render::conn_state;

/// All chains of the node's rules.
#[must_use]
pub fn exposed(rules: &NodeRules, context: RenderContext<'_>) -> Chains {
    let mut node = PodDirection {
        chains: PodChains::of_node(),
        direction: Direction::Egress,
        own: Vec::new(),
        context,
        mode: RuleMode::Enforced,
        tier_chain: PodChains::tier,
        ports: None,
        spare: 0,
        attributions: super::attribution::Attributions::new(),
        out: Chains::new(),
    };
    node.render_exposed(&rules.exposed);
    node.out
}

impl PodDirection<'_> {
    fn render_exposed(&mut self, rules: &DirectionRules) {
        let back = || vec![Line::to(Target::Return)];
        if has_allow(&rules.tiers) {
            self.put(&self.chains.allow(self.direction), back());
        }
        // Packets from the node to its own address pass here too, with or without DNAT.
        let own = Line::to(Target::Return).input(loopback());
        let lines = vec![conn_state::related(self.context.family), own];
        let name = self.chains.entry(self.direction);
        let tiers: Vec<&TierRules> = rules.tiers.iter().collect();
        let (name, mut lines) = self.parts(&TierGroup::of(&tiers), name, lines);
        lines.extend(back());
        self.put(&name, lines);
    }
}

/// An Allow of a ClusterEgressFirewall only leaves its list, so there is none.
fn has_allow(tiers: &[TierRules]) -> bool {
    let mut rules = tiers.iter().flat_map(|tier| tier.rules.iter());
    rules.any(|rule| rule.action == Action::Allow)
}

fn loopback() -> InterfaceName {
    InterfaceName::new("lo").expect("two letters are a name")
}
