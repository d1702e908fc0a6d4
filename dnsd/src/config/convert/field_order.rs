//! The order of fields for people.

use serde::{Serialize, Serializer};
use serde_json::Value;

/// The first fields of a mapping; others follow by name.
const FIRST: [&str; 26] = [
    "servers",
    "zones",
    "scheme",
    "port",
    "bind",
    "tls",
    "timeouts",
    "bufsize",
    "debug",
    "errors",
    "log",
    "dns64",
    "loadbalance",
    "cache",
    "rewrite",
    "template",
    "hosts",
    "loop",
    "forward",
    "whoami",
    "from",
    "of",
    "to",
    "class",
    "certificate",
    "key",
];

/// A value whose mappings are written in this order.
pub(super) struct Ordered<'a>(pub(super) &'a Value);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(fields) => {
                let rank = |name: &str| {
                    FIRST
                        .iter()
                        .position(|first| *first == name)
                        .unwrap_or(FIRST.len())
                };
                let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
                fields.sort_by_key(|(name, _)| rank(name));
                serializer.collect_map(fields.into_iter().map(|(name, value)| (name, Ordered(value))))
            }
            Value::Array(list) => serializer.collect_seq(list.iter().map(Ordered)),
            other => other.serialize(serializer),
        }
    }
}
