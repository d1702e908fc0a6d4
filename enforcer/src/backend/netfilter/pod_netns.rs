//! Rules inside a pod's own network namespace, for interfaces whose packets pass no hook of the node:
//! macvlan, ipvlan, a physical card or a virtual function. Only ClusterEgressFirewall is enforced there.
//!
//! ```text
//!  OUTPUT, FORWARD ─ EGRET-POD ─ -o net1 ▸ goto EGRET-POD-0 ─ replies ▸ return
//!                                                           ├ rule ▸ return, or goto EGRET-POD-DENY
//!                                                           └ goto the next list, EGRET-POD-1 …
//! ```
//!
//! Every packet is judged and none is marked: a change counts for open connections at once. A pod with CAP_NET_ADMIN can remove these
//! rules, or send packets that pass no hook. The next reconciliation detects removed rules and writes them again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsFd as _;

use egret_kernel::Family;
use egret_kernel::ipset::{IpSets, Kind, Member as KernelMember, SetEntry, SetSpec};
use egret_kernel::iptables::{
    ChainName, Endpoint, Flavour, Hook, InterfaceName, IpTables, Match, Protocol, Rule as Line, SetLookup,
    SetName, Table, TableListing, Target,
};
use egret_kernel::links::Links;
use egret_kernel::namespaces;
use egret_policies::rules::{Action, DefaultAction, PeerMatch, PortMatch, Rule, SetId, SetKind};
use nix::errno::Errno;

use crate::backend::BackendError;
use crate::backend::netfilter::model::egress_firewall::EgressFirewall;
use crate::backend::netfilter::model::set_contents::Contents;
use crate::backend::netfilter::model::settings::DenyAction;
use crate::backend::netfilter::render::chains::Chains;
use crate::backend::netfilter::render::conn_state::{neighbours, replies};
use crate::backend::netfilter::render::deny::deny_lines;
use crate::backend::netfilter::sets::members;
use crate::backend::netfilter::sets::{MOST_MEMBERS, kernel_kind};
use crate::backend::netfilter::tables::hooks;
use crate::backend::nftables::pod_netns as nftables;
use egret_kernel::iptables::legacy;

/// How rules are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend) enum RuleSettings {
    /// By programs of iptables, over sets of ipset.
    Iptables(Flavour, DenyAction),
    /// As a table of nftables ([`nftables`]).
    Nftables(DenyAction),
}

/// Programs these rules for these interfaces of a namespace. Without interfaces or rules it removes ours. Returns the number of
/// tables that differed.
///
/// # Errors
/// Why it cannot be done, in words.
pub(super) fn enforce(
    namespace: &File,
    interfaces: &[InterfaceName],
    firewall: &EgressFirewall,
    contents: &Contents,
    writing: RuleSettings,
) -> Result<usize, String> {
    let work = || match writing {
        RuleSettings::Iptables(flavour, deny) => {
            DesiredState::of(interfaces, firewall, contents).write(flavour, deny)
        }
        RuleSettings::Nftables(deny) => nftables::enforce(interfaces, firewall, contents, deny),
    };
    namespaces::within(namespace.as_fd(), work).map_err(not_entered)?
}

/// Why a namespace was not entered.
fn not_entered(errno: Errno) -> String {
    match errno {
        Errno::EPERM => "its network namespace cannot be entered without CAP_SYS_ADMIN".to_owned(),
        errno => format!("its network namespace cannot be entered: {errno}"),
    }
}

/// Removes, or only lists, our rules of iptables in all namespaces that a link of this one leads into. Returns what there was, in words.
/// A namespace that cannot be entered has none of ours.
///
/// # Errors
/// With what could not be removed.
pub(super) fn remove_everywhere(is_removed: bool) -> Result<Vec<String>, BackendError> {
    in_all(|| removed(is_removed))
}

/// The same of the tables of nftables.
///
/// # Errors
/// With what could not be removed.
pub(in crate::backend) fn remove_tables_everywhere(is_removed: bool) -> Result<Vec<String>, BackendError> {
    in_all(|| {
        let is_there = nftables::remove(is_removed)?;
        Ok(is_there
            .then(|| "inside a pod: a table of nftables".to_owned())
            .into_iter()
            .collect())
    })
}

