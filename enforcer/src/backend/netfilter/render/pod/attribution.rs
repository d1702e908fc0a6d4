//! Attribution chains: which rule denies a packet that a decision table denies ([`egret_policies::decision`]). Only denied packets walk them.
//!
//! ```text
//!  EGRET-E0-x ─ in the denied keys ▸ goto EGRET-S-d ─ deny rule ▸ goto EGRET-D-r
//!             │                                     ├ deny rule ▸ goto EGRET-D-s
//!             │                                     └ several   ▸ goto EGRET-D-t
//!             └ in the allowed keys ▸ goto EGRET-EA-x
//! ```
//!
//! Such a chain names nothing of a single pod, so all pods with the same rules share it (see `shared_denials`). Its last line denies what
//! no rule of it matches: for a moment, where the sets of a rule changed and those of the table did not yet.
//!
//! The chain is no deeper than an allowed packet goes, which passes the default, is marked, and may be logged.

use std::collections::HashMap;
use std::sync::Arc;

use egret_kernel::iptables::{ChainName, Rule as Line};
use egret_policies::rules::{Action, Digest, Rule, TierRules};

use super::{PodDirection, shadowed_rules};
use crate::backend::netfilter::names;

/// The chains of attributions that were rendered.
pub(super) type Attributions = HashMap<*const Rule, ChainName>;

impl PodDirection<'_> {
    /// Renders the attribution chains of these rules.
    pub(super) fn put_attributions(&mut self, tier: &TierRules, rules: &[&Rule]) {
        for rule in rules {
            let Some(attribution) = &rule.attribution else {
                continue;
            };
            if self.attributions.contains_key(&Arc::as_ptr(attribution).cast()) {
                continue;
            }
            let named = shadowed_rules::without(attribution.iter(), self.context.sets, self.context.family);
            let label = self.label(tier, rule, Action::Deny);
            // A Deny never goes on to what comes next.
            let nowhere = self.denial(&label);
            let lines = named.iter().flat_map(|rule| self.lines(tier, rule, &nowhere));
            let mut lines: Vec<Line> = lines.collect();
            lines.push(self.labelled(Line::to(self.denial(&label)), &label));
            let text: Vec<String> = lines.iter().map(Line::to_string).collect();
            let chain = names::shared_denials(Digest::of(&text.join("\n")));
            self.put(&chain, lines);
            self.attributions.insert(Arc::as_ptr(attribution).cast(), chain);
        }
    }

    /// The chain that finds out which rule denies.
    pub(super) fn attribution(&self, rule: &Rule) -> Option<&ChainName> {
        let attribution = rule.attribution.as_ref()?;
        self.attributions.get(&Arc::as_ptr(attribution).cast())
    }
}
