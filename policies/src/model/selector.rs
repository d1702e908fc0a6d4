//! Selectors by label (`k8s.io/apimachinery` LabelSelector), after validation.

use std::fmt;
use std::sync::Arc;

use super::{Labels, Shared};

/// The label that the API server sets on every namespace, whatever its author wrote: its name (KEP-2161).
pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// All requirements must hold; none means every object.
///
/// A cluster has tens of thousands of them, most with one requirement of one value: so they are slices, and a copy
/// is none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(Option<Arc<[Requirement]>>);

impl Selector {
    /// Every object: what `{}` means.
    #[must_use]
    pub const fn everything() -> Self {
        Self(None)
    }

    /// Objects for which all of these hold.
    pub fn all_of(requirements: impl IntoIterator<Item = Requirement>) -> Self {
        let mut requirements: Vec<Requirement> = requirements.into_iter().collect();
        requirements.sort_unstable();
        requirements.dedup();
        Self((!requirements.is_empty()).then(|| requirements.into()))
    }

    /// Whether an object with these labels is selected.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements().all(|requirement| requirement.holds(labels))
    }

    /// The same, of a list that equal selectors have in common.
    pub(super) fn shared(&self, shared: &mut Shared) -> Self {
        Self(self.0.as_ref().map(|list| shared.requirements(list)))
    }

    /// The requirements, in a fixed order: equal selectors have equal lists.
    pub fn requirements(&self) -> impl Iterator<Item = &Requirement> {
        self.0.iter().flat_map(|requirements| requirements.iter())
    }
}

/// One requirement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Requirement {
    /// The label has one of these values.
    In(Arc<str>, Values),
    /// The label has none of these values, or is not there.
    NotIn(Arc<str>, Values),
    /// The label is there.
    Exists(Arc<str>),
    /// The label is not there.
    DoesNotExist(Arc<str>),
}

impl Requirement {
    pub(super) fn of_shared(&self, shared: &mut Shared) -> Self {
        match self {
            Self::In(key, values) => Self::In(shared.text(key), values.of_shared(shared)),
            Self::NotIn(key, values) => Self::NotIn(shared.text(key), values.of_shared(shared)),
            Self::Exists(key) => Self::Exists(shared.text(key)),
            Self::DoesNotExist(key) => Self::DoesNotExist(shared.text(key)),
        }
    }

    /// Of namespaces.
    fn is_of_one_name(&self) -> bool {
        match self {
            Self::In(key, values) => key.as_ref() == NAME_LABEL && values.len() == 1,
            Self::NotIn(..) | Self::Exists(_) | Self::DoesNotExist(_) => false,
        }
    }

    fn holds(&self, labels: &Labels) -> bool {
        match self {
            Self::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Self::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Self::Exists(key) => labels.get(key).is_some(),
            Self::DoesNotExist(key) => labels.get(key).is_none(),
        }
    }
}

/// The values of a requirement: a set of few.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Values(Arc<[Arc<str>]>);

impl Values {
    /// Whether a value is one of them.
    #[must_use]
    pub fn contains(&self, value: &str) -> bool {
        self.0.binary_search_by(|one| one.as_ref().cmp(value)).is_ok()
    }

    /// Whether all of them are among the others.
    #[must_use]
    pub fn is_subset(&self, others: &Self) -> bool {
        self.iter().all(|value| others.contains(value))
    }

    /// Whether none of them is among the others.
    #[must_use]
    pub fn is_disjoint(&self, others: &Self) -> bool {
        !self.iter().any(|value| others.contains(value))
    }

    fn of_shared(&self, shared: &mut Shared) -> Self {
        Self(self.0.iter().map(|value| shared.text(value)).collect())
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter()
    }
}

/// As a set is written: names of sets are made of this.
impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl FromIterator<Arc<str>> for Values {
    fn from_iter<I: IntoIterator<Item = Arc<str>>>(values: I) -> Self {
        let mut values: Vec<Arc<str>> = values.into_iter().collect();
        values.sort_unstable();
        values.dedup();
        Self(values.into())
    }
}

impl<const N: usize> From<[Arc<str>; N]> for Values {
    fn from(values: [Arc<str>; N]) -> Self {
        values.into_iter().collect()
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

impl NamespaceSelector {
    /// Whether it can match only namespaces of one name.
    #[must_use]
    pub fn is_of_one_name(&self) -> bool {
        match self {
            Self::Named(_) => true,
            Self::Matching(selector) => selector.requirements().any(Requirement::is_of_one_name),
        }
    }

    /// Whether a namespace of this name with these labels is selected.
    #[must_use]
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        match self {
            Self::Named(own) => own.as_ref() == name,
            Self::Matching(selector) => selector.matches(labels),
        }
    }

    pub(super) fn shared(&self, shared: &mut Shared) -> Self {
        match self {
            Self::Named(name) => Self::Named(shared.text(name)),
            Self::Matching(selector) => Self::Matching(selector.shared(shared)),
        }
    }
}
