//! The names that policies of each client mention.

use std::collections::HashSet;
use std::net::IpAddr;

use egret_shared::link::Interest;
use egret_shared::name::{DnsName, NamePattern};
use egret_shared::revision::Sequence;

use crate::hash::HashMap;

/// The interests in force. They outlive a connection: while the enforcer is away, the last known ones hold.
#[derive(Debug, Default)]
pub(super) struct Interests {
    clients: HashMap<IpAddr, ClientInterest>,
    /// The pods that this connection has named so far.
    named: HashSet<IpAddr>,
    /// Whether any connection has ever sent all of them.
    known: bool,
}

#[derive(Debug)]
struct ClientInterest {
    patterns: Vec<NamePattern>,
    /// Sequences up to this one were recorded before the interest grew: the kernel may lack their addresses for the
    /// patterns that came later.
    grown_after: Sequence,
}

impl Interests {
    /// A connection begins: the enforcer sends all interests again.
    pub(super) fn begin(&mut self) {
        self.named.clear();
    }

    /// Takes the interest of one pod; `latest` is the last sequence recorded so far.
    pub(super) fn set(&mut self, interest: Interest, latest: Sequence) {
        if interest.patterns.is_empty() {
            self.named.remove(&interest.pod);
            self.clients.remove(&interest.pod);
            return;
        }
        self.named.insert(interest.pod);
        let before = self.clients.get(&interest.pod);
        let grew = !before.is_some_and(|known| {
            interest
                .patterns
                .iter()
                .all(|pattern| known.patterns.contains(pattern))
        });
        let grown_after = match before {
            Some(known) if !grew => known.grown_after,
            Some(_) | None => latest,
        };
        let known = ClientInterest {
            patterns: interest.patterns,
            grown_after,
        };
        self.clients.insert(interest.pod, known);
    }

    /// The enforcer has sent all interests; a pod that was not named has none.
    pub(super) fn complete(&mut self) {
        self.clients.retain(|pod, _| self.named.contains(pod));
        self.known = true;
    }

    pub(super) const fn are_known(&self) -> bool {
        self.known
    }

    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = Interest> + use<'_> {
        self.clients.iter().map(|(pod, known)| Interest {
            pod: *pod,
            patterns: known.patterns.clone(),
        })
    }

    /// Whether the client has an interest in this name.
    pub(super) fn matches(&self, client: IpAddr, question: &DnsName) -> bool {
        self.clients
            .get(&client)
            .is_some_and(|known| known.patterns.iter().any(|pattern| pattern.matches(question)))
    }

    /// Sequences of this client count if they are above this one.
    pub(super) fn floor(&self, client: IpAddr) -> Sequence {
        self.clients
            .get(&client)
            .map_or(Sequence::ZERO, |known| known.grown_after)
    }
}
