//! What there is when a connection is judged: the steps of a story replayed into plain lists.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_shared::net::Transport;
use serde_json::Value;

use super::networks::Net;
use crate::scenario::{Answer, HERE, Scenario, Setting, Step};

pub(crate) const START: u64 = 1_000_000;
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// A field; none where it is absent or null.
pub(crate) fn get<'v>(value: &'v Value, key: &str) -> Option<&'v Value> {
    value.get(key).filter(|value| !value.is_null())
}

pub(crate) fn texts(value: Option<&Value>) -> Vec<&str> {
    items(value).iter().filter_map(Value::as_str).collect()
}

pub(crate) fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(crate) type Labels = BTreeMap<String, String>;

fn labels(metadata: &Value) -> Labels {
    let fields = get(metadata, "labels").and_then(Value::as_object);
    let pairs = fields.into_iter().flatten();
    pairs
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) setting: Setting,
    /// In milliseconds.
    pub(crate) now: u64,
    pub(crate) pods: Vec<Pod>,
    pub(crate) namespaces: BTreeMap<String, Namespace>,
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) reports: BTreeMap<String, Vec<IpAddr>>,
    /// Services, EndpointSlices and declared addresses.
    pub(crate) others: Vec<Value>,
    /// By kind and name.
    pub(crate) policies: Vec<Policy>,
    pub(crate) observed: Vec<ObservedRecord>,
}

#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) key: String,
    pub(crate) namespace: String,
    pub(crate) labels: Labels,
    pub(crate) first_labels: Labels,
    pub(crate) node: Option<String>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) host_network: bool,
    pub(crate) ended: bool,
    pub(crate) ending: bool,
    pub(crate) started: Option<String>,
    pub(crate) ports: Vec<NamedPort>,
    uid: Option<String>,
}

impl Pod {
    /// Stands for a client that is no pod.
    pub(crate) fn nobody(node: Option<String>) -> Self {
        Self {
            key: String::new(),
            namespace: String::new(),
            labels: Labels::new(),
            first_labels: Labels::new(),
            node,
            addresses: Vec::new(),
            host_network: false,
            ended: false,
            ending: false,
            started: None,
            ports: Vec::new(),
            uid: None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct NamedPort {
    pub(crate) name: String,
    pub(crate) transport: Transport,
    pub(crate) number: u16,
    pub(crate) of: Container,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container {
    Main,
    Sidecar,
    Init,
}

#[derive(Clone, Debug)]
pub(crate) struct Namespace {
    pub(crate) labels: Labels,
    pub(crate) first_labels: Labels,
    pub(crate) object: Value,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) labels: Labels,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) pod_networks: Vec<Net>,
}

#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) object: Value,
    pub(crate) first: Value,
    pub(crate) is_gone: bool,
    /// The step that brought it.
    pub(crate) since: usize,
}

/// One address of an answer.
#[derive(Clone, Debug)]
pub(crate) struct ObservedRecord {
    pub(crate) pod: String,
    pub(crate) client: IpAddr,
    pub(crate) question: String,
    pub(crate) chain: Vec<String>,
    pub(crate) address: IpAddr,
    /// Its position in the answer.
    pub(crate) position: usize,
    /// The step of the answer, and its time.
    pub(crate) step: usize,
    pub(crate) at: u64,
    pub(crate) ttl: u64,
    pub(crate) before_restart: bool,
}

impl ObservedRecord {
    /// The time to live within its bounds, and the grace; at least a second.
    pub(crate) fn until(&self, min_ttl: u64, grace: u64) -> u64 {
        const DAY: u64 = 24 * 60 * 60;
        let life = self.ttl.max(min_ttl).min(DAY);
        self.at + ((life + grace) * 1000).max(1000)
    }
}

/// Objects by kind, namespace and name.
type Key = (String, String, String);

struct Versions {
    all: Vec<Value>,
    is_gone: bool,
    since: usize,
}

impl Cluster {
    /// What there is after so many steps.
    pub(crate) fn after(story: &Scenario, steps: usize) -> Self {
        let mut objects: BTreeMap<Key, Versions> = BTreeMap::new();
        let mut cluster = Self::of(&objects, story);
        let mut is_stale = false;
        for (number, step) in story.steps[..steps].iter().enumerate() {
            match step {
                Step::Apply(object) => {
                    let versions = objects.entry(key(object)).or_insert_with(|| Versions {
                        all: Vec::new(),
                        is_gone: false,
                        since: number,
                    });
                    versions.all.push(object.clone());
                    versions.is_gone = false;
                }
                Step::Delete(object) => {
                    if let Some(versions) = objects.get_mut(&key(object)) {
                        versions.is_gone = true;
                    }
                }
                Step::Observed(answer) => {
                    if std::mem::take(&mut is_stale) {
                        cluster = cluster.with(&objects, story);
                    }
                    cluster.observe(answer, number);
                }
                Step::Sleep(seconds) => cluster.now += seconds * 1000,
                Step::Restart => cluster
                    .observed
                    .iter_mut()
                    .for_each(|observed| observed.before_restart = true),
            }
            if matches!(step, Step::Apply(_) | Step::Delete(_)) {
                // Which runs of pods go on matters only to pods with records.
                is_stale = cluster.observed.is_empty();
                if !is_stale {
                    cluster = cluster.with(&objects, story);
                }
            }
        }
        if is_stale {
            cluster.with(&objects, story)
        } else {
            cluster
        }
    }

