//! One AdminNetworkPolicy or BaselineAdminNetworkPolicy in the words of a ClusterNetworkPolicy.

use super::document::{CollectionStyle, Entry, QuoteStyle, Scalar, Value};
use super::known_fields::SPEC;
use super::port;

/// The most rules in a direction, peers in a rule, protocols in a rule, networks or names in a peer.
pub const MOST: usize = 25;

/// What a policy was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// An AdminNetworkPolicy.
    Admin,
    /// The BaselineAdminNetworkPolicy.
    Baseline,
}

/// A policy in other words: its rules may still be more than one object can have.
#[derive(Clone, Debug)]
pub struct ConvertedPolicy {
    root: Value,
    source: SourceKind,
    /// What its author should know.
    pub notes: Vec<String>,
}

/// The name and place of a part of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartName {
    /// What is behind its name.
    pub name: String,
    /// Its priority.
    pub priority: u32,
}

/// What the server writes, and what belongs to the old object only.
const OF_THE_SERVER: [&str; 9] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
    "finalizers",
];
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Converts an object whose fields were all understood, or, with `prune`, were understood without those that
/// nobody knows.
#[must_use]
pub fn convert(mut root: Value, source: SourceKind, prune: bool) -> ConvertedPolicy {
    let mut converted = ConvertedPolicy {
        root: Value::empty(),
        source,
        notes: Vec::new(),
    };
    clean(&mut root, &mut converted.notes);
    put(&mut root, "kind", "ClusterNetworkPolicy");
    put(&mut root, "apiVersion", "policy.networking.k8s.io/v1alpha2");
    if let Some(spec) = root.get_mut("spec") {
        converted.spec(spec, prune);
    }
    converted.root = root;
    converted
}

/// Sets a field of the object, at its top where it is not there.
pub(super) fn put(root: &mut Value, key: &str, word: &str) {
    if root.get(key).is_some() {
        root.set(key, Value::word(word));
    } else if let Some(root) = root.collection_mut() {
        let mut slot = Entry::field(key, Value::word(word));
        if let Some(first) = root.slots.first_mut() {
            slot.above = std::mem::take(&mut first.above);
        }
        root.slots.insert(0, slot);
    }
}

/// Takes out what belongs to the old object only.
pub(super) fn clean(root: &mut Value, notes: &mut Vec<String>) {
    root.remove("status");
    let Some(metadata) = root.get_mut("metadata") else {
        return;
    };
    for key in OF_THE_SERVER {
        let dropped = metadata.remove(key);
        if key == "finalizers" && !dropped.is_empty() {
            notes.push("its finalizers are left out: who set them waits for the old object".to_owned());
        }
    }
    if let Some(annotations) = metadata.get_mut("annotations") {
        let dropped = annotations.remove(LAST_APPLIED);
        if !dropped.is_empty() {
            notes.push(format!(
                "the annotation {LAST_APPLIED} is left out: it is about the old object"
            ));
        }
        if annotations.slots().is_empty() {
            metadata.remove("annotations");
        }
    }
}

impl ConvertedPolicy {
    fn spec(&mut self, spec: &mut Value, prune: bool) {
        if prune {
            SPEC.prune(spec);
        }
        if self.source == SourceKind::Baseline {
            spec.remove("priority");
        }
        if let Some(pods) = spec
            .get_mut("subject")
            .and_then(|subject| subject.get_mut("pods"))
        {
            complete(pods);
        }
        for (direction, peers, others) in [("ingress", "from", "to"), ("egress", "to", "from")] {
            let Some(rules) = spec.get_mut(direction).and_then(Value::collection_mut) else {
                continue;
            };
            let written = std::mem::take(&mut rules.slots);
            for (index, mut rule) in written.into_iter().enumerate() {
                if prune {
                    rule.value.remove(others);
                }
                let field = format!("spec.{direction}[{index}]");
                rules.slots.extend(self.rule(rule, peers, &field));
            }
            if rules.slots.is_empty() {
                rules.style = CollectionStyle::Flow;
            }
        }
    }

    /// The rules that mean the same as one: several where there are too many peers or ports, none where it
    /// matches nothing.
    fn rule(&mut self, mut rule: Entry, peers: &'static str, field: &str) -> Vec<Entry> {
        if let Some(Value::Scalar(action)) = rule.value.get_mut("action")
            && action.text == "Allow"
        {
            *action = Scalar {
                text: "Accept".to_owned(),
                form: QuoteStyle::Plain,
            };
        }
        if let Some(peers) = rule.value.get_mut(peers).and_then(Value::collection_mut) {
            let written = std::mem::take(&mut peers.slots);
            peers.slots = written.into_iter().flat_map(complete_peer).collect();
        }
        if rule.value.get("ports").is_some() && !self.ports(&mut rule.value, field) {
            self.notes
                .push(format!("{field} is left out: it matches nothing"));
            return Vec::new();
        }
        rename(&mut rule.value, "ports", "protocols");
        let rules = chunks(rule, peers).into_iter();
        let rules: Vec<Entry> = rules.flat_map(|rule| chunks(rule, "protocols")).collect();
        if rules.len() > 1 {
            let count = rules.len();
            self.notes.push(format!(
                "{field} becomes {count} rules of the same action: a rule has at most {MOST} peers and {MOST} protocols"
            ));
        }
        rules
    }

