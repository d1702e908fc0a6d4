//! A sorted list without doubles, in one allocation.

use std::sync::Arc;

/// Above so many new ones they are sorted in together.
const FEW: usize = 8;

/// A sorted list without doubles. Equal lists may have the same memory: one that changes has its own from then on.
#[derive(Clone, Debug)]
pub(in crate::backend) struct SortedList<T>(Option<Arc<Vec<T>>>);

impl<T> Default for SortedList<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Eq> PartialEq for SortedList<T> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl<T: Eq> Eq for SortedList<T> {}

impl<T> SortedList<T> {
    pub(in crate::backend) fn as_slice(&self) -> &[T] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

impl<T: Copy + Ord> SortedList<T> {
    pub(in crate::backend) fn len(&self) -> usize {
        self.as_slice().len()
    }

    pub(in crate::backend) fn iter(&self) -> impl Iterator<Item = T> {
        self.as_slice().iter().copied()
    }

    pub(in crate::backend) fn contains(&self, one: &T) -> bool {
        self.as_slice().binary_search(one).is_ok()
    }

    /// The last of those that fit as what they stand for; what is less than one that fits does as well.
    pub(in crate::backend) fn last_where<U>(
        &self,
        as_other: impl Fn(T) -> U,
        fits: impl Fn(U) -> bool,
    ) -> Option<U> {
        let all = self.as_slice();
        let behind = all.partition_point(|one| fits(as_other(*one)));
        behind.checked_sub(1).map(|place| as_other(all[place]))
    }

    pub(in crate::backend) fn insert(&mut self, new: T) {
        let Err(place) = self.as_slice().binary_search(&new) else {
            return;
        };
        let own = self.own();
        if own.len() == own.capacity() {
            // Little is left unused in each of thousands of lists.
            own.reserve_exact(own.len() / 8 + 1);
        }
        own.insert(place, new);
    }

    pub(in crate::backend) fn remove(&mut self, one: &T) {
        if let Ok(place) = self.as_slice().binary_search(one) {
            self.own().remove(place);
        }
    }

    pub(in crate::backend) fn extend(&mut self, new: impl Iterator<Item = T> + Clone) {
        let number = new.clone().count();
        if number <= FEW {
            new.for_each(|one| self.insert(one));
            return;
        }
        let own = self.own();
        own.reserve_exact(number);
        own.extend(new);
        own.sort();
        own.dedup();
    }

    /// Has the same memory as another one from now on if they are equal.
    pub(in crate::backend) fn share(&mut self, other: &Self) {
        if self == other {
            self.0.clone_from(&other.0);
        }
    }

    fn own(&mut self) -> &mut Vec<T> {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(members: &[u16]) -> SortedList<u16> {
        let mut list = SortedList::default();
        list.extend(members.iter().copied());
        list
    }

    #[test]
    fn equal_lists_have_one_memory_until_one_of_them_changes() {
        let one = list(&[3, 1, 2]);
        let mut other = list(&[1, 2, 3]);
        let mut longer = list(&[1, 2, 3, 4]);
        assert_ne!(one.as_slice().as_ptr(), other.as_slice().as_ptr());
        other.share(&one);
        longer.share(&one);
        assert_eq!(one.as_slice().as_ptr(), other.as_slice().as_ptr());
        assert_eq!(longer.as_slice(), [1, 2, 3, 4]);
        other.insert(2);
        other.remove(&9);
        assert_eq!(
            one.as_slice().as_ptr(),
            other.as_slice().as_ptr(),
            "nothing changed"
        );
        other.insert(5);
        longer.share(&other);
        assert_eq!(
            (one.as_slice(), other.as_slice()),
            (&[1, 2, 3][..], &[1, 2, 3, 5][..])
        );
        assert_eq!(longer.as_slice(), [1, 2, 3, 4]);
    }
}
