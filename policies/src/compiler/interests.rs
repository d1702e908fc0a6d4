//! Which names are worth waiting for, by pod address; told when they change. Where the address is another pod's, it is told
//! that the one before waits for nothing any more: what was told at the address then counts no longer, so who asked before it
//! was known is told for itself when it asks again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::link::Interest;
use egret_shared::name::NamePattern;
use egret_shared::pod::PodKey;

use super::{Compiler, InSync};

/// Whose addresses are whose, as of the last batch, and the addresses for which interests may be others than was last
/// told.
#[derive(Debug, Default)]
pub(super) struct Interests {
    pods: BTreeMap<IpAddr, PodKey>,
    sent: BTreeMap<IpAddr, SentInterest>,
    touched: BTreeSet<IpAddr>,
}

/// The interest that was sent last for an address, with the run of the pod.
#[derive(Debug)]
struct SentInterest {
    pod: PodKey,
    uid: Option<Arc<str>>,
    patterns: BTreeSet<NamePattern>,
}

impl Interests {
    /// A pod waits for other names, or has other addresses than before.
    pub(super) fn replace(&mut self, pod: &PodKey, before: &[IpAddr], after: &[IpAddr]) {
        self.touched.extend(before.iter().chain(after));
        for address in before {
            // Another pod may have it already.
            if self.pods.get(address) == Some(pod) {
                self.pods.remove(address);
            }
        }
        self.pods
            .extend(after.iter().map(|address| (*address, pod.clone())));
    }
}

impl Compiler<InSync> {
    /// The interests that changed since the last call, as of the last batch; one without patterns is over.
    pub fn poll_interests(&mut self) -> Vec<Interest> {
        let touched = std::mem::take(&mut self.interests.touched);
        let mut changed = Vec::new();
        for address in touched {
            let pod = self.interests.pods.get(&address);
            let compiled = pod.and_then(|pod| self.compiled.get(pod));
            let now = compiled.filter(|compiled| !compiled.patterns.is_empty());
            let of_same = |told: &SentInterest| {
                now.is_some_and(|now| told.pod == now.rules.pod && told.uid == now.rules.uid)
            };
            let before = self.interests.sent.get(&address);
            if before.is_some_and(|before| !of_same(before)) {
                self.interests.sent.remove(&address);
                changed.push(Interest {
                    pod: address,
                    patterns: Vec::new(),
                });
            }
            let Some(now) = now else { continue };
            let told = self.interests.sent.get(&address);
            if told.is_some_and(|told| told.patterns == now.patterns) {
                continue;
            }
            changed.push(Interest {
                pod: address,
                patterns: now.patterns.iter().cloned().collect(),
            });
            let told = SentInterest {
                pod: now.rules.pod.clone(),
                uid: now.rules.uid.clone(),
                patterns: now.patterns.clone(),
            };
            self.interests.sent.insert(address, told);
        }
        changed
    }

    /// All interests, as of the last batch.
    #[must_use]
    pub fn interests(&self) -> Vec<Interest> {
        self.compiled
            .values()
            .filter(|pod| !pod.patterns.is_empty())
            .flat_map(|pod| {
                pod.rules.addresses.iter().map(|address| Interest {
                    pod: *address,
                    patterns: pod.patterns.iter().cloned().collect(),
                })
            })
            .collect()
    }
}
