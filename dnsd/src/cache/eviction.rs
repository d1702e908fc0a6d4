//! Which entry goes when there is no room.
//!
//! Two queues for each class (as in S3-FIFO, Yang et al., SOSP 2023): what is new enters the small one, and only
//! what was asked for again moves on to the main one. A flood of random names passes through the small queue and
//! leaves the main one alone, and so does a flood of denials leave the answers alone.

use std::collections::VecDeque;

use super::entries::Id;
use crate::cache::cacheability::Class;

/// The small queues' share of the whole, as one part of this many.
const SMALL_SHARE: usize = 10;

/// Which queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Small,
    Main,
}

/// The queues of both classes, their bounds, and the bound of all of them in octets.
#[derive(Debug)]
pub(super) struct Shelves {
    shelves: [Shelf; 2],
    limit: usize,
}

#[derive(Debug)]
struct Shelf {
    small: Queue,
    main: Queue,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Id>,
    weight: usize,
}

impl Shelves {
    /// Empty ones; capacities of success and denial.
    pub(super) fn new(capacities: [usize; 2], limit: usize) -> Self {
        let shelf = |capacity| Shelf {
            small: Queue::default(),
            main: Queue::default(),
            capacity,
        };
        Self {
            shelves: capacities.map(shelf),
            limit,
        }
    }

    pub(super) fn entries(&self, class: Class) -> usize {
        self.shelves[class as usize].len()
    }

    pub(super) fn weight(&self) -> usize {
        self.shelves.iter().map(Shelf::weight).sum()
    }

    pub(super) fn push(&mut self, class: Class, place: Place, id: Id, weight: usize) {
        let queue = self.queue(class, place);
        queue.entries.push_back(id);
        queue.weight += weight;
    }

    /// A queue, the oldest first.
    pub(super) const fn in_order(&self, class: Class, place: Place) -> &VecDeque<Id> {
        let shelf = &self.shelves[class as usize];
        match place {
            Place::Small => &shelf.small.entries,
            Place::Main => &shelf.main.entries,
        }
    }

    /// The oldest entry; its weight stays until it is told.
    pub(super) fn pop(&mut self, class: Class, place: Place) -> Option<Id> {
        self.queue(class, place).entries.pop_front()
    }

    pub(super) fn lighten(&mut self, class: Class, place: Place, weight: usize) {
        self.queue(class, place).weight -= weight;
    }

    pub(super) fn reweigh(&mut self, class: Class, place: Place, before: usize, after: usize) {
        let queue = self.queue(class, place);
        queue.weight = queue.weight + after - before;
    }

    /// The queue whose oldest entry has to move, if anything has to.
    pub(super) fn overfull(&self) -> Option<(Class, Place)> {
        let full = Class::ALL
            .into_iter()
            .find(|class| self.shelves[*class as usize].is_overfull());
        if let Some(class) = full {
            return Some((class, self.shelves[class as usize].turn()));
        }
        (self.weight() > self.limit).then(|| self.heaviest())
    }

    /// Octets: the small queues first, while they take more than their share.
    fn heaviest(&self) -> (Class, Place) {
        let [success, denial] = &self.shelves;
        let heavier = |success: &Queue, denial: &Queue| {
            if success.weight >= denial.weight {
                Class::Success
            } else {
                Class::Denial
            }
        };
        let small = success.small.weight + denial.small.weight;
        if small > self.limit / SMALL_SHARE || success.main.weight + denial.main.weight == 0 {
            (heavier(&success.small, &denial.small), Place::Small)
        } else {
            (heavier(&success.main, &denial.main), Place::Main)
        }
    }

    const fn queue(&mut self, class: Class, place: Place) -> &mut Queue {
        let shelf = &mut self.shelves[class as usize];
        match place {
            Place::Small => &mut shelf.small,
            Place::Main => &mut shelf.main,
        }
    }
}

impl Shelf {
    fn len(&self) -> usize {
        self.small.entries.len() + self.main.entries.len()
    }

    const fn weight(&self) -> usize {
        self.small.weight + self.main.weight
    }

    fn is_overfull(&self) -> bool {
        self.len() > self.capacity
    }

    fn turn(&self) -> Place {
        if self.small.entries.len() > self.capacity / SMALL_SHARE || self.main.entries.is_empty() {
            Place::Small
        } else {
            Place::Main
        }
    }
}
