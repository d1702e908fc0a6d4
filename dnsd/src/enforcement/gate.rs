//! Which answers wait, for what, and until when: a function with memory. It has no clock, no socket, no task.
//!
//! ```text
//!   answer ──▶ note in the ledger ──▶ interesting, and something of it not yet realized?
//!                                        │ no: released            │ yes: held
//!                                        ▼                         ▼
//!                                      client ◀── Realized{through ≥ number} · failed · deadline
//! ```
//!
//! An answer waits for the numbers under which its addresses were told, never for "a change": the second of two
//! equal questions changes nothing, and would overtake the change that the first one caused.
//!
//! ```text
//!   first query            second query
//!   told as 7, held
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
use egret_shared::switch::{self, Switch};
use egret_shared::time::Timestamp;

use crate::enforcement::client::{Asker, Payer};
use crate::enforcement::records::{Ledger, LedgerLimits, Marks};
use crate::limits::quota::Places;
use interest::Interests;
use send_queue::Outgoing;
use waiting::HeldAnswers;

pub use outcome::{Figures, Origin, Outcome, Stall, Verdict};
pub use transfer::{GateRecord, Inherited, ObservationRecord};
pub use waiting::Ticket;

/// How long a dnsd that never heard of any interest waits with every answer.
const FIRST_WAIT: Duration = Duration::from_secs(2);
/// How long a resync waits for the enforcer to have named its interests.
const INTEREST_WAIT: Duration = Duration::from_millis(100);
/// Numbers that could not be realized, remembered until they are told again.
const MAX_FAILED: usize = 4096;

/// What may be held, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldLimits {
    /// How long an answer waits.
    pub deadline: Duration,
    /// Answers held for one client.
    pub per_client: usize,
    /// Answers held for all.
    pub total: usize,
    /// What the ledger holds.
    pub ledger: LedgerLimits,
}

/// The answers that wait, and all that decides about them.
#[derive(Debug)]
pub struct Hold {
    started: Timestamp,
    limits: HoldLimits,
    interests: Interests,
    ledger: Ledger,
    outgoing: Outgoing,
    connected: bool,
    /// What was told up to this number was told on an earlier connection.
    connection_floor: Sequence,
    realized: Sequence,
    failed: BTreeSet<Sequence>,
    held: HeldAnswers,
    ended: VecDeque<(Ticket, Outcome)>,
}

impl Hold {
    /// Nothing is held, nobody is connected.
    #[must_use]
    pub fn new(limits: HoldLimits, now: Timestamp) -> Self {
        Self {
            started: now,
            limits,
            interests: Interests::default(),
            ledger: Ledger::new(limits.ledger),
            outgoing: Outgoing::default(),
            connected: false,
            connection_floor: Sequence::ZERO,
            realized: Sequence::ZERO,
            failed: BTreeSet::new(),
            held: HeldAnswers::default(),
            ended: VecDeque::new(),
        }
    }

    /// An answer is about to go to its client, which is attached so.
    pub fn answer(
        &mut self,
        observation: Observation,
        attachment: Option<Attachment>,
        payer: Payer,
        origin: Origin,
        now: Timestamp,
    ) -> Verdict {
        if !self.is_waited_for(&observation, now) {
            self.tell(observation, attachment, now);
            return Verdict::Release;
        }
        let (sequences, is_new) = self.tell(observation.clone(), attachment, now);
        if self.are_realized(&sequences) || is_switched_off(origin, is_new) {
            return Verdict::Release;
        }
        self.outgoing.hurry();
        let deadline = now.after(self.limits.deadline);
        let places = Places {
            per_client: self.limits.per_client,
            total: self.limits.total,
        };
        let mut gave_way = Vec::new();
        let room = self.held.room(payer, places, &mut gave_way);
        for ticket in gave_way {
            self.end(ticket, Outcome::Stalled(Stall::OverLimit));
        }
        match room {
            Some(room) => Verdict::Hold(
                self.held
                    .insert(observation, attachment, sequences, deadline, room),
            ),
            None => Verdict::OverLimit,
        }
    }

    /// The same of an answer that is marked: without a look at names. What is not marked may have been told all the same.
    #[must_use]
    pub fn is_marked(&self, asker: Asker, marks: &Marks) -> bool {
        self.ledger.is_marked(asker, marks)
    }

    /// Marks an answer that [is settled](Self::is_settled) for this client.
    pub fn mark(&mut self, asker: Asker, marks: &Marks) {
        self.ledger.mark(asker, marks);
    }

    /// Whether this client was told all of this before, and nothing of it is waited for: then an answer need not be
    /// noted. Answers from the cache are mostly such.
    #[must_use]
    pub fn is_settled(
        &self,
        asker: Asker,
        question: &str,
        addresses: impl Iterator<Item = ObservedAddress>,
    ) -> bool {
        let floor = self.floor(asker.address);
        let told = self.ledger.told(asker, question, addresses, |sequence| {
            sequence <= floor || self.failed.contains(&sequence)
        });
        told.is_some_and(|highest| highest <= self.realized)
    }

    /// The enforcer is there; all that was told before counts no longer.
    pub fn connected(&mut self, now: Timestamp) {
        self.connected = true;
        self.interests.begin();
        self.tell_all_again(now);
        self.outgoing.wait_for_interest(now.after(INTEREST_WAIT));
    }

    /// The enforcer is gone. What it had realized stays realized: the kernel keeps it.
    pub fn disconnected(&mut self) {
        self.connected = false;
        self.outgoing.clear();
    }

