//! What all that write rules hand on: the text of chains.

use std::collections::BTreeMap;

/// Chains by name, each a list of rules as `iptables-save` prints them.
pub type Chains = BTreeMap<String, Vec<String>>;
