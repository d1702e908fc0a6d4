//! Who a pod is.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

/// Between the two texts of a key: less than all that a name has, so keys are in the order of namespaces, and of names in each.
const SEPARATOR: &str = "\0";

/// A pod by namespace and name, as people write it: `namespace/name`.
///
/// Both are in one text: keys are compared often, in trees of all pods of a node, and each text is at another place of memory.
#[derive(Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct PodKey {
    text: Arc<str>,
    /// Where the name begins, one octet behind the end of the namespace.
    name_at: usize,
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
            text: [namespace, name].join(SEPARATOR).into(),
            name_at: namespace.len() + SEPARATOR.len(),
        }
    }

    /// Its namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.text[..self.name_at - SEPARATOR.len()]
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.text[self.name_at..]
    }
}

impl Ord for PodKey {
    fn cmp(&self, other: &Self) -> Ordering {
        // Most keys that are equal are copies of one.
        if Arc::ptr_eq(&self.text, &other.text) {
            return Ordering::Equal;
        }
        self.text
            .cmp(&other.text)
            .then_with(|| self.name_at.cmp(&other.name_at))
    }
}

impl PartialOrd for PodKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodKey")
            .field("namespace", &self.namespace())
            .field("name", &self.name())
            .finish()
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace(), self.name())
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

impl Serialize for PodKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&[self.namespace(), "/", self.name()].concat())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    #[test]
    fn keys_are_ordered_by_namespace_and_then_by_name() {
        // "-" and "." are less than the "/" with which people write a key.
        let ordered = [
            ("a", ""),
            ("a", "b"),
            ("a", "b-c"),
            ("a", "z"),
            ("a-b", "a"),
            ("a-b", "a.b"),
            ("a.b", "a"),
            ("b", "a"),
        ];
        let keys = ordered.map(|(namespace, name)| PodKey::new(namespace, name));
        for (number, one) in keys.iter().enumerate() {
            for (other_number, other) in keys.iter().enumerate() {
                assert_eq!(one.cmp(other), number.cmp(&other_number), "{one} {other}");
                assert_eq!(one == other, number == other_number);
            }
            assert_eq!((one.namespace(), one.name()), ordered[number]);
        }
    }

    #[test]
    fn a_key_is_read_as_it_is_written() {
        let key = PodKey::new("shop", "web-0");
        assert_eq!(key.to_string().parse(), Ok(key.clone()));
        assert_eq!(
            format!("{key:?}"),
            r#"PodKey { namespace: "shop", name: "web-0" }"#
        );
        let written = postcard::to_stdvec(&key).unwrap();
        assert_eq!(written, postcard::to_stdvec("shop/web-0").unwrap());
        assert_eq!(postcard::from_bytes(&written), Ok(key));
        for text in ["", "shop", "/web-0", "shop/", "shop/web/0"] {
            assert!(text.parse::<PodKey>().is_err(), "{text:?}");
        }
    }
}
