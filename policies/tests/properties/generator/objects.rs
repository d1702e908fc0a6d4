//! Namespaces, nodes, pods, Services.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::{Draw, Theme};

pub(super) const PODS: [&str; 7] = [
    "red/a",
    "red/b",
    "blue/a",
    "blue/b",
    "green/c",
    "kube-system/dns",
    "kube-system/e",
];
const DEFAULT_DENY: &str = r#"{"ingress":{"isolation":"DefaultDeny"}}"#;
pub(super) const SERVICE: &str = "10.96.0.10";
pub(super) const KUBERNETES: &str = "10.96.0.1";
pub(super) const BRIDGE: &str = "10.0.0.254";
pub(super) const DNSD: &str = "169.254.20.10";
pub(super) const OUTSIDE: [&str; 6] = [
    "198.51.100.7",
    "198.51.100.8",
    "203.0.113.5",
    "2001:db8:ffff::5",
    "2001:db8:ffff::6",
    "169.254.169.254",
];

impl Draw {
    pub(super) fn cluster(&mut self) -> Vec<Value> {
        let mut objects = Vec::new();
        for name in ["red", "blue", "kube-system"] {
            if self.chance(92) {
                objects.push(self.namespace(name));
            }
        }
        for name in ["here", "there"] {
            if self.chance(92) {
                objects.push(self.node(name));
            }
            if self.chance(50) {
                objects.push(self.report(name));
            }
        }
        let often = if self.theme == Theme::Everything { 60 } else { 75 };
        let pods = self.some(&PODS, often);
        objects.extend(pods.into_iter().map(|key| self.pod(key)));
        objects.extend(self.services());
        objects
    }

    pub(super) fn namespace(&mut self, name: &str) -> Value {
        let mut object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let mut labels = self.labels();
        if self.chance(30) {
            labels["user"] = "bob".into();
        }
        object["metadata"]["labels"] = labels;
        let often = if self.theme == Theme::Old { 85 } else { 20 };
        if self.chance(often) && self.theme != Theme::Names {
            let text = match self.below(10) {
                0 => "{\n  \"ingress\": {\n    \"isolation\": \"DefaultDeny\"\n  }\n}\n",
                1 => "{ \"ingress\" : {\"isolation\":\"DefaultDeny\"} }",
                2 => "{}",
                3 => r#"{"ingress":{}}"#,
                4 => r#"{"ingress":{"isolation":null}}"#,
                5 => "DefaultDeny",
                _ => DEFAULT_DENY,
            };
            object["metadata"]["annotations"] = json!({"net.beta.kubernetes.io/network-policy": text});
        }
        self.try_out(&mut object, 3);
        if self.chance(4) {
            let form = match self.below(3) {
                0 => json!({"ingress": {}}),
                _ => json!({"ingress": {"isolation": "DefaultDeny"}}),
            };
            object["spec"] = json!({"networkPolicy": form});
        }
        object
    }

