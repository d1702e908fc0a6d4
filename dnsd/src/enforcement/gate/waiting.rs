//! The answers that wait: by ticket, by what they wait for, by deadline, and counted for each client.

use std::collections::BTreeSet;

use egret_kernel::links::Attachment;
use egret_shared::observation::Observation;
use egret_shared::revision::Sequence;
use egret_shared::time::Timestamp;

use crate::enforcement::client::Payer;
use crate::hash::HashMap;
use crate::limits::quota::{Places, Quota};

/// A held answer, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

#[derive(Debug)]
pub(super) struct Held {
    pub(super) observation: Observation,
    attachment: Option<Attachment>,
    /// The numbers it waits for; the last is the highest.
    pub(super) sequences: Vec<Sequence>,
    deadline: Timestamp,
    room: Room,
}

/// What a held answer takes of the limits.
#[derive(Debug)]
pub(super) struct Room {
    payer: Payer,
    number: u64,
    ticket: Ticket,
}

impl Held {
    fn target(&self) -> Sequence {
        self.sequences.last().copied().unwrap_or(Sequence::ZERO)
    }
}

/// All of them; the orders always name exactly those that are there.
#[derive(Debug, Default)]
pub(super) struct HeldAnswers {
    held: HashMap<Ticket, Held>,
    quota: Quota<Ticket>,
    by_target: BTreeSet<(Sequence, Ticket)>,
    by_deadline: BTreeSet<(Timestamp, Ticket)>,
    next: u64,
}

impl HeldAnswers {
    /// Room for one more answer, if there is any. `gave_way` is told which ones it was taken from; those are to be removed.
    pub(super) fn room(&mut self, payer: Payer, places: Places, gave_way: &mut Vec<Ticket>) -> Option<Room> {
        let ticket = Ticket(self.next);
        self.next += 1;
        let number = self
            .quota
            .take(payer, 1, places, ticket, |other| gave_way.push(other))?;
        Some(Room {
            payer,
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
        room: Room,
    ) -> Ticket {
        let ticket = room.ticket;
        let held = Held {
            observation,
            attachment,
            sequences,
            deadline,
            room,
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
        self.quota.give_back(held.room.payer, held.room.number);
    }

    /// Makes an answer wait for other numbers than before.
    pub(super) fn wait_for(&mut self, ticket: Ticket, sequences: Vec<Sequence>) {
        if let Some(held) = self.held.get_mut(&ticket) {
            self.by_target.remove(&(held.target(), ticket));
            held.sequences = sequences;
            self.by_target.insert((held.target(), ticket));
        }
    }

    /// One whose deadline has come.
    pub(super) fn due(&self, now: Timestamp) -> Option<Ticket> {
        let (deadline, ticket) = self.by_deadline.first()?;
        (*deadline <= now).then_some(*ticket)
    }

    /// One that waits for nothing beyond this number.
    pub(super) fn reached(&self, realized: Sequence) -> Option<(Ticket, &Held)> {
        let (target, ticket) = self.by_target.first()?;
        let held = self.held.get(ticket)?;
        (*target <= realized).then_some((*ticket, held))
    }

    pub(super) fn first_deadline(&self) -> Option<Timestamp> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    /// What each of them tells, and to what its client was attached when it asked.
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
