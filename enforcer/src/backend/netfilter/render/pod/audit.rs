//! Policies in audit: what they would deny of what is allowed. They are evaluated before the flow is marked,
//! and so once for a flow.
//!
//! ```text
//!  EGRET-EA-x ─ jump EGRET-e-x ─ rule ▸ return
//!             │                ├ rule that would deny ▸ goto EGRET-W-r ─ NFLOG "egret-r" ▸ return
//!             │                └ rule that passes ▸ goto the next tier
//!             └ marks the flow
//! ```
//!
//! These chains drop nothing. The flavour `nft` allows a packet 15 chains, those reached by `goto` included (NFT_JUMP_STACK_SIZE of
//! include/net/netfilter/nf_tables.h), so tiers share a chain where no rule passes to a later tier. Policies that do not fit are not
//! evaluated.

use egret_kernel::iptables::{Rule as Line, Target};
use egret_policies::rules::{Action, DefaultAction, Direction, DirectionRules, PodRules, TierRules};

use super::PodDirection;
use super::tiers::TierGroup;
use crate::backend::netfilter::denials::label::RuleMode;
use crate::backend::netfilter::model::available_sets::AvailableSets;
use crate::backend::netfilter::render::dispatch::MOST_BRANCHES;

/// The most chains through which a packet may go.
const MOST_CHAINS: usize = 15;
/// The chains around the tiers: hook, dispatch with its branches, entry of the pod, default, allow, and logging.
const AROUND: usize = 3 + MOST_BRANCHES + 1 + 2 + 1;

/// Whether a direction has policies in audit, and they can be evaluated.
pub(super) fn is_asked(rules: &PodRules, direction: Direction, sets: &AvailableSets) -> bool {
    !rules.audit.direction(direction).tiers.is_empty() && why_not_audited(rules, direction, sets).is_none()
}

/// Why policies in audit cannot be evaluated for a direction. Packets that an Allow over a missing set allows would be logged as
/// denied, so then nothing is evaluated.
pub(in crate::backend::netfilter) fn why_not_audited(
    rules: &PodRules,
    direction: Direction,
    sets: &AvailableSets,
) -> Option<&'static str> {
    let (decides, audit) = (rules.direction(direction), rules.audit.direction(direction));
    let chains = AROUND + deciding_chains(decides) + chains(&audit.tiers);
    if audit.sets().any(|id| !sets.contains_key(&id)) {
        Some("one of their sets is not there")
    } else if !audit.tiers.is_empty() && chains > MOST_CHAINS {
        Some("there are too many lists of rules")
    } else {
        None
    }
}

/// The number of chains through which a packet may go beyond the minimum.
pub(super) fn spare(rules: &PodRules, direction: Direction) -> usize {
    let audit = &rules.audit.direction(direction).tiers;
    let asked = if audit.is_empty() { 0 } else { chains(audit) };
    MOST_CHAINS.saturating_sub(AROUND + deciding_chains(rules.direction(direction)) + asked)
}

/// The chains of the rules that decide; one more leads to those with names.
fn deciding_chains(rules: &DirectionRules) -> usize {
    let tiers: Vec<&TierRules> = rules.tiers.iter().collect();
    let names_apart = rules.names.as_ref().is_some_and(|names| names.without.is_some());
    TierGroup::of(&tiers).len() + usize::from(names_apart)
}

fn chains(tiers: &[TierRules]) -> usize {
    1 + tiers.iter().filter(|tier| passes(tier)).count()
}

fn passes(tier: &TierRules) -> bool {
    tier.rules.iter().any(|rule| rule.action == Action::Pass)
}

impl PodDirection<'_> {
    /// Lets allowed packets pass the audit chains.
    pub(super) fn ask_audit(&mut self) {
        let ask = Line::to(Target::Jump(self.chains.audit(self.direction))).to_string();
        let allow = self.chains.allow(self.direction);
        self.out
            .entry(allow.as_str().to_owned())
            .or_default()
            .insert(0, ask);
    }

    /// Renders the audit chains.
    pub(super) fn render_audit(&mut self, rules: &DirectionRules) {
        self.mode = RuleMode::Audit;
        let mut name = self.chains.audit(self.direction);
        let mut lines = Vec::new();
        for (place, tier) in rules.tiers.iter().enumerate() {
            let next = rules.tiers.get(place + 1).filter(|_| passes(tier)).map(|next| {
                let before = rules.tiers[..=place].iter().filter(|one| one.tier == next.tier);
                self.chains.audit_tier(self.direction, next.tier, before.count())
            });
            lines.extend(self.rules(tier, &next.clone().map_or(Target::Return, Target::Goto)));
            match (tier.default_action, &next) {
                (DefaultAction::Deny, _) => lines.push(self.isolation(tier)),
                (DefaultAction::NextTier, Some(next)) => lines.push(Line::to(Target::Goto(next.clone()))),
                (DefaultAction::NextTier, None) => {}
            }
            match next {
                Some(next) => {
                    self.put(&name, std::mem::take(&mut lines));
                    name = next;
                }
                None if tier.default_action == DefaultAction::Deny => break,
                None => {}
            }
        }
        self.put(&name, lines);
    }
}
