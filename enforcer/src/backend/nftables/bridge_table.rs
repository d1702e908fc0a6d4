//! The table of the family `bridge`: by which port of a bridge a packet comes in is seen there alone. It checks the source of what a pod
//! sends, so that behind it the address on the bridge is the pod's; `br_netfilter` hands the packet to the table `inet egret` then.
//!
//! ```text
//!  prerouting, before br_netfilter ─ iifname vmap @ports ▸ goto EGRET-SOURCE-BY ─ iifname . saddr @source-4 ▸ accept
//!                                  │                                            └ EGRET-SPOOFED
//!                                  └ the source is a pod's of another port ▸ goto EGRET-SPOOFED
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_kernel::Family;
use egret_kernel::netlink;
use egret_kernel::nftables::{
    BaseChain, Changes, ElementKey, Key, NamedCounter, NfHook, NftRule, Statement, TableReader, Verdict,
    listed_keys,
};

use super::dispatch::{self, Lookup, Lookups, Style};
use super::rules::{goto, to};
use crate::backend::netfilter::drift::Drift;
use crate::backend::netfilter::model::attachment::{PodAttachment, PodInterface};
use crate::backend::netfilter::names::{self, NFTABLES_BRIDGE};

/// What the table is to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BridgeTable {
    chains: BTreeMap<String, Vec<NftRule>>,
    lookups: Lookups,
    counters: Vec<NamedCounter>,
}

const SOURCE: &str = "source";
/// Before `br_netfilter` (0) and the tracking of connections on bridges (-200).
const BEFORE_ALL: i32 = -310;

const ETHER_V4: u16 = 0x0800;
const ETHER_V6: u16 = 0x86dd;
const ETHER_ARP: u16 = 0x0806;

/// A packet of a family on a bridge. A frame with a VLAN tag is of none: `br_netfilter` hands over none of these.
fn is_of(family: Family) -> Statement {
    Statement::EtherType(match family {
        Family::V4 => ETHER_V4,
        Family::V6 => ETHER_V6,
    })
}

impl BridgeTable {
    /// The table for these pods; none where no port of a bridge is known to be a pod's, unless it is kept for what it counted.
    pub(super) fn of<'a>(
        pods: impl Iterator<Item = &'a PodAttachment>,
        style: Style,
        is_kept: bool,
    ) -> Option<Self> {
        let mut ports = Lookup::map(&[Key::Input]);
        let mut valid = Family::ALL.map(|family| Lookup::set(&[Key::Input, Key::Source(family)]));
        let mut owned = Family::ALL.map(|family| Lookup::set(&[Key::Source(family)]));
        let check = names::source_lookup();
        for pod in pods {
            for interface in &pod.interfaces {
                let PodInterface::BridgePort { port, .. } = interface else {
                    continue;
                };
                ports.add(ElementKey::Interface(port.clone()), Some(goto(check.as_str())));
                for address in &pod.addresses {
                    let (valid, owned) = (&mut valid[place(*address)], &mut owned[place(*address)]);
                    valid.add(ElementKey::InterfaceAddress(port.clone(), *address), None);
                    owned.add(ElementKey::Address(*address), None);
                }
            }
        }
        if ports.elements.is_empty() && !is_kept {
            return None;
        }
        let spoofed = || goto(names::spoofed().as_str());
        let in_set = |name: &str, keys: &[Key]| Statement::In(keys.to_vec(), name.to_owned(), true);
        let mut source = vec![super::rules::rule([Statement::Map(
            ports.keys.clone(),
            "ports".to_owned(),
        )])];
        let mut checked = Vec::new();
        for (family, valid_name, owned_name) in [
            (Family::V4, "source-4", "owned-4"),
            (Family::V6, "source-6", "owned-6"),
        ] {
            // By whichever bridge: which one it is, few kernels say (CONFIG_NFT_BRIDGE_META).
            let owned_keys = [Key::Source(family)];
            source.push(to(spoofed(), [is_of(family), in_set(owned_name, &owned_keys)]));
            let valid_keys = [Key::Input, Key::Source(family)];
            checked.push(to(
                Verdict::Accept,
                [is_of(family), in_set(valid_name, &valid_keys)],
            ));
        }
        // Who has an address is asked and answered below IP. What is neither is judged by nobody behind this.
        checked.push(to(Verdict::Accept, [Statement::EtherType(ETHER_ARP)]));
        checked.extend(Family::ALL.map(|family| to(spoofed(), [is_of(family)])));
        checked.push(to(Verdict::Drop, []));
        let ends = dispatch::spoofed(style.ends.telling, is_of);
        let counters = counters(&ends);
        let [valid_v4, valid_v6] = valid;
        let [owned_v4, owned_v6] = owned;
        Some(Self {
            chains: BTreeMap::from([
                (SOURCE.to_owned(), source),
                (check.as_str().to_owned(), checked),
                (names::spoofed().as_str().to_owned(), ends),
            ]),
            lookups: Lookups::from([
                ("ports", ports),
                ("source-4", valid_v4),
                ("source-6", valid_v6),
                ("owned-4", owned_v4),
                ("owned-6", owned_v6),
            ]),
            counters,
        })
    }

    /// Plans to have the kernel hold this in the place of what it holds. The chain that it calls stays, so that no packet on its way
    /// misses it.
    pub(super) fn plan(desired: Option<&Self>, held: &BridgeState, changes: &mut Changes) {
        changes.go_to(NFTABLES_BRIDGE);
        match desired {
            None if !held.is_empty() => changes.delete_table(),
            None => {}
            Some(desired) => desired.put(held, changes),
        }
        changes.go_to(super::TABLE);
    }

    fn put(&self, held: &BridgeState, changes: &mut Changes) {
        changes.add_table();
        held.chains.keys().for_each(|chain| changes.flush_chain(chain));
        held.elements.keys().for_each(|set| changes.delete_set(set));
        let others = held.chains.keys().filter(|chain| *chain != SOURCE);
        others.for_each(|chain| changes.delete_chain(chain));
        self.counters
            .iter()
            .for_each(|counter| changes.add_counter(counter));
        for (name, lookup) in &self.lookups {
            changes.add_set(&lookup.spec(name));
        }
        changes.add_base_chain(&BaseChain {
            name: SOURCE.to_owned(),
            hook: NfHook::Prerouting,
            priority: BEFORE_ALL,
        });
        let others = self.chains.keys().filter(|name| *name != SOURCE);
        others.for_each(|name| changes.add_chain(name, ""));
        for (name, rules) in &self.chains {
            rules.iter().for_each(|rule| changes.add_rule(name, rule));
        }
        for (name, lookup) in &self.lookups {
            let elements = lookup.elements.iter();
            let elements: Vec<_> = elements
                .map(|(key, verdict)| dispatch::element(key, verdict.as_ref()))
                .collect();
            changes.add_elements(*name, &elements);
        }
    }
}

