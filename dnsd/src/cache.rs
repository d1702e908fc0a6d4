//! Answers that others may be given too, bounded in octets.
//!
//! Two queues (as in S3-FIFO, Yang et al., SOSP 2023): what is new enters the small one, and only what was
//! asked for again moves on to the main one. A flood of random names passes through the small queue and
//! leaves the main one alone.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use egret_shared::time::Timestamp;

use crate::message::{Query, flag};

/// The small queue's share of the whole, as one part of this many.
const SMALL_SHARE: usize = 10;
/// How many times an entry is spared for having been asked for.
const MAX_USES: u8 = 3;
/// What an entry takes besides key and value: map slot, two pointers, counters; measured, rounded up.
const OVERHEAD: usize = 160;

/// What an answer depends on: the question, and what the client said that changes the answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(Box<[u8]>);

impl Key {
    /// The key of a query; nothing where the answer is for this client alone.
    #[must_use]
    pub fn of(query: &Query) -> Option<Self> {
        let edns = query.edns.as_ref();
        if edns.is_some_and(|edns| !edns.options.is_empty()) {
            return None;
        }
        let question = &query.question;
        let mut octets = Vec::with_capacity(question.name.as_octets().len() + 6);
        octets.extend_from_slice(question.name.as_octets());
        octets.extend_from_slice(&question.kind.to_be_bytes());
        octets.extend_from_slice(&question.class.to_be_bytes());
        let [high, low] = (query.flags & (flag::RD | flag::AD | flag::CD)).to_be_bytes();
        octets.push(
            high | low | u8::from(edns.is_some()) << 1 | u8::from(edns.is_some_and(|edns| edns.dnssec)) << 2,
        );
        Some(Self(octets.into()))
    }

    fn size(&self) -> usize {
        self.0.len()
    }
}

/// What the cache needs to know of a value.
pub trait Weigh {
    /// Octets that it takes.
    fn weight(&self) -> usize;
}

/// The cache.
#[derive(Debug)]
pub struct Cache<V> {
    entries: HashMap<Arc<Key>, Entry<V>>,
    small: Queue,
    main: Queue,
    limit: usize,
    evictions: u64,
}

#[derive(Debug)]
struct Entry<V> {
    value: Arc<V>,
    expires: Timestamp,
    weight: usize,
    uses: u8,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Small,
    Main,
}

#[derive(Debug, Default)]
struct Queue {
    keys: VecDeque<Arc<Key>>,
    weight: usize,
}

impl<V: Weigh> Cache<V> {
    /// An empty cache of at most `limit` octets.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            entries: HashMap::new(),
            small: Queue::default(),
            main: Queue::default(),
            limit,
            evictions: 0,
        }
    }

    /// The value, if it is there and lives.
    pub fn get(&mut self, key: &Key, now: Timestamp) -> Option<Arc<V>> {
        let entry = self.entries.get_mut(key).filter(|entry| now < entry.expires)?;
        entry.uses = (entry.uses + 1).min(MAX_USES);
        Some(Arc::clone(&entry.value))
    }

    /// Keeps a value for `lifetime`, or none larger than the whole cache.
    pub fn insert(&mut self, key: Key, value: Arc<V>, now: Timestamp, lifetime: Duration) {
        let weight = value.weight() + key.size() + OVERHEAD;
        if weight > self.limit {
            return;
        }
        let expires = now.after(lifetime);
        match self.entries.get_mut(&key) {
            Some(entry) => {
                let before = std::mem::replace(&mut entry.weight, weight);
                (entry.value, entry.expires) = (value, expires);
                let queue = match entry.place {
                    Place::Small => &mut self.small,
                    Place::Main => &mut self.main,
                };
                queue.weight = queue.weight + weight - before;
            }
            None => self.insert_new(key, value, expires, weight),
        }
        self.make_room(now);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Octets that they take.
    #[must_use]
    pub const fn weight(&self) -> usize {
        self.small.weight + self.main.weight
    }

    /// How many had to go while they lived.
    #[must_use]
    pub const fn evictions(&self) -> u64 {
        self.evictions
    }

    fn insert_new(&mut self, key: Key, value: Arc<V>, expires: Timestamp, weight: usize) {
        let key = Arc::new(key);
        self.small.push(Arc::clone(&key), weight);
        let entry = Entry {
            value,
            expires,
            weight,
            uses: 0,
            place: Place::Small,
        };
        self.entries.insert(key, entry);
    }

    fn make_room(&mut self, now: Timestamp) {
        while self.weight() > self.limit {
            let small_is_full = self.small.weight * SMALL_SHARE > self.limit || self.main.keys.is_empty();
            if small_is_full {
                self.turn_small(now);
            } else {
                self.turn_main(now);
            }
        }
    }

    /// The oldest of the small queue moves on if it was asked for again, and goes otherwise.
    fn turn_small(&mut self, now: Timestamp) {
        let Some((key, entry)) = pop(&mut self.small, &mut self.entries) else {
            return;
        };
        if entry.uses > 0 && now < entry.expires {
            (entry.uses, entry.place) = (0, Place::Main);
            self.main.push(key, entry.weight);
        } else {
            self.remove(&key, now);
        }
    }

    /// The oldest of the main queue gets another turn for each time it was asked for.
    fn turn_main(&mut self, now: Timestamp) {
        let Some((key, entry)) = pop(&mut self.main, &mut self.entries) else {
            return;
        };
        if entry.uses > 0 && now < entry.expires {
            entry.uses -= 1;
            self.main.push(key, entry.weight);
        } else {
            self.remove(&key, now);
        }
    }

    fn remove(&mut self, key: &Arc<Key>, now: Timestamp) {
        let removed = self.entries.remove(key);
        if removed.is_some_and(|entry| now < entry.expires) {
            self.evictions += 1;
        }
    }
}