    /// With the objects as they are now; records of a run of a pod that has ended are dropped.
    fn with(self, objects: &BTreeMap<Key, Versions>, story: &Scenario) -> Self {
        let before = self.runs();
        let mut cluster = Self {
            now: self.now,
            observed: self.observed,
            ..Self::of(objects, story)
        };
        let after = cluster.runs();
        cluster.observed.retain(
            |observed| match (before.get(&observed.pod), after.get(&observed.pod)) {
                (Some(before), Some(after)) => before.0 == after.0 && before.1.is_subset(&after.1),
                _ => false,
            },
        );
        cluster
    }

    fn of(objects: &BTreeMap<Key, Versions>, story: &Scenario) -> Self {
        let mut cluster = Self {
            setting: story.setting.clone(),
            now: START,
            pods: Vec::new(),
            namespaces: BTreeMap::new(),
            nodes: BTreeMap::new(),
            reports: BTreeMap::new(),
            others: Vec::new(),
            policies: Vec::new(),
            observed: Vec::new(),
        };
        for ((kind, namespace, name), versions) in objects {
            let (first, object) = (&versions.all[0], versions.all.last().unwrap());
            let is_policy = kind.ends_with("Policy") || kind.ends_with("Firewall");
            if is_policy {
                cluster.policies.push(Policy {
                    object: object.clone(),
                    first: first.clone(),
                    is_gone: versions.is_gone,
                    since: versions.since,
                });
            }
            if is_policy || versions.is_gone {
                continue;
            }
            match kind.as_str() {
                "Pod" => cluster.pods.push(pod(object, first, namespace, name)),
                "Namespace" => {
                    let space = namespace_of(object, first, name);
                    cluster.namespaces.insert(name.clone(), space);
                }
                "Node" => {
                    cluster.nodes.insert(name.clone(), node(object));
                }
                "NodeAddressReport" => {
                    cluster.reports.insert(name.clone(), reported(object));
                }
                _ => cluster.others.push(object.clone()),
            }
        }
        cluster
    }

    /// The pod of a name.
    pub(crate) fn pod(&self, key: &str) -> Option<&Pod> {
        self.pods.iter().find(|pod| pod.key == key)
    }

    pub(crate) fn is_local(&self, pod: &Pod) -> bool {
        self.setting.everywhere || pod.node.as_deref() == Some(HERE)
    }

    fn observe(&mut self, answer: &Answer, step: usize) {
        let Some(pod) = self.plain_owner(answer.client).filter(|pod| self.is_local(pod)) else {
            return;
        };
        let pod = pod.key.clone();
        for (position, address) in answer.addresses.iter().enumerate() {
            self.observed.push(ObservedRecord {
                pod: pod.clone(),
                client: answer.client,
                question: answer.question.clone(),
                chain: answer.chain.clone(),
                address: *address,
                position,
                step,
                at: self.now,
                ttl: answer.ttl,
                before_restart: false,
            });
        }
    }

    /// Whether a node shows the address as its own in a way that no pod can have it too.
    pub(crate) fn is_claimed_by_node(&self, address: IpAddr) -> bool {
        let in_status = self.nodes.values().any(|node| node.addresses.contains(&address));
        let by_pod = |pod: &Pod| pod.host_network && !pod.ended && pod.addresses.contains(&address);
        in_status || self.pods.iter().any(by_pod)
    }

    fn plain_owner(&self, address: IpAddr) -> Option<&Pod> {
        if self.is_claimed_by_node(address) {
            return None;
        }
        let claims = |pod: &&Pod| !pod.ended && !pod.host_network && pod.addresses.contains(&address);
        let candidates = self.pods.iter().filter(claims);
        candidates.max_by_key(|pod| (&pod.started, &pod.key))
    }

