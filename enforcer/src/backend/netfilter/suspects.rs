//! Who may have something open that a change of sets forbids. Rules stay as they are then, so only flows from or to a member that came
//! or went can be concerned; these are judged again, and no rule is written. Decision 19 says why none of them is missed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_kernel::conntrack::{Conntrack, Flow};
use egret_kernel::{Family, Mark, netlink, passing};
use egret_policies::rules::{Batch, Direction, Member};
use egret_shared::net::IpNet;
use egret_shared::pod::PodKey;
use egret_shared::switch::{Switch, is_off};

use super::flows::{Question, Seen};
use super::names::PodChains;
use super::{Netfilter, ipvs, lapsed};

/// Pods and directions, and the members for whose sake they are asked again.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    pods: BTreeSet<(PodKey, Direction)>,
    peers: Peers,
}

/// Addresses of the other end.
#[derive(Debug, Default)]
struct Peers {
    hosts: BTreeSet<IpAddr>,
    networks: BTreeSet<IpNet>,
}

impl Suspects {
    /// Those of a batch. Where a pod has new rules as well, more than these members may be concerned.
    pub(super) fn of(batch: &Batch) -> Self {
        let replaced: BTreeSet<&PodKey> = batch.rules_replaced.iter().map(|rules| &rules.pod).collect();
        let suspected = batch.by_members.iter().filter(|(pod, _)| !replaced.contains(pod));
        let mut suspects = Self {
            pods: suspected.cloned().collect(),
            peers: Peers::default(),
        };
        if !suspects.is_empty() {
            let added = batch.members_changed.iter().flat_map(|change| &change.added);
            let removed = batch.members_changed.iter().flat_map(|change| &change.removed);
            let members = added.map(|(member, _)| member).chain(removed);
            members.for_each(|member| suspects.peers.insert(*member));
        }
        suspects
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    pub(super) fn has(&self, asked: &(PodKey, Direction)) -> bool {
        self.pods.contains(asked)
    }

    /// Whether a flow of a pod is one because of which the pod is asked.
    pub(super) fn concern(&self, pod: &PodKey, direction: Direction, flow: &Flow) -> bool {
        self.peers.touch(flow) && self.has(&(pod.clone(), direction))
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.pods.extend(other.pods);
        self.peers.hosts.extend(other.peers.hosts);
        self.peers.networks.extend(other.peers.networks);
    }

    /// Where their flows are. Behind IPVS the address that was asked about is neither whence answers come nor who began.
    pub(super) fn question(&self) -> Question {
        if self.is_empty() {
            return Question::default();
        }
        let ends = |host: &IpAddr| Direction::ALL.map(|direction| (direction, *host));
        let mut question = Question::about(self.peers.hosts.iter().flat_map(ends).collect());
        let networks = self.peers.networks.iter();
        question
            .families
            .extend(networks.map(|network| Family::of(network.addr())));
        if ipvs::has_ipvs() {
            question.families.extend(Family::BOTH);
        }
        question
    }
}

impl Peers {
    fn insert(&mut self, member: Member) {
        match member {
            Member::Address(address) | Member::AddressPort(address, ..) => {
                self.hosts.insert(address);
            }
            Member::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                self.hosts.insert(network.addr());
            }
            Member::Network(network) => {
                self.networks.insert(network);
            }
        }
    }

    /// Whether one of them is at an end, before or behind any translation.
    fn touch(&self, flow: &Flow) -> bool {
        let tuples = [flow.original, flow.reply].into_iter();
        let mut ends = tuples.flat_map(|tuple| [tuple.source, tuple.destination]);
        ends.any(|end| {
            self.hosts.contains(&end) || self.networks.iter().any(|network| network.contains(&end))
        })
    }
}

