//! What happens: answers, changes, time, restarts.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::objects::{OUTSIDE, SERVICE, addresses_of};
use super::{Draw, Theme, ip};
use crate::scenario::{Answer, Step};

const QUESTIONS: [&str; 9] = [
    "a.x.test",
    "b.a.x.test",
    "x.test",
    "y.test",
    "a.y.test",
    "my-x.test",
    "A.x.Test",
    "a.x.test.",
    "other.test",
];

impl Draw {
    pub(super) fn events(&mut self, objects: &[Value]) -> Vec<Step> {
        let has_names = objects
            .iter()
            .any(|object| object.to_string().contains("domainNames"));
        let mut steps = Vec::new();
        if self.theme == Theme::Names {
            steps.extend(self.answers_and_time(objects));
        } else if has_names || self.chance(10) {
            let more = if has_names { 4 } else { 1 };
            steps.extend(self.list(1, more, |draw| draw.observed(objects)));
        }
        let most = if self.theme == Theme::Names { 2 } else { 5 };
        for _ in 0..self.below(most) {
            steps.push(match self.below(20) {
                0..9 => self.change(objects),
                9..12 => self.removal(objects),
                12..14 => self.policies().pop().map_or(Step::Restart, Step::Apply),
                14..16 if has_names => self.observed(objects),
                16 if has_names => Step::Restart,
                _ => Step::Sleep(self.pick(&[1, 20, 50, 100])),
            });
        }
        steps
    }

    /// Answers, again and again while time goes by.
    fn answers_and_time(&mut self, objects: &[Value]) -> Vec<Step> {
        let mut steps = self.list(2, 5, |draw| draw.observed(objects));
        if self.chance(6) {
            steps.extend(self.many_addresses(objects));
        }
        if self.chance(60) {
            steps.push(Step::Sleep(self.pick(&[1, 20, 35, 50, 100])));
        }
        if self.chance(40) {
            if let Some(Step::Observed(answer)) = steps.first().cloned() {
                let ttl = self.pick(&[10, 30, 300]);
                steps.push(Step::Observed(Answer { ttl, ..answer }));
            }
            steps.push(Step::Sleep(self.pick(&[20, 35, 50])));
        }
        if self.chance(25) {
            steps.push(Step::Restart);
        }
        steps
    }

    fn observed(&mut self, objects: &[Value]) -> Step {
        let addresses = self.list(1, 3, |draw| draw.answered(objects));
        Step::Observed(Answer {
            client: self.client(objects),
            question: self.pick(&QUESTIONS).to_owned(),
            chain: if self.chance(30) {
                vec![self.pick(&QUESTIONS).to_owned()]
            } else {
                Vec::new()
            },
            addresses,
            ttl: self.pick(&[0, 10, 10, 30, 300, 300, 100_000]),
        })
    }

    fn client(&mut self, objects: &[Value]) -> IpAddr {
        let pods: Vec<IpAddr> = objects.iter().flat_map(addresses_of).collect();
        if pods.is_empty() {
            ip("10.0.0.1")
        } else {
            self.pick(&pods)
        }
    }

    fn answered(&mut self, objects: &[Value]) -> IpAddr {
        match self.below(10) {
            0 | 1 => self.client(objects),
            2 if self.chance(50) => ip(SERVICE),
            3 if self.chance(30) => ip("192.0.2.1"),
            _ => ip(self.pick(&OUTSIDE[..5])),
        }
    }

    /// More than a hundred addresses of each of two names.
    fn many_addresses(&mut self, objects: &[Value]) -> Vec<Step> {
        let client = self.client(objects);
        let mut steps = Vec::new();
        for (third, question) in [(1, "a.x.test"), (2, "b.a.x.test")] {
            for part in 0..2_u8 {
                let last = (60 * part)..(60 * part + 60);
                steps.push(Step::Observed(Answer {
                    client,
                    question: question.to_owned(),
                    chain: Vec::new(),
                    addresses: last.map(|last| IpAddr::from([203, 0, third, last])).collect(),
                    ttl: 300,
                }));
            }
        }
        steps
    }

    /// An object as it is now, but for something.
    fn change(&mut self, objects: &[Value]) -> Step {
        let kind = self.pick(&["Pod", "Namespace", "Namespace"]);
        let labelled: Vec<&Value> = objects.iter().filter(|object| object["kind"] == kind).collect();
        let is_about_labels = self.chance(60) && !labelled.is_empty();
        let mut object = if is_about_labels {
            self.pick(&labelled).clone()
        } else {
            self.pick(objects)
        };
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        match object["kind"].as_str().unwrap() {
            kind if (kind.contains("Policy") || kind.contains("Firewall")) && self.chance(10) => {
                self.try_out(&mut object, 100)
            }
            "Pod" => {
                let key = format!("{}/{name}", object["metadata"]["namespace"].as_str().unwrap());
                if self.chance(60) {
                    object["metadata"]["labels"] = self.labels();
                } else {
                    object = self.pod(&key);
                }
            }
            "Namespace" => object = self.namespace(&name),
            "Node" => object["metadata"]["labels"] = self.labels(),
            "NetworkPolicy" => {
                let other = self.network_policy();
                if object["apiVersion"] == other["apiVersion"] {
                    object["spec"] = other["spec"].clone();
                    self.change_ranges(&mut object);
                }
            }
            "ClusterEgressFirewall" => object["spec"] = self.firewall()["spec"].clone(),
            "ClusterNetworkPolicy" => object["spec"] = self.cluster_policy()["spec"].clone(),
            _ => {}
        }
        Step::Apply(object)
    }

    /// The manual test of KEP-2079: 70 to 90, then to 79, then back.
    fn change_ranges(&mut self, object: &mut Value) {
        if self.chance(30) {
            let end = self.pick(&[79, 90]);
            let rule = json!({"ports": [{"protocol": "TCP", "port": 70, "endPort": end}]});
            object["spec"] = json!({"podSelector": {}, "ingress": [rule]});
        }
    }

    fn removal(&mut self, objects: &[Value]) -> Step {
        let object = self.pick(objects);
        let metadata = &object["metadata"];
        let mut of = json!({"name": metadata["name"]});
        if let Some(namespace) = metadata.get("namespace") {
            of["namespace"] = namespace.clone();
        }
        Step::Delete(json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": of}))
    }
}
