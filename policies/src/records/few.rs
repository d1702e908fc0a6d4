//! A map of few entries, mostly one: a tree would take a whole node for it, which is room for eleven.

/// Entries in the order of their keys.
#[derive(Clone, Debug)]
pub(super) struct Few<Key, Value>(Vec<(Key, Value)>);

impl<Key, Value> Default for Few<Key, Value> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<Key: Ord, Value> Few<Key, Value> {
    pub(super) fn get(&self, key: &Key) -> Option<&Value> {
        let at = self.place(key).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    /// Puts an entry in; returns the value before.
    pub(super) fn insert(&mut self, key: Key, value: Value) -> Option<Value> {
        match self.place(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                if self.0.is_empty() {
                    self.0.reserve_exact(1);
                }
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Value> {
        let at = self.place(key).ok()?;
        Some(self.0.remove(at).1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Value)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn place(&self, key: &Key) -> Result<usize, usize> {
        self.0.binary_search_by(|(own, _)| own.cmp(key))
    }
}
