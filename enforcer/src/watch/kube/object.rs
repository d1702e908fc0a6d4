//! An object as the API server sends it, without what policy does not depend on.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use egret_policies::api::{Entry, Mapping, Node, Scalar, Value};
use egret_policies::diagnostic::{ObjectRef, Position};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::ApiResource;
use kube::core::DynamicResourceScope;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// An object's namespace, where it has one, and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectName {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

impl ObjectName {
    /// Of an object's `metadata`.
    pub(super) fn of(json: &Map<String, Json>) -> Option<Self> {
        let metadata = json.get("metadata")?;
        let text = |key: &str| Some(metadata.get(key)?.as_str()?.to_owned());
        Some(Self {
            namespace: text("namespace"),
            name: text("name")?,
        })
    }
}

impl ObjectName {
    /// The object of this name and kind, as diagnostics name it.
    pub(super) fn reference(&self, kind: &'static str) -> ObjectRef {
        ObjectRef {
            kind: kind.into(),
            namespace: self.namespace.as_deref().map(Into::into),
            name: self.name.as_str().into(),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// An object, decoded as `B` and kept as JSON without `metadata.managedFields`.
pub(super) struct Stored<B> {
    meta: ObjectMeta,
    pub(super) json: Map<String, Json>,
    decoded_as: PhantomData<fn() -> B>,
}

impl<B> Stored<B> {
    pub(super) fn name(&self) -> ObjectName {
        ObjectName {
            namespace: self.meta.namespace.clone(),
            name: self.meta.name.clone().unwrap_or_default(),
        }
    }
}

impl<B> Clone for Stored<B> {
    fn clone(&self) -> Self {
        Self {
            meta: self.meta.clone(),
            json: self.json.clone(),
            decoded_as: PhantomData,
        }
    }
}

impl<B> fmt::Debug for Stored<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stored").field(&self.json).finish()
    }
}

impl<'de, B: DeserializeOwned + Serialize> Deserialize<'de> for Stored<B> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let decoded = B::deserialize(deserializer)?;
        let Json::Object(mut json) = serde_json::to_value(decoded).map_err(D::Error::custom)? else {
            return Err(D::Error::custom("no object"));
        };
        let mut meta = ObjectMeta::default();
        if let Some(Json::Object(metadata)) = json.get_mut("metadata") {
            metadata.remove("managedFields");
            let text = |key: &str| metadata.get(key).and_then(Json::as_str).map(ToOwned::to_owned);
            meta.name = text("name");
            meta.namespace = text("namespace");
            meta.resource_version = text("resourceVersion");
        }
        Ok(Self {
            meta,
            json,
            decoded_as: PhantomData,
        })
    }
}

impl<B> Resource for Stored<B> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.kind)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.group)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.version)
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.api_version)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.plural)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

/// Every field.
pub(super) type Whole = Map<String, Json>;

/// What policy depends on of a Pod. Values stay JSON: what is wrong with them is said by the reader of objects.
pub(super) type Pod = Slim<PodSpec, PodStatus>;

/// The same of a Node.
pub(super) type NodeObject = Slim<NodeSpec, NodeStatus>;

/// A `T` or a list of them, where the object has that: what else stands there stays as it is, and the reader of objects says
/// what is wrong with it. One object that is not understood leaves the others of a list alone.
#[derive(Serialize)]
#[serde(untagged)]
enum Lenient<T> {
    One(T),
    Many(Vec<Self>),
    Other(Json),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LenientVisitor(PhantomData))
    }
}

