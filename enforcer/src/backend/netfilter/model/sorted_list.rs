//! A sorted list without doubles, in one allocation.

/// Above so many new ones they are sorted in together.
const FEW: usize = 8;

/// A sorted list without doubles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend) struct SortedList<T>(Vec<T>);

impl<T> Default for SortedList<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Copy + Ord> SortedList<T> {
    pub(in crate::backend) fn as_slice(&self) -> &[T] {
        &self.0
    }

    pub(in crate::backend) fn len(&self) -> usize {
        self.0.len()
    }

    pub(in crate::backend) fn iter(&self) -> impl Iterator<Item = T> {
        self.0.iter().copied()
    }

    pub(in crate::backend) fn contains(&self, one: &T) -> bool {
        self.0.binary_search(one).is_ok()
    }

    /// The last of those that fit as what they stand for; what is less than one that fits does as well.
    pub(in crate::backend) fn last_where<U>(
        &self,
        as_other: impl Fn(T) -> U,
        fits: impl Fn(U) -> bool,
    ) -> Option<U> {
        let behind = self.0.partition_point(|one| fits(as_other(*one)));
        behind.checked_sub(1).map(|place| as_other(self.0[place]))
    }

    pub(in crate::backend) fn insert(&mut self, new: T) {
        let Err(place) = self.0.binary_search(&new) else {
            return;
        };
        if self.0.len() == self.0.capacity() {
            // Little is left unused in each of thousands of lists.
            self.0.reserve_exact(self.0.len() / 8 + 1);
        }
        self.0.insert(place, new);
    }

    pub(in crate::backend) fn remove(&mut self, one: &T) {
        if let Ok(place) = self.0.binary_search(one) {
            self.0.remove(place);
        }
    }

    pub(in crate::backend) fn extend(&mut self, new: impl Iterator<Item = T> + Clone) {
        let number = new.clone().count();
        if number <= FEW {
            new.for_each(|one| self.insert(one));
            return;
        }
        self.0.reserve_exact(number);
        self.0.extend(new);
        self.0.sort();
        self.0.dedup();
    }
}
