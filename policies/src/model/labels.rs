//! Labels of an object.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Labels, as in `metadata.labels`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(BTreeMap<Arc<str>, Arc<str>>);

impl Labels {
    /// The value of a label.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(AsRef::as_ref)
    }

    /// Sets a label.
    pub fn set(&mut self, key: &str, value: &str) {
        self.0.insert(key.into(), value.into());
    }

    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(labels: I) -> Self {
        Self(
            labels
                .into_iter()
                .map(|(key, value)| (key.as_ref().into(), value.as_ref().into()))
                .collect(),
        )
    }
}
