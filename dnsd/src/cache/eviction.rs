//! Eviction queues (S3-FIFO, Yang et al., SOSP 2023).
//!
//! Two queues per class: a new entry enters the small one, and only an entry that was used again is promoted to the main one.
//! A flood of random names passes through the small queue and leaves the main one alone; a flood of denials leaves the answers
//! alone.

use std::collections::VecDeque;

use super::entries::EntryId;
use crate::cache::cacheability::Class;
use crate::cache::entry::QueueKind;

/// The small queues' share of the limit is 1 in so many.
const SMALL_SHARE: usize = 10;

/// The queues of both classes, their bounds in entries, and their common bound in octets.
#[derive(Debug)]
pub(super) struct EvictionQueues {
    queues: [ClassQueues; 2],
    limit: usize,
}

#[derive(Debug)]
struct ClassQueues {
    small: Queue,
    main: Queue,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<EntryId>,
    weight: usize,
}

impl EvictionQueues {
    /// Empty queues; the capacities are of success and denial.
    pub(super) fn new(capacities: [usize; 2], limit: usize) -> Self {
        let class_queues = |capacity| ClassQueues {
            small: Queue::default(),
            main: Queue::default(),
            capacity,
        };
        Self {
            queues: capacities.map(class_queues),
            limit,
        }
    }

    pub(super) fn entries(&self, class: Class) -> usize {
        self.queues[class as usize].len()
    }

    pub(super) fn weight(&self) -> usize {
        self.queues.iter().map(ClassQueues::weight).sum()
    }

    pub(super) fn push(&mut self, class: Class, queue: QueueKind, id: EntryId, weight: usize) {
        let queue = self.queue(class, queue);
        queue.entries.push_back(id);
        queue.weight += weight;
    }

    /// A queue, the oldest first.
    pub(super) const fn in_order(&self, class: Class, queue: QueueKind) -> &VecDeque<EntryId> {
        let class_queues = &self.queues[class as usize];
        match queue {
            QueueKind::Small => &class_queues.small.entries,
            QueueKind::Main => &class_queues.main.entries,
        }
    }

    /// Removes the oldest entry; its weight is subtracted by `lighten`.
    pub(super) fn pop(&mut self, class: Class, queue: QueueKind) -> Option<EntryId> {
        self.queue(class, queue).entries.pop_front()
    }

    pub(super) fn lighten(&mut self, class: Class, queue: QueueKind, weight: usize) {
        self.queue(class, queue).weight -= weight;
    }

    pub(super) fn reweigh(&mut self, class: Class, queue: QueueKind, before: usize, after: usize) {
        let queue = self.queue(class, queue);
        queue.weight = queue.weight + after - before;
    }

    /// The queue whose oldest entry is to be evicted, if any.
    pub(super) fn overfull(&self) -> Option<(Class, QueueKind)> {
        let full = Class::ALL
            .into_iter()
            .find(|class| self.queues[*class as usize].is_overfull());
        if let Some(class) = full {
            return Some((class, self.queues[class as usize].turn()));
        }
        (self.weight() > self.limit).then(|| self.heaviest())
    }

    /// The queue to evict from by octets: the small queues first, while they exceed their share.
    fn heaviest(&self) -> (Class, QueueKind) {
        let [success, denial] = &self.queues;
        let heavier = |success: &Queue, denial: &Queue| {
            if success.weight >= denial.weight {
                Class::Success
            } else {
                Class::Denial
            }
        };
        let small = success.small.weight + denial.small.weight;
        if small > self.limit / SMALL_SHARE || success.main.weight + denial.main.weight == 0 {
            (heavier(&success.small, &denial.small), QueueKind::Small)
        } else {
            (heavier(&success.main, &denial.main), QueueKind::Main)
        }
    }

    const fn queue(&mut self, class: Class, queue: QueueKind) -> &mut Queue {
        let class_queues = &mut self.queues[class as usize];
        match queue {
            QueueKind::Small => &mut class_queues.small,
            QueueKind::Main => &mut class_queues.main,
        }
    }
}

impl ClassQueues {
    fn len(&self) -> usize {
        self.small.entries.len() + self.main.entries.len()
    }

    const fn weight(&self) -> usize {
        self.small.weight + self.main.weight
    }

    fn is_overfull(&self) -> bool {
        self.len() > self.capacity
    }

    fn turn(&self) -> QueueKind {
        if self.small.entries.len() > self.capacity / SMALL_SHARE || self.main.entries.is_empty() {
            QueueKind::Small
        } else {
            QueueKind::Main
        }
    }
}