/// What the kernel holds of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BridgeState {
    /// The comments of the rules of each chain.
    chains: BTreeMap<String, Vec<String>>,
    /// The keys in each set and map.
    elements: BTreeMap<String, BTreeSet<Vec<u8>>>,
}

impl BridgeState {
    /// Lists it; nothing where there is no table.
    pub(super) fn list(reader: &mut TableReader) -> Result<Self, netlink::Error> {
        let table = reader.list(NFTABLES_BRIDGE)?.unwrap_or_default();
        let mut elements = BTreeMap::new();
        for name in table.sets.into_keys() {
            let listed = reader.elements(NFTABLES_BRIDGE, &name)?.into_iter();
            elements.insert(name, listed.map(|element| element.key).collect());
        }
        let chains = table.chains.into_iter();
        Ok(Self {
            chains: chains.map(|(name, chain)| (name, chain.rules)).collect(),
            elements,
        })
    }

    /// What the kernel holds once this is written.
    pub(super) fn of(desired: Option<&BridgeTable>) -> Self {
        let Some(desired) = desired else {
            return Self::default();
        };
        let comments = |rules: &Vec<NftRule>| rules.iter().map(|rule| rule.comment.to_string()).collect();
        let chains = desired.chains.iter();
        let keys = |lookup: &Lookup| {
            let listed = lookup.elements.keys().flat_map(listed_keys);
            listed.map(|(key, _)| key).collect()
        };
        let lookups = desired.lookups.iter();
        Self {
            chains: chains
                .map(|(name, rules)| (name.clone(), comments(rules)))
                .collect(),
            elements: lookups
                .map(|(name, lookup)| ((*name).to_owned(), keys(lookup)))
                .collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.elements.is_empty()
    }

    /// What differs from what was written.
    pub(super) fn note_drift(&self, written: &Self, drift: &mut Drift) {
        if self.chains != written.chains {
            drift.note("chain_changed", "the table of bridges");
        }
        if self.elements != written.elements {
            drift.note("set_changed", "the table of bridges");
        }
    }
}

/// The counters in which rules count.
fn counters(rules: &[NftRule]) -> Vec<NamedCounter> {
    let counted = rules.iter().flat_map(|rule| {
        let names = rule.statements.iter().filter_map(|statement| match statement {
            Statement::Count(name) => Some(name.clone()),
            _ => None,
        });
        names.map(|name| (name, rule.comment.to_string()))
    });
    let counted: BTreeMap<String, String> = counted.collect();
    let counter = |(name, comment)| NamedCounter {
        name,
        comment,
        packets: 0,
    };
    counted.into_iter().map(counter).collect()
}

const fn place(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => 1,
    }
}
