//! Rules inside a pod's own network namespace, as [`crate::backend::netfilter::pod_netns`] writes them with iptables: one table of the
//! namespace, written in one transaction when it differs. New sets come before, in one of their own (`Sets::plan_intervals`).
//!
//! ```text
//!  OUTPUT, FORWARD ─ oifname net1 ▸ goto LIST-0 ─ replies ▸ accept
//!                                               ├ rule ▸ accept, or goto DENY
//!                                               └ goto LIST-1 …
//! ```

use std::collections::{BTreeMap, BTreeSet};

use egret_kernel::Family;
use egret_kernel::iptables::{InterfaceName, InterfacePattern};
use egret_kernel::netlink;
use egret_kernel::nftables::{
    BaseChain, Changes, Element, ElementKey, Key, NfHook, NftListing, NftRule, SetSpec, Statement,
    TableFamily, TableName, TableReader, TableWriter, Verdict, listed_keys,
};
use egret_policies::rules::{Action, DefaultAction, Digest, PeerMatch, Rule, SetId, SetKind, TierRules};

use super::denial::deny;
use super::dispatch::{neighbour_types, related, reply};
use super::elements::SetElement;
use super::rules::{behind, goto, icmp, port, to};
use super::sets::{is_zero_end, lookup_keys, spec, target};
use crate::backend::netfilter::model::desired_set::DesiredSet;
use crate::backend::netfilter::model::egress_firewall::EgressFirewall;
use crate::backend::netfilter::model::set_contents::Contents;
use crate::backend::netfilter::model::settings::DenyAction;
use crate::backend::netfilter::names;

/// Differs from the node's: some pod namespaces are nodes of other clusters.
const TABLE: TableName = TableName {
    family: TableFamily::Inet,
    name: "egret-pod",
};
const DENY: &str = "DENY";
/// Packets of the pod's processes, and those that it forwards.
const HOOKS: [(&str, NfHook); 2] = [("OUTPUT", NfHook::Output), ("FORWARD", NfHook::Forward)];
/// Before `filter`, which is at 0.
const PRIORITY: i32 = -10;

/// Writes the table of the namespace that this thread is in, if it differs. Without interfaces or rules it removes it. Returns the
/// number of tables that differed.
///
/// # Errors
/// Why it cannot be done, in words.
pub(in crate::backend) fn enforce(
    interfaces: &[InterfaceName],
    firewall: &EgressFirewall,
    contents: &Contents,
    action: DenyAction,
) -> Result<usize, String> {
    if interfaces.is_empty() || firewall.is_empty() {
        return remove(true).map(usize::from);
    }
    let said = |error: netlink::Error| error.to_string();
    let desired = DesiredTable::of(interfaces, firewall, contents, action);
    let mut reader = TableReader::open().map_err(said)?;
    let held = reader.list(TABLE).map_err(said)?.unwrap_or_default();
    if desired.is_held(&held, &mut reader).map_err(said)? {
        return Ok(0);
    }
    let mut writer = TableWriter::open().map_err(said)?;
    if let Some(sets) = desired.new_sets(&held) {
        writer.commit(sets).map_err(said)?;
    }
    writer.commit(desired.changes(&held)).map_err(said)?;
    Ok(1)
}

/// Removes the table of the namespace that this thread is in, or only looks for it; says whether it was there.
///
/// # Errors
/// Why it cannot be removed, in words.
pub(in crate::backend) fn remove(is_removed: bool) -> Result<bool, String> {
    // Without nf_tables there is no table.
    let Ok(mut reader) = TableReader::open() else {
        return Ok(false);
    };
    if !reader.has(TABLE).unwrap_or(false) {
        return Ok(false);
    }
    if is_removed {
        let mut changes = Changes::of(TABLE);
        changes.delete_table();
        let mut writer = TableWriter::open().map_err(|error| error.to_string())?;
        writer.commit(changes).map_err(|error| error.to_string())?;
    }
    Ok(true)
}

