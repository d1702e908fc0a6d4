//! Labels of an object.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{NAME_LABEL, Shared};

/// Labels, as in `metadata.labels`. A cluster has tens of thousands of them, each with few: so they are slices, and a
/// copy is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(Arc<[Label]>);

/// Key and value.
type Label = (Arc<str>, Arc<str>);

impl Labels {
    /// Those of a namespace without an object: the default one alone.
    #[must_use]
    pub fn of_namespace_without_object(name: &str) -> Self {
        Self::from_iter([(NAME_LABEL, name)])
    }

    /// The value of a label.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        let place = self.0.binary_search_by(|(one, _)| one.as_ref().cmp(key)).ok()?;
        self.0.get(place).map(|(_, value)| value.as_ref())
    }

    /// Sets a label.
    pub fn set(&mut self, key: &str, value: &str) {
        let others = self.iter().filter(|(one, _)| *one != key);
        *self = others.chain([(key, value)]).collect();
    }

    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }

    pub(super) fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// The same of shared texts.
    pub(super) fn of_shared(&self, shared: &mut Shared) -> Self {
        let labels = self.0.iter();
        Self(
            labels
                .map(|(key, value)| (shared.text(key), shared.text(value)))
                .collect(),
        )
    }
}

impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(labels: I) -> Self {
        let pairs = labels.into_iter();
        // Of two with one key the last counts, and the map has them in order.
        let by_key: BTreeMap<Arc<str>, Arc<str>> = pairs
            .map(|(key, value)| (key.as_ref().into(), value.as_ref().into()))
            .collect();
        Self(by_key.into_iter().collect())
    }
}
