//! Decides which responses are held, for which sequence, and until when: a state machine without clock, socket or task.

//!
//! ```text
//!   answer ──▶ record ──▶ client has interest in the name, and a sequence is not yet realized?
//!                                        │ no: released            │ yes: held
//!                                        ▼                         ▼
//!                                      client ◀── Realized{through ≥ number} · failed · deadline
//! ```
//!
//! A response waits for the sequences under which its addresses were recorded, never for "a change": the second of two
//! equal queries changes nothing, and would overtake the change that the first one caused.
//!
//! ```text
//!   first query            second query
//!   recorded as 7, held
//!                          nothing new: waits for 7 as well
//!   Realized{7}: released  Realized{7}: released
//! ```

mod outcome;
mod waiting;
mod interest;
mod send_queue;
mod transfer;

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use egret_kernel::links::Attachment;
use egret_shared::link::{ToDnsd, ToEnforcer};
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::revision::Sequence;
use egret_shared::time::Timestamp;

use crate::enforcement::client::ClientId;
use crate::enforcement::records::{ClientBitmap, RecordLimits, Records};
use crate::limits::quota::PermitLimits;
use crate::limits::quota_key::QuotaKey;
use interest::Interests;
use send_queue::SendQueue;
use waiting::HeldResponses;

pub use outcome::{GateStats, Origin, Outcome, Stall, Verdict};
pub use transfer::{GateRecord, GateSnapshot, ObservationRecord};
pub use waiting::Ticket;

/// How long every response is held while no enforcer has ever sent its interests.
const FIRST_WAIT: Duration = Duration::from_secs(2);
/// How long a resync waits for the enforcer to send its interests.
const INTEREST_WAIT: Duration = Duration::from_millis(100);
/// Failed sequences that are remembered until their observations are sent again.
const MAX_FAILED: usize = 4096;

/// The limits of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateLimits {
    /// How long a response is held at most.
    pub deadline: Duration,
    /// Responses held for one client.
    pub per_client: usize,
    /// Responses held for all clients.
    pub total: usize,
    /// The limits of the records.
    pub records: RecordLimits,
}

/// The held responses and the state that decides about them.
#[derive(Debug)]
pub struct Gate {
    started: Timestamp,
    limits: GateLimits,
    interests: Interests,
    records: Records,
    send_queue: SendQueue,
    connected: bool,
    /// Sequences up to this one were sent on an earlier connection.
    connection_floor: Sequence,
    realized: Sequence,
    failed: BTreeSet<Sequence>,
    held: HeldResponses,
    ended: VecDeque<(Ticket, Outcome)>,
}

impl Gate {
    /// A gate that holds nothing, with no enforcer connected.
    #[must_use]
    pub fn new(limits: GateLimits, now: Timestamp) -> Self {
        Self {
            started: now,
            limits,
            interests: Interests::default(),
            records: Records::new(limits.records),
            send_queue: SendQueue::default(),
            connected: false,
            connection_floor: Sequence::ZERO,
            realized: Sequence::ZERO,
            failed: BTreeSet::new(),
            held: HeldResponses::default(),
            ended: VecDeque::new(),
        }
    }

    /// Records the observation of an answer and decides whether its response is held. `attachment` is the client's.
    pub fn answer(
        &mut self,
        observation: Observation,
        attachment: Option<Attachment>,
        quota_key: QuotaKey,
        now: Timestamp,
    ) -> Verdict {
        if !self.is_waited_for(&observation, now) {
            self.record(observation, attachment, now);
            return Verdict::Release;
        }
        let sequences = self.record(observation.clone(), attachment, now);
        if self.are_realized(&sequences) {
            return Verdict::Release;
        }
        self.send_queue.flush();
        let deadline = now.after(self.limits.deadline);
        let limits = PermitLimits {
            per_client: self.limits.per_client,
            total: self.limits.total,
        };
        let mut revoked = Vec::new();
        let permit = self.held.permit(quota_key, limits, &mut revoked);
        for ticket in revoked {
            self.end(ticket, Outcome::Stalled(Stall::OverLimit));
        }
        match permit {
            Some(permit) => {
                Verdict::Hold(
                    self.held
                        .insert(observation, attachment, sequences, deadline, permit),
                )
            }
            None => Verdict::OverLimit,
        }
    }

