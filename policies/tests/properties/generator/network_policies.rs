//! NetworkPolicies, of `networking.k8s.io/v1` and of 2016.

use serde_json::{Map, Value, json};

use super::parts::PORT_NAMES;
use super::{Draw, Theme};

impl Draw {
    pub(super) fn network_policy(&mut self) -> Value {
        let mut spec = Map::new();
        if self.chance(90) {
            let selector = match self.below(4) {
                0 => Value::Null,
                1 => json!({}),
                _ => self.selector(),
            };
            spec.insert("podSelector".to_owned(), selector);
        }
        if self.chance(60) {
            let types = self.pick(&[
                json!(["Ingress"]),
                json!(["Egress"]),
                json!(["Ingress", "Egress"]),
                json!(["Egress", "Ingress"]),
                json!([]),
                Value::Null,
                json!(["Ingres"]),
                json!(["Ingress"]),
                json!(["Egress"]),
            ]);
            spec.insert("policyTypes".to_owned(), types);
        }
        for (direction, other_end) in [("ingress", "from"), ("egress", "to")] {
            if self.chance(60) {
                let rules = match self.below(12) {
                    0 => Value::Null,
                    1 => json!([]),
                    2 => json!([{}]),
                    _ => self.list(1, 3, |draw| draw.v1_rule(other_end)).into(),
                };
                spec.insert(direction.to_owned(), rules);
            }
        }
        let mut spec = Value::Object(spec);
        self.misspell(&mut spec);
        let version = if self.chance(1) {
            "networking.k8s.io/v2"
        } else {
            "networking.k8s.io/v1"
        };
        let name = self.pick(&["p", "q", "r", "s"]);
        self.namespaced(version, name, spec)
    }

