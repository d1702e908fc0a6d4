//! Answers to an address that is no known pod's yet: a pod asks its first question before the API server
//! has told of it. They wait a little while, and not at all for an address that a pod has just given up:
//! that pod may have asked.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use egret_shared::observation::Observation;
use egret_shared::time::Timestamp;

/// How long an answer waits for its pod, and how long an address stays given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many answers wait at most; the oldest go first.
const MOST_WAITING: usize = 4096;

/// What waits, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    answers: VecDeque<(Timestamp, Observation)>,
    given_up: BTreeMap<IpAddr, Timestamp>,
}

impl Waiting {
    /// Keeps an answer for a pod to come; returns how many answers were given up for good.
    pub(crate) fn keep(&mut self, observation: Observation, now: Timestamp) -> u64 {
        let mut lost = self.forget_old(now);
        if self.given_up.contains_key(&observation.client.to_canonical()) {
            return lost + 1;
        }
        self.answers.push_back((now, observation));
        if self.answers.len() > MOST_WAITING {
            self.answers.pop_front();
            lost += 1;
        }
        lost
    }

    /// What waited for this address.
    pub(crate) fn take(&mut self, address: IpAddr, now: Timestamp) -> Vec<Observation> {
        self.forget_old(now);
        let (taken, kept) = std::mem::take(&mut self.answers)
            .into_iter()
            .partition(|(_, observation)| observation.client.to_canonical() == address);
        self.answers = kept;
        let taken: VecDeque<(Timestamp, Observation)> = taken;
        taken.into_iter().map(|(_, observation)| observation).collect()
    }

    /// A pod does not have this address any more.
    pub(crate) fn give_up(&mut self, address: IpAddr, now: Timestamp) {
        self.given_up.insert(address, now);
    }

    fn forget_old(&mut self, now: Timestamp) -> u64 {
        self.given_up.retain(|_, since| now.since(*since) < PATIENCE);
        let before = self.answers.len();
        self.answers.retain(|(since, _)| now.since(*since) < PATIENCE);
        (before - self.answers.len()) as u64
    }
}
