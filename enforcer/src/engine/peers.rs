//! The dnsds that are connected: what each has told, and what each was told. Nobody is waited for: who does not
//! read is dropped, connects again and tells everything anew.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::link::{ClusterDns, Interest, NodePods, ToDnsd, ToEnforcer};
use egret_shared::observation::Observation;
use egret_shared::revision::{Revision, Sequence};

use super::input::{Ear, PeerId};

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: BTreeMap<PeerId, Peer>,
    dropped: u64,
}

#[derive(Debug)]
struct Peer {
    program: String,
    out: Box<dyn Ear>,
    /// Whether it has all interests.
    is_greeted: bool,
    /// What it told and was not told realized, in order.
    awaiting: VecDeque<Awaiting>,
    /// The last number that was handled.
    through: Sequence,
    /// Whether `through` is still to be told.
    is_owed: bool,
    /// Whether it has told again all that it knew when it connected.
    has_told_again: bool,
    /// How many answers it holds, as it told last.
    held: u32,
    /// The pods of which it knows.
    pods: Option<Arc<NodePods>>,
    /// What it knows of the cluster's own DNS.
    cluster_dns: Option<Arc<ClusterDns>>,
}

/// An observation on its way into the kernel.
#[derive(Clone, Copy, Debug)]
struct Awaiting {
    sequence: Sequence,
    revision: Revision,
    client: IpAddr,
}

impl Peers {
    pub(super) fn join(&mut self, id: PeerId, program: String, out: Box<dyn Ear>) {
        tracing::info!(peer = id.0, program, "a dnsd connected");
        let peer = Peer {
            program,
            out,
            is_greeted: false,
            awaiting: VecDeque::new(),
            through: Sequence::ZERO,
            is_owed: false,
            has_told_again: false,
            held: 0,
            pods: None,
            cluster_dns: None,
        };
        self.peers.insert(id, peer);
    }

    pub(super) fn leave(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.remove(&id) {
            tracing::info!(peer = id.0, program = peer.program, "a dnsd disconnected");
        }
    }

    /// Takes in what a dnsd said; `observe` gives the revision that includes an observation.
    pub(super) fn said(
        &mut self,
        id: PeerId,
        message: ToEnforcer,
        observe: impl FnOnce(Observation) -> Revision,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        match message {
            ToEnforcer::Hello(hello) => peer.program = hello.program,
            ToEnforcer::ResyncStarted => {}
            ToEnforcer::Holding { answers } => peer.held = answers,
            ToEnforcer::ResyncEnded { through } => {
                if peer.awaiting.is_empty() {
                    peer.through = peer.through.max(through);
                }
                peer.is_owed = true;
                peer.has_told_again = true;
            }
            ToEnforcer::Observed {
                sequence,
                observation,
            } => {
                let client = observation.client;
                let revision = observe(observation);
                peer.awaiting.push_back(Awaiting {
                    sequence,
                    revision,
                    client,
                });
            }
        }
    }

    /// Tells changes to those that have all interests, and all of them to the others.
    pub(super) fn tell_interests(&mut self, changed: &[Interest], all: impl Fn() -> Vec<Interest>) {
        let interests = |list: Vec<Interest>| list.into_iter().map(ToDnsd::Interest);
        for id in self.peers.keys().copied().collect::<Vec<_>>() {
            let Some(peer) = self.peers.get_mut(&id) else {
                continue;
            };
            if peer.is_greeted {
                if !changed.is_empty() {
                    self.send(id, interests(changed.to_vec()).collect());
                }
            } else {
                peer.is_greeted = true;
                self.send(id, interests(all()).chain([ToDnsd::InterestComplete]).collect());
            }
        }
    }

    /// Tells whose questions to other resolvers may be caught, to those that know it otherwise.
    pub(super) fn tell_pods(&mut self, pods: &Arc<NodePods>) {
        self.tell_whole(pods, |peer| &mut peer.pods, ToDnsd::Pods);
    }