struct LenientVisitor<T>(PhantomData<fn() -> T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for LenientVisitor<T> {
    type Value = Lenient<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Lenient::One)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut many = Vec::new();
        while let Some(item) = items.next_element()? {
            many.push(item);
        }
        Ok(Lenient::Many(many))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Lenient::Other(Json::Null))
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Self::Value, E> {
        Ok(Lenient::Other(Json::from(truth)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Lenient::Other(Json::from(number)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Lenient::Other(Json::from(number)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Lenient::Other(Json::from(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Lenient::Other(Json::from(text)))
    }
}

#[derive(Deserialize, Serialize)]
pub(super) struct Slim<S, T> {
    metadata: Metadata,
    spec: Option<Lenient<S>>,
    status: Option<Lenient<T>>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: Json,
    namespace: Json,
    labels: Json,
    annotations: Option<Lenient<Annotations>>,
    uid: Json,
    creation_timestamp: Json,
    resource_version: Json,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Annotations {
    /// The UID of the static pod whose mirror this is.
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Json,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    node_name: Json,
    host_network: Json,
    containers: Option<Lenient<Container>>,
    init_containers: Option<Lenient<Container>>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    ports: Json,
    restart_policy: Json,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodStatus {
    phase: Json,
    #[serde(rename = "podIP")]
    pod_ip: Json,
    #[serde(rename = "podIPs")]
    pod_ips: Json,
    start_time: Json,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Json,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Json,
    /// For the controller.
    taints: Json,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct NodeStatus {
    addresses: Json,
}

/// The tree that the reader of manifests makes of the same object in a file, but for positions.
pub(super) fn tree(json: Map<String, Json>) -> Node {
    node(Json::Object(json))
}

fn node(json: Json) -> Node {
    let scalar = |text: String, plain| {
        Value::Scalar(Scalar {
            text: text.into_boxed_str(),
            plain,
        })
    };
    let value = match json {
        Json::Null => Value::Null,
        Json::Bool(truth) => scalar(truth.to_string(), true),
        Json::Number(number) => scalar(number.to_string(), true),
        Json::String(text) => scalar(text, false),
        Json::Array(items) => Value::Sequence(items.into_iter().map(node).collect()),
        Json::Object(fields) => Value::Mapping(Mapping {
            entries: fields.into_iter().map(entry).collect(),
        }),
    };
    Node {
        position: NOWHERE,
        value,
    }
}

fn entry((key, value): (String, Json)) -> Entry {
    Entry {
        key: key.into_boxed_str(),
        position: NOWHERE,
        value: node(value),
    }
}

/// The API server sends no lines.
const NOWHERE: Position = Position { line: 1, column: 1 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_decoded_without_what_policy_does_not_depend_on() {
        let sent = r#"{"metadata": {"name": "a", "namespace": "b", "resourceVersion": "7", "labels": {"app": "web"},
            "annotations": {"kubernetes.io/config.mirror": "m", "long": "text"}, "managedFields": [{"manager": "kubelet"}], "ownerReferences": [{"name": "c"}]},
            "spec": {"nodeName": "n", "volumes": [{}], "containers": [{"image": "i", "ports": [{"containerPort": 80}]}]},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "conditions": [{}]}}"#;
        let pod: Stored<Pod> = serde_json::from_str(sent).unwrap();
        assert_eq!(pod.name().to_string(), "b/a");
        assert_eq!(pod.meta().resource_version.as_deref(), Some("7"));
        let json = serde_json::to_string(&pod.json).unwrap();
        for kept in [
            "web",
            "config.mirror\":\"m\"",
            "10.0.0.1",
            "containerPort",
            "\"nodeName\":\"n\"",
        ] {
            assert!(json.contains(kept), "{kept}: {json}");
        }
        for dropped in [
            "kubelet",
            "text",
            "volumes",
            "image",
            "conditions",
            "ownerReferences",
        ] {
            assert!(!json.contains(dropped), "{dropped}: {json}");
        }
    }

    #[test]
    fn what_a_pod_should_not_have_stays_as_it_is_and_the_rest_is_decoded() {
        for (sent, kept) in [
            (r#""spec": "x""#, r#""spec":"x""#),
            (
                r#""spec": {"nodeName": "n", "containers": {"ports": 7}}"#,
                r#""containers":{"ports":7"#,
            ),
            (
                r#""spec": {"nodeName": "n", "containers": [7, "x", {"image": "i"}]}"#,
                r#""containers":[7,"x",{"ports":null"#,
            ),
            (
                r#""spec": {}, "status": [true, 1.5, null]"#,
                r#""status":[true,1.5,null]"#,
            ),
        ] {
            let sent = format!(r#"{{"metadata": {{"name": "a", "namespace": "b"}}, {sent}}}"#);
            let pod: Stored<Pod> = serde_json::from_str(&sent).unwrap();
            assert_eq!(pod.name().to_string(), "b/a");
            let json = serde_json::to_string(&pod.json).unwrap();
            assert!(json.contains(kept), "{json}");
        }
    }

    #[test]
    fn of_other_objects_every_field_but_managed_fields_stays() {
        let sent =
            r#"{"apiVersion": "a/v1", "metadata": {"name": "a", "managedFields": []}, "spce": {"x": 1}}"#;
        let object: Stored<Whole> = serde_json::from_str(sent).unwrap();
        let json = serde_json::to_string(&object.json).unwrap();
        assert_eq!(
            json,
            r#"{"apiVersion":"a/v1","metadata":{"name":"a"},"spce":{"x":1}}"#
        );
    }
}
