//! Trees of the standard library in as little memory as they can have.
//!
//! A tree whose keys come in order has nodes that are half empty: the last one is split when it is full, and nothing comes to its
//! first half again. What a cluster has comes so, from lists that are in order.

use std::collections::{BTreeMap, BTreeSet};

/// The same map with full nodes.
pub fn pack_map<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = std::mem::take(map).into_iter().collect();
}

/// The same set with full nodes.
pub fn pack_set<T: Ord>(set: &mut BTreeSet<T>) {
    *set = std::mem::take(set).into_iter().collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_tree_has_what_it_had() {
        for count in 0..200 {
            let (mut map, mut set) = (BTreeMap::new(), BTreeSet::new());
            // An order that is none: 211 is a prime.
            for number in (0..count).map(|number| number * 7 % 211) {
                map.insert(number, number.to_string());
                set.insert(number);
            }
            let (map_before, set_before) = (map.clone(), set.clone());
            pack_map(&mut map);
            pack_set(&mut set);
            assert_eq!((map, set), (map_before, set_before), "{count}");
        }
    }
}