    /// Tells where the cluster's own DNS is, to those that know it otherwise.
    pub(super) fn tell_cluster_dns(&mut self, dns: &Arc<ClusterDns>) {
        self.tell_whole(dns, |peer| &mut peer.cluster_dns, ToDnsd::ClusterDns);
    }

    /// Tells what is told as a whole. Who knows it knows it by identity.
    fn tell_whole<T: Clone>(
        &mut self,
        whole: &Arc<T>,
        known: impl Fn(&mut Peer) -> &mut Option<Arc<T>>,
        message: impl Fn(T) -> ToDnsd,
    ) {
        for id in self.peers.keys().copied().collect::<Vec<_>>() {
            let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.is_greeted) else {
                continue;
            };
            let known = known(peer);
            if known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, whole)) {
                *known = Some(Arc::clone(whole));
                self.send(id, vec![message(T::clone(whole))]);
            }
        }
    }

    /// Tells what is realized by the time the kernel holds `revision`.
    pub(super) fn tell_realized(&mut self, revision: Revision, is_failed: impl Fn(IpAddr) -> bool) {
        let before = self.peers.len();
        self.peers.retain(|id, peer| {
            let failed = peer.realize(revision, &is_failed);
            // Interests come before it.
            if !peer.is_greeted || !std::mem::take(&mut peer.is_owed) {
                return true;
            }
            let through = peer.through;
            peer.hears(*id, vec![ToDnsd::Realized { through, failed }])
        });
        self.dropped += (before - self.peers.len()) as u64;
    }

    /// Whether there is a dnsd, and each has told again what it knew.
    pub(super) fn have_told_again(&self) -> bool {
        !self.peers.is_empty() && self.peers.values().all(|peer| peer.has_told_again)
    }

    pub(super) fn count(&self) -> usize {
        self.peers.len()
    }

    /// Answers that all of them hold.
    pub(super) fn held(&self) -> u64 {
        self.peers.values().map(|peer| u64::from(peer.held)).sum()
    }

    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }

    fn send(&mut self, id: PeerId, messages: Vec<ToDnsd>) {
        let is_deaf = |peer: &mut Peer| !peer.hears(id, messages);
        if self.peers.get_mut(&id).is_some_and(is_deaf) {
            self.peers.remove(&id);
            self.dropped += 1;
        }
    }
}

impl Peer {
    /// Takes note of what is realized by now; what of it is not open nevertheless.
    fn realize(&mut self, revision: Revision, is_failed: impl Fn(IpAddr) -> bool) -> Vec<Sequence> {
        let mut failed = Vec::new();
        while let Some(first) = self.awaiting.pop_front_if(|first| first.revision <= revision) {
            self.through = self.through.max(first.sequence);
            self.is_owed = true;
            if is_failed(first.client) {
                failed.push(first.sequence);
            }
        }
        failed
    }

    /// Says something to it; one that does not read is to be dropped.
    fn hears(&mut self, id: PeerId, messages: Vec<ToDnsd>) -> bool {
        let is_told = self.out.tell(messages).is_ok();
        if !is_told {
            tracing::warn!(
                peer = id.0,
                program = self.program,
                "a dnsd does not read what it is told; it is dropped"
            );
        }
        is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_answers_are_those_of_connected_dnsds_as_told_last() {
        let mut peers = Peers::default();
        let holding = |peers: &mut Peers, id, answers| {
            peers.said(PeerId(id), ToEnforcer::Holding { answers }, |_| Revision::ZERO);
        };
        for id in [1, 2] {
            let (out, _) = tokio::sync::mpsc::channel(1);
            peers.join(PeerId(id), "dnsd".to_owned(), Box::new(out));
        }
        holding(&mut peers, 1, 5);
        holding(&mut peers, 2, 7);
        holding(&mut peers, 1, 3);
        assert_eq!(peers.held(), 10);
        peers.leave(PeerId(2));
        assert_eq!(peers.held(), 3);
    }
}
