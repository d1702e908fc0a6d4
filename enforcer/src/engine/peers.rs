//! Connected dnsds: what each observed, and what each was sent. The engine never waits for one. A dnsd whose send queue
//! is full is dropped; it reconnects and resyncs.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::link::{ClusterDns, Interest, NodePods, ToDnsd, ToEnforcer};
use egret_shared::observation::Observation;
use egret_shared::revision::{Revision, Sequence};

use super::input::{PeerId, PeerSender};

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: BTreeMap<PeerId, Peer>,
    dropped: u64,
}

#[derive(Debug)]
struct Peer {
    program: String,
    out: Box<dyn PeerSender>,
    /// Whether it has all interests.
    has_interests: bool,
    /// Its observations that are not realized, in order.
    awaiting: VecDeque<PendingObservation>,
    /// The last sequence that is realized.
    through: Sequence,
    /// Whether `through` is still to be sent.
    has_unsent: bool,
    /// Whether it has repeated everything that it knew when it connected.
    has_resynced: bool,
    /// How many answers it holds, as it reported last.
    held: u32,
    /// The pods that it was sent.
    pods: Option<Arc<NodePods>>,
    /// The addresses of the cluster's DNS that it was sent.
    cluster_dns: Option<Arc<ClusterDns>>,
}

/// An observation on its way into the kernel.
#[derive(Clone, Copy, Debug)]
struct PendingObservation {
    sequence: Sequence,
    revision: Revision,
    client: IpAddr,
}

impl Peers {
    pub(super) fn join(&mut self, id: PeerId, program: String, out: Box<dyn PeerSender>) {
        tracing::info!(peer = id.0, program, "a dnsd connected");
        let peer = Peer {
            program,
            out,
            has_interests: false,
            awaiting: VecDeque::new(),
            through: Sequence::ZERO,
            has_unsent: false,
            has_resynced: false,
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

    /// Handles a message of a dnsd; `observe` returns the revision that includes an observation.
    pub(super) fn receive(
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
                peer.has_unsent = true;
                peer.has_resynced = true;
            }
            ToEnforcer::Observed {
                sequence,
                observation,
            } => {
                let client = observation.client;
                let revision = observe(observation);
                peer.awaiting.push_back(PendingObservation {
                    sequence,
                    revision,
                    client,
                });
            }
        }
    }

    /// Sends changed interests to peers that have all, and all interests to the others.
    pub(super) fn send_interests(&mut self, changed: &[Interest], all: impl Fn() -> Vec<Interest>) {
        let interests = |list: Vec<Interest>| list.into_iter().map(ToDnsd::Interest);
        for id in self.peers.keys().copied().collect::<Vec<_>>() {
            let Some(peer) = self.peers.get_mut(&id) else {
                continue;
            };
            if peer.has_interests {
                if !changed.is_empty() {
                    self.send(id, interests(changed.to_vec()).collect());
                }
            } else {
                peer.has_interests = true;
                self.send(id, interests(all()).chain([ToDnsd::InterestComplete]).collect());
            }
        }
    }

    /// Sends the pods whose DNS to other resolvers is intercepted, where they changed.
    pub(super) fn send_pods(&mut self, pods: &Arc<NodePods>) {
        self.send_if_changed(pods, |peer| &mut peer.pods, ToDnsd::Pods);
    }

    /// Sends the addresses of the cluster's DNS, where they changed.
    pub(super) fn send_cluster_dns(&mut self, dns: &Arc<ClusterDns>) {
        self.send_if_changed(dns, |peer| &mut peer.cluster_dns, ToDnsd::ClusterDns);
    }

    /// Sends a value that is sent as a whole, unless the peer has this very `Arc`.
    fn send_if_changed<T: Clone>(
        &mut self,
        whole: &Arc<T>,
        known: impl Fn(&mut Peer) -> &mut Option<Arc<T>>,
        message: impl Fn(T) -> ToDnsd,
    ) {
        for id in self.peers.keys().copied().collect::<Vec<_>>() {
            let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.has_interests) else {
                continue;
            };
            let known = known(peer);
            if known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, whole)) {
                *known = Some(Arc::clone(whole));
                self.send(id, vec![message(T::clone(whole))]);
            }
        }
    }

    /// Sends what is realized once the kernel holds `revision`.
    pub(super) fn send_realized(&mut self, revision: Revision, is_failed: impl Fn(IpAddr) -> bool) {
        let before = self.peers.len();
        self.peers.retain(|id, peer| {
            let failed = peer.realize(revision, &is_failed);
            // Interests come first.
            if !peer.has_interests || !std::mem::take(&mut peer.has_unsent) {
                return true;
            }
            let through = peer.through;
            peer.send_messages(*id, vec![ToDnsd::Realized { through, failed }])
        });
        self.dropped += (before - self.peers.len()) as u64;
    }

    /// Whether a dnsd is connected, and each one has resynced.
    pub(super) fn have_resynced(&self) -> bool {
        !self.peers.is_empty() && self.peers.values().all(|peer| peer.has_resynced)
    }

    pub(super) fn count(&self) -> usize {
        self.peers.len()
    }

    /// Answers that all dnsds hold.
    pub(super) fn held(&self) -> u64 {
        self.peers.values().map(|peer| u64::from(peer.held)).sum()
    }

    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }

    fn send(&mut self, id: PeerId, messages: Vec<ToDnsd>) {
        let is_full = |peer: &mut Peer| !peer.send_messages(id, messages);
        if self.peers.get_mut(&id).is_some_and(is_full) {
            self.peers.remove(&id);
            self.dropped += 1;
        }
    }
}

impl Peer {
    /// Marks observations up to `revision` as realized. Returns those that failed.
    fn realize(&mut self, revision: Revision, is_failed: impl Fn(IpAddr) -> bool) -> Vec<Sequence> {
        let mut failed = Vec::new();
        while let Some(first) = self.awaiting.pop_front_if(|first| first.revision <= revision) {
            self.through = self.through.max(first.sequence);
            self.has_unsent = true;
            if is_failed(first.client) {
                failed.push(first.sequence);
            }
        }
        failed
    }

    /// Sends messages; returns false if the peer is to be dropped.
    fn send_messages(&mut self, id: PeerId, messages: Vec<ToDnsd>) -> bool {
        let is_told = self.out.send(messages).is_ok();
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
    fn held_answers_are_the_last_reports_of_connected_dnsds() {
        let mut peers = Peers::default();
        let holding = |peers: &mut Peers, id, answers| {
            peers.receive(PeerId(id), ToEnforcer::Holding { answers }, |_| Revision::ZERO);
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
