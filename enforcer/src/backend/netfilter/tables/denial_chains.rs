//! The denial chains that rules lead to, counted by reference while chains change: a node has tens of
//! thousands of rules, and a change touches a few.

use std::collections::{BTreeMap, BTreeSet};

use crate::backend::netfilter::denials::Denial;
use crate::backend::netfilter::denials::label::Label;
use crate::backend::netfilter::names::PodChains;
use crate::backend::netfilter::render::nflog::told_by;

/// Denial chains, with the number of rules that lead to each.
#[derive(Debug, Default)]
pub(super) struct DenialChains {
    uses: BTreeMap<String, Use>,
    /// Chains that may have come or gone since `take_changed`.
    changed: BTreeSet<String>,
}

#[derive(Debug)]
struct Use {
    rules: usize,
    /// None where the rules do not say it.
    why: Option<Denial>,
}

impl DenialChains {
    /// Counts the rules of a chain that comes.
    pub(super) fn add_rules(&mut self, chain: &str, rules: &[String]) {
        for rule in rules {
            let Some(told) = told_by(rule) else { continue };
            if let Some(known) = self.uses.get_mut(told) {
                known.rules += 1;
                continue;
            }
            let is_exposed = PodChains::of_node().contain(chain);
            let why = Label::of_rule(rule).and_then(|label| Denial::of_label(&label, is_exposed));
            self.uses.insert(told.to_owned(), Use { rules: 1, why });
            self.changed.insert(told.to_owned());
        }
    }

    /// … and of one that goes.
    pub(in crate::backend::netfilter) fn remove_rules(&mut self, rules: &[String]) {
        for told in rules.iter().filter_map(|rule| told_by(rule)) {
            let Some(known) = self.uses.get_mut(told) else {
                continue;
            };
            known.rules -= 1;
            if known.rules == 0 {
                self.uses.remove(told);
                self.changed.insert(told.to_owned());
            }
        }
    }

    /// Whether rules lead to a denial chain.
    pub(in crate::backend::netfilter) fn is_used(&self, told: &str) -> bool {
        self.uses.contains_key(told)
    }

    /// Why they do.
    pub(in crate::backend::netfilter) fn denial(&self, told: &str) -> Option<&Denial> {
        self.uses.get(told)?.why.as_ref()
    }

    /// Denial chains that got their first rule, or lost their last one, since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests {
    use egret_policies::rules::Digest;

    use super::*;
    use crate::backend::netfilter::names;

    #[test]
    fn a_denial_chain_stays_while_any_rule_leads_to_it() {
        let chain = names::denial(Digest::of("why"));
        let rule = format!(
            "-m comment --comment \"np deny egress 0 isolation\" -g {}",
            chain.as_str()
        );
        let (twice, once) = ([rule.clone(), rule.clone()], [rule, "-j RETURN".to_owned()]);
        let mut told = DenialChains::default();
        told.add_rules("EGRET-E-x", &twice);
        told.add_rules("EGRET-E-y", &once);
        let name = BTreeSet::from([chain.as_str().to_owned()]);
        assert_eq!(told.take_changed(), name);
        assert!(told.denial(chain.as_str()).is_some());
        told.remove_rules(&twice);
        assert!(told.is_used(chain.as_str()) && told.take_changed().is_empty());
        told.remove_rules(&once);
        assert!(!told.is_used(chain.as_str()));
        assert_eq!(told.take_changed(), name);
    }
}
