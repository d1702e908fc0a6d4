//! The text of chains, as all renderers return it.

use std::collections::BTreeMap;

/// Chains by name, each a list of rules as `iptables-save` prints them.
pub type Chains = BTreeMap<String, Vec<String>>;
