//! Which clients wait for which names.

use std::collections::HashSet;
use std::net::IpAddr;

use egret_shared::link::Interest;
use egret_shared::name::{DnsName, NamePattern};
use egret_shared::revision::Sequence;

use crate::hash::HashMap;

/// The interests in force. They outlive a connection: while the enforcer is away, the last known ones hold.
#[derive(Debug, Default)]
pub(super) struct Interests {
    clients: HashMap<IpAddr, Wanted>,
    /// The pods that this connection has named so far.
    named: HashSet<IpAddr>,
    /// Whether any connection ever told all of them.
    known: bool,
}

#[derive(Debug)]
struct Wanted {
    patterns: Vec<NamePattern>,
    /// What was told up to this number was told before the interest grew: the kernel may not hold it for the
    /// patterns that came later.
    grown_after: Sequence,
}

impl Interests {
    /// A connection begins: it names them all anew.
    pub(super) fn begin(&mut self) {
        self.named.clear();
    }

    /// Takes what the enforcer says of one pod; `latest` is the last number told so far.
    pub(super) fn set(&mut self, interest: Interest, latest: Sequence) {
        if interest.patterns.is_empty() {
            self.named.remove(&interest.pod);
            self.clients.remove(&interest.pod);
            return;
        }
        self.named.insert(interest.pod);
        let before = self.clients.get(&interest.pod);
        let grew = !before.is_some_and(|wanted| {
            interest
                .patterns
                .iter()
                .all(|pattern| wanted.patterns.contains(pattern))
        });
        let grown_after = match before {
            Some(wanted) if !grew => wanted.grown_after,
            Some(_) | None => latest,
        };
        let wanted = Wanted {
            patterns: interest.patterns,
            grown_after,
        };
        self.clients.insert(interest.pod, wanted);
    }

    /// All were named; a pod that was not has none.
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
        self.clients.iter().map(|(pod, wanted)| Interest {
            pod: *pod,
            patterns: wanted.patterns.clone(),
        })
    }

    /// Whether the client waits for answers to this question.
    pub(super) fn matches(&self, client: IpAddr, question: &DnsName) -> bool {
        self.clients
            .get(&client)
            .is_some_and(|wanted| wanted.patterns.iter().any(|pattern| pattern.matches(question)))
    }

    /// The number after which a telling counts for this client.
    pub(super) fn floor(&self, client: IpAddr) -> Sequence {
        self.clients
            .get(&client)
            .map_or(Sequence::ZERO, |wanted| wanted.grown_after)
    }
}