/// Why it is not known what is open.
#[derive(Debug, thiserror::Error)]
enum Unknown {
    #[error(transparent)]
    Passing(#[from] passing::Error),
    #[error(transparent)]
    Flows(#[from] netlink::Error),
    #[error("{0} flows are concerned, and to mark each takes longer than to write chains")]
    Many(usize),
}

/// To mark a flow takes 10 to 25 µs; to have all pods of a node asked again, half a second.
const MANY: usize = 1 << 12;

impl Netfilter {
    /// Has what suspects have open judged again. Sets are in the kernel as they are to be. Where it cannot be found out what is
    /// open, all that these pods have is judged again.
    pub(super) fn ask_again(&mut self, mut suspects: Suspects) {
        suspects.pods.retain(|(pod, _)| self.pods.contains_key(pod));
        if !suspects.is_empty() && !is_off(Switch::Generation) {
            self.ask_these(suspects);
        }
        self.be_sure();
    }

    fn ask_these(&mut self, suspects: Suspects) {
        match self.unmark(&suspects) {
            Ok(seen) => self.revocations.suspect(suspects, seen),
            Err(why) => {
                tracing::debug!(%why, pods = suspects.pods.len(), "all that pods have open is asked again");
                let before = self.renew(&suspects.pods);
                self.revocations.ask(suspects.pods);
                self.program_and_carry(&before);
            }
        }
    }

    /// Takes from flows the mark that has them pass without being judged.
    fn unmark(&self, suspects: &Suspects) -> Result<Seen, Unknown> {
        passing::wait()?;
        let mut conntrack = Conntrack::open()?;
        let question = self.ends_in_question().and(suspects.question());
        let mut seen = Seen::look(&mut conntrack, question)?;
        let concerned = self.concerned(suspects, &seen.flows);
        if concerned.len() > MANY {
            return Err(Unknown::Many(concerned.len()));
        }
        for (at, unmarked) in concerned {
            let flow = &mut seen.flows[at];
            conntrack.set_mark(flow, unmarked)?;
            flow.mark &= !unmarked.mask().get();
        }
        Ok(seen)
    }

    /// Flows that pass by what was asked before members came or went, and what is to become of their marks. It is by the mark that
    /// they pass, whatever source they pretend to have.
    fn concerned(&self, suspects: &Suspects, flows: &[Flow]) -> Vec<(usize, Mark)> {
        let (allowed, owners) = (self.allowed_marks(suspects), self.owners());
        let is_allowed = |flow: &Flow, direction: Direction| {
            let mut marks = allowed.get(&direction).into_iter().flatten();
            marks.any(|mark| mark.is_in(flow.mark))
        };
        let outlasts = |flow: &Flow, direction: Direction| {
            let owner = owners.get(&flow.original.source);
            let outlasts = owner.map(|rules| lapsed::outlasts(flow, rules, &self.sets));
            direction == Direction::Egress && outlasts == Some(true)
        };
        let touched = flows.iter().enumerate();
        let touched = touched.filter(|(_, flow)| suspects.peers.touch(flow));
        let each = touched.flat_map(|(at, flow)| Direction::ALL.map(|direction| (at, flow, direction)));
        each.filter(|(_, flow, direction)| is_allowed(flow, *direction) && !outlasts(flow, *direction))
            .map(|(at, _, direction)| (at, self.settings.marks.unmarked(direction)))
            .collect()
    }

    /// The marks of what the rules of suspects allowed.
    fn allowed_marks(&self, suspects: &Suspects) -> BTreeMap<Direction, Vec<Mark>> {
        let mut allowed: BTreeMap<Direction, Vec<Mark>> = BTreeMap::new();
        for (pod, direction) in &suspects.pods {
            let marks = self.generations.marks(PodChains::of(pod));
            let mark = marks.map(|marks| match direction {
                Direction::Egress => marks.egress,
                Direction::Ingress => marks.ingress,
            });
            let known = allowed.entry(*direction).or_default();
            let mark = mark.filter(|mark| !known.contains(mark));
            known.extend(mark);
        }
        allowed
    }

    /// Before members go: until somebody looked what is open, the kernel holds that nobody has.
    pub(super) fn doubt(&self, batch: &Batch) {
        if !batch.by_members.is_empty() {
            self.sets.lock().doubt();
        }
    }

    /// Once all that is to be asked again is.
    pub(super) fn be_sure(&self) {
        if self.broken.is_none() && self.refused.is_empty() {
            self.sets.lock().be_sure();
        }
    }
}