fn in_all(work: impl Fn() -> Result<Vec<String>, String> + Sync) -> Result<Vec<String>, BackendError> {
    let failed = |reason: String| BackendError::new("cannot remove rules in the namespaces of pods", reason);
    let mut links = Links::open().map_err(|error| failed(error.to_string()))?;
    let interfaces = links.interfaces().map_err(|error| failed(error.to_string()))?;
    let numbers = interfaces.iter().filter_map(|interface| interface.link_namespace);
    let files = namespaces::find(&mut links, numbers.collect());
    let mut found = Vec::new();
    for file in files.values() {
        match namespaces::within(file.as_fd(), &work) {
            Ok(removed) => found.extend(removed.map_err(failed)?),
            Err(Errno::EPERM) => {}
            Err(errno) => return Err(failed(not_entered(errno))),
        }
    }
    Ok(found)
}

/// The desired state of a namespace.
struct DesiredState<'a> {
    interfaces: &'a [InterfaceName],
    firewall: &'a EgressFirewall,
    /// By name and family.
    sets: BTreeMap<String, (Family, Kind, BTreeSet<KernelMember>)>,
    kinds: BTreeMap<SetId, SetKind>,
}

impl<'a> DesiredState<'a> {
    fn of(interfaces: &'a [InterfaceName], firewall: &'a EgressFirewall, contents: &Contents) -> Self {
        let named: BTreeSet<SetId> = firewall.sets().filter(|_| !interfaces.is_empty()).collect();
        let (mut sets, mut kinds) = (BTreeMap::new(), BTreeMap::new());
        for (id, (kind, members)) in contents.iter().filter(|(id, _)| named.contains(id)) {
            let members: Vec<KernelMember> = members.keys().flat_map(members::whole).collect();
            kinds.insert(*id, *kind);
            for family in Family::ALL {
                let members = members.iter().copied().filter(|member| member.family() == family);
                let set = (family, kernel_kind(*kind), members.collect());
                sets.insert(set_name(*id, family).as_str().to_owned(), set);
            }
        }
        Self {
            interfaces,
            firewall,
            sets,
            kinds,
        }
    }

    fn write(&self, flavour: Flavour, deny: DenyAction) -> Result<usize, String> {
        let mut ipsets = IpSets::open().map_err(|error| error.to_string())?;
        let there = self.write_sets(&mut ipsets).map_err(|error| error.to_string())?;
        let mut differed = 0;
        for family in Family::ALL {
            let tables = IpTables::new(flavour, family);
            let listing = tables.save(Table::Filter).map_err(|error| error.to_string())?;
            if let Some(text) = change(&listing, &self.chains(family, deny)) {
                tables.restore(&text).map_err(|error| error.to_string())?;
                differed += 1;
            }
        }
        for name in there.iter().filter(|name| !self.sets.contains_key(*name)) {
            ipsets.destroy(name).map_err(|error| error.to_string())?;
        }
        Ok(differed)
    }

    /// Returns the names of all sets of ours.
    fn write_sets(&self, ipsets: &mut IpSets) -> Result<BTreeSet<String>, egret_kernel::ipset::Error> {
        let listed = ipsets.list(SET_PREFIX)?;
        let mut there: BTreeMap<String, BTreeSet<KernelMember>> = BTreeMap::new();
        for set in listed {
            there.insert(
                set.name,
                set.entries.into_iter().map(|entry| entry.member).collect(),
            );
        }
        for (name, (family, kind, members)) in &self.sets {
            if !there.contains_key(name) {
                ipsets.create(&SetSpec {
                    maxelem: MOST_MEMBERS,
                    ..SetSpec::new(name, *kind, *family)
                })?;
                there.insert(name.clone(), BTreeSet::new());
            }
            let held = &there[name];
            let lasting =
                |members: Vec<&KernelMember>| members.into_iter().copied().map(SetEntry::lasting).collect();
            let added: Vec<SetEntry> = lasting(members.difference(held).collect());
            let gone: Vec<SetEntry> = lasting(held.difference(members).collect());
            ipsets.delete(name, &gone)?;
            ipsets.add(name, &added)?;
        }
        Ok(there.into_keys().collect())
    }

