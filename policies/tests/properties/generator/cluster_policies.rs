//! Policies of the cluster: AdminNetworkPolicy, BaselineAdminNetworkPolicy, ClusterNetworkPolicy, and firewalls.

use serde_json::{Map, Value, json};

use super::parts::PORT_NAMES;
use super::{Draw, Theme};

/// What the kinds write differently.
#[derive(Clone, Copy)]
struct Form {
    allow: &'static str,
    passes: bool,
    ports: &'static str,
    has_names: bool,
}

const ADMIN: Form = Form {
    allow: "Allow",
    passes: true,
    ports: "ports",
    has_names: true,
};
const BASELINE: Form = Form {
    passes: false,
    has_names: false,
    ..ADMIN
};
const CLUSTER: Form = Form {
    allow: "Accept",
    ports: "protocols",
    ..ADMIN
};

impl Draw {
    pub(super) fn admin_policy(&mut self) -> Value {
        let mut spec = self.rules_of_both(ADMIN);
        spec["priority"] = self.priority();
        let version = if self.chance(2) { "v1beta1" } else { "v1alpha1" };
        self.of_cluster("AdminNetworkPolicy", version, &["p", "q"], spec)
    }

    pub(super) fn baseline_policy(&mut self) -> Value {
        let spec = self.rules_of_both(BASELINE);
        let name = if self.chance(3) { "other" } else { "default" };
        self.of_cluster("BaselineAdminNetworkPolicy", "v1alpha1", &[name], spec)
    }

    pub(super) fn cluster_policy(&mut self) -> Value {
        let mut spec = self.rules_of_both(CLUSTER);
        spec["priority"] = self.priority();
        let tier = match self.below(40) {
            0 | 1 => json!("admin"),
            2 | 3 => Value::Null,
            4..18 => json!("Baseline"),
            _ => json!("Admin"),
        };
        spec["tier"] = tier;
        let version = if self.chance(2) { "v1beta1" } else { "v1alpha2" };
        self.of_cluster("ClusterNetworkPolicy", version, &["o", "p", "q"], spec)
    }

    /// A policy for most pods, with names and a denial of the rest.
    pub(super) fn policy_with_names(&mut self) -> Value {
        let subject = if self.chance(65) {
            json!({"namespaces": {}})
        } else {
            self.subject()
        };
        match self.below(10) {
            0..3 => {
                let egress = self.names_and_denial(ADMIN);
                let spec = json!({"priority": 7, "subject": subject, "egress": egress});
                self.of_cluster("AdminNetworkPolicy", "v1alpha1", &["p", "q"], spec)
            }
            3..8 => {
                let egress = self.names_and_denial(CLUSTER);
                let tier = self.pick(&["Admin", "Baseline"]);
                let mut spec = json!({"tier": tier, "priority": 7, "subject": subject, "egress": egress});
                if self.chance(10) {
                    spec["ingress"] = json!([{"action": "Deny", "from": [{"domainNames": self.names()}]}]);
                }
                self.of_cluster("ClusterNetworkPolicy", "v1alpha2", &["p", "q"], spec)
            }
            8 => {
                let egress = self.names_and_denial(BASELINE);
                let spec = json!({"subject": subject, "egress": egress});
                self.of_cluster("BaselineAdminNetworkPolicy", "v1alpha1", &["default"], spec)
            }
            _ => {
                let names = json!({"action": "Allow", "to": [{"domainNames": self.names()}]});
                let rules = json!([names, {"action": "Deny", "to": [{"external": {}}]}]);
                let spec = json!({"rules": rules, "services": {"exposure": "Ignore"}});
                json!({
                    "apiVersion": "policy.egret.dev/v1alpha1", "kind": "ClusterEgressFirewall",
                    "metadata": {"name": "f"}, "spec": spec,
                })
            }
        }
    }

    /// A policy for all pods with rules for some ports, and a denial of the rest behind them.
    pub(super) fn cluster_policy_about_ports(&mut self) -> Value {
        let (form, is_admin) = if self.chance(40) {
            (ADMIN, true)
        } else {
            (CLUSTER, false)
        };
        let mut spec = json!({"priority": self.pick(&[3, 7]), "subject": {"namespaces": {}}});
        for (direction, other_end) in [("ingress", "from"), ("egress", "to")] {
            let action = self.pick(&[form.allow, form.allow, "Pass"]);
            let ports = if is_admin {
                self.admin_port()
            } else {
                self.cluster_port()
            };
            let rest = self.pick(&["Deny", "Deny", form.allow]);
            spec[direction] = json!([
                {"action": action, other_end: [{"namespaces": {}}], form.ports: [ports]},
                {"action": rest, other_end: [{"namespaces": {}}]},
            ]);
        }
        if is_admin {
            return self.of_cluster("AdminNetworkPolicy", "v1alpha1", &["p", "q"], spec);
        }
        spec["tier"] = self
            .pick(&["Admin", "Admin", "Admin", "Baseline", "Baseline", "Basis"])
            .into();
        self.of_cluster("ClusterNetworkPolicy", "v1alpha2", &["p", "q"], spec)
    }

