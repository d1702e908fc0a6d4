//! What policies of all kinds are made of: selectors, networks, names, and mistakes.

use serde_json::{Value, json};

use super::Draw;

pub(super) const NETWORKS: [&str; 14] = [
    "10.0.0.0/24",
    "10.0.0.2/31",
    "0.0.0.0/0",
    "::/0",
    "fd00::/64",
    "fd00::2/127",
    "192.0.2.0/24",
    "192.0.2.1/32",
    "198.51.100.0/24",
    "198.51.100.7/32",
    "203.0.113.0/25",
    "2001:db8:ffff::/48",
    "10.96.0.0/16",
    "169.254.169.254/32",
];
/// As servers took them once.
const OLD_NETWORKS: [&str; 5] = [
    "10.0.0.3/24",
    "010.000.000.000/24",
    "198.51.100.7/024",
    "::ffff:198.51.100.0/120",
    "fd00::5/64",
];
const NO_NETWORKS: [&str; 6] = [
    "10.0.0.0",
    "10.0.0.0/33",
    "300.0.0.0/8",
    "fd00::/129",
    "::ffff:0:0/8",
    "net",
];
const NAMES: [&str; 9] = [
    "a.x.test",
    "*.x.test",
    "x.test",
    "*.a.x.test",
    "y.test",
    "*.y.test",
    "A.X.test",
    "a.x.test.",
    "*.X.TEST.",
];
const NO_NAMES: [&str; 8] = [
    "*.*.test",
    "**.x.test",
    "a*.x.test",
    "*",
    "*.test",
    "_a.x.test",
    "[a.x.test",
    "*a.x.test",
];
pub(super) const PORT_NAMES: [&str; 4] = ["web", "dns", "redis", "none"];

impl Draw {
    /// A selector; seldom one that nobody can read.
    pub(super) fn selector(&mut self) -> Value {
        match self.below(40) {
            0..8 => json!({}),
            8..22 => json!({"matchLabels": {"app": self.pick(&["x", "y"])}}),
            22 | 23 => json!({"matchLabels": {"k8s-app": "kube-dns"}}),
            24 if self.chance(50) => json!({"matchExpressions": []}),
            24 => json!({"matchLabels": {"app": "x"}, "matchExpressions": [self.broken_expression()]}),
            25 => json!({"matchLabels": {"app": "x"}, "matchExpresions": []}),
            26 => json!({"matchLabels": null, "matchExpressions": [self.expression()]}),
            _ => json!({"matchExpressions": [self.expression()]}),
        }
    }

    /// A selector of namespaces: often by name.
    pub(super) fn namespace_selector(&mut self) -> Value {
        match self.below(10) {
            0..4 => {
                let name = self.pick(&["red", "blue", "green", "kube-system"]);
                json!({"matchLabels": {"kubernetes.io/metadata.name": name}})
            }
            4 => json!({"matchLabels": {"user": "bob"}}),
            _ => self.selector(),
        }
    }

    fn expression(&mut self) -> Value {
        match self.below(4) {
            0 => json!({"key": "app", "operator": "In", "values": self.pick(&[vec!["x"], vec!["x", "y"]])}),
            1 => json!({"key": "app", "operator": "NotIn", "values": self.pick(&[vec!["x"], vec!["y"]])}),
            2 => json!({"key": "old", "operator": "Exists"}),
            _ => json!({"key": "old", "operator": "DoesNotExist", "values": []}),
        }
    }

    fn broken_expression(&mut self) -> Value {
        match self.below(4) {
            0 => json!({"key": "app", "operator": "Is", "values": ["x"]}),
            1 => json!({"key": "app", "operator": "In", "values": []}),
            2 => json!({"key": "old", "operator": "Exists", "values": ["x"]}),
            _ => json!({"key": "old"}),
        }
    }

    pub(super) fn network(&mut self) -> &'static str {
        match self.below(40) {
            0..4 => self.pick(&OLD_NETWORKS),
            4 => self.pick(&NO_NETWORKS),
            _ => self.pick(&NETWORKS),
        }
    }

    pub(super) fn names(&mut self) -> Value {
        let mut names = self.list(1, 3, |draw| draw.pick(&NAMES));
        if self.chance(18) {
            names.push(self.pick(&NO_NAMES));
        }
        if self.chance(1) {
            names.clear();
        }
        names.into()
    }

    /// Seldom adds a field that nobody knows.
    pub(super) fn misspell(&mut self, value: &mut Value) {
        if self.chance(2) && value.is_object() {
            let field = self.pick(&["form", "endport", "selector", "newField"]);
            value[field] = self.pick(&[Value::Null, json!("x"), json!([])]);
        }
    }
}
