//! Who a pod is.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A pod by namespace and name, as people write it: `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PodKey {
    namespace: Arc<str>,
    name: Arc<str>,
}

/// A text that is not `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form \"namespace/name\"")]
pub struct InvalidPodKey(String);

impl PodKey {
    /// The pod `name` of `namespace`.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// Its namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for PodKey {
    type Err = InvalidPodKey;

    fn from_str(text: &str) -> Result<Self, InvalidPodKey> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self::new(namespace, name))
            }
            Some(_) | None => Err(InvalidPodKey(text.to_owned())),
        }
    }
}

impl TryFrom<String> for PodKey {
    type Error = InvalidPodKey;

    fn try_from(text: String) -> Result<Self, InvalidPodKey> {
        text.parse()
    }
}

impl From<PodKey> for String {
    fn from(pod: PodKey) -> Self {
        [&pod.namespace, "/", &pod.name].concat()
    }
}
