//! The questions of one lane, in the order in which they were asked: a few dozen, each found by its place.

use std::task::Waker;

use super::super::failure::Failure;
use super::super::udp::Datagram;
use crate::dns::answer::TtlLimits;
use crate::upstream::pending_query::Exchange;

/// All that a lane was ever asked.
#[derive(Debug, Default)]
pub(super) struct Questions {
    /// The id of each.
    ids: Vec<u16>,
    /// Each of them; nothing where who asked waits no more.
    waiting: Vec<Option<Waiting>>,
    under_way: usize,
    /// Those before this place need not be sent.
    sent: usize,
    /// Whose answer comes next, most likely: answers mostly come in the order of their questions.
    likely: usize,
}

/// A question under way.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) exchange: Exchange,
    pub(super) ttl: TtlLimits,
    pub(super) outcome: Option<Result<Datagram, Failure>>,
    pub(super) waker: Option<Waker>,
}

/// Where a question stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(usize);

impl Questions {
    /// None, in the memory of others that are no longer needed.
    pub(super) fn in_place_of(mut others: Self) -> Self {
        others.ids.clear();
        others.waiting.clear();
        Self {
            ids: others.ids,
            waiting: others.waiting,
            ..Self::default()
        }
    }

    /// How many were asked.
    pub(super) const fn asked(&self) -> usize {
        self.ids.len()
    }

    /// Whether nobody waits.
    pub(super) const fn are_over(&self) -> bool {
        self.under_way == 0
    }

    /// How many were not sent yet. Who asked them may have gone.
    pub(super) const fn left_to_send(&self) -> usize {
        self.ids.len() - self.sent
    }

    /// Notes a question, under an id that no other of the lane had.
    pub(super) fn add(&mut self, mut exchange: Exchange, ttl: TtlLimits) -> Place {
        // There are far more ids than questions of one lane.
        while self.ids.contains(&exchange.id()) {
            exchange.set_id(rand::random());
        }
        self.ids.push(exchange.id());
        self.waiting.push(Some(Waiting {
            exchange,
            ttl,
            outcome: None,
            waker: None,
        }));
        self.under_way += 1;
        Place(self.ids.len() - 1)
    }

    /// The octets of those that are to be sent.
    pub(super) fn unsent(&self) -> impl Iterator<Item = &[u8]> {
        let waiting = self.waiting[self.sent..].iter().flatten();
        waiting.map(|question| question.exchange.octets())
    }

    /// So many of them were sent.
    pub(super) fn note_sent(&mut self, count: usize) {
        for _ in 0..count {
            self.pass_over_gone();
            self.sent += 1;
        }
        self.pass_over_gone();
    }

    /// No more of them is to be sent.
    pub(super) const fn give_up_sending(&mut self) {
        self.sent = self.ids.len();
    }

    /// The question with an id.
    pub(super) fn by_id(&mut self, id: u16) -> Option<&mut Waiting> {
        let place = if self.ids.get(self.likely) == Some(&id) {
            self.likely
        } else {
            self.ids.iter().position(|other| *other == id)?
        };
        self.likely = place + 1;
        self.waiting[place].as_mut()
    }

    /// The question at a place, if who asked it waits.
    pub(super) fn at(&mut self, place: Place) -> Option<&mut Waiting> {
        self.waiting[place.0].as_mut()
    }

    /// Who asked waits no more; whether it did.
    pub(super) fn remove(&mut self, place: Place) -> bool {
        let was_there = self.waiting[place.0].take().is_some();
        self.under_way -= usize::from(was_there);
        was_there
    }

    /// All who wait.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Waiting> {
        self.waiting.iter_mut().flatten()
    }

    fn pass_over_gone(&mut self) {
        while matches!(self.waiting.get(self.sent), Some(None)) {
            self.sent += 1;
        }
    }
}

impl Waiting {
    pub(super) fn end(&mut self, outcome: Result<Datagram, Failure>) {
        self.outcome = Some(outcome);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::message::Query;
    use crate::upstream::pending_query::{Case, Transport};

    const TTL: TtlLimits = TtlLimits {
        at_least: 0,
        at_most: 60,
    };

    fn asked(id: u16) -> Exchange {
        let query = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x01a\x04test\0\0\x01\0\x01";
        let mut exchange = Exchange::new(&Query::read(query).unwrap(), Transport::Udp, Case::Plain, 1232);
        exchange.set_id(id);
        exchange
    }

    fn ids_to_send(questions: &Questions) -> Vec<u16> {
        let octets = questions.unsent();
        octets
            .map(|octets| u16::from_be_bytes([octets[0], octets[1]]))
            .collect()
    }

    #[test]
    fn what_is_sent_is_what_was_asked_and_is_still_waited_for() {
        let mut questions = Questions::default();
        let places = [1, 2, 3, 4, 5].map(|id| questions.add(asked(id), TTL));
        assert!(questions.remove(places[0]) && questions.remove(places[3]));
        assert_eq!(ids_to_send(&questions), [2, 3, 5]);
        questions.note_sent(2);
        assert_eq!((ids_to_send(&questions), questions.left_to_send()), (vec![5], 1));
        assert!(questions.remove(places[4]));
        questions.note_sent(0);
        assert_eq!(questions.left_to_send(), 0, "nobody waits for the last");
        questions.add(asked(6), TTL);
        assert_eq!(ids_to_send(&questions), [6]);
        questions.give_up_sending();
        assert!(ids_to_send(&questions).is_empty());
    }

    #[test]
    fn each_is_found_by_its_id_in_whatever_order_answers_come() {
        let mut questions = Questions::default();
        let places = [7, 8, 9].map(|id| questions.add(asked(id), TTL));
        for id in [7, 8, 9, 7, 9, 8, 8] {
            assert_eq!(questions.by_id(id).unwrap().exchange.id(), id);
        }
        assert!(questions.by_id(10).is_none());
        assert!(questions.remove(places[1]) && !questions.remove(places[1]));
        assert!(questions.by_id(8).is_none() && questions.at(places[1]).is_none());
        assert!(!questions.are_over());
        assert!(questions.remove(places[0]) && questions.remove(places[2]) && questions.are_over());
    }

    #[test]
    fn no_two_have_one_id_not_even_where_the_first_has_ended() {
        let mut questions = Questions::default();
        let first = questions.add(asked(7), TTL);
        let second = questions.add(asked(7), TTL);
        assert_ne!(questions.at(second).unwrap().exchange.id(), 7);
        assert!(questions.remove(first));
        let third = questions.add(asked(7), TTL);
        assert_ne!(questions.at(third).unwrap().exchange.id(), 7);
    }

    #[test]
    fn memory_of_others_says_nothing_of_them() {
        let mut others = Questions::default();
        let place = others.add(asked(7), TTL);
        others.note_sent(1);
        assert!(others.by_id(7).is_some() && others.remove(place));
        let mut questions = Questions::in_place_of(others);
        assert_eq!((questions.asked(), questions.left_to_send()), (0, 0));
        assert!(questions.by_id(7).is_none() && questions.are_over());
        questions.add(asked(7), TTL);
        assert_eq!(ids_to_send(&questions), [7]);
    }
}