impl Queue {
    fn push(&mut self, key: Arc<Key>, weight: usize) {
        self.keys.push_back(key);
        self.weight += weight;
    }
}

/// Takes the oldest key out of a queue; its entry stays in the map for the caller to place or remove.
fn pop<'a, V>(
    queue: &mut Queue,
    entries: &'a mut HashMap<Arc<Key>, Entry<V>>,
) -> Option<(Arc<Key>, &'a mut Entry<V>)> {
    let key = queue.keys.pop_front()?;
    let entry = entries
        .get_mut(&key)
        .expect("every key of a queue has its entry: they are added and removed together");
    queue.weight -= entry.weight;
    Some((key, entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Octets(usize);

    impl Weigh for Octets {
        fn weight(&self) -> usize {
            self.0
        }
    }

    const NOW: Timestamp = Timestamp::from_millis(1_000);
    const HOUR: Duration = Duration::from_secs(3600);

    fn key(number: u32) -> Key {
        Key(number.to_be_bytes().into())
    }

    fn insert(cache: &mut Cache<Octets>, number: u32) {
        cache.insert(key(number), Arc::new(Octets(100)), NOW, HOUR);
    }

    #[test]
    fn an_answer_lives_until_its_time_and_not_a_moment_longer() {
        let mut cache = Cache::new(1 << 20);
        cache.insert(key(1), Arc::new(Octets(1)), NOW, Duration::from_secs(5));
        assert!(
            cache
                .get(&key(1), NOW.after(Duration::from_millis(4_999)))
                .is_some()
        );
        assert!(cache.get(&key(1), NOW.after(Duration::from_secs(5))).is_none());
    }

    #[test]
    fn it_never_holds_more_than_its_limit() {
        let mut cache = Cache::new(10_000);
        for number in 0..1_000 {
            insert(&mut cache, number);
            assert!(cache.weight() <= 10_000);
        }
        assert!(cache.len() > 30 && cache.evictions() > 900, "{cache:?}");
    }

    #[test]
    fn a_flood_of_random_names_does_not_flush_what_is_asked_for() {
        let mut cache = Cache::new(100_000);
        for number in 0..100 {
            insert(&mut cache, number);
            cache.get(&key(number), NOW);
        }
        for number in 1_000..20_000 {
            insert(&mut cache, number);
        }
        let kept = (0..100)
            .filter(|number| cache.get(&key(*number), NOW).is_some())
            .count();
        assert_eq!(kept, 100);
    }

    #[test]
    fn a_newer_answer_replaces_the_older_and_its_weight() {
        let mut cache = Cache::new(10_000);
        insert(&mut cache, 1);
        let before = cache.weight();
        cache.insert(key(1), Arc::new(Octets(300)), NOW, HOUR);
        assert_eq!((cache.weight() - before, cache.len()), (200, 1));
    }
}
