//! Both sources give the engine the same objects of the same history: what is added, changed and deleted while they watch, while
//! they are away, and before they start.
//!
//! Excepted is, by name: a Pod whose `status.phase` is Succeeded or Failed. The API server does not send it; of a folder it is
//! read, and is neither subject nor peer. And a NetworkPolicy of `extensions/v1beta1`, which no API server serves any more.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use egret_policies::api::manifest;
use egret_policies::compiler::Event;
use egret_policies::diagnostic::Severity;
use egret_policies::lower::lower;
use egret_policies::model::cluster::{Entity, EntityKey, PodLife};
use egret_shared::rt::{clock, task};
use kube::api::{ApiResource, GroupVersionKind};
use proptest::prelude::*;
use serde_json::{Map, Value as Json};
use tokio::sync::{Notify, mpsc};
use tokio_util::task::AbortOnDropHandle;

use super::object::{NodeObject, ObjectName, Pod, Stored, Whole};
use super::reflector::{Change, ReflectorEvent};
use super::resources::{KINDS, RESOURCE_TYPES, ResourceType, Shape};
use super::{Client, Cluster};
use crate::engine::Input;
use crate::watch::dir::Directory;

/// Objects of a kind have one of these names, so that a history changes what it added.
const NAMES: [&str; 3] = ["a", "b", "default"];
const WATCH: u64 = 1;

/// What happens, by numbers that choose of the objects.
#[derive(Clone, Debug)]
enum Step {
    Put(usize),
    Delete(usize),
    /// The watch of a kind is broken meanwhile, and everything is listed.
    Away(Vec<Self>),
    /// Both sources end, this happens, and they start.
    Restart(Vec<Self>),
}

fn change() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any::<usize>().prop_map(Step::Put),
        1 => any::<usize>().prop_map(Step::Delete),
    ]
}

fn history() -> impl Strategy<Value = Vec<Step>> {
    let changes = || proptest::collection::vec(change(), 0..8);
    let step = prop_oneof![
        8 => change(),
        2 => changes().prop_map(Step::Away),
        1 => changes().prop_map(Step::Restart),
    ];
    proptest::collection::vec(step, 1..25)
}

#[derive(Clone, Debug)]
struct Object {
    kind: usize,
    name: ObjectName,
    json: Map<String, Json>,
}

/// The objects of the examples under each of the names, where nothing is wrong with them: of what is wrong a folder keeps
/// the version before, and an API server has none.
fn objects() -> Vec<Object> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples");
    let mut objects = Vec::new();
    for text in texts(&examples) {
        let documents = text
            .split("\n---")
            .filter_map(|text| serde_saphyr::from_str::<Json>(text).ok());
        for json in documents.flat_map(items) {
            let group = json["apiVersion"]
                .as_str()
                .and_then(|version| version.split_once('/'));
            let group = group.map_or("", |(group, _)| group).to_owned();
            let of = |resource: &ResourceType| {
                resource.group == group && json.get("kind") == Some(&resource.kind.into())
            };
            if let Some(kind) = RESOURCE_TYPES.iter().position(of) {
                objects.extend(NAMES.iter().filter_map(|name| named(kind, json.clone(), name)));
            }
        }
    }
    objects
}

/// An object, or the items of a list, which may leave out what they are.
fn items(document: Json) -> Vec<Map<String, Json>> {
    let Json::Object(mut json) = document else {
        return Vec::new();
    };
    let Some(Json::Array(items)) = json.remove("items") else {
        return vec![json];
    };
    let kind = json["kind"]
        .as_str()
        .unwrap_or_default()
        .trim_end_matches("List")
        .to_owned();
    let whole = |item| {
        let Json::Object(mut item) = item else {
            panic!("{item}")
        };
        item.entry("apiVersion")
            .or_insert_with(|| json["apiVersion"].clone());
        item.entry("kind").or_insert_with(|| kind.as_str().into());
        item
    };
    items.into_iter().map(whole).collect()
}

fn texts(folder: &Path) -> Vec<String> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    let of = |path: PathBuf| match path.extension() {
        _ if path.is_dir() => texts(&path),
        Some(extension) if extension == "yaml" => vec![std::fs::read_to_string(path).unwrap()],
        Some(_) | None => Vec::new(),
    };
    entries.into_iter().flat_map(of).collect()
}

