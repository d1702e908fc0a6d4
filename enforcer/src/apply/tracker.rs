//! Tracks desired and programmed values. The process may be killed between any two steps: the next one lists the
//! kernel, and the difference is the same.

use std::collections::{BTreeMap, BTreeSet};

/// Desired and programmed values by key. Keys that differ are pending. The cost is that of the pending keys.
#[derive(Clone, Debug)]
pub struct Tracker<K, V> {
    desired: BTreeMap<K, V>,
    programmed: BTreeMap<K, V>,
    pending: BTreeSet<K>,
}

impl<K, V> Default for Tracker<K, V> {
    fn default() -> Self {
        Self {
            desired: BTreeMap::new(),
            programmed: BTreeMap::new(),
            pending: BTreeSet::new(),
        }
    }
}

impl<K: Ord + Clone, V: PartialEq + Clone> Tracker<K, V> {
    /// Sets a desired value.
    pub fn set_desired(&mut self, key: K, value: V) {
        self.desired.insert(key.clone(), value);
        self.compare(&key);
    }

    /// Removes a desired value.
    pub fn remove_desired(&mut self, key: &K) {
        self.desired.remove(key);
        self.compare(key);
    }

    /// The desired values.
    pub const fn desired(&self) -> &BTreeMap<K, V> {
        &self.desired
    }

    /// The programmed values.
    pub const fn programmed(&self) -> &BTreeMap<K, V> {
        &self.programmed
    }

    /// Notes that a value was programmed.
    pub fn set_programmed(&mut self, key: K, value: V) {
        self.programmed.insert(key.clone(), value);
        self.compare(&key);
    }

    /// Notes that a value was removed.
    pub fn remove_programmed(&mut self, key: &K) {
        self.programmed.remove(key);
        self.compare(key);
    }

    /// Replaces all programmed values by a listing.
    pub fn resync(&mut self, listed: BTreeMap<K, V>) {
        self.programmed = listed;
        let keys: BTreeSet<K> = self
            .desired
            .keys()
            .chain(self.programmed.keys())
            .cloned()
            .collect();
        self.pending = keys.into_iter().filter(|key| !self.is_settled(key)).collect();
    }

    /// Whether desired and programmed value are equal.
    pub fn is_settled(&self, key: &K) -> bool {
        self.desired.get(key) == self.programmed.get(key)
    }

    /// Desired values that are missing or different.
    pub fn to_program(&self) -> impl Iterator<Item = (&K, &V)> {
        self.pending
            .iter()
            .filter_map(|key| self.desired.get_key_value(key))
    }

    /// Programmed keys that are not desired.
    pub fn to_remove(&self) -> impl Iterator<Item = &K> {
        self.pending.iter().filter(|key| !self.desired.contains_key(*key))
    }

    fn compare(&mut self, key: &K) {
        if self.is_settled(key) {
            self.pending.remove(key);
        } else if !self.pending.contains(key) {
            self.pending.insert(key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Want(u8, u8),
        Unwant(u8),
        /// Programs this many pending changes and is then killed: everything is listed again.
        Apply(usize),
        /// Another program changes a value.
        Meddle(u8, Option<u8>),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..6u8, 0..3u8).prop_map(|(key, value)| Step::Want(key, value)),
            (0..6u8).prop_map(Step::Unwant),
            (0..4usize).prop_map(Step::Apply),
            (0..6u8, proptest::option::of(0..3u8)).prop_map(|(key, value)| Step::Meddle(key, value)),
        ];
        proptest::collection::vec(step, 0..30)
    }

    fn apply(tracker: &mut Tracker<u8, u8>, world: &mut BTreeMap<u8, u8>, most: usize) {
        let program: Vec<_> = tracker
            .to_program()
            .map(|(key, value)| (*key, *value))
            .take(most)
            .collect();
        let remove: Vec<_> = tracker.to_remove().copied().take(most - program.len()).collect();
        for (key, value) in program {
            world.insert(key, value);
            tracker.set_programmed(key, value);
        }
        for key in remove {
            world.remove(&key);
            tracker.remove_programmed(&key);
        }
    }

    fn pending(tracker: &Tracker<u8, u8>) -> BTreeSet<u8> {
        let program = tracker.to_program().map(|(key, _)| *key);
        program.chain(tracker.to_remove().copied()).collect()
    }

    fn difference(tracker: &Tracker<u8, u8>) -> BTreeSet<u8> {
        let keys = tracker.desired().keys().chain(tracker.programmed().keys());
        keys.filter(|key| !tracker.is_settled(key)).copied().collect()
    }

    proptest! {
        #[test]
        fn after_any_history_one_resync_and_one_pass_program_what_is_desired(steps in steps()) {
            let (mut tracker, mut world) = (Tracker::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Want(key, value) => tracker.set_desired(key, value),
                    Step::Unwant(key) => tracker.remove_desired(&key),
                    Step::Apply(most) => {
                        apply(&mut tracker, &mut world, most);
                        tracker.resync(world.clone());
                    }
                    Step::Meddle(key, Some(value)) => drop(world.insert(key, value)),
                    Step::Meddle(key, None) => drop(world.remove(&key)),
                }
                prop_assert_eq!(pending(&tracker), difference(&tracker));
            }
            tracker.resync(world.clone());
            apply(&mut tracker, &mut world, usize::MAX);
            prop_assert_eq!(&world, tracker.desired());
            prop_assert_eq!(tracker.to_program().count() + tracker.to_remove().count(), 0);
        }
    }
}
