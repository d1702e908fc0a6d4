//! A story: objects as people write them, what happens to them, and connections to be judged. A file holds one
//! as YAML documents, so that a case that was found is read, kept and replayed.

use std::fmt::Write as _;
use std::net::IpAddr;

use egret_policies::compiler::{NodeScope, PodToOwnNode, Settings};
use egret_policies::simulator::Protocol;
use egret_shared::net::Transport;
use serde_json::{Map, Value, json};

/// The node on which the compiler runs.
pub(crate) const HERE: &str = "here";

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scenario {
    pub(crate) setting: Setting,
    pub(crate) steps: Vec<Step>,
    pub(crate) flows: Vec<Flow>,
}

/// What can be set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    /// Whether the pods of all nodes get rules.
    pub(crate) everywhere: bool,
    pub(crate) pod_to_own_node: PodToOwnNode,
    /// Where dnsd stands in for the DNS Service.
    pub(crate) dnsd: Option<IpAddr>,
    pub(crate) min_ttl: u64,
    pub(crate) grace: u64,
}

impl Setting {
    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::for_scope(if self.everywhere {
            NodeScope::All
        } else {
            NodeScope::One(HERE.into())
        });
        settings.pod_to_own_node = self.pod_to_own_node;
        settings.dns.addresses.extend(self.dnsd);
        settings.records.min_ttl = std::time::Duration::from_secs(self.min_ttl);
        settings.records.grace = std::time::Duration::from_secs(self.grace);
        settings
    }
}

/// What happens next. Objects up to the first other step are all there from the beginning.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// An object is now like this.
    Apply(Value),
    /// An object is gone.
    Delete(Value),
    /// A client observed addresses in an answer.
    Observed(Answer),
    /// Seconds go by.
    Sleep(u64),
    /// The compiler starts anew.
    Restart,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) client: IpAddr,
    pub(crate) question: String,
    pub(crate) chain: Vec<String>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ttl: u64,
}

/// A connection to be judged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Flow {
    pub(crate) from: Side,
    pub(crate) to: Side,
    pub(crate) protocol: Protocol,
    /// What was dialled, where a Service led to the destination.
    pub(crate) dialled: Option<(IpAddr, u16)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Side {
    pub(crate) address: IpAddr,
    pub(crate) who: Who,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Who {
    /// A pod by namespace and name.
    Pod(String),
    /// The node of the pod at the other side.
    OwnNode,
    Other,
}

/// How a text is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    Json,
    Yaml,
}

pub(crate) fn text(object: &Value, style: Style) -> String {
    match style {
        Style::Json => object.to_string(),
        Style::Yaml => yaml(object),
    }
}

/// An object as a block of YAML; texts are always quoted.
pub(crate) fn yaml(value: &Value) -> String {
    let mut out = String::new();
    write_block(&mut out, value, 0);
    out
}

fn write_block(out: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                write!(out, "{indent}{}:", quoted(key)).unwrap();
                write_value(out, value, depth);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                write!(out, "{indent}-").unwrap();
                write_value(out, item, depth);
            }
        }
        other => writeln!(out, "{indent}{other}").unwrap(),
    }
}

fn write_value(out: &mut String, value: &Value, depth: usize) {
    // What is short is better read on one line.
    let line = value.to_string();
    let is_nested = value.as_object().is_some_and(|fields| !fields.is_empty())
        || value.as_array().is_some_and(|items| !items.is_empty());
    if is_nested && line.len() > 60 {
        out.push('\n');
        write_block(out, value, depth + 1);
    } else {
        writeln!(out, " {line}").unwrap();
    }
}

fn quoted(key: &str) -> String {
    let plain = key.starts_with(|first: char| first.is_ascii_alphabetic())
        && key.chars().all(|letter| letter.is_ascii_alphanumeric());
    let word = matches!(
        key,
        "y" | "n" | "yes" | "no" | "on" | "off" | "true" | "false" | "null"
    );
    if plain && !word {
        key.to_owned()
    } else {
        Value::from(key).to_string()
    }
}

// === Files ===

impl Scenario {
    /// As a file, under a sentence that says what it is about.
    pub(crate) fn to_file(&self, sentence: &str) -> String {
        let mut out: String = sentence.lines().map(|line| format!("# {line}\n")).collect();
        out.push_str(&yaml(&self.head()));
        for step in &self.steps {
            out.push_str("---\n");
            out.push_str(&yaml(&step_value(step)));
        }
        out
    }