fn named(kind: usize, mut json: Map<String, Json>, name: &str) -> Option<Object> {
    json["metadata"]["name"] = name.into();
    let read = manifest::read(&Json::Object(json.clone()).to_string(), "example");
    let lowered = read.documents.iter().map(|document| lower(&document.object));
    let is_right = read.is_whole()
        && !read.documents.is_empty()
        && lowered
            .flat_map(|lowered| lowered.diagnostics)
            .all(|found| found.severity != Severity::Error);
    let name = ObjectName::of(&json)?;
    is_right.then_some(Object { kind, name, json })
}

type Objects = BTreeMap<(usize, ObjectName), Map<String, Json>>;
type Entities = BTreeMap<EntityKey, Entity>;

fn fold(entities: &mut Entities, input: Input) {
    let Input::Cluster(events) = input else { return };
    for event in events {
        match event {
            Event::Apply(entity) => drop(entities.insert(entity.key(), entity)),
            Event::Delete(key) => drop(entities.remove(&key)),
            other => panic!("{other:?}"),
        }
    }
}

/// The source of an API server, without one: what its watches would tell.
struct Kube {
    cluster: Cluster,
    engine: mpsc::Sender<Input>,
    inputs: mpsc::Receiver<Input>,
    entities: Entities,
}

impl Kube {
    fn start(objects: &Objects, pool: &[Object]) -> Self {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let contact = Arc::default();
        let client = Client::try_from(config).unwrap();
        let mut cluster = Cluster::new(client, contact);
        for (kind, resource) in RESOURCE_TYPES.iter().enumerate() {
            let of_kind = pool.iter().find(|object| object.kind == kind).unwrap();
            let api_version = of_kind.json["apiVersion"].as_str().unwrap();
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            let named = GroupVersionKind::gvk(group, version, resource.kind);
            cluster.kinds[kind].resource = Some(ApiResource::from_gvk_with_plural(&named, resource.plural));
            cluster.kinds[kind].watch_number = WATCH;
        }
        let (engine, inputs) = mpsc::channel(1024);
        let mut kube = Self {
            cluster,
            engine,
            inputs,
            entities: Entities::new(),
        };
        for kind in 0..KINDS {
            kube.list(kind, objects);
        }
        kube
    }

    fn list(&mut self, kind: usize, objects: &Objects) {
        self.tell(kind, Change::Listing);
        for ((of, name), json) in objects {
            if *of == kind && !is_over(kind, json) {
                self.put(kind, name, json);
            }
        }
        self.tell(kind, Change::Listed);
    }

    /// As the API server sends it: what no longer matches the field selector is deleted.
    fn put(&mut self, kind: usize, name: &ObjectName, json: &Map<String, Json>) {
        if is_over(kind, json) {
            return self.tell(kind, Change::Deleted(name.clone()));
        }
        let sent = Json::Object(json.clone()).to_string();
        let (name, json) = match RESOURCE_TYPES[kind].shape {
            Shape::Whole => decode::<Whole>(&sent),
            Shape::Pod => decode::<Pod>(&sent),
            Shape::Node => decode::<NodeObject>(&sent),
        };
        self.tell(kind, Change::Applied(name, json));
    }

    fn tell(&mut self, kind: usize, change: Change) {
        let told = ReflectorEvent {
            kind,
            watch: WATCH,
            change,
        };
        self.cluster.take(told, &Notify::new());
    }

    async fn settle(&mut self) {
        self.cluster.tell(&self.engine, clock::now()).await.unwrap();
        while let Ok(input) = self.inputs.try_recv() {
            fold(&mut self.entities, input);
        }
    }
}

fn decode<B: serde::de::DeserializeOwned + serde::Serialize>(sent: &str) -> (ObjectName, Map<String, Json>) {
    let stored: Stored<B> = serde_json::from_str(sent).unwrap();
    (stored.name(), stored.json)
}

fn is_over(kind: usize, json: &Map<String, Json>) -> bool {
    let phase = &json.get("status").map_or(&Json::Null, |status| &status["phase"]);
    RESOURCE_TYPES[kind].kind == "Pod" && ["Succeeded", "Failed"].map(Json::from).contains(phase)
}

struct Folder {
    root: PathBuf,
    inputs: mpsc::Receiver<Input>,
    entities: Entities,
    _watch: AbortOnDropHandle<()>,
}