    /// Whether the client's bit is set at a cached answer: then it [is settled](Self::is_settled), without a look-up by name.
    /// A settled answer may lack the bit.
    #[must_use]
    pub fn is_marked(&self, client_id: ClientId, bitmap: &ClientBitmap) -> bool {
        self.records.is_marked(client_id, bitmap)
    }

    /// Sets the client's bit at an answer that [is settled](Self::is_settled) for this client.
    pub fn mark(&mut self, client_id: ClientId, bitmap: &ClientBitmap) {
        self.records.mark(client_id, bitmap);
    }

    /// Whether all of these addresses are recorded for the client and realized: then the answer need not be recorded again.
    /// Most cached answers are settled.
    #[must_use]
    pub fn is_settled(
        &self,
        client_id: ClientId,
        question: &str,
        addresses: impl Iterator<Item = ObservedAddress>,
    ) -> bool {
        let floor = self.floor(client_id.address);
        let highest = self
            .records
            .sequence_of(client_id, question, addresses, |sequence| {
                sequence <= floor || self.failed.contains(&sequence)
            });
        highest.is_some_and(|highest| highest <= self.realized)
    }

    /// Another enforcer has spoken: what was sent on earlier connections counts no longer.
    pub fn connected(&mut self, now: Timestamp) {
        self.connected = true;
        self.interests.begin();
        self.resend_all(now);
        self.send_queue.wait_for_interest(now.after(INTEREST_WAIT));
    }

    /// The enforcer has disconnected. What it realized stays realized: the kernel keeps it.
    pub fn disconnected(&mut self) {
        self.connected = false;
        self.send_queue.clear();
    }

    /// Handles a message of the enforcer.
    pub fn receive(&mut self, message: ToDnsd, now: Timestamp) {
        match message {
            ToDnsd::Hello(_) | ToDnsd::Pods(_) | ToDnsd::ClusterDns(_) => {}
            ToDnsd::Interest(interest) => {
                self.records.interest_changed(interest.pod);
                self.interests.set(interest, self.records.latest());
                // The policy may be in force already, and may open addresses that the pod was given just now.
                self.send_queue.flush();
            }
            ToDnsd::InterestComplete => {
                self.interests.complete();
                self.records.any_interest_changed();
                self.reconsider(now);
                self.send_queue.flush();
                self.send_queue.stop_waiting(&self.records);
            }
            ToDnsd::Realized { through, failed } => self.note_realized(through, failed),
        }
    }

