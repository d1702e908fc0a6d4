//! What a hold knows, for a successor; and a hold that begins with what another one knew.

use std::net::IpAddr;

use egret_shared::link::Interest;
use egret_shared::time::Timestamp;

use super::Hold;
use crate::takeover::state::Telling;

/// What another hold knew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherited {
    /// Since when it waited for a first interest.
    pub since: Option<Timestamp>,
    /// All interests, where they were known.
    pub interests: Option<Vec<Interest>>,
    /// What it told.
    pub told: Vec<Telling>,
}

impl Hold {
    /// Since when a first interest is waited for.
    #[must_use]
    pub const fn since(&self) -> Timestamp {
        self.started
    }

    /// The interests, where they are known.
    #[must_use]
    pub fn interests(&self) -> Option<Vec<Interest>> {
        self.interests.are_known().then(|| self.interests.all().collect())
    }

    /// Who was told something.
    #[must_use]
    pub fn clients(&self) -> Vec<IpAddr> {
        self.ledger.clients()
    }

    /// What a client was told and still lives.
    #[must_use]
    pub fn told_to(&self, client: IpAddr, now: Timestamp) -> Vec<Telling> {
        let floor = self.floor(client);
        let told = self.ledger.told_to(client, now);
        let told = told.map(|(observation, attachment, sequences)| Telling {
            is_realized: sequences.iter().all(|sequence| *sequence > floor) && self.are_realized(&sequences),
            observation,
            attachment,
        });
        told.collect()
    }

    /// Begins with what another one knew, before anything was told. What is realized stays so until an enforcer is
    /// connected: that one is told everything.
    pub fn inherit(&mut self, inherited: Inherited, now: Timestamp) {
        self.started = inherited
            .since
            .map_or(self.started, |since| since.min(self.started));
        for interest in inherited.interests.iter().flatten() {
            self.interests.set(interest.clone(), self.ledger.latest());
        }
        if inherited.interests.is_some() {
            self.interests.complete();
        }
        let (realized, others) = inherited
            .told
            .into_iter()
            .partition::<Vec<_>, _>(|told| told.is_realized);
        for told in realized {
            self.ledger
                .note(&told.observation, told.attachment, |_| false, now);
        }
        self.realized = self.ledger.latest();
        for told in others {
            self.ledger
                .note(&told.observation, told.attachment, |_| false, now);
        }
    }

    /// Whether an enforcer is there and has realized all that it is to be told.
    #[must_use]
    pub fn is_caught_up(&self) -> bool {
        self.connected
            && self.interests.are_known()
            && self.outgoing.is_idle()
            && self.ledger.latest() <= self.realized
    }
}