impl Folder {
    fn start(root: &Path) -> Self {
        let (engine, inputs) = mpsc::channel(1024);
        let watch = task::spawn("watch", Directory::new(root.to_owned()).watch(engine));
        Self {
            root: root.to_owned(),
            inputs,
            entities: Entities::new(),
            _watch: AbortOnDropHandle::new(watch),
        }
    }

    fn put(&self, object: &Object) {
        let new = self.root.join(".new");
        std::fs::write(&new, Json::Object(object.json.clone()).to_string()).unwrap();
        std::fs::rename(new, self.path(object)).unwrap();
    }

    fn delete(&self, object: &Object) {
        drop(std::fs::remove_file(self.path(object)));
    }

    fn path(&self, object: &Object) -> PathBuf {
        let name = format!("{}/{}", object.kind, object.name).replace('/', "-");
        self.root.join(format!("{name}.json"))
    }

    /// Until it says what is expected; what it says then, if it does not.
    async fn settle(&mut self, expected: &Entities) -> Entities {
        let is_live = |entity: &Entity| !matches!(entity, Entity::Pod(pod) if pod.life == PodLife::Terminal);
        loop {
            let live: Entities = self
                .entities
                .iter()
                .filter(|(_, entity)| is_live(entity))
                .map(|(key, entity)| (key.clone(), entity.clone()))
                .collect();
            if live == *expected {
                return live;
            }
            match tokio::time::timeout(Duration::from_secs(10), self.inputs.recv()).await {
                Ok(Some(input)) => fold(&mut self.entities, input),
                Ok(None) | Err(_) => return live,
            }
        }
    }
}

/// The server's objects, and both sources of them.
struct History {
    pool: Vec<Object>,
    objects: Objects,
    kube: Kube,
    folder: Folder,
    _root: tempfile::TempDir,
}

impl History {
    fn start(pool: Vec<Object>) -> Self {
        let root = tempfile::tempdir().unwrap();
        Self {
            objects: Objects::new(),
            kube: Kube::start(&Objects::new(), &pool),
            folder: Folder::start(root.path()),
            _root: root,
            pool,
        }
    }

    fn play(&mut self, step: &Step) {
        match step {
            Step::Put(_) | Step::Delete(_) => {
                let object = self.change(step);
                match self.objects.get(&(object.kind, object.name.clone())) {
                    Some(json) => self.kube.put(object.kind, &object.name, &json.clone()),
                    None => self.kube.tell(object.kind, Change::Deleted(object.name)),
                }
            }
            Step::Away(steps) => {
                let kinds: BTreeSet<usize> = steps.iter().map(|step| self.change(step).kind).collect();
                for kind in kinds {
                    self.kube.list(kind, &self.objects);
                }
            }
            Step::Restart(steps) => {
                for step in steps {
                    self.change(step);
                }
                self.folder = Folder::start(&self.folder.root);
                self.kube = Kube::start(&self.objects, &self.pool);
            }
        }
    }

    /// What the server and the folder have after a step.
    fn change(&mut self, step: &Step) -> Object {
        let (Step::Put(number) | Step::Delete(number)) = step else {
            unreachable!("a step of one object")
        };
        let object = self.pool[number % self.pool.len()].clone();
        let key = (object.kind, object.name.clone());
        if matches!(step, Step::Put(_)) {
            self.folder.put(&object);
            self.objects.insert(key, object.json.clone());
        } else {
            self.folder.delete(&object);
            self.objects.remove(&key);
        }
        object
    }
}

static OBJECTS: LazyLock<Vec<Object>> = LazyLock::new(objects);

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 8, ..ProptestConfig::with_cases(24) })]

    #[test]
    fn both_sources_give_the_engine_the_same_of_the_same_history(steps in history()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _guard = runtime.enter();
        let mut history = History::start(OBJECTS.clone());
        for step in &steps {
            history.play(step);
            let (kube, folder) = runtime.block_on(async {
                history.kube.settle().await;
                let expected = history.kube.entities.clone();
                let folder = history.folder.settle(&expected).await;
                (expected, folder)
            });
            prop_assert_eq!(kube, folder);
        }
    }
}

#[test]
fn the_examples_have_objects_of_every_kind() {
    let objects = objects();
    for (kind, resource) in RESOURCE_TYPES.iter().enumerate() {
        let count = objects.iter().filter(|object| object.kind == kind).count();
        assert!(count > 0, "{}", resource.kind);
    }
}