    /// The enforcer says something.
    pub fn receive(&mut self, message: ToDnsd, now: Timestamp) {
        match message {
            ToDnsd::Hello(_) | ToDnsd::Pods(_) | ToDnsd::ClusterDns(_) => {}
            ToDnsd::Interest(interest) => {
                self.ledger.unmark(interest.pod);
                self.interests.set(interest, self.ledger.latest());
                // Its policy may be in force already, and may open what the pod was told just now.
                self.outgoing.hurry();
            }
            ToDnsd::InterestComplete => {
                self.interests.complete();
                self.reconsider(now);
                self.outgoing.hurry();
                self.outgoing.stop_waiting(&self.ledger);
            }
            ToDnsd::Realized { through, failed } => self.note_realized(through, failed),
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self
            .outgoing
            .interest_deadline()
            .is_some_and(|deadline| deadline <= now)
        {
            self.outgoing.stop_waiting(&self.ledger);
        }
        if switch::is_off(Switch::StallDeadline) {
            return;
        }
        while let Some(ticket) = self.held.due(now) {
            self.end(ticket, Outcome::Stalled(self.stall()));
        }
    }

    /// When `handle_timeout` is to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let held = self
            .held
            .first_deadline()
            .filter(|_| !switch::is_off(Switch::StallDeadline));
        [held, self.outgoing.interest_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The next answer whose wait has ended.
    pub fn poll_ended(&mut self) -> Option<(Ticket, Outcome)> {
        self.ended.pop_front()
    }

    /// Whether any answer waits.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.held.len() > 0
    }

    /// When the next message for the enforcer is to go, if there is one: a moment that has passed means now.
    #[must_use]
    pub fn poll_outgoing(&self) -> Option<Timestamp> {
        self.outgoing.due()
    }

    /// How many messages for the enforcer there are, those of a resync left out.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.outgoing.queued()
    }

    /// Has all that is to be told go at once, and what was told while no enforcer was there.
    pub fn hurry(&mut self) {
        self.outgoing.hurry();
        self.outgoing.stop_waiting(&self.ledger);
    }

    /// The next message for the enforcer. `who_has` says what an address is attached to now: what was told to who had it
    /// before is not told again.
    pub fn poll_transmit(
        &mut self,
        now: Timestamp,
        who_has: impl FnMut(IpAddr) -> Asker,
    ) -> Option<ToEnforcer> {
        if self.outgoing.has_overflowed() {
            self.tell_all_again(now);
            self.outgoing.stop_waiting(&self.ledger);
        }
        self.outgoing.next(&mut self.ledger, now, who_has)
    }

    /// Forgets what is dead; says how many addresses that were.
    pub fn sweep(&mut self, now: Timestamp) -> usize {
        self.ledger.sweep(now)
    }

    /// Changes the limits for what comes.
    pub const fn set_limits(&mut self, limits: HoldLimits) {
        self.limits = limits;
        self.ledger.set_limits(limits.ledger);
    }

    /// The state in figures.
    #[must_use]
    pub fn figures(&self) -> Figures {
        Figures {
            held: self.held.len(),
            told: self.ledger.len(),
            evictions: self.ledger.evictions(),
            clients_with_interest: self.interests.len(),
            is_connected: self.connected,
            is_interest_known: self.interests.are_known(),
        }
    }

    /// Whether every answer waits, since no enforcer has told its interest yet.
    #[must_use]
    pub fn waits_for_interest(&self, now: Timestamp) -> bool {
        !self.interests.are_known() && now < self.started.after(FIRST_WAIT)
    }

    /// Notes an observation; gives the numbers it waits for, and whether it tells something new.
    fn tell(
        &mut self,
        mut observation: Observation,
        attachment: Option<Attachment>,
        now: Timestamp,
    ) -> (Vec<Sequence>, bool) {
        let floor = self.floor(observation.client);
        let failed = &self.failed;
        let noted = self.ledger.note(
            &observation,
            attachment,
            |sequence| sequence <= floor || failed.contains(&sequence),
            now,
        );
        if let Some(sequence) = noted.new.filter(|_| self.connected) {
            for longer in &noted.longer {
                let same = |known: &&mut ObservedAddress| known.address == longer.address;
                let told = observation.addresses.iter_mut();
                told.filter(same).for_each(|known| known.expires = longer.expires);
            }
            self.outgoing.push(sequence, observation);
        }
        (noted.sequences, noted.new.is_some())
    }

    /// What was told to a client up to this number counts no longer.
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
            self.ledger.unmark_all();
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

    /// A connection begins, or could not keep up: everything is told again, what is waited for first.
    fn tell_all_again(&mut self, now: Timestamp) {
        self.outgoing.clear();
        self.ledger.unmark_all();
        self.connection_floor = self.ledger.latest();
        self.realized = self.connection_floor;
        self.failed.clear();
        self.reconsider(now);
        self.outgoing.begin_resync();
    }

    /// Tells anew what held answers tell, and lets those go that nobody waits for.
    fn reconsider(&mut self, now: Timestamp) {
        for (ticket, observation, attachment) in self.held.observations() {
            if self.is_waited_for(&observation, now) {
                let (sequences, _) = self.tell(observation, attachment, now);
                self.held.wait_for(ticket, sequences);
            } else {
                self.end(ticket, Outcome::NotInteresting);
            }
        }
    }
}

fn is_switched_off(origin: Origin, is_new: bool) -> bool {
    switch::is_off(Switch::Hold)
        || origin == Origin::Cache && switch::is_off(Switch::HoldCached)
        || !is_new && switch::is_off(Switch::HoldSecond)
}