/// What the table is to hold.
struct DesiredTable {
    chains: BTreeMap<String, Vec<NftRule>>,
    sets: BTreeMap<String, (SetSpec, Vec<ElementKey>)>,
}

impl DesiredTable {
    fn of(
        interfaces: &[InterfaceName],
        firewall: &EgressFirewall,
        contents: &Contents,
        action: DenyAction,
    ) -> Self {
        let named: BTreeSet<SetId> = firewall.sets().collect();
        let (mut sets, mut kinds) = (BTreeMap::new(), BTreeMap::new());
        for (id, (kind, members)) in contents.iter().filter(|(id, _)| named.contains(id)) {
            kinds.insert(*id, *kind);
            let wanted = DesiredSet::holding(*kind, members);
            for family in Family::ALL {
                let name = String::from(names::set(*id, family));
                let keys = target(&wanted, family).keys().map(SetElement::key).collect();
                sets.insert(name.clone(), (spec(&wanted, &name, family), keys));
            }
        }
        let mut chains = BTreeMap::from([(DENY.to_owned(), deny(action))]);
        for (hook, _) in HOOKS {
            let each = interfaces.iter().map(|interface| {
                let through = Statement::Output(InterfacePattern::from(interface.clone()));
                to(goto(list(0)), [through])
            });
            chains.insert(hook.to_owned(), each.collect());
        }
        for (place, tier) in firewall.tiers.iter().enumerate() {
            let is_last = place + 1 == firewall.tiers.len();
            let next = if is_last {
                Verdict::Accept
            } else {
                goto(list(place + 1))
            };
            let mut lines = Vec::new();
            if place == 0 {
                let is_icmp_v6 = [
                    Statement::Family(Family::V6),
                    Statement::Protocol(icmp(Family::V6)),
                ];
                lines.extend(
                    neighbour_types()
                        .into_iter()
                        .map(|line| behind(&is_icmp_v6, &line)),
                );
                lines.push(reply());
                lines.extend(related());
            }
            lines.extend(of_list(tier, &next, &kinds));
            chains.insert(list(place), lines);
        }
        // The kernel lists comments, by which one rule is told from another.
        for rule in chains.values_mut().flatten() {
            rule.comment = Digest::of(&format!("{:?}{:?}", rule.statements, rule.verdict))
                .to_string()
                .into();
        }
        Self { chains, sets }
    }

