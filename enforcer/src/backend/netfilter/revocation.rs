//! Ends what is open and forbidden by now. The next packet that a flow's opener sends is judged anew in any case; but what
//! only the other side sends are replies, which nobody judges, and the program waits for answers that never come. So a flow
//! that the new rules forbid is marked as revoked, which ends it in both directions, and its sockets in the pods are ended.
//!
//! Flows are never deleted: conntrack would pick up the next packet of either side as a new flow, maybe the other way round.
//! A revoked flow lives on while somebody sends, so its mark is taken back when the rules allow it again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_kernel::conntrack::{Conntrack, Filter, Flow, Tuple};
use egret_kernel::iptables::InterfaceName;
use egret_kernel::links::Links;
use egret_kernel::{Family, netlink};
use egret_policies::rules::{Batch, Direction, PodRules, SetId};
use egret_shared::pod::PodKey;
use egret_shared::switch::{Switch, is_off};

use super::judge::Judge;
use super::marks::Marks;
use super::names::PodChains;
use super::pod_sockets::{self, Held};
use super::{Local, Netfilter, names_any};
use crate::backend::Ended;

/// What is to be looked at, and what was revoked.
#[derive(Debug, Default)]
pub(super) struct Revocations {
    /// Pods whose open flows are to be judged.
    asked: BTreeSet<(PodKey, Direction)>,
    /// Addresses that a pod had: what it opened ends, whoever has the address now.
    left: BTreeSet<IpAddr>,
    /// What may allow again what was revoked.
    moved: Moved,
    /// As of the last look, for there may be many and each change asks for them.
    revoked: Vec<Revoked>,
    /// The list is to be read from the kernel.
    recall: bool,
    /// Sockets stay: what is known may not be whole yet.
    spare_sockets: bool,
    said: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Moved {
    pods: BTreeSet<PodKey>,
    sets: BTreeSet<SetId>,
}

#[derive(Debug)]
struct Revoked {
    direction: Direction,
    flow: Flow,
    /// It was opened by, or to, a pod that is gone: whoever has the address now does not get it back.
    is_left: bool,
}

impl Revocations {
    /// After a start everything is looked at, since the last life may have ended in the middle. Records may not be back yet, so
    /// nothing is done that cannot be taken back.
    pub(super) fn start(&mut self, pods: impl Iterator<Item = PodKey>) {
        self.ask(pods.flat_map(|pod| Direction::ALL.map(|direction| (pod.clone(), direction))));
        self.recall = true;
        self.spare_sockets = true;
    }

    pub(super) fn ask(&mut self, asked: impl IntoIterator<Item = (PodKey, Direction)>) {
        self.asked.extend(asked);
    }

    /// Takes note of a batch, before the pods are replaced.
    pub(super) fn note(&mut self, batch: &Batch, pods: &BTreeMap<PodKey, Local>) {
        let had = |pod: &PodKey| pods.get(pod).map_or(&[][..], |local| &local.rules.addresses);
        for pod in &batch.pods_removed {
            self.left.extend(had(pod));
        }
        for rules in &batch.rules_replaced {
            let gone = had(&rules.pod)
                .iter()
                .filter(|address| !rules.addresses.contains(address));
            self.left.extend(gone);
        }
        if !self.revoked.is_empty() {
            let replaced = batch.rules_replaced.iter().map(|rules| rules.pod.clone());
            self.moved.pods.extend(replaced);
            let changed = batch.members_changed.iter().map(|change| change.set);
            self.moved.sets.extend(changed);
        }
    }

    /// Looks again which flows are revoked: those that ended are forgotten.
    pub(super) fn look_again(&mut self) {
        self.recall |= !self.revoked.is_empty();
    }

    fn has_work(&self) -> bool {
        let has_moved = !self.moved.pods.is_empty() || !self.moved.sets.is_empty();
        has_moved || self.recall || !self.asked.is_empty() || !self.left.is_empty()
    }

    fn say_once(&mut self, hindered: String) {
        if self.said.len() < MOST_SAID && self.said.insert(hindered.clone()) {
            tracing::warn!(
                reason = hindered,
                "programs whose connections are revoked learn it only by their silence"
            );
        }
    }
}

/// Then it is known.
const MOST_SAID: usize = 16;

impl Netfilter {
    /// Ends what the batches so far forbid. What cannot be done now is done the next time.
    pub(super) fn revoke(&mut self) -> Ended {
        if !self.revocations.has_work() || self.broken.is_some() || is_off(Switch::Revoke) {
            return Ended::default();
        }
        self.try_to_revoke().unwrap_or_else(|error| {
            tracing::warn!(%error, "connections that are forbidden by now may go on until it is tried again");
            Ended::default()
        })
    }

