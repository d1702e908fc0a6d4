//! Places for questions under way (`max_concurrent`). One client may have all of them; where none is left, who has fewer takes
//! one from who has most, so that none can have others refused.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::sync::{Mutex, MutexGuard, PoisonError};

use egret_shared::switch::{Switch, is_off};
use tokio::sync::oneshot;

use crate::client::Payer;
use crate::table::HashMap;

/// The places.
#[derive(Debug)]
pub(super) struct Room {
    most: usize,
    /// Held for a look at who has how many.
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// In the order in which they were taken.
    by_client: HashMap<Payer, BTreeMap<u64, Hold>>,
    total: usize,
    last: u64,
}

/// What has a place, for who may take it away: dropped, it is lost.
type Hold = oneshot::Sender<Infallible>;

/// One place; given back when it is dropped. Where there is room for any number, it is none of them.
#[derive(Debug)]
pub(super) struct Place<'a>(Option<Taken<'a>>);

#[derive(Debug)]
struct Taken<'a> {
    room: &'a Room,
    client: Payer,
    number: u64,
    hold: oneshot::Receiver<Infallible>,
}

impl Room {
    /// For so many; 0 means any number.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            held: Mutex::default(),
        }
    }

    /// Takes a place for a question of this client, if there is one or another has at least two more: then it is that one's
    /// oldest, which has had the most time to be answered.
    pub(super) fn enter(&self, client: Payer) -> Option<Place<'_>> {
        if self.most == 0 {
            return Some(Place(None));
        }
        let mut held = self.lock();
        let displaced = match held.total < self.most {
            true => None,
            false => Some(held.displace(client)?),
        };
        let (number, hold) = held.add(client);
        drop(held);
        // Who asks there is woken now, and finds nothing locked.
        drop(displaced);
        Some(Place(Some(Taken {
            room: self,
            client,
            number,
            hold,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Has who has most give one up for this client.
    fn displace(&mut self, client: Payer) -> Option<Hold> {
        let own = self.by_client.get(&client).map_or(0, BTreeMap::len);
        let most = self.by_client.values_mut();
        let most =
            most.max_by_key(|places| (places.len(), places.keys().next().map(|oldest| Reverse(*oldest))))?;
        if own + 1 >= most.len() || is_off(Switch::FairShares) {
            return None;
        }
        let (_, oldest) = most.pop_first()?;
        self.total -= 1;
        Some(oldest)
    }

    fn add(&mut self, client: Payer) -> (u64, oneshot::Receiver<Infallible>) {
        let (sender, receiver) = oneshot::channel();
        self.last += 1;
        self.total += 1;
        self.by_client
            .entry(client)
            .or_default()
            .insert(self.last, sender);
        (self.last, receiver)
    }

    fn remove(&mut self, client: Payer, number: u64) {
        let Some(places) = self.by_client.get_mut(&client) else {
            return;
        };
        // Not where it was taken away before.
        if places.remove(&number).is_some() {
            self.total -= 1;
        }
        if places.is_empty() {
            self.by_client.remove(&client);
        }
    }
}

impl Place<'_> {
    /// Waits until it is another's.
    pub(super) async fn lost(&mut self) {
        match &mut self.0 {
            Some(taken) => drop((&mut taken.hold).await),
            None => pending().await,
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.room.lock().remove(self.client, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn of(client: u8) -> Payer {
        IpAddr::from([10, 0, 0, client]).into()
    }

    impl Place<'_> {
        fn is_lost(&mut self) -> bool {
            let taken = self.0.as_mut().unwrap();
            taken.hold.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        }
    }

    /// A letter for each question in its turn: who asks. What is told of each at the end: whether it has its place (`+`), had
    /// it and lost it (`-`), or was given none (`.`).
    #[test]
    fn who_has_most_gives_up_its_oldest_to_who_has_at_least_two_fewer() {
        for (most, asked, told) in [
            // Alone as if there were nobody to think of.
            (1, "aaa", "+.."),
            (4, "aaaaaa", "++++.."),
            // Nobody is refused for a flood of another's.
            (4, "aaaab", "-++++"),
            (4, "aaaabb", "--++++"),
            // More than the same is taken from nobody, and nobody takes it back.
            (4, "aaaabbb", "--++++."),
            (4, "aaaabbba", "--++++.."),
            (1, "ab", "+."),
            (2, "ab", "++"),
            (2, "aab", "-++"),
            (3, "aabc", "-+++"),
            // Two that flood together have no more of others' than one.
            (4, "aabbc", "-++++"),
            (6, "aaabbbc", "-++++++"),
            (6, "aaabbbcd", "-++-++++"),
            (6, "aaabbbcc", "-++-++++"),
            (6, "aaabbbccc", "-++-++++."),
        ] {
            let room = Room::new(most);
            let mut places: Vec<_> = asked.bytes().map(|client| room.enter(of(client))).collect();
            let fates = places.iter_mut().map(|place| match place {
                None => '.',
                Some(place) => {
                    if place.is_lost() {
                        '-'
                    } else {
                        '+'
                    }
                }
            });
            assert_eq!(fates.collect::<String>(), told, "{asked} of {most}");
            assert!(room.lock().total <= most);
            drop(places);
            let held = room.lock();
            assert!(held.total == 0 && held.by_client.is_empty(), "{asked} of {most}");
        }
    }

    #[test]
    fn a_place_is_given_back_and_one_too_many_takes_none() {
        let room = Room::new(2);
        let (first, second) = (room.enter(of(1)), room.enter(of(1)));
        assert!(first.is_some() && second.is_some() && room.enter(of(1)).is_none());
        drop(first);
        let third = room.enter(of(1));
        assert!(third.is_some() && room.enter(of(1)).is_none());
    }

    #[test]
    fn without_a_bound_there_is_room_for_any_number() {
        let room = Room::new(0);
        let places: Vec<_> = (0..1_000).map(|_| room.enter(of(1))).collect();
        assert!(places.iter().all(Option::is_some));
    }
}
