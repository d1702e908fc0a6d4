//! Selectors by label (`k8s.io/apimachinery` LabelSelector), after validation.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Labels;

/// All requirements must hold; none means every object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(BTreeSet<Requirement>);

impl Selector {
    /// Every object: what `{}` means.
    #[must_use]
    pub const fn everything() -> Self {
        Self(BTreeSet::new())
    }

    /// Objects for which all of these hold.
    pub fn all_of(requirements: impl IntoIterator<Item = Requirement>) -> Self {
        Self(requirements.into_iter().collect())
    }

    /// Whether an object with these labels is selected.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.holds(labels))
    }

    /// The requirements, in a fixed order: equal selectors have equal lists.
    pub fn requirements(&self) -> impl Iterator<Item = &Requirement> {
        self.0.iter()
    }
}

/// One requirement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Requirement {
    /// The label has one of these values.
    In(Arc<str>, BTreeSet<Arc<str>>),
    /// The label has none of these values, or is not there.
    NotIn(Arc<str>, BTreeSet<Arc<str>>),
    /// The label is there.
    Exists(Arc<str>),
    /// The label is not there.
    DoesNotExist(Arc<str>),
}

impl Requirement {
    fn holds(&self, labels: &Labels) -> bool {
        match self {
            Self::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Self::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Self::Exists(key) => labels.get(key).is_some(),
            Self::DoesNotExist(key) => labels.get(key).is_none(),
        }
    }
}

/// The namespaces of a subject or peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamespaceSelector {
    /// The one namespace of this name: a NetworkPolicy's own.
    Named(Arc<str>),
    /// Namespaces by their labels. A namespace without an object has only its default label
    /// `kubernetes.io/metadata.name`.
    Matching(Selector),
}