    fn node(&mut self, name: &str) -> Value {
        let (four, six, third) = if name == "here" {
            ("192.0.2.1", "2001:db8::1", "0")
        } else {
            ("192.0.2.2", "2001:db8::2", "1")
        };
        let mut addresses = vec![json!({"type": "InternalIP", "address": four})];
        if self.chance(60) {
            addresses.push(json!({"type": "InternalIP", "address": six}));
        }
        if self.chance(20) {
            addresses.push(json!({"type": "Hostname", "address": "198.51.100.7"}));
        }
        let mut networks = Vec::new();
        if self.chance(70) {
            networks = vec![format!("10.0.{third}.0/24"), "fd00::/64".to_owned()];
        }
        let labels = self.labels();
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "spec": {"podCIDRs": networks}, "status": {"addresses": addresses},
        })
    }

    fn report(&mut self, name: &str) -> Value {
        let all = ["192.0.2.1", BRIDGE, "172.17.0.1", "fd00::ff", "10.0.0.2"];
        let mut addresses = self.some(&all[..4], 70);
        if self.chance(5) {
            addresses.push(all[4]);
        }
        let addresses: Vec<Value> = addresses
            .into_iter()
            .map(|ip| json!({"ip": ip, "interface": "cni0", "scope": "global"}))
            .collect();
        json!({
            "apiVersion": "policy.egret.dev/v1alpha1", "kind": "NodeAddressReport",
            "metadata": {"name": name}, "addresses": addresses,
        })
    }

    /// A pod: its addresses are its own, or those of another one.
    pub(super) fn pod(&mut self, key: &str) -> Value {
        let (namespace, name) = key.split_once('/').unwrap();
        let own = 1 + PODS.iter().position(|pod| *pod == key).unwrap();
        let number = if self.chance(8) {
            1 + self.below(PODS.len())
        } else {
            own
        };
        let is_host = self.chance(8);
        let node = if self.chance(75) { "here" } else { "there" };
        let addresses = match (is_host, self.below(10)) {
            (true, _) if node == "here" => vec!["192.0.2.1".to_owned()],
            (true, _) => vec!["192.0.2.2".to_owned()],
            (false, 0) => Vec::new(),
            (false, 1..3) => vec![format!("10.0.0.{number}")],
            (false, 3) => vec![format!("fd00::{number}")],
            (false, 4) => vec![format!("fd00::{number}"), format!("10.0.0.{number}")],
            (false, _) => vec![format!("10.0.0.{number}"), format!("fd00::{number}")],
        };
        let mut metadata = json!({"name": name, "namespace": namespace, "labels": self.labels()});
        if namespace == "kube-system" && name == "dns" {
            metadata["labels"]["k8s-app"] = "kube-dns".into();
        }
        if self.chance(30) {
            metadata["uid"] = self.pick(&["u1", "u2"]).into();
        }
        if self.chance(10) {
            metadata["deletionTimestamp"] = "2026-01-03T00:00:00Z".into();
        }
        let mut spec = json!({"nodeName": node});
        if is_host {
            spec["hostNetwork"] = true.into();
        } else if self.chance(5) {
            spec["hostNetwork"] = self.pick(&[Value::Null, false.into()]);
        }
        self.containers(&mut spec);
        let phase = match self.below(20) {
            0 => "Succeeded",
            1 => "Failed",
            2 => "Pending",
            _ => "Running",
        };
        let mut status = json!({"phase": phase, "podIPs": ips(&addresses)});
        if let Some(first) = addresses.first().filter(|_| self.chance(80)) {
            status["podIP"] = first.as_str().into();
        }
        if self.chance(60) {
            status["startTime"] = self
                .pick(&["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"])
                .into();
        }
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status})
    }

    fn containers(&mut self, spec: &mut Value) {
        let least = usize::from(self.theme == Theme::Ports);
        let ports = self.list(least, 3, Self::container_port);
        spec["containers"] = json!([{"name": "main", "ports": ports}]);
        let often = if self.theme == Theme::Ports { 50 } else { 20 };
        if self.chance(often) {
            let ports = self.list(1, 2, Self::container_port);
            let mut container = json!({"name": "init", "ports": ports});
            if self.chance(60) {
                container["restartPolicy"] = "Always".into();
            }
            spec["initContainers"] = json!([container]);
        }
    }

    fn container_port(&mut self) -> Value {
        let mut port = json!({"containerPort": self.pick(&[53, 80, 443, 6379, 8080])});
        if self.chance(90) {
            port["name"] = self.pick(&["web", "dns", "redis"]).into();
        }
        if self.chance(40) {
            port["protocol"] = self.pick(&["TCP", "UDP", "SCTP"]).into();
        }
        port
    }

    fn services(&mut self) -> Vec<Value> {
        let mut objects = Vec::new();
        if self.chance(40) {
            objects.push(json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "red"},
                "spec": {"clusterIP": SERVICE, "clusterIPs": [SERVICE], "selector": {"app": "x"},
                    "ports": [{"port": 80, "targetPort": "web"}]},
            }));
        }
        if self.chance(60) {
            let selector = self.pick(&[
                json!({"k8s-app": "kube-dns"}),
                json!({"k8s-app": "kube-dns"}),
                json!({}),
            ]);
            objects.push(json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns", "namespace": "kube-system"},
                "spec": {"clusterIP": "10.96.0.53", "selector": selector, "ports": [{"port": 53, "protocol": "UDP"}]},
            }));
        }
        if self.chance(35) {
            let endpoint = self.pick(&["192.0.2.1", "192.0.2.2", "198.51.100.7"]);
            let conditions = self.pick(&[json!({}), json!({"ready": true}), json!({"ready": false})]);
            objects.push(json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes", "namespace": "default"},
                "spec": {"clusterIPs": [KUBERNETES], "ports": [{"name": "https", "port": 443, "targetPort": 6443}]},
            }));
            objects.push(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": "kubernetes", "namespace": "default",
                    "labels": {"kubernetes.io/service-name": "kubernetes"}},
                "endpoints": [{"addresses": [endpoint], "conditions": conditions}],
                "ports": [{"name": "https", "port": 6443}],
            }));
        }
        if self.chance(15) {
            objects.push(json!({
                "apiVersion": "policy.egret.dev/v1alpha1", "kind": "APIServerAddresses",
                "metadata": {"name": "lb"}, "addresses": [{"ip": self.pick(&OUTSIDE)}],
            }));
        }
        objects
    }

    pub(super) fn labels(&mut self) -> Value {
        let mut labels = Map::new();
        if self.chance(70) {
            labels.insert("app".to_owned(), self.pick(&["x", "y"]).into());
        }
        if self.chance(30) {
            labels.insert("old".to_owned(), self.pick(&["", "true"]).into());
        }
        labels.into()
    }
}

fn ips(addresses: &[String]) -> Vec<Value> {
    addresses.iter().map(|address| json!({"ip": address})).collect()
}

/// The addresses of a pod as it is written.
pub(super) fn addresses_of(pod: &Value) -> Vec<IpAddr> {
    let listed = pod["status"]["podIPs"].as_array().into_iter().flatten();
    listed
        .filter_map(|item| item["ip"].as_str()?.parse().ok())
        .collect()
}
