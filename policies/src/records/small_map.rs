//! A map of few entries, mostly one: a tree would take a whole node for it, which is room for eleven. Whoever answers
//! questions decides how many there are, so many are in a tree.

use std::collections::BTreeMap;

/// So many are looked through.
const FEW: usize = 16;

/// Entries in the order of their keys.
#[derive(Clone, Debug)]
pub(super) enum SmallMap<Key, Value> {
    List(Vec<(Key, Value)>),
    Tree(BTreeMap<Key, Value>),
}

impl<Key, Value> Default for SmallMap<Key, Value> {
    fn default() -> Self {
        Self::new()
    }
}

impl<Key, Value> SmallMap<Key, Value> {
    pub(super) const fn new() -> Self {
        Self::List(Vec::new())
    }
}

impl<Key: Ord, Value> SmallMap<Key, Value> {
    pub(super) fn get(&self, key: &Key) -> Option<&Value> {
        match self {
            Self::List(list) => {
                let at = place(list, key).ok()?;
                list.get(at).map(|(_, value)| value)
            }
            Self::Tree(tree) => tree.get(key),
        }
    }

    /// Puts an entry in; returns the value before.
    pub(super) fn insert(&mut self, key: Key, value: Value) -> Option<Value> {
        let list = match self {
            Self::List(list) => list,
            Self::Tree(tree) => return tree.insert(key, value),
        };
        match place(list, &key) {
            Ok(at) => Some(std::mem::replace(&mut list[at].1, value)),
            Err(_) if list.len() == FEW => {
                let mut tree: BTreeMap<_, _> = std::mem::take(list).into_iter().collect();
                tree.insert(key, value);
                *self = Self::Tree(tree);
                None
            }
            Err(at) => {
                if list.is_empty() {
                    list.reserve_exact(1);
                }
                list.insert(at, (key, value));
                None
            }
        }
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Value> {
        match self {
            Self::List(list) => {
                let at = place(list, key).ok()?;
                Some(list.remove(at).1)
            }
            Self::Tree(tree) => tree.remove(key),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Value)> {
        let (list, tree) = match self {
            Self::List(list) => (Some(list), None),
            Self::Tree(tree) => (None, Some(tree)),
        };
        let list = list.into_iter().flatten().map(|(key, value)| (key, value));
        list.chain(tree.into_iter().flatten())
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Tree(tree) => tree.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn place<Key: Ord, Value>(list: &[(Key, Value)], key: &Key) -> Result<usize, usize> {
    list.binary_search_by(|(own, _)| own.cmp(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_or_many_are_the_same_map() {
        for count in [1, FEW, FEW + 1, 5 * FEW] {
            let (mut few, mut map) = (SmallMap::default(), BTreeMap::new());
            // An order that is none: 7 has no divisor in common with any count of these.
            for number in (0..count).map(|number| number * 7 % count).chain(0..count.min(3)) {
                assert_eq!(
                    few.insert(number, number + count),
                    map.insert(number, number + count)
                );
            }
            assert!(few.iter().eq(&map), "{count}");
            for number in (0..count).rev() {
                assert_eq!(few.len(), map.len());
                assert_eq!(few.get(&number), map.get(&number));
                assert_eq!(few.remove(&number), map.remove(&number));
                assert_eq!(few.get(&number), None);
            }
            assert!(few.is_empty());
        }
    }
}