    /// No chains where nothing is to be enforced.
    fn chains(&self, family: Family, deny: DenyAction) -> Chains {
        if self.interfaces.is_empty() || self.firewall.is_empty() {
            return Chains::new();
        }
        let text = |lines: Vec<Line>| lines.iter().map(Line::to_string).collect::<Vec<_>>();
        let asked = |interface: &InterfaceName| Line::to(Target::Goto(list(0))).output(interface.clone());
        let mut chains = Chains::from([
            (
                entry().as_str().to_owned(),
                text(self.interfaces.iter().map(asked).collect()),
            ),
            (denied().as_str().to_owned(), text(deny_lines(deny, family))),
        ]);
        for (place, tier) in self.firewall.tiers.iter().enumerate() {
            let next = (place + 1 < self.firewall.tiers.len()).then(|| list(place + 1));
            let mut lines: Vec<String> = Vec::new();
            if place == 0 {
                lines.extend(neighbours(family));
                lines.extend(text(replies(family)));
            }
            let rules = tier
                .rules
                .iter()
                .filter_map(|rule| self.rule(rule, next.as_ref(), family));
            lines.extend(text(rules.collect()));
            lines.extend(text(end(tier.default_action, next.as_ref())));
            chains.insert(list(place).as_str().to_owned(), lines);
        }
        chains
    }

    /// None for an Allow over a missing set; a Deny or Pass over one denies everything.
    fn rule(&self, rule: &Rule, next: Option<&ChainName>, family: Family) -> Option<Line> {
        let target = match rule.action {
            Action::Allow => Target::Return,
            Action::Deny => Target::Goto(denied()),
            Action::Pass => next.cloned().map_or(Target::Return, Target::Goto),
        };
        let is_here = |id: SetId| self.kinds.contains_key(&id);
        let peer = match rule.peer {
            PeerMatch::Any => Some(None),
            PeerMatch::In(id) if is_here(id) => Some(Some(id)),
            PeerMatch::In(_) | PeerMatch::OwnNode | PeerMatch::Itself => None,
        };
        let peer = peer.filter(|_| rule.except.is_none_or(is_here));
        match (peer, rule.action) {
            (Some(peer), _) => {
                let line = port(Line::to(target), rule.port, family);
                let line = peer
                    .into_iter()
                    .fold(line, |line, id| line.when(self.matching(id, family)));
                let except = rule.except.into_iter();
                Some(except.fold(line, |line, id| line.unless(self.matching(id, family))))
            }
            (None, Action::Allow) => None,
            (None, Action::Deny | Action::Pass) => Some(Line::to(Target::Goto(denied()))),
        }
    }

    fn matching(&self, id: SetId, family: Family) -> Match {
        let to = Endpoint::Destination;
        let sides = match self.kinds.get(&id) {
            Some(SetKind::AddressPorts | SetKind::NetworkPorts) => SetLookup::Two(to, to),
            Some(SetKind::Addresses | SetKind::Networks | SetKind::Records) | None => SetLookup::One(to),
        };
        Match::Set(set_name(id, family), sides)
    }
}

fn end(otherwise: DefaultAction, next: Option<&ChainName>) -> Vec<Line> {
    match (otherwise, next) {
        (DefaultAction::Deny, _) => vec![Line::to(Target::Goto(denied()))],
        (DefaultAction::NextTier, Some(next)) => vec![Line::to(Target::Goto(next.clone()))],
        (DefaultAction::NextTier, None) => Vec::new(),
    }
}

fn port(line: Line, port: PortMatch, family: Family) -> Line {
    match port {
        PortMatch::Any => line,
        PortMatch::Icmp => line.protocol(match family {
            Family::V4 => Protocol::Icmp,
            Family::V6 => Protocol::IcmpV6,
        }),
        PortMatch::Range(transport, range) => {
            line.protocol(Protocol::to_ports(transport, range.first()..=range.last()))
        }
    }
}

