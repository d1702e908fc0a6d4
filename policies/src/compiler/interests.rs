//! Which names are worth waiting for, by pod address; told when they change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_shared::link::Interest;
use egret_shared::name::NamePattern;
use egret_shared::pod::PodKey;

use super::engine::Engine;

/// Whose addresses are whose, as of the last batch, and the addresses for which interests may be others than was last
/// told.
#[derive(Debug, Default)]
pub(super) struct Interests {
    pods: BTreeMap<IpAddr, PodKey>,
    told: BTreeMap<IpAddr, BTreeSet<NamePattern>>,
    touched: BTreeSet<IpAddr>,
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

impl Engine {
    pub(super) fn poll_interests(&mut self) -> Vec<Interest> {
        let touched = std::mem::take(&mut self.interests.touched);
        let none = BTreeSet::new();
        let mut changed = Vec::new();
        for address in touched {
            let pod = self.interests.pods.get(&address);
            let compiled = pod.and_then(|pod| self.compiled.get(pod));
            let now = compiled.map_or(&none, |compiled| &compiled.patterns);
            if self.interests.told.get(&address).unwrap_or(&none) == now {
                continue;
            }
            changed.push(Interest {
                pod: address,
                patterns: now.iter().cloned().collect(),
            });
            if now.is_empty() {
                self.interests.told.remove(&address);
            } else {
                self.interests.told.insert(address, now.clone());
            }
        }
        changed
    }

    pub(super) fn interests(&self) -> Vec<Interest> {
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