    fn try_to_revoke(&mut self) -> Result<Ended, netlink::Error> {
        let mut conntrack = Conntrack::open()?;
        let own_node = Links::open()?.addresses()?;
        let own_node = own_node.into_iter().map(|address| address.net.addr()).collect();
        self.recall(&mut conntrack)?;
        let forbidden = self.forbidden(&mut conntrack, &own_node)?;
        self.forgive(&mut conntrack, &own_node)?;
        let mut ended = Ended::default();
        for one in &forbidden {
            let mark = self.settings.marks.revoked(one.direction);
            ended.flows += u64::from(conntrack.set_mark(&one.flow, mark)?);
        }
        ended.sockets = self.end_sockets(&forbidden);
        let refused = &self.refused;
        let revocations = &mut self.revocations;
        revocations.revoked.extend(forbidden);
        revocations.asked.retain(|(pod, _)| refused.contains_key(pod));
        revocations.left.clear();
        revocations.spare_sockets = false;
        Ok(ended)
    }

    /// Reads which flows are revoked.
    fn recall(&mut self, conntrack: &mut Conntrack) -> Result<(), netlink::Error> {
        if !self.revocations.recall {
            return Ok(());
        }
        let known = self.revocations.revoked.iter().filter(|one| one.is_left);
        let left: BTreeSet<(Direction, u16, Tuple)> = known
            .map(|one| (one.direction, one.flow.zone, one.flow.original))
            .collect();
        let mut revoked = Vec::new();
        for direction in Direction::ALL {
            for family in Family::BOTH {
                let filter = Filter {
                    mark: Some(self.settings.marks.revoked(direction)),
                    ..Filter::family(family)
                };
                let flows = conntrack.dump(&filter)?.into_iter();
                revoked.extend(flows.map(|flow| Revoked {
                    direction,
                    is_left: left.contains(&(direction, flow.zone, flow.original)),
                    flow,
                }));
            }
        }
        self.revocations.moved.pods.extend(self.pods.keys().cloned());
        self.revocations.revoked = revoked;
        self.revocations.recall = false;
        Ok(())
    }

    /// Flows that were allowed under earlier rules and are not any more.
    fn forbidden(
        &self,
        conntrack: &mut Conntrack,
        own_node: &BTreeSet<IpAddr>,
    ) -> Result<Vec<Revoked>, netlink::Error> {
        let (asked, left) = (&self.revocations.asked, &self.revocations.left);
        let in_force = asked.iter().filter(|(pod, _)| !self.refused.contains_key(pod));
        let addresses = in_force
            .filter_map(|(pod, _)| self.pods.get(pod))
            .flat_map(|local| &local.rules.addresses);
        let addresses: BTreeSet<IpAddr> = addresses.chain(left).copied().collect();
        let owners = self.owners();
        let judge = Judge {
            sets: &self.sets,
            own_node,
        };
        let is_forbidden = |direction: Direction, flow: &Flow| {
            let address = pods_end(direction, flow);
            let owner = owners.get(&address).copied();
            if !self.is_of_earlier_rules(direction, flow, owner) {
                return false;
            }
            left.contains(&address)
                || owner.is_some_and(|rules| {
                    asked.contains(&(rules.pod.clone(), direction))
                        && !self.refused.contains_key(&rules.pod)
                        && !judge.allows(rules, direction, flow)
                })
        };
        let mut forbidden = Vec::new();
        for flow in flows_at(conntrack, &addresses)? {
            let directions = Direction::ALL.into_iter();
            let ended = directions.filter(|direction| is_forbidden(*direction, &flow));
            forbidden.extend(ended.map(|direction| Revoked {
                direction,
                is_left: left.contains(&pods_end(direction, &flow)),
                flow: flow.clone(),
            }));
        }
        Ok(forbidden)
    }

    /// Whether rules of a pod allowed it, other than those that the owner of the address has now.
    fn is_of_earlier_rules(&self, direction: Direction, flow: &Flow, owner: Option<&PodRules>) -> bool {
        let marks: Marks = self.settings.marks;
        let present = owner.and_then(|rules| self.generations.marks(PodChains::of(&rules.pod)));
        let is_present = present.is_some_and(|present| match direction {
            Direction::Egress => present.egress.is_in(flow.mark),
            Direction::Ingress => present.ingress.is_in(flow.mark),
        });
        let is_unmarked = marks.unmarked(direction).is_in(flow.mark);
        !is_present && !is_unmarked && !marks.revoked(direction).is_in(flow.mark)
    }

