//! Shared denial chains: adjacent denials of the same port, which is matched once:
//!
//! ```text
//!  EGRET-E0-x ─ TCP 6000 ▸ jump EGRET-S-d ─ in one set ▸ goto EGRET-D-r
//!             │                           ├ in another ▸ goto EGRET-D-r
//!             └ next rule
//! ```
//!
//! Nothing in such a chain is a pod's own, so it is called by the digest of what it says, and all pods whose rules say the same
//! jump to the same one: `external` is three rules, over all pods and for each port.
//!
//! What comes back from it goes on behind it, as it would behind the last of these rules.

use egret_kernel::iptables::{Rule as Line, Target};
use egret_policies::rules::{Action, Digest, PeerMatch, PortMatch, Rule, TierRules};

use super::port_groups::PortGroup;
use super::{PodDirection, RuleMode};
use crate::backend::netfilter::names;

impl PodDirection<'_> {
    /// The lines of rules, in order.
    pub(super) fn lines_of(&mut self, tier: &TierRules, rules: &[&Rule], next: &Target) -> Vec<Line> {
        let mut lines = Vec::new();
        for group in rules.chunk_by(|one, other| is_alike(one, other)) {
            match (group, self.asked_once(group)) {
                ([_, _, ..], Some(ports)) => lines.push(self.shared(tier, group, ports, next)),
                _ => lines.extend(group.iter().flat_map(|rule| self.lines(tier, rule, next))),
            }
        }
        lines
    }

    /// The ports for which a group may have a chain of its own. It is a jump more, for which there must be room, and a rule one
    /// of whose sets is not there closes for all ports.
    fn asked_once(&self, group: &[&Rule]) -> Option<PortGroup> {
        let ports = PortGroup::of(group.first()?.port)?;
        let is_asked = self.ports.is_none_or(|known| !known.imply(ports.wanted()));
        let mut sets = group.iter().flat_map(|rule| rule.sets());
        let may = self.spare > 0 && self.mode == RuleMode::Enforced && is_asked;
        (may && sets.all(|id| self.context.sets.contains_key(&id))).then_some(ports)
    }

    fn shared(&mut self, tier: &TierRules, group: &[&Rule], ports: PortGroup, next: &Target) -> Line {
        let before = self.ports.replace(ports);
        let lines = group.iter().flat_map(|rule| self.lines(tier, rule, next));
        let lines: Vec<Line> = lines.collect();
        self.ports = before;
        let text: Vec<String> = lines.iter().map(Line::to_string).collect();
        let chain = names::shared_denials(Digest::of(&text.join("\n")));
        self.put(&chain, lines);
        self.port(Line::to(Target::Jump(chain)), ports.wanted())
    }
}

/// Whether two rules deny what goes to the same ports.
fn is_alike(one: &Rule, other: &Rule) -> bool {
    denies_ports(one) && denies_ports(other) && one.port == other.port
}

fn denies_ports(rule: &Rule) -> bool {
    let by_set = match rule.peer {
        PeerMatch::In(_) | PeerMatch::OwnNode => true,
        PeerMatch::Any | PeerMatch::Itself => false,
    };
    let by_port = match rule.port {
        PortMatch::Range(..) => true,
        PortMatch::Any | PortMatch::Icmp => false,
    };
    rule.action == Action::Deny && by_set && by_port
}