    /// Whether something is left.
    fn ports(&mut self, rule: &mut Value, field: &str) -> bool {
        let Some(ports) = rule.get_mut("ports").and_then(Value::collection_mut) else {
            return false;
        };
        let written = std::mem::take(&mut ports.slots);
        for (index, slot) in written.into_iter().enumerate() {
            match port::protocol(slot) {
                Ok(slot) => ports.slots.push(slot),
                Err(nothing) => {
                    self.notes.push(format!(
                        "{field}.ports[{index}] is left out: {} matches nothing",
                        nothing.0
                    ));
                }
            }
        }
        !ports.slots.is_empty()
    }

    /// How many objects it takes.
    #[must_use]
    pub fn parts(&self) -> usize {
        let spec = self.root.get("spec");
        let rules = ["ingress", "egress"]
            .into_iter()
            .filter_map(|direction| spec?.get(direction));
        rules
            .map(|rules| rules.slots().len().div_ceil(MOST))
            .max()
            .unwrap_or_default()
            .max(1)
    }

    /// The objects, one for each part.
    #[must_use]
    pub fn cut(&self, parts: &[PartName]) -> Vec<Value> {
        parts
            .iter()
            .enumerate()
            .map(|(index, part)| self.part(index, part))
            .collect()
    }

    fn part(&self, index: usize, part: &PartName) -> Value {
        let mut root = self.root.clone();
        if let Some(metadata) = root.get_mut("metadata") {
            for key in ["name", "generateName"] {
                let name = metadata
                    .get(key)
                    .and_then(Value::text)
                    .map(|name| part.renamed(key, name));
                if let Some(name) = name.filter(|_| !part.name.is_empty()) {
                    metadata.set(key, text(&name));
                }
            }
        }
        if let Some(spec) = root.get_mut("spec") {
            for direction in ["ingress", "egress"] {
                let was_empty = keep_chunk(spec, direction, index);
                let is_empty = spec.get(direction).is_some_and(|rules| rules.slots().is_empty());
                if is_empty && !was_empty {
                    spec.remove(direction);
                }
            }
            place(spec, self.source, part.priority);
        }
        // The comments of the document are said once.
        let first = root.collection_mut().and_then(|root| root.slots.first_mut());
        if let Some(first) = first.filter(|_| index > 0) {
            first.above.clear();
        }
        root
    }
}

impl PartName {
    fn renamed(&self, key: &str, name: &str) -> String {
        match (key, name.strip_suffix('-')) {
            ("generateName", Some(start)) => format!("{start}{}-", self.name),
            _ => format!("{name}{}", self.name),
        }
    }
}

/// Whether there was nothing to keep of.
fn keep_chunk(spec: &mut Value, direction: &str, index: usize) -> bool {
    let Some(rules) = spec.get_mut(direction).and_then(Value::collection_mut) else {
        return true;
    };
    let was_empty = rules.slots.is_empty();
    let kept = std::mem::take(&mut rules.slots)
        .into_iter()
        .skip(index * MOST)
        .take(MOST);
    rules.slots = kept.collect();
    was_empty
}

/// Writes tier and priority where a reader looks for them: at the top of the spec.
fn place(spec: &mut Value, source: SourceKind, priority: u32) {
    let priority = Value::word(&priority.to_string());
    let tier = match source {
        SourceKind::Admin => "Admin",
        SourceKind::Baseline => "Baseline",
    };
    let has_priority = spec.get("priority").is_some();
    spec.set("priority", priority.clone());
    if let Some(spec) = spec.collection_mut() {
        if !has_priority {
            spec.slots.insert(0, Entry::field("priority", priority));
        }
        spec.slots.insert(0, Entry::field("tier", Value::word(tier)));
    }
}

pub(super) fn text(text: &str) -> Value {
    let is_word = text.starts_with(|first: char| first.is_ascii_alphabetic());
    Value::Scalar(Scalar {
        text: text.to_owned(),
        form: if is_word {
            QuoteStyle::Plain
        } else {
            QuoteStyle::Text
        },
    })
}

fn rename(mapping: &mut Value, from: &str, to: &str) {
    for slot in mapping
        .collection_mut()
        .into_iter()
        .flat_map(|all| &mut all.slots)
    {
        if slot.is(from) {
            slot.key = Some(Scalar::word(to));
        }
    }
}

/// Half a pair of selectors is stored though both are asked for; the other is read as `{}`.
fn complete(pods: &mut Value) {
    for key in ["namespaceSelector", "podSelector"] {
        if pods.get(key).is_none() {
            pods.remove(key);
            if let Some(pods) = pods.collection_mut() {
                pods.slots.push(Entry::field(key, Value::empty()));
            }
        }
    }
}

/// A peer; several where it has more networks or names than one may have.
fn complete_peer(mut peer: Entry) -> Vec<Entry> {
    if let Some(pods) = peer.value.get_mut("pods") {
        complete(pods);
    }
    let peers = chunks(peer, "networks").into_iter();
    peers.flat_map(|peer| chunks(peer, "domainNames")).collect()
}

/// As many as it takes for the list of a field to be short enough in each.
fn chunks(slot: Entry, key: &str) -> Vec<Entry> {
    let list = slot.value.get(key).map(Value::slots).unwrap_or_default().to_vec();
    if list.len() <= MOST {
        return vec![slot];
    }
    let chunk = |(index, items): (usize, &[Entry])| {
        let mut slot = slot.clone();
        if let Some(list) = slot.value.get_mut(key).and_then(Value::collection_mut) {
            list.slots = items.to_vec();
        }
        if index > 0 {
            slot.above.clear();
        }
        slot
    };
    list.chunks(MOST).enumerate().map(chunk).collect()
}