    /// Ends waits whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self
            .send_queue
            .interest_deadline()
            .is_some_and(|deadline| deadline <= now)
        {
            self.send_queue.stop_waiting(&self.records);
        }
        while let Some(ticket) = self.held.due(now) {
            self.end(ticket, Outcome::Stalled(self.stall()));
        }
    }

    /// When `handle_timeout` is to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let held = self.held.first_deadline();
        [held, self.send_queue.interest_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The next response whose wait has ended.
    pub fn poll_ended(&mut self) -> Option<(Ticket, Outcome)> {
        self.ended.pop_front()
    }

    /// How often an answer that was settled may have become unsettled.
    #[must_use]
    pub const fn voids(&self) -> u64 {
        self.records.voids()
    }

    /// Whether any response is held.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.held.len() > 0
    }

    /// When the next message for the enforcer is due; a time in the past means now.
    #[must_use]
    pub fn poll_outgoing(&self) -> Option<Timestamp> {
        self.send_queue.due()
    }

    /// Queued messages for the enforcer, without those of a resync.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.send_queue.queued()
    }

    /// Makes all queued observations due now, and starts a resync that is due.
    pub fn flush(&mut self) {
        self.send_queue.flush();
        self.send_queue.stop_waiting(&self.records);
    }

    /// The next message for the enforcer. `identify` gives the present owner of an address: records of an earlier owner are
    /// not sent.
    pub fn poll_transmit(
        &mut self,
        now: Timestamp,
        identify: impl FnMut(IpAddr) -> ClientId,
    ) -> Option<ToEnforcer> {
        if self.send_queue.has_overflowed() {
            self.resend_all(now);
            self.send_queue.stop_waiting(&self.records);
        }
        self.send_queue.next(&mut self.records, now, identify)
    }

    /// Removes expired records; returns the number of addresses removed.
    pub fn sweep(&mut self, now: Timestamp) -> usize {
        self.records.sweep(now)
    }

    /// Changes the limits; responses that are held already keep their deadline.
    pub const fn set_limits(&mut self, limits: GateLimits) {
        self.limits = limits;
        self.records.set_limits(limits.records);
    }

    /// The state in numbers.
    #[must_use]
    pub fn stats(&self) -> GateStats {
        GateStats {
            held: self.held.len(),
            recorded: self.records.len(),
            evictions: self.records.evictions(),
            clients_with_interest: self.interests.len(),
            is_connected: self.connected,
            is_interest_known: self.interests.are_known(),
        }
    }

    /// Whether every response is held because no enforcer has sent its interests yet.
    #[must_use]
    pub fn waits_for_interest(&self, now: Timestamp) -> bool {
        !self.interests.are_known() && now < self.started.after(FIRST_WAIT)
    }

    /// Records an observation; returns the sequences that its response waits for, and whether any is new.
    fn record(
        &mut self,
        mut observation: Observation,
        attachment: Option<Attachment>,
        now: Timestamp,
    ) -> Vec<Sequence> {
        let floor = self.floor(observation.client);
        let (failed, interests) = (&self.failed, &self.interests);
        let noted = self.records.note(
            &observation,
            attachment,
            |sequence| sequence <= floor || failed.contains(&sequence),
            |client, name| interests.matches(client, name),
            now,
        );
        if let Some(sequence) = noted.new.filter(|_| self.connected) {
            for longer in &noted.longer {
                let same = |known: &&mut ObservedAddress| known.address == longer.address;
                let addresses = observation.addresses.iter_mut();
                addresses
                    .filter(same)
                    .for_each(|known| known.expires = longer.expires);
            }
            self.send_queue.push(sequence, observation);
        }
        noted.sequences
    }

    /// Sequences of a client up to this one count no longer.
    fn floor(&self, client: IpAddr) -> Sequence {
        self.connection_floor.max(self.interests.floor(client))
    }

    fn is_waited_for(&self, observation: &Observation, now: Timestamp) -> bool {
        self.waits_for_interest(now) || self.interests.matches(observation.client, &observation.question)
    }

    fn are_realized(&self, sequences: &[Sequence]) -> bool {
        sequences
            .iter()
            .all(|sequence| *sequence <= self.realized && !self.failed.contains(sequence))
    }

    fn end(&mut self, ticket: Ticket, outcome: Outcome) {
        self.held.remove(ticket);
        self.ended.push_back((ticket, outcome));
    }

    fn stall(&self) -> Stall {
        match (self.interests.are_known(), self.connected) {
            (true, true) => Stall::Deadline,
            (true, false) => Stall::LinkDown,
            (false, _) => Stall::NoInterest,
        }
    }

    fn note_realized(&mut self, through: Sequence, failed: Vec<Sequence>) {
        if !failed.is_empty() {
            self.records.unmark_all();
        }
        self.failed.extend(failed);
        self.realized = self.realized.max(through);
        while self.failed.len() > MAX_FAILED {
            let oldest = self.failed.pop_first();
            self.connection_floor =
                oldest.map_or(self.connection_floor, |oldest| self.connection_floor.max(oldest));
        }
        while let Some((ticket, held)) = self.held.reached(self.realized) {
            let outcome = if self.are_realized(&held.sequences) {
                Outcome::Realized
            } else {
                Outcome::Stalled(Stall::Failed)
            };
            self.end(ticket, outcome);
        }
    }

    /// A connection begins, or the queue overflowed: all records are sent again, those of held responses first.
    fn resend_all(&mut self, now: Timestamp) {
        self.send_queue.clear();
        self.records.unmark_all();
        self.connection_floor = self.records.latest();
        self.realized = self.connection_floor;
        self.failed.clear();
        self.reconsider(now);
        self.send_queue.begin_resync();
    }

    /// Records the observations of held responses anew, and releases those whose client has no interest any more.
    fn reconsider(&mut self, now: Timestamp) {
        for (ticket, observation, attachment) in self.held.observations() {
            if self.is_waited_for(&observation, now) {
                let sequences = self.record(observation, attachment, now);
                self.held.wait_for(ticket, sequences);
            } else {
                self.end(ticket, Outcome::NotInteresting);
            }
        }
    }
}