    pub(crate) fn from_file(text: &str) -> Self {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).expect("a story is YAML");
        let (head, steps) = documents.split_first().expect("a story begins with its setting");
        Self {
            setting: Setting {
                everywhere: head["everywhere"].as_bool().unwrap(),
                pod_to_own_node: match head["podToOwnNode"].as_str().unwrap() {
                    "allow" => PodToOwnNode::Allow,
                    "dns" => PodToOwnNode::Dns,
                    "enforce" => PodToOwnNode::Enforce,
                    other => panic!("podToOwnNode: {other}"),
                },
                dnsd: head.get("dnsd").filter(|dnsd| !dnsd.is_null()).map(address),
                min_ttl: head["minTTL"].as_u64().unwrap(),
                grace: head["grace"].as_u64().unwrap(),
            },
            steps: steps.iter().map(read_step).collect(),
            flows: head["connections"]
                .as_array()
                .unwrap()
                .iter()
                .map(read_flow)
                .collect(),
        }
    }

    fn head(&self) -> Value {
        json!({
            "everywhere": self.setting.everywhere,
            "podToOwnNode": match self.setting.pod_to_own_node {
                PodToOwnNode::Allow => "allow",
                PodToOwnNode::Dns => "dns",
                PodToOwnNode::Enforce => "enforce",
            },
            "dnsd": self.setting.dnsd,
            "minTTL": self.setting.min_ttl,
            "grace": self.setting.grace,
            "connections": self.flows.iter().map(flow_value).collect::<Vec<_>>(),
        })
    }
}

fn step_value(step: &Step) -> Value {
    match step {
        Step::Apply(object) => object.clone(),
        Step::Delete(object) => json!({"gone": object}),
        Step::Observed(answer) => json!({"told": {
            "client": answer.client,
            "question": answer.question,
            "chain": answer.chain,
            "addresses": answer.addresses,
            "ttl": answer.ttl,
        }}),
        Step::Sleep(seconds) => json!({"sleep": seconds}),
        Step::Restart => json!({"restart": true}),
    }
}

fn read_step(value: &Value) -> Step {
    let fields: &Map<String, Value> = value.as_object().expect("a step is a mapping");
    if let Some(object) = fields.get("gone") {
        return Step::Delete(object.clone());
    }
    if let Some(told) = fields.get("told") {
        let texts = |key: &str| -> Vec<String> {
            let items = told[key].as_array().unwrap().iter();
            items.map(|item| item.as_str().unwrap().to_owned()).collect()
        };
        return Step::Observed(Answer {
            client: address(&told["client"]),
            question: told["question"].as_str().unwrap().to_owned(),
            chain: texts("chain"),
            addresses: texts("addresses")
                .iter()
                .map(|text| text.parse().unwrap())
                .collect(),
            ttl: told["ttl"].as_u64().unwrap(),
        });
    }
    if let Some(seconds) = fields.get("sleep") {
        return Step::Sleep(seconds.as_u64().unwrap());
    }
    if fields.contains_key("restart") {
        return Step::Restart;
    }
    Step::Apply(value.clone())
}

fn flow_value(flow: &Flow) -> Value {
    let mut value = json!({
        "from": side_value(&flow.from),
        "to": side_value(&flow.to),
        "protocol": match flow.protocol {
            Protocol::Port(transport, _) => transport.to_string(),
            Protocol::Icmp => "ICMP".to_owned(),
            Protocol::Other => "other".to_owned(),
        },
    });
    if let Protocol::Port(_, port) = flow.protocol {
        value["port"] = port.into();
    }
    if let Some((address, port)) = flow.dialled {
        value["dialled"] = json!({"address": address, "port": port});
    }
    value
}

fn side_value(side: &Side) -> Value {
    match &side.who {
        Who::Pod(key) => json!({"address": side.address, "pod": key}),
        Who::OwnNode => json!({"address": side.address, "ownNode": true}),
        Who::Other => json!({"address": side.address}),
    }
}

fn read_flow(value: &Value) -> Flow {
    let port = |value: &Value| u16::try_from(value.as_u64().unwrap()).unwrap();
    Flow {
        from: read_side(&value["from"]),
        to: read_side(&value["to"]),
        protocol: match value["protocol"].as_str().unwrap() {
            "ICMP" => Protocol::Icmp,
            "other" => Protocol::Other,
            transport => {
                let of = Transport::ALL.into_iter().find(|of| of.to_string() == transport);
                Protocol::Port(of.unwrap(), port(&value["port"]))
            }
        },
        dialled: value
            .get("dialled")
            .map(|dialled| (address(&dialled["address"]), port(&dialled["port"]))),
    }
}

fn read_side(value: &Value) -> Side {
    Side {
        address: address(&value["address"]),
        who: match (value.get("pod"), value.get("ownNode")) {
            (Some(pod), _) => Who::Pod(pod.as_str().unwrap().to_owned()),
            (None, Some(_)) => Who::OwnNode,
            (None, None) => Who::Other,
        },
    }
}

fn address(value: &Value) -> IpAddr {
    value.as_str().unwrap().parse().unwrap()
}