/// The text that makes a table hold these chains and no others of ours; none if it already does.
fn change(listing: &TableListing, wanted: &Chains) -> Option<String> {
    let there: Chains = ours(listing)
        .map(|chain| (chain.name.clone(), chain.texts().map(str::to_owned).collect()))
        .collect();
    let jump = jump();
    let copies = HOOKS.map(|hook| hooks::copies(listing, hook, &jump));
    let is_in_place = copies.iter().all(|places| match wanted.is_empty() {
        true => places.is_empty(),
        false => places[..] == [0],
    });
    if there == *wanted && is_in_place {
        return None;
    }
    let mut text = String::from("*filter\n");
    let names: BTreeSet<&String> = there.keys().chain(wanted.keys()).collect();
    text.extend(names.iter().map(|name| format!(":{name} - [0:0]\n")));
    for (name, rules) in wanted {
        text.extend(rules.iter().map(|rule| format!("-A {name} {rule}\n")));
    }
    for (hook, places) in HOOKS.iter().zip(&copies) {
        text.extend(places.iter().map(|_| format!("-D {} {jump}\n", hook.name())));
        if !wanted.is_empty() {
            text += &format!("-I {} {jump}\n", hook.name());
        }
    }
    let gone = names.into_iter().filter(|name| !wanted.contains_key(*name));
    text.extend(gone.map(|name| format!("-X {name}\n")));
    Some(text + "COMMIT\n")
}

fn removed(is_removed: bool) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for flavour in Flavour::BOTH {
        for family in Family::ALL {
            if flavour == Flavour::Legacy && !legacy::is_there(family, Table::Filter) {
                continue;
            }
            let tables = IpTables::new(flavour, family);
            let Ok(listing) = tables.save(Table::Filter) else {
                continue;
            };
            if let Some(text) = change(&listing, &Chains::new()) {
                let chains = ours(&listing).map(|chain| chain.name.as_str());
                found.push(format!(
                    "inside a pod: chains {}",
                    chains.collect::<Vec<_>>().join(" ")
                ));
                if is_removed {
                    tables.restore(&text).map_err(|error| error.to_string())?;
                }
            }
        }
    }
    let mut ipsets = IpSets::open().map_err(|error| error.to_string())?;
    let names = ipsets.names().map_err(|error| error.to_string())?;
    for name in names.into_iter().filter(|name| name.starts_with(SET_PREFIX)) {
        if is_removed {
            ipsets.destroy(&name).map_err(|error| error.to_string())?;
        }
        found.push(format!("inside a pod: set {name}"));
    }
    Ok(found)
}

/// Packets of the pod's processes, and those that it forwards.
const HOOKS: [Hook; 2] = [Hook::Output, Hook::Forward];
/// Differs from the prefix of the node's chains and sets: some pod namespaces are nodes of other clusters.
const CHAIN_PREFIX: &str = "EGRET-POD";
const SET_PREFIX: &str = "egret-pod-";

fn jump() -> String {
    Line::to(Target::Jump(entry())).comment("egret").to_string()
}

fn ours(listing: &TableListing) -> impl Iterator<Item = &egret_kernel::iptables::Chain> {
    let is_ours = |name: &str| {
        let rest = name.strip_prefix(CHAIN_PREFIX);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    listing.chains.iter().filter(move |chain| is_ours(&chain.name))
}

fn entry() -> ChainName {
    chain("")
}

fn denied() -> ChainName {
    chain("-DENY")
}

fn list(place: usize) -> ChainName {
    chain(&format!("-{place}"))
}

fn chain(rest: &str) -> ChainName {
    ChainName::new(format!("{CHAIN_PREFIX}{rest}")).expect("so few letters, digits and dashes are a name")
}

fn set_name(id: SetId, family: Family) -> SetName {
    let digit = match family {
        Family::V4 => '4',
        Family::V6 => '6',
    };
    SetName::new(format!("{SET_PREFIX}{}-{digit}", id.digest()))
        .expect("28 letters, digits and dashes are a name")
}
