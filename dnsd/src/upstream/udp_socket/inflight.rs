//! The in-flight table of a shared socket: a few dozen queries in the order in which they were added.

use std::task::Waker;

use super::super::failure::Failure;
use crate::dns::answer::Answer;
use crate::dns::answer::TtlLimits;
use crate::upstream::pending_query::{PendingQuery, ValidatedResponse};

/// A response in a datagram.
#[derive(Debug)]
pub(in crate::upstream) enum Datagram {
    /// A validated response.
    Answer(ValidatedResponse<Answer>),
    /// A response with another case: of a server that does not preserve it, or forged. It is not accepted.
    OtherCase,
    /// A bare header with FORMERR or NOTIMP.
    Bare,
}

/// All queries of a socket.
#[derive(Debug, Default)]
pub(super) struct InflightTable {
    /// The id of each.
    ids: Vec<u16>,
    /// Each of them; `None` where nobody waits for it any more.
    queries: Vec<Option<InflightQuery>>,
    outstanding: usize,
    /// Queries before this index need not be sent.
    sent: usize,
    /// The query whose response most likely comes next: responses mostly come in order.
    likely: usize,
}

/// An outstanding query.
#[derive(Debug)]
pub(super) struct InflightQuery {
    pub(super) pending_query: PendingQuery,
    pub(super) ttl: TtlLimits,
    pub(super) outcome: Option<Result<Datagram, Failure>>,
    pub(super) waker: Option<Waker>,
}

/// The index of a query in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InflightIndex(usize);

impl InflightTable {
    /// An empty table in the memory of another one.
    pub(super) fn reusing(mut others: Self) -> Self {
        others.ids.clear();
        others.queries.clear();
        Self {
            ids: others.ids,
            queries: others.queries,
            ..Self::default()
        }
    }

    /// The number of queries ever added.
    pub(super) const fn asked(&self) -> usize {
        self.ids.len()
    }

    /// Whether no query is outstanding.
    pub(super) const fn is_empty(&self) -> bool {
        self.outstanding == 0
    }

    /// The number of unsent queries, including those that nobody waits for any more.
    pub(super) const fn left_to_send(&self) -> usize {
        self.ids.len() - self.sent
    }

    /// Adds a query, under an id that no other of the socket had.
    pub(super) fn add(&mut self, mut pending_query: PendingQuery, ttl: TtlLimits) -> InflightIndex {
        // There are far more ids than queries of one socket.
        while self.ids.contains(&pending_query.id()) {
            pending_query.set_id(rand::random());
        }
        self.ids.push(pending_query.id());
        self.queries.push(Some(InflightQuery {
            pending_query,
            ttl,
            outcome: None,
            waker: None,
        }));
        self.outstanding += 1;
        InflightIndex(self.ids.len() - 1)
    }

    /// The messages to be sent.
    pub(super) fn unsent(&self) -> impl Iterator<Item = &[u8]> {
        let queries = self.queries[self.sent..].iter().flatten();
        queries.map(|question| question.pending_query.octets())
    }

    /// The first `count` unsent queries were sent.
    pub(super) fn note_sent(&mut self, count: usize) {
        for _ in 0..count {
            self.skip_removed();
            self.sent += 1;
        }
        self.skip_removed();
    }

    /// No query is to be sent any more.
    pub(super) const fn give_up_sending(&mut self) {
        self.sent = self.ids.len();
    }

    /// The query with an id.
    pub(super) fn by_id(&mut self, id: u16) -> Option<&mut InflightQuery> {
        let index = if self.ids.get(self.likely) == Some(&id) {
            self.likely
        } else {
            self.ids.iter().position(|other| *other == id)?
        };
        self.likely = index + 1;
        self.queries[index].as_mut()
    }

    /// The query at an index, if it is outstanding.
    pub(super) fn at(&mut self, index: InflightIndex) -> Option<&mut InflightQuery> {
        self.queries[index.0].as_mut()
    }

    /// Removes a query; returns whether it was outstanding.
    pub(super) fn remove(&mut self, index: InflightIndex) -> bool {
        let was_there = self.queries[index.0].take().is_some();
        self.outstanding -= usize::from(was_there);
        was_there
    }

    /// All outstanding queries.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut InflightQuery> {
        self.queries.iter_mut().flatten()
    }

    fn skip_removed(&mut self) {
        while matches!(self.queries.get(self.sent), Some(None)) {
            self.sent += 1;
        }
    }
}

impl InflightQuery {
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

    fn asked(id: u16) -> PendingQuery {
        let query = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x01a\x04test\0\0\x01\0\x01";
        let mut pending_query =
            PendingQuery::new(&Query::read(query).unwrap(), Transport::Udp, Case::Plain, 1232);
        pending_query.set_id(id);
        pending_query
    }

    fn ids_to_send(table: &InflightTable) -> Vec<u16> {
        let octets = table.unsent();
        octets
            .map(|octets| u16::from_be_bytes([octets[0], octets[1]]))
            .collect()
    }

    #[test]
    fn only_pending_queries_are_sent() {
        let mut table = InflightTable::default();
        let places = [1, 2, 3, 4, 5].map(|id| table.add(asked(id), TTL));
        assert!(table.remove(places[0]) && table.remove(places[3]));
        assert_eq!(ids_to_send(&table), [2, 3, 5]);
        table.note_sent(2);
        assert_eq!((ids_to_send(&table), table.left_to_send()), (vec![5], 1));
        assert!(table.remove(places[4]));
        table.note_sent(0);
        assert_eq!(table.left_to_send(), 0, "nobody waits for the last");
        table.add(asked(6), TTL);
        assert_eq!(ids_to_send(&table), [6]);
        table.give_up_sending();
        assert!(ids_to_send(&table).is_empty());
    }

    #[test]
    fn each_query_is_found_by_its_id_in_any_order_of_answers() {
        let mut table = InflightTable::default();
        let places = [7, 8, 9].map(|id| table.add(asked(id), TTL));
        for id in [7, 8, 9, 7, 9, 8, 8] {
            assert_eq!(table.by_id(id).unwrap().pending_query.id(), id);
        }
        assert!(table.by_id(10).is_none());
        assert!(table.remove(places[1]) && !table.remove(places[1]));
        assert!(table.by_id(8).is_none() && table.at(places[1]).is_none());
        assert!(!table.is_empty());
        assert!(table.remove(places[0]) && table.remove(places[2]) && table.is_empty());
    }

    #[test]
    fn no_two_queries_share_an_id_even_after_the_first_ended() {
        let mut table = InflightTable::default();
        let first = table.add(asked(7), TTL);
        let second = table.add(asked(7), TTL);
        assert_ne!(table.at(second).unwrap().pending_query.id(), 7);
        assert!(table.remove(first));
        let third = table.add(asked(7), TTL);
        assert_ne!(table.at(third).unwrap().pending_query.id(), 7);
    }

    #[test]
    fn reused_memory_has_nothing_of_earlier_queries() {
        let mut others = InflightTable::default();
        let index = others.add(asked(7), TTL);
        others.note_sent(1);
        assert!(others.by_id(7).is_some() && others.remove(index));
        let mut table = InflightTable::reusing(others);
        assert_eq!((table.asked(), table.left_to_send()), (0, 0));
        assert!(table.by_id(7).is_none() && table.is_empty());
        table.add(asked(7), TTL);
        assert_eq!(ids_to_send(&table), [7]);
    }
}
