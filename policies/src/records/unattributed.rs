//! Observations whose client is no known pod yet. A pod sends its first query before the watch delivers it, and dnsd may
//! send its observations before the first pod is known. They wait for 60 s; not for an address that a pod gave up within
//! that time, as that pod may have asked.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use egret_shared::observation::Observation;
use egret_shared::time::Timestamp;

/// How long an answer waits for its pod, and how long an address stays given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many answers wait at most for one address, and in all; one more is turned away.
const MOST_OF_ADDRESS: usize = 1_000;
const MOST_WAITING: usize = 50_000;
/// So many addresses that were given up are kept without a look at how long ago.
const FEW_GIVEN_UP: usize = 1_000;

/// Observations by client, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct UnattributedObservations {
    answers: BTreeMap<IpAddr, Vec<(Timestamp, Observation)>>,
    count: usize,
    given_up: BTreeMap<IpAddr, Timestamp>,
    /// How many of them there were after the last look at how long ago.
    given_up_before: usize,
    /// How many answers found no pod.
    pub(crate) lost: u64,
}

impl UnattributedObservations {
    /// Keeps an answer for a pod to come.
    pub(crate) fn keep(&mut self, observation: Observation, now: Timestamp) {
        let client = observation.client.to_canonical();
        let is_given_up = self
            .given_up
            .get(&client)
            .is_some_and(|since| now.since(*since) < PATIENCE);
        if self.count >= MOST_WAITING {
            self.forget_answers(now);
        }
        let waiting = self.answers.get(&client).map_or(0, Vec::len);
        if is_given_up || waiting >= MOST_OF_ADDRESS || self.count >= MOST_WAITING {
            self.lost += 1;
            return;
        }
        self.answers.entry(client).or_default().push((now, observation));
        self.count += 1;
    }

    /// What waited for this address.
    pub(crate) fn take(&mut self, address: IpAddr, now: Timestamp) -> Vec<Observation> {
        self.given_up.remove(&address);
        let waited = self.answers.remove(&address).unwrap_or_default();
        self.count -= waited.len();
        let taken: Vec<Observation> = waited
            .iter()
            .filter(|(since, _)| now.since(*since) < PATIENCE)
            .map(|(_, observation)| observation.clone())
            .collect();
        self.lost += (waited.len() - taken.len()) as u64;
        taken
    }

    /// A pod does not have this address any more.
    pub(crate) fn give_up(&mut self, address: IpAddr, now: Timestamp) {
        if self.count > 0 {
            self.forget_answers(now);
        }
        // Not for each one: where many pods go, those of a minute are many.
        if self.given_up.len() >= FEW_GIVEN_UP.max(self.given_up_before * 2) {
            self.given_up.retain(|_, since| now.since(*since) < PATIENCE);
            self.given_up_before = self.given_up.len();
        }
        self.given_up.insert(address, now);
    }

    fn forget_answers(&mut self, now: Timestamp) {
        let is_young = |since: &Timestamp| now.since(*since) < PATIENCE;
        self.answers.retain(|_, waiting| {
            waiting.retain(|(since, _)| is_young(since));
            !waiting.is_empty()
        });
        let left = self.answers.values().map(Vec::len).sum();
        self.lost += (self.count - left) as u64;
        self.count = left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn answer(client: IpAddr) -> Observation {
        Observation {
            client,
            question: "a.test".parse().expect("a name"),
            chain: Vec::new(),
            addresses: Vec::new(),
        }
    }

    #[test]
    fn an_answer_waits_a_minute() {
        for (seconds, waits) in [(59, 1), (60, 0)] {
            let mut waiting = UnattributedObservations::default();
            waiting.keep(answer(CLIENT), at(0));
            assert_eq!(waiting.take(CLIENT, at(seconds)).len(), waits);
            assert_eq!(waiting.lost, 1 - waits as u64);
            assert_eq!(waiting.take(CLIENT, at(seconds)), []);
        }
    }

    #[test]
    fn no_client_evicts_answers_of_another() {
        let mut waiting = UnattributedObservations::default();
        for _ in 0..MOST_OF_ADDRESS + 10 {
            waiting.keep(answer(CLIENT), at(0));
        }
        let other = "::1".parse().expect("an address");
        waiting.keep(answer(other), at(0));
        assert_eq!(waiting.lost, 10);
        assert_eq!(waiting.take(other, at(1)).len(), 1);
    }

    #[test]
    fn addresses_that_pods_gave_up_long_ago_are_forgotten() {
        const FAST: u32 = 50;
        let of_a_minute = usize::try_from(FAST * 60).expect("it is small");
        let mut waiting = UnattributedObservations::default();
        let mut give_up = |number: u32, second: u32| {
            let address = std::net::Ipv4Addr::from(number).into();
            waiting.give_up(address, at(u64::from(second)));
            waiting.given_up.len()
        };
        let most = (0..100_000).map(|number| give_up(number, number / FAST)).max();
        assert!(most <= Some(2 * of_a_minute), "{most:?}");
        // And when pods go slowly again, those are not kept that went fast.
        let later = (100_000..110_000).map(|number| give_up(number, number)).last();
        assert!(later <= Some(FEW_GIVEN_UP), "{later:?}");
    }

    #[test]
    fn what_a_pod_may_have_asked_before_it_went_does_not_wait() {
        let mut waiting = UnattributedObservations::default();
        waiting.give_up(CLIENT, at(0));
        waiting.keep(answer(CLIENT), at(59));
        waiting.keep(answer(CLIENT), at(60));
        assert_eq!(waiting.take(CLIENT, at(60)).len(), 1);
        assert_eq!(waiting.lost, 1);
    }
}
