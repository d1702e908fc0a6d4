//! Shared denial chains: adjacent denials of the same port, which is matched once:
//!
//! ```text
//!  EGRET-E0-x ─ TCP 6000 ▸ jump EGRET-S-d ─ in one set ▸ goto EGRET-D-r
//!             │                           ├ in another ▸ goto EGRET-D-r
//!             └ next rule
//! ```
//!
//! Such a chain names nothing of a single pod. Its name is a digest of its content, and all pods with the same rules jump to it: the
//! peer `external` is three rules, for all pods and for each port.
//!
//! A packet that returns continues after the jump, as it would after the last of these rules.

use egret_kernel::iptables::{Rule as Line, Target};
use egret_policies::rules::{Action, Digest, PeerMatch, PortMatch, Rule, TierRules};

use super::PodDirection;
use super::port_groups::PortGroup;
use crate::backend::netfilter::denials::label::RuleMode;
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

    /// The ports for which a group may have a chain of its own. The chain is one more jump, for which there must be room. A rule
    /// over a missing set closes for all ports, so its group has none.
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
