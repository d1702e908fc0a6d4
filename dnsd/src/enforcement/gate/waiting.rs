//! The held responses: by ticket, by the sequence they wait for, by deadline, and counted per client.

use std::collections::BTreeSet;

use egret_kernel::links::Attachment;
use egret_shared::observation::Observation;
use egret_shared::revision::Sequence;
use egret_shared::time::Timestamp;

use crate::hash::HashMap;
use crate::limits::quota::{PermitLimits, Quota};
use crate::limits::quota_key::QuotaKey;

/// The number of a held response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

#[derive(Debug)]
pub(super) struct HeldResponse {
    pub(super) observation: Observation,
    attachment: Option<Attachment>,
    /// The sequences it waits for, in ascending order.
    pub(super) sequences: Vec<Sequence>,
    deadline: Timestamp,
    permit: HeldPermit,
}

/// The permit of a held response.
#[derive(Debug)]
pub(super) struct HeldPermit {
    quota_key: QuotaKey,
    number: u64,
    ticket: Ticket,
}

impl HeldResponse {
    fn target(&self) -> Sequence {
        self.sequences.last().copied().unwrap_or(Sequence::ZERO)
    }
}

/// All held responses; both indexes name exactly those in `held`.
#[derive(Debug, Default)]
pub(super) struct HeldResponses {
    held: HashMap<Ticket, HeldResponse>,
    quota: Quota<Ticket>,
    by_target: BTreeSet<(Sequence, Ticket)>,
    by_deadline: BTreeSet<(Timestamp, Ticket)>,
    next: u64,
}

impl HeldResponses {
    /// Takes a permit for one more response, if there is one. The caller removes the responses in `revoked`, which lost theirs.
    pub(super) fn permit(
        &mut self,
        quota_key: QuotaKey,
        limits: PermitLimits,
        revoked: &mut Vec<Ticket>,
    ) -> Option<HeldPermit> {
        let ticket = Ticket(self.next);
        self.next += 1;
        let number = self
            .quota
            .take(quota_key, 1, limits, ticket, |other| revoked.push(other))?;
        Some(HeldPermit {
            quota_key,
            number,
            ticket,
        })
    }

    pub(super) fn insert(
        &mut self,
        observation: Observation,
        attachment: Option<Attachment>,
        sequences: Vec<Sequence>,
        deadline: Timestamp,
        permit: HeldPermit,
    ) -> Ticket {
        let ticket = permit.ticket;
        let held = HeldResponse {
            observation,
            attachment,
            sequences,
            deadline,
            permit,
        };
        self.by_target.insert((held.target(), ticket));
        self.by_deadline.insert((held.deadline, ticket));
        self.held.insert(ticket, held);
        ticket
    }

    pub(super) fn remove(&mut self, ticket: Ticket) {
        let Some(held) = self.held.remove(&ticket) else {
            return;
        };
        self.by_target.remove(&(held.target(), ticket));
        self.by_deadline.remove(&(held.deadline, ticket));
        self.quota.give_back(held.permit.quota_key, held.permit.number);
    }

    /// Makes a response wait for other sequences.
    pub(super) fn wait_for(&mut self, ticket: Ticket, sequences: Vec<Sequence>) {
        if let Some(held) = self.held.get_mut(&ticket) {
            self.by_target.remove(&(held.target(), ticket));
            held.sequences = sequences;
            self.by_target.insert((held.target(), ticket));
        }
    }

    /// A response whose deadline has passed.
    pub(super) fn due(&self, now: Timestamp) -> Option<Ticket> {
        let (deadline, ticket) = self.by_deadline.first()?;
        (*deadline <= now).then_some(*ticket)
    }

    /// A response that waits for no sequence beyond `realized`.
    pub(super) fn reached(&self, realized: Sequence) -> Option<(Ticket, &HeldResponse)> {
        let (target, ticket) = self.by_target.first()?;
        let held = self.held.get(ticket)?;
        (*target <= realized).then_some((*ticket, held))
    }

    pub(super) fn first_deadline(&self) -> Option<Timestamp> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    /// The observation of each, and what its client was attached to when it asked.
    pub(super) fn observations(&self) -> Vec<(Ticket, Observation, Option<Attachment>)> {
        let observations = self
            .held
            .iter()
            .map(|(ticket, held)| (*ticket, held.observation.clone(), held.attachment));
        observations.collect()
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }
}
