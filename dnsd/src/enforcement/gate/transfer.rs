//! What a hold knows, for a successor; and a hold that begins with what another one knew.

use std::net::IpAddr;

use egret_kernel::links::Attachment;
use egret_shared::link::Interest;
use egret_shared::observation::Observation;
use egret_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::Hold;

/// One record of the gate's state, as it goes to a new process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GateRecord {
    /// Since when an enforcer's first interest is awaited, and whether an enforcer is connected.
    Enforcer {
        /// Since when.
        since: Timestamp,
        /// Whether one is connected.
        is_connected: bool,
    },
    /// The names that a pod's policies mention.
    Interest(Interest),
    /// All interests were sent.
    InterestComplete,
    /// An observation.
    Observation(ObservationRecord),
}

/// An observation that the old process made and that has not expired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservationRecord {
    /// The client, the question and the addresses.
    pub observation: Observation,
    /// The link that the client had; none where the kernel did not say.
    #[serde(with = "attachment")]
    pub attachment: Option<Attachment>,
    /// Whether the enforcer has realized it.
    pub is_realized: bool,
}

/// What another hold knew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherited {
    /// Since when it waited for a first interest.
    pub since: Option<Timestamp>,
    /// All interests, where they were known.
    pub interests: Option<Vec<Interest>>,
    /// What it told.
    pub told: Vec<ObservationRecord>,
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
    pub fn told_to(&self, client: IpAddr, now: Timestamp) -> Vec<ObservationRecord> {
        let floor = self.floor(client);
        let told = self.ledger.told_to(client, now);
        let told = told.map(|(observation, attachment, sequences)| ObservationRecord {
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

mod attachment {
    use super::Attachment;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(it: &Option<Attachment>, to: S) -> Result<S::Ok, S::Error> {
        it.map(Attachment::as_number).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Attachment>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Attachment::from_number))
    }
}