    /// Takes the mark off what is allowed again: its next packet is judged.
    fn forgive(
        &mut self,
        conntrack: &mut Conntrack,
        own_node: &BTreeSet<IpAddr>,
    ) -> Result<(), netlink::Error> {
        let Moved { pods, sets } = std::mem::take(&mut self.revocations.moved);
        let revoked = std::mem::take(&mut self.revocations.revoked);
        let owners = self.owners();
        let judge = Judge {
            sets: &self.sets,
            own_node,
        };
        let is_forgiven = |one: &Revoked| {
            let owner = owners.get(&pods_end(one.direction, &one.flow));
            let owner = owner.filter(|rules| !one.is_left && !self.refused.contains_key(&rules.pod));
            owner.is_some_and(|rules| {
                (pods.contains(&rules.pod) || names_any(rules, one.direction, &sets))
                    && judge.allows(rules, one.direction, &one.flow)
            })
        };
        let (forgiven, kept): (Vec<_>, Vec<_>) = revoked.into_iter().partition(is_forgiven);
        self.revocations.revoked = kept;
        for one in forgiven {
            let unmarked = self.settings.marks.unmarked(one.direction);
            if let Err(error) = conntrack.set_mark(&one.flow, unmarked) {
                self.revocations.recall = true;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends the sockets of both ends, where they are pods of this node. The socket knows the addresses that it sends by: the
    /// opener's those before any rewriting (a Service's), the other's those behind it.
    fn end_sockets(&mut self, forbidden: &[Revoked]) -> u64 {
        if self.revocations.spare_sockets {
            return 0;
        }
        let interfaces = self.interfaces_by_address();
        let mut wanted: BTreeMap<InterfaceName, Vec<Held>> = BTreeMap::new();
        for tuple in forbidden
            .iter()
            .flat_map(|one| [one.flow.original, one.flow.reply])
        {
            let interface = interfaces.get(&tuple.source);
            if let Some((interface, held)) = interface.zip(Held::sending(&tuple)) {
                wanted.entry((*interface).clone()).or_default().push(held);
            }
        }
        let outcome = pod_sockets::end(&wanted);
        if let Some(hindered) = outcome.hindered {
            self.revocations.say_once(hindered);
        }
        outcome.ended
    }

    fn owners(&self) -> BTreeMap<IpAddr, &PodRules> {
        let rules = self.pods.values().map(|local| &local.rules);
        rules
            .flat_map(|rules| rules.addresses.iter().map(move |address| (*address, rules)))
            .collect()
    }

    fn interfaces_by_address(&self) -> BTreeMap<IpAddr, &InterfaceName> {
        let mut found = BTreeMap::new();
        for local in self.pods.values() {
            let interface = local.place.iter().flatten().next();
            let addresses = local.rules.addresses.iter();
            found.extend(addresses.filter_map(|address| Some((*address, &interface?.interface))));
        }
        found
    }
}

/// The end of a flow at which a pod is judged.
fn pods_end(direction: Direction, flow: &Flow) -> IpAddr {
    match direction {
        Direction::Egress => flow.original.source,
        Direction::Ingress => flow.reply.source,
    }
}

/// All flows that these addresses open or answer. The kernel looks through all its flows for each question, and sends
/// them all where the question is about IPv6; so many are asked for at once.
fn flows_at(conntrack: &mut Conntrack, addresses: &BTreeSet<IpAddr>) -> Result<Vec<Flow>, netlink::Error> {
    const FEW: usize = 2;
    let mut found: BTreeMap<(u16, Tuple), Flow> = BTreeMap::new();
    for family in Family::BOTH {
        let of_family: Vec<IpAddr> = addresses
            .iter()
            .copied()
            .filter(|address| Family::of(*address) == family)
            .collect();
        let filters: Vec<Filter> = match (family, of_family.len()) {
            (_, 0) => Vec::new(),
            (Family::V4, 1..=FEW) => of_family
                .iter()
                .flat_map(|address| [Filter::from_source(*address), Filter::answered_by(*address)])
                .collect(),
            (Family::V4 | Family::V6, _) => vec![Filter::family(family)],
        };
        for filter in filters {
            let flows = conntrack.dump(&filter)?.into_iter();
            found.extend(flows.map(|flow| ((flow.zone, flow.original), flow)));
        }
    }
    Ok(found.into_values().collect())
}
