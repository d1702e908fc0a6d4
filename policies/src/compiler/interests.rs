//! Which names are worth waiting for, by pod address; told when they change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_shared::link::Interest;
use egret_shared::name::NamePattern;

use crate::compile::Compiled;

use super::engine::Engine;

/// The interests in force, and the addresses for which they are others than was last told.
#[derive(Debug, Default)]
pub(super) struct Interests {
    now: BTreeMap<IpAddr, BTreeSet<NamePattern>>,
    told: BTreeMap<IpAddr, BTreeSet<NamePattern>>,
    touched: BTreeSet<IpAddr>,
}

impl Interests {
    /// A pod's rules were made anew.
    pub(super) fn replace(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        for pod in before.into_iter().chain(after) {
            self.touched.extend(&pod.rules.addresses);
        }
    }

    fn settle(&mut self, compiled: impl Iterator<Item = Interest>) {
        self.now = compiled
            .map(|interest| (interest.pod, interest.patterns.into_iter().collect()))
            .collect();
    }
}

impl Engine {
    pub(super) fn poll_interests(&mut self) -> Vec<Interest> {
        let touched = std::mem::take(&mut self.interests.touched);
        if touched.is_empty() {
            return Vec::new();
        }
        let all = self.interests();
        self.interests.settle(all.into_iter());
        let Interests { now, told, .. } = &mut self.interests;
        let changed = touched
            .into_iter()
            .filter(|address| now.get(address) != told.get(address))
            .map(|pod| Interest {
                pod,
                patterns: now.get(&pod).into_iter().flatten().cloned().collect(),
            })
            .collect();
        told.clone_from(now);
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