    fn of_cluster(&mut self, kind: &str, version: &str, names: &[&str], mut spec: Value) -> Value {
        self.misspell(&mut spec);
        let name = self.pick(names);
        json!({
            "apiVersion": format!("policy.networking.k8s.io/{version}"), "kind": kind,
            "metadata": {"name": name}, "spec": spec,
        })
    }

    fn priority(&mut self) -> Value {
        match self.below(40) {
            0 => Value::Null,
            1 => json!(1001),
            2 => json!("5"),
            3..12 => json!(0),
            12..24 => json!(7),
            _ => json!(1000),
        }
    }

    fn rules_of_both(&mut self, form: Form) -> Value {
        let mut spec = json!({"subject": self.subject()});
        for (direction, percent) in [("ingress", 55), ("egress", 75)] {
            if self.chance(percent) {
                spec[direction] = match self.below(30) {
                    0 => json!([]),
                    1 => Value::Null,
                    2..7 if direction == "egress" && form.has_names => self.names_and_denial(form),
                    _ => self.list(1, 3, |draw| draw.cluster_rule(form, direction)).into(),
                };
            }
        }
        spec
    }

    fn subject(&mut self) -> Value {
        match self.below(24) {
            0..9 => json!({"namespaces": {}}),
            9..13 => json!({"namespaces": self.namespace_selector()}),
            13..20 => {
                json!({"pods": {"namespaceSelector": self.namespace_selector(), "podSelector": self.selector()}})
            }
            20 => json!({"pods": {"podSelector": self.selector()}}),
            21 => json!({"pods": {"namespaceSelector": self.namespace_selector()}}),
            22 => json!({"namespaces": {}, "pods": {"podSelector": {}}}),
            _ => json!({}),
        }
    }

    fn cluster_rule(&mut self, form: Form, direction: &str) -> Value {
        let mut rule = Map::new();
        rule.insert("action".to_owned(), self.action(form).into());
        if self.chance(20) {
            rule.insert("name".to_owned(), "some".into());
        }
        let other_end = if direction == "egress" { "to" } else { "from" };
        let peers = match self.below(40) {
            0 => json!([]),
            1 => Value::Null,
            _ => self.list(1, 2, |draw| draw.cluster_peer(direction)).into(),
        };
        rule.insert(other_end.to_owned(), peers);
        let often = if self.theme == Theme::Ports { 90 } else { 45 };
        if self.chance(often) {
            let ports = match self.below(20) {
                0 => json!([]),
                1 => Value::Null,
                _ if form.ports == "ports" => self.list(1, 2, Self::admin_port).into(),
                _ => self.list(1, 2, Self::cluster_port).into(),
            };
            rule.insert(form.ports.to_owned(), ports);
        }
        let mut rule = Value::Object(rule);
        self.misspell(&mut rule);
        rule
    }

