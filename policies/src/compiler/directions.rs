//! A set of directions.

use crate::model::Direction;

/// Some of the two directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Directions {
    egress: bool,
    ingress: bool,
}

impl Directions {
    /// Puts a direction in, or takes it out.
    pub(crate) const fn set(&mut self, direction: Direction, is_there: bool) {
        match direction {
            Direction::Egress => self.egress = is_there,
            Direction::Ingress => self.ingress = is_there,
        }
    }

    /// Whether a direction is one of them.
    pub(crate) const fn contains(self, direction: Direction) -> bool {
        match direction {
            Direction::Egress => self.egress,
            Direction::Ingress => self.ingress,
        }
    }

    /// Whether there is none.
    pub(crate) const fn is_empty(self) -> bool {
        !self.egress && !self.ingress
    }

    /// Those that are one of these or of the others.
    pub(crate) const fn and(self, others: Self) -> Self {
        Self {
            egress: self.egress || others.egress,
            ingress: self.ingress || others.ingress,
        }
    }

    /// All of them.
    pub(crate) fn iter(self) -> impl Iterator<Item = Direction> {
        Direction::ALL
            .into_iter()
            .filter(move |direction| self.contains(*direction))
    }
}
