//! The state of a gate as it is transferred to a new dnsd process at a takeover.

use std::net::IpAddr;

use egret_kernel::links::Attachment;
use egret_shared::link::Interest;
use egret_shared::observation::Observation;
use egret_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::Gate;

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
pub struct GateSnapshot {
    /// Since when it waited for the first interests.
    pub since: Option<Timestamp>,
    /// All interests, if they were known.
    pub interests: Option<Vec<Interest>>,
    /// Its records.
    pub records: Vec<ObservationRecord>,
}

impl Gate {
    /// Since when the first interests are waited for.
    #[must_use]
    pub const fn since(&self) -> Timestamp {
        self.started
    }

    /// The interests, if they are known.
    #[must_use]
    pub fn interests(&self) -> Option<Vec<Interest>> {
        self.interests.are_known().then(|| self.interests.all().collect())
    }

    /// The clients that have records.
    #[must_use]
    pub fn clients(&self) -> Vec<IpAddr> {
        self.records.clients()
    }

    /// The live records of a client.
    #[must_use]
    pub fn records_of(&self, client: IpAddr, now: Timestamp) -> Vec<ObservationRecord> {
        let floor = self.floor(client);
        let records = self.records.observations_of(client, now);
        let records = records.map(|(observation, attachment, sequences)| ObservationRecord {
            is_realized: sequences.iter().all(|sequence| *sequence > floor) && self.are_realized(&sequences),
            observation,
            attachment,
        });
        records.collect()
    }

    /// Takes over another gate's state, before anything was recorded here. What is realized stays so until an enforcer
    /// connects, which is sent everything.
    pub fn restore(&mut self, snapshot: GateSnapshot, now: Timestamp) {
        self.started = snapshot
            .since
            .map_or(self.started, |since| since.min(self.started));
        for interest in snapshot.interests.iter().flatten() {
            self.interests.set(interest.clone(), self.records.latest());
        }
        if snapshot.interests.is_some() {
            self.interests.complete();
        }
        let (realized, others) = snapshot
            .records
            .into_iter()
            .partition::<Vec<_>, _>(|record| record.is_realized);
        for record in realized {
            self.restore_record(&record, now);
        }
        self.realized = self.records.latest();
        for record in others {
            self.restore_record(&record, now);
        }
    }

    fn restore_record(&mut self, record: &ObservationRecord, now: Timestamp) {
        let (interests, never_stale) = (&self.interests, |_| false);
        let has_interest = |client, name: &_| interests.matches(client, name);
        self.records.note(
            &record.observation,
            record.attachment,
            never_stale,
            has_interest,
            now,
        );
    }

    /// Whether an enforcer is connected and has realized all records.
    #[must_use]
    pub fn is_caught_up(&self) -> bool {
        self.connected
            && self.interests.are_known()
            && self.send_queue.is_idle()
            && self.records.latest() <= self.realized
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