    fn action(&mut self, form: Form) -> &'static str {
        match self.below(30) {
            0 => "allow",
            1..12 => form.allow,
            12..18 if form.passes => "Pass",
            _ => "Deny",
        }
    }

    fn cluster_peer(&mut self, direction: &str) -> Value {
        let is_egress = direction == "egress";
        let mut peer = match self.below(40) {
            0 => json!({}),
            1 => json!({"newPeer": {}}),
            2 => json!({"namespaces": {}, "pods": {"podSelector": {}}}),
            3..11 => json!({"namespaces": self.namespace_selector()}),
            11..20 => {
                json!({"pods": {"namespaceSelector": self.namespace_selector(), "podSelector": self.selector()}})
            }
            20 => json!({"pods": {"podSelector": self.selector()}}),
            21 if self.chance(60) => json!({"pods": {"namespaceSelector": self.namespace_selector()}}),
            22 => json!({"domainNames": self.names()}),
            _ if !is_egress => json!({"namespaces": {}}),
            23..26 => json!({"nodes": self.selector()}),
            26..31 => json!({"domainNames": self.names()}),
            _ => json!({"networks": self.list(1, 2, Self::network)}),
        };
        self.misspell(&mut peer);
        peer
    }

    /// Names, and a denial of the rest behind them: what they are for.
    fn names_and_denial(&mut self, form: Form) -> Value {
        let action = match self.below(16) {
            0 if form.passes => "Pass",
            1 => "Deny",
            _ => form.allow,
        };
        let mut names = json!({"action": action, "to": [{"domainNames": self.names()}]});
        if self.chance(30) {
            names["to"] = json!([{"domainNames": self.names()}, {"domainNames": self.names()}]);
        }
        if self.chance(30) {
            let ports = if form.ports == "ports" {
                self.admin_port()
            } else {
                self.cluster_port()
            };
            names[form.ports] = json!([ports]);
        }
        let rest = self.pick(&[
            json!(["0.0.0.0/0", "::/0"]),
            json!(["0.0.0.0/0"]),
            json!(["::/0", "0.0.0.0/0"]),
        ]);
        json!([names, {"action": "Deny", "to": [{"networks": rest}]}])
    }

    fn admin_port(&mut self) -> Value {
        let protocol = match self.below(10) {
            0 => json!("FOO"),
            1..5 => Value::Null,
            _ => self.pick(&["TCP", "UDP", "SCTP"]).into(),
        };
        match self.below(20) {
            0..7 => json!({"portNumber": {"protocol": protocol, "port": self.pick(&[53, 80, 443])}}),
            7..14 => {
                let (start, end) = self.pick(&[(70, 90), (80, 80), (90, 70), (443, 53), (1, 65535)]);
                json!({"portRange": {"protocol": protocol, "start": start, "end": end}})
            }
            14..19 => json!({"namedPort": self.pick(&PORT_NAMES)}),
            _ => self.pick(&[
                json!({}),
                json!({"portNumber": {"port": 0}}),
                json!({"newPort": 1}),
            ]),
        }
    }

    fn cluster_port(&mut self) -> Value {
        let protocol = self.pick(&["tcp", "udp", "sctp"]);
        match self.below(20) {
            0..7 => json!({protocol: {"destinationPort": {"number": self.pick(&[53, 80, 443])}}}),
            7..12 => {
                let (start, end) = self.pick(&[(70, 90), (80, 80), (90, 70), (1, 65535)]);
                json!({protocol: {"destinationPort": {"range": {"start": start, "end": end}}}})
            }
            12..15 => json!({protocol: {}}),
            15..19 => json!({"destinationNamedPort": self.pick(&PORT_NAMES)}),
            _ => self.pick(&[
                json!({}),
                json!({"quic": {}}),
                json!({"tcp": {"destinationPort": {}}}),
            ]),
        }
    }

    // === Firewalls ===

    pub(super) fn firewall(&mut self) -> Value {
        let rules = match self.below(30) {
            0 => json!([]),
            1 => Value::Null,
            _ => self.list(1, 3, Self::firewall_rule).into(),
        };
        let mut spec = json!({"rules": rules});
        if self.chance(60) {
            spec["priority"] = match self.below(20) {
                0 => json!(2000),
                1..10 => json!(500),
                _ => json!(3),
            };
        }
        if self.chance(60) {
            spec["services"] = self.pick(&[
                json!({"exposure": "Ignore"}),
                json!({"exposure": "Ignore"}),
                json!({"exposure": "Reject"}),
                json!({"exposure": "Maybe"}),
                json!({"exposure": "Ignore", "more": true}),
                json!({}),
            ]);
        }
        self.misspell(&mut spec);
        let version = if self.chance(2) { "v1" } else { "v1alpha1" };
        let name = self.pick(&["f", "g", "h"]);
        json!({
            "apiVersion": format!("policy.egret.dev/{version}"), "kind": "ClusterEgressFirewall",
            "metadata": {"name": name}, "spec": spec,
        })
    }

    fn firewall_rule(&mut self) -> Value {
        let mut rule = Map::new();
        let action = match self.below(30) {
            0 => "Pass",
            1..12 => "Allow",
            _ => "Deny",
        };
        rule.insert("action".to_owned(), action.into());
        let to = match self.below(30) {
            0 => json!([]),
            _ => self.list(1, 2, Self::firewall_peer).into(),
        };
        rule.insert("to".to_owned(), to);
        if self.chance(40) {
            let ports = match self.below(20) {
                0 => json!([]),
                _ => self.list(1, 2, Self::firewall_port).into(),
            };
            rule.insert("protocols".to_owned(), ports);
        }
        let mut rule = Value::Object(rule);
        self.misspell(&mut rule);
        rule
    }

    fn firewall_peer(&mut self) -> Value {
        let mut peer = match self.below(40) {
            0 => json!({}),
            1 => json!({"newPeer": {}}),
            2 => json!({"networks": ["198.51.100.0/24"], "nodes": {}}),
            3..10 => json!({"external": {}}),
            10..16 => json!({"nodes": self.firewall_nodes()}),
            16..20 => json!({"apiServer": {}}),
            20 => json!({"apiServer": {"additionalAddresses": ["198.51.100.8", "10.0.0.1"]}}),
            21 => json!({"apiServer": {"additionalNames": self.names()}}),
            22..26 => json!({"domainNames": self.names()}),
            _ => json!({"networks": self.list(1, 3, Self::network)}),
        };
        self.misspell(&mut peer);
        peer
    }

    fn firewall_nodes(&mut self) -> Value {
        let mut nodes = json!({});
        if self.chance(40) {
            nodes["selector"] = self.selector();
        }
        if self.chance(40) {
            nodes["addresses"] = self.pick(&["All", "Reported", "Reported", "Some"]).into();
        }
        nodes
    }

    fn firewall_port(&mut self) -> Value {
        let protocol = self.pick(&["tcp", "udp", "sctp"]);
        match self.below(20) {
            0..8 => json!({protocol: {"destinationPort": {"number": self.pick(&[53, 80, 443, 6443])}}}),
            8..13 => {
                let (start, end) = self.pick(&[(70, 90), (80, 80), (90, 70), (1, 65535)]);
                json!({protocol: {"destinationPort": {"range": {"start": start, "end": end}}}})
            }
            13..16 => json!({protocol: {}}),
            16..19 => json!({"icmp": {}}),
            _ => json!({"quic": {}}),
        }
    }
}