    fn is_held(&self, held: &NftListing, reader: &mut TableReader) -> Result<bool, netlink::Error> {
        let comments = |rules: &Vec<NftRule>| rules.iter().map(|rule| rule.comment.to_string()).collect();
        let chains: BTreeMap<&String, Vec<String>> = self
            .chains
            .iter()
            .map(|(name, rules)| (name, comments(rules)))
            .collect();
        let listed: BTreeMap<&String, Vec<String>> = held
            .chains
            .iter()
            .map(|(name, chain)| (name, chain.rules.clone()))
            .collect();
        if chains != listed || !self.sets.keys().eq(held.sets.keys()) {
            return Ok(false);
        }
        for (name, (_, keys)) in &self.sets {
            let keys: BTreeSet<(Vec<u8>, bool)> = keys.iter().flat_map(listed_keys).collect();
            let listed = reader.elements(TABLE, name)?.into_iter();
            let listed = listed.map(|element| (element.key, element.is_end));
            if listed.filter(|key| !is_zero_end(key)).collect::<BTreeSet<_>>() != keys {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes the sets whose names are not listed; no rule names them yet. None if all are.
    fn new_sets(&self, held: &NftListing) -> Option<Changes> {
        let is_new = |name: &&String| !held.sets.contains_key(*name);
        let mut new = self.sets.keys().filter(is_new).peekable();
        new.peek()?;
        let mut changes = Changes::of(TABLE);
        changes.add_table();
        for name in new {
            self.add_set(name, &mut changes);
        }
        Some(changes)
    }

    fn add_set(&self, name: &str, changes: &mut Changes) {
        let (spec, _) = &self.sets[name];
        changes.add_set(spec);
        self.fill(name, changes);
    }

    fn fill(&self, name: &str, changes: &mut Changes) {
        let (_, keys) = &self.sets[name];
        let elements: Vec<Element> = keys.iter().cloned().map(Element::lasting).collect();
        changes.add_elements(name, &elements);
    }

    /// All rules anew, over sets of which those with other members, or none, are filled. Chains that the kernel calls stay, so that
    /// none of them is missed by a packet on its way; so do sets.
    fn changes(&self, held: &NftListing) -> Changes {
        let mut changes = Changes::of(TABLE);
        changes.add_table();
        held.chains.keys().for_each(|name| changes.flush_chain(name));
        for (name, listed) in &held.sets {
            match self.sets.get(name) {
                Some((spec, _)) if spec.is_laid_out_as(*listed) => {
                    changes.empty_set(name);
                    self.fill(name, &mut changes);
                }
                Some(_) => {
                    changes.delete_set(name);
                    self.add_set(name, &mut changes);
                }
                None => changes.delete_set(name),
            }
        }
        for name in held.chains.keys().filter(|name| !self.chains.contains_key(*name)) {
            changes.delete_chain(name);
        }
        for (name, hook) in HOOKS {
            changes.add_base_chain(&BaseChain {
                name: name.to_owned(),
                hook,
                priority: PRIORITY,
            });
        }
        let is_base = |name: &str| HOOKS.iter().any(|(hook, _)| *hook == name);
        for name in self.chains.keys().filter(|name| !is_base(name)) {
            changes.add_chain(name, "");
        }
        for (name, rules) in &self.chains {
            rules.iter().for_each(|rule| changes.add_rule(name, rule));
        }
        changes
    }
}

fn list(place: usize) -> String {
    format!("LIST-{place}")
}

fn of_list(tier: &TierRules, next: &Verdict, kinds: &BTreeMap<SetId, SetKind>) -> Vec<NftRule> {
    let both = tier
        .rules
        .iter()
        .flat_map(|rule| Family::ALL.map(|family| (rule, family)));
    let mut lines: Vec<NftRule> = both
        .filter_map(|(rule, family)| of_rule(rule, next, kinds, family))
        .collect();
    lines.push(match tier.default_action {
        DefaultAction::Deny => to(goto(DENY), []),
        DefaultAction::NextTier => to(next.clone(), []),
    });
    lines
}

/// None for an Allow over a missing set; a Deny or Pass over one denies everything.
fn of_rule(rule: &Rule, next: &Verdict, kinds: &BTreeMap<SetId, SetKind>, family: Family) -> Option<NftRule> {
    let end = match rule.action {
        Action::Allow => Verdict::Accept,
        Action::Deny => goto(DENY),
        Action::Pass => next.clone(),
    };
    let lookup = |id: SetId, holds: bool| {
        let keys = lookup_keys(*kinds.get(&id)?, Key::Destination(family));
        Some(Statement::In(keys, String::from(names::set(id, family)), holds))
    };
    let peer = match rule.peer {
        PeerMatch::Any => Some(None),
        PeerMatch::In(id) => lookup(id, true).map(Some),
        PeerMatch::OwnNode | PeerMatch::Itself => None,
    };
    let except = match rule.except {
        None => Some(None),
        Some(id) => lookup(id, false).map(Some),
    };
    let mut when = vec![Statement::Family(family)];
    match (peer.zip(except), rule.action) {
        (Some((peer, except)), _) => {
            when.extend(port(rule.port, family));
            when.extend(peer.into_iter().chain(except));
            Some(to(end, when))
        }
        (None, Action::Allow) => None,
        (None, Action::Deny | Action::Pass) => Some(to(goto(DENY), when)),
    }
}

#[cfg(test)]
mod tests;