    /// A policy for all pods of a namespace: what it allows depends on ports, or on networks.
    pub(super) fn policy_about_ports(&mut self) -> Value {
        let mut spec = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]});
        for (direction, other_end) in [("ingress", "from"), ("egress", "to")] {
            let rule = match self.below(10) {
                0 => json!({other_end: self.overlapping_blocks()}),
                1 | 2 => json!({other_end: [{"ipBlock": self.block()}]}),
                3..5 => json!({"ports": self.list(1, 2, Self::v1_port)}),
                5 => json!({"ports": self.all_ports_but_some()}),
                _ => json!({other_end: [self.wide_peer()], "ports": self.list(1, 2, Self::v1_port)}),
            };
            spec[direction] = json!([rule]);
        }
        let name = self.pick(&["p", "q"]);
        self.namespaced("networking.k8s.io/v1", name, spec)
    }

    fn namespaced(&mut self, version: &str, name: &str, spec: Value) -> Value {
        let most = if self.theme == Theme::Old { 4 } else { 7 };
        let all = ["red", "blue", "red", "blue", "red", "green", "kube-system"];
        let namespace = self.pick(&all[..most]);
        let metadata = json!({"name": name, "namespace": namespace});
        let mut object = json!({"apiVersion": version, "kind": "NetworkPolicy", "metadata": metadata});
        if !(spec.as_object().is_some_and(Map::is_empty) && self.chance(50)) {
            object["spec"] = spec;
        }
        object
    }

    fn v1_rule(&mut self, other_end: &str) -> Value {
        let mut rule = Map::new();
        let often = if self.theme == Theme::Ports { 50 } else { 75 };
        if self.chance(often) {
            let peers = match self.below(12) {
                _ if self.theme == Theme::Ports => json!([self.wide_peer()]),
                0 => json!([]),
                1 => Value::Null,
                2 => self.overlapping_blocks(),
                _ => self.list(1, 3, Self::v1_peer).into(),
            };
            rule.insert(other_end.to_owned(), peers);
        }
        let often = if self.theme == Theme::Ports { 95 } else { 55 };
        if self.chance(often) {
            let ports = match self.below(14) {
                0 => json!([]),
                1 => Value::Null,
                2 => self.all_ports_but_some(),
                _ => self.list(1, 3, Self::v1_port).into(),
            };
            rule.insert("ports".to_owned(), ports);
        }
        let mut rule = Value::Object(rule);
        self.misspell(&mut rule);
        rule
    }

    fn v1_peer(&mut self) -> Value {
        let mut peer = match self.below(20) {
            0..6 => json!({"podSelector": self.selector()}),
            6..9 => json!({"namespaceSelector": self.namespace_selector()}),
            9..12 => json!({"namespaceSelector": self.namespace_selector(), "podSelector": self.selector()}),
            12 if self.chance(50) => self.broken_peer(),
            _ => json!({"ipBlock": self.block()}),
        };
        self.misspell(&mut peer);
        peer
    }

    /// A peer that most are, so that ports decide.
    fn wide_peer(&mut self) -> Value {
        self.pick(&[
            json!({"namespaceSelector": {}}),
            json!({"podSelector": {}}),
            json!({"ipBlock": {"cidr": "0.0.0.0/0"}}),
            json!({"ipBlock": {"cidr": "10.0.0.0/24"}}),
            json!({"ipBlock": {"cidr": "::/0"}}),
        ])
    }

    fn broken_peer(&mut self) -> Value {
        match self.below(3) {
            0 => json!({}),
            1 => json!({"podSelector": {}, "ipBlock": {"cidr": "0.0.0.0/0"}}),
            _ => json!({"podSelector": null}),
        }
    }

    fn block(&mut self) -> Value {
        if self.chance(45) {
            let mut block = json!({"cidr": self.network()});
            if self.chance(15) {
                block["except"] = json!([self.network()]);
            }
            self.misspell(&mut block);
            return block;
        }
        let (cidr, inside): (&str, &[&str]) = self.pick(&[
            (
                "0.0.0.0/0",
                &["10.0.0.0/30", "198.51.100.0/24", "10.0.0.4/31", "203.0.113.0/24"][..],
            ),
            ("::/0", &["fd00::2/127", "2001:db8:ffff::/48", "fd00::4/126"]),
            (
                "10.0.0.0/24",
                &["10.0.0.2/31", "10.0.0.254/32", "10.0.0.1/32", "10.0.0.4/30"],
            ),
            ("fd00::/64", &["fd00::2/127", "fd00::1/128", "fd00::4/126"]),
            ("198.51.100.0/24", &["198.51.100.7/32", "198.51.100.8/29"]),
        ]);
        let mut except = self.some(inside, 60);
        if self.chance(12) {
            // None of these may be there: of the other family, or not inside.
            let other_family = if cidr.contains(':') {
                "10.0.0.2/31"
            } else {
                "fd00::2/127"
            };
            except.push(self.pick(&[other_family, other_family, "0.0.0.0/0"]));
        }
        json!({"cidr": cidr, "except": except})
    }

    /// Two blocks: what one leaves out the other has.
    fn overlapping_blocks(&mut self) -> Value {
        let (whole, part) = self.pick(&[
            ("10.0.0.0/24", "10.0.0.2/31"),
            ("0.0.0.0/0", "198.51.100.0/24"),
            ("fd00::/64", "fd00::2/127"),
            ("198.51.100.0/24", "198.51.100.7/32"),
        ]);
        json!([{"ipBlock": {"cidr": whole, "except": [part]}}, {"ipBlock": {"cidr": part}}])
    }

    fn v1_port(&mut self) -> Value {
        let mut port = json!({});
        if self.chance(50) {
            port["protocol"] = self
                .pick(&["TCP", "UDP", "SCTP", "TCP", "UDP", "SCTP", "ICMP", "tcp"])
                .into();
        }
        let is_named = self.theme == Theme::Ports && self.chance(45);
        match self.below(20) {
            _ if is_named => port["port"] = self.pick(&PORT_NAMES).into(),
            0..3 => {}
            3..7 => port["port"] = self.pick(&PORT_NAMES).into(),
            7..12 => port["port"] = self.pick(&[53, 80, 443, 6379]).into(),
            12..17 => {
                let (first, last) = self.pick(&[
                    (70, 90),
                    (80, 80),
                    (1, 65535),
                    (1, 65535),
                    (79, 443),
                    (30000, 32767),
                    (90, 70),
                ]);
                port["port"] = first.into();
                port["endPort"] = last.into();
            }
            17 => port["endPort"] = self.pick(&[80, 443]).into(),
            18 => {
                port["port"] = self.pick(&PORT_NAMES[..3]).into();
                port["endPort"] = 443.into();
            }
            _ => port["port"] = self.pick(&[json!(0), json!(65536), json!("80"), json!("Web"), json!(-1)]),
        }
        self.misspell(&mut port);
        port
    }

    /// All but 111 and 445, as in KEP-2079; and the passive ports of FTP.
    fn all_ports_but_some(&mut self) -> Value {
        if self.chance(50) {
            json!([{"port": 1, "endPort": 110}, {"port": 112, "endPort": 444}, {"port": 446, "endPort": 65535}])
        } else {
            json!([{"port": 21}, {"protocol": "TCP", "port": 49152, "endPort": 65535}])
        }
    }

    // === The form of 2016 ===

    pub(super) fn old_network_policy(&mut self) -> Value {
        if self.chance(15) {
            return self.example();
        }
        let mut spec = Map::new();
        if self.chance(90) {
            let selector = match self.below(10) {
                0..4 => Value::Null,
                4..6 => json!({}),
                _ => self.selector(),
            };
            spec.insert("podSelector".to_owned(), selector);
        }
        if self.chance(80) {
            let rules = match self.below(10) {
                0 => Value::Null,
                1 => json!([]),
                2 => json!([{}]),
                _ => self.list(1, 2, Self::old_rule).into(),
            };
            spec.insert("ingress".to_owned(), rules);
        }
        let mut spec = Value::Object(spec);
        self.misspell(&mut spec);
        let name = self.pick(&["p", "q"]);
        self.namespaced("extensions/v1beta1", name, spec)
    }

    /// Examples 1 to 3 of the proposal.
    fn example(&mut self) -> Value {
        let spec = match self.below(3) {
            0 => json!({"podSelector": {"matchLabels": {"app": "x"}}, "ingress": [
                {"from": [{"podSelector": {"matchLabels": {"app": "y"}}}], "ports": [{"protocol": "TCP", "port": 6379}]}]}),
            1 => json!({"podSelector": {}, "ingress": [
                {"from": [{"namespaceSelector": {"matchLabels": {"user": "bob"}}}], "ports": [{"protocol": "TCP", "port": 443}]}]}),
            _ => json!({"podSelector": null, "ingress": [{}]}),
        };
        self.namespaced("extensions/v1beta1", "example", spec)
    }

    fn old_rule(&mut self) -> Value {
        let mut rule = Map::new();
        if self.chance(55) {
            let peers = match self.below(6) {
                0 | 1 => json!([]),
                2 => Value::Null,
                _ => self.list(1, 2, Self::old_peer).into(),
            };
            rule.insert("from".to_owned(), peers);
        }
        if self.chance(60) {
            let ports = match self.below(6) {
                0 | 1 => json!([]),
                2 => Value::Null,
                _ => self.list(1, 2, Self::old_port).into(),
            };
            rule.insert("ports".to_owned(), ports);
        }
        let mut rule = Value::Object(rule);
        self.misspell(&mut rule);
        rule
    }

    fn old_peer(&mut self) -> Value {
        match self.below(12) {
            0..4 => json!({"podSelector": self.selector()}),
            4..8 => json!({"namespaceSelector": self.namespace_selector()}),
            8 => json!({"namespaceSelector": {}, "podSelector": {}}),
            9 | 10 => json!({"namespaceSelector": self.namespace_selector(), "podSelector": self.selector()}),
            _ => json!({"ipBlock": {"cidr": "0.0.0.0/0"}}),
        }
    }

    fn old_port(&mut self) -> Value {
        let mut port = json!({});
        if self.chance(50) {
            port["protocol"] = self.pick(&["TCP", "UDP", "UDP", "SCTP"]).into();
        }
        match self.below(8) {
            0 | 1 => {}
            2 => port["port"] = self.pick(&PORT_NAMES).into(),
            3 if self.chance(30) => {
                port["port"] = 80.into();
                port["endPort"] = 90.into();
            }
            _ => port["port"] = self.pick(&[53, 80, 443, 6379]).into(),
        }
        port
    }
}