    /// Local pods with what tells one run of a pod from the next.
    fn runs(&self) -> BTreeMap<String, (Option<String>, BTreeSet<IpAddr>)> {
        let local = self.pods.iter().filter(|pod| self.is_local(pod));
        local
            .map(|pod| {
                let is_own = |address: &&IpAddr| {
                    self.plain_owner(**address)
                        .is_some_and(|owner| owner.key == pod.key)
                };
                let own = pod.addresses.iter().filter(is_own).copied().collect();
                (pod.key.clone(), (pod.uid.clone(), own))
            })
            .collect()
    }
}

fn key(object: &Value) -> Key {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut kind = text(get(object, "kind"));
    if text(get(object, "apiVersion")) == "extensions/v1beta1" {
        kind.insert_str(0, "Old");
    }
    let metadata = &object["metadata"];
    let is_of_cluster = !matches!(
        kind.as_str(),
        "Pod" | "Service" | "EndpointSlice" | "NetworkPolicy" | "OldNetworkPolicy"
    );
    let namespace = if is_of_cluster {
        String::new()
    } else {
        get(metadata, "namespace").map_or_else(|| "default".to_owned(), |name| text(Some(name)))
    };
    (kind, namespace, text(get(metadata, "name")))
}

fn pod(object: &Value, first: &Value, namespace: &str, name: &str) -> Pod {
    let (metadata, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    let text = |value: &Value, key: &str| get(value, key).and_then(Value::as_str).map(str::to_owned);
    let one = get(status, "podIP").into_iter();
    let all = items(get(status, "podIPs"))
        .iter()
        .filter_map(|item| get(item, "ip"));
    let phase = text(status, "phase");
    Pod {
        key: format!("{namespace}/{name}"),
        namespace: namespace.to_owned(),
        labels: labels(metadata),
        first_labels: labels(&first["metadata"]),
        node: text(spec, "nodeName"),
        addresses: addresses(one.chain(all)),
        host_network: get(spec, "hostNetwork").and_then(Value::as_bool).unwrap_or(false),
        ended: matches!(phase.as_deref(), Some("Succeeded" | "Failed")),
        ending: get(metadata, "deletionTimestamp").is_some(),
        started: text(status, "startTime").or_else(|| text(metadata, "creationTimestamp")),
        ports: ports(spec),
        uid: text(metadata, "uid"),
    }
}

fn ports(spec: &Value) -> Vec<NamedPort> {
    let mut ports = Vec::new();
    let init = |container: &Value| match get(container, "restartPolicy").and_then(Value::as_str) {
        Some("Always") => Container::Sidecar,
        Some(_) | None => Container::Init,
    };
    let main = items(get(spec, "containers"))
        .iter()
        .map(|one| (one, Container::Main));
    let others = items(get(spec, "initContainers"))
        .iter()
        .map(|one| (one, init(one)));
    for (container, of) in main.chain(others) {
        for port in items(get(container, "ports")) {
            let name = get(port, "name").and_then(Value::as_str);
            let number = get(port, "containerPort").and_then(Value::as_u64);
            let transport = transport(get(port, "protocol"));
            if let (Some(name), Some(number), Some(transport)) = (name, number, transport) {
                ports.push(NamedPort {
                    name: name.to_owned(),
                    transport,
                    number: u16::try_from(number).unwrap(),
                    of,
                });
            }
        }
    }
    ports
}

/// A protocol; TCP where there is none.
pub(crate) fn transport(value: Option<&Value>) -> Option<Transport> {
    match value.map(Value::as_str) {
        None | Some(Some("TCP")) => Some(Transport::Tcp),
        Some(Some("UDP")) => Some(Transport::Udp),
        Some(Some("SCTP")) => Some(Transport::Sctp),
        Some(_) => None,
    }
}

fn namespace_of(object: &Value, first: &Value, name: &str) -> Namespace {
    let with_name = |value: &Value| {
        let mut labels = labels(&value["metadata"]);
        labels.insert(NAME_LABEL.to_owned(), name.to_owned());
        labels
    };
    Namespace {
        labels: with_name(object),
        first_labels: with_name(first),
        object: object.clone(),
    }
}

/// The labels of a namespace that is not known.
pub(crate) fn only_name(name: &str) -> Labels {
    Labels::from([(NAME_LABEL.to_owned(), name.to_owned())])
}

fn node(object: &Value) -> Node {
    let listed = items(get(&object["status"], "addresses")).iter();
    let reachable = listed.filter(|item| {
        let kind = get(item, "type").and_then(Value::as_str);
        matches!(kind, Some("InternalIP" | "ExternalIP"))
    });
    let networks = texts(get(&object["spec"], "podCIDRs"));
    Node {
        labels: labels(&object["metadata"]),
        addresses: addresses(reachable.filter_map(|item| get(item, "address"))),
        pod_networks: networks.into_iter().filter_map(Net::read).collect(),
    }
}

fn reported(object: &Value) -> Vec<IpAddr> {
    addresses(
        items(get(object, "addresses"))
            .iter()
            .filter_map(|item| get(item, "ip")),
    )
}

pub(crate) fn addresses<'v>(written: impl Iterator<Item = &'v Value>) -> Vec<IpAddr> {
    written
        .filter_map(|value| Some(value.as_str()?.parse::<IpAddr>().ok()?.to_canonical()))
        .collect()
}
