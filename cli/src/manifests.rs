//! From files to what they mean: the same reading and lowering as on a node, then the few things that only
//! manifests without a cluster need (an address for every pod, whether a Service would send to it).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use egret_policies::api::manifest::{Problem, read};
use egret_policies::api::{Kind, Object, UnknownFields};
use egret_policies::controller::{Cluster, unknown_addresses};
use egret_policies::diagnostic::{Code, Diagnostic, ObjectRef, Severity};
use egret_policies::lower::{Lowered, equal_priorities, lower_as};
use egret_policies::model::Policy;
use egret_policies::model::api_server::{ApiServerPolicy, Selection, ServerName, ServerNames};
use egret_policies::model::cluster::{
    EndpointSlice, Entity, EntityKey, Namespace, Node, NodeAddressReport, Pod, Service,
};
use egret_shared::pod::PodKey;

use crate::cluster::PodMember;

pub mod cluster;
pub mod note;
pub mod objects;
pub mod paths;
mod readiness;
pub mod text;
pub mod unreadable;

use note::Note;
use text::{ManifestText, ManifestTexts};
use unreadable::UnreadableManifests;

use readiness::{is_ready, owners};

/// What the manifests hold.
#[derive(Clone, Debug, Default)]
pub struct Manifests {
    /// Namespaces that have an object.
    pub namespaces: Vec<Namespace>,
    /// Pods, and workloads without a pod of their name.
    pub members: BTreeMap<PodKey, PodMember>,
    /// The object that each of them comes from.
    pub origins: BTreeMap<PodKey, ObjectRef>,
    /// The first owner of each object that pods come from (`metadata.ownerReferences`).
    pub owners: BTreeMap<ObjectRef, ObjectRef>,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Services.
    pub services: Vec<Service>,
    /// EndpointSlices.
    pub slices: Vec<EndpointSlice>,
    /// What is told of the addresses of nodes and of the API server.
    pub address_reports: Vec<Entity>,
    /// Policies about pods.
    pub policies: Vec<Policy>,
    /// Policies about what the API server connects to.
    pub api_server_policies: Vec<ApiServerPolicy>,
    /// What was found about objects, by the object.
    pub object_notes: BTreeMap<ObjectRef, Vec<Note>>,
    /// What should be known of a pod whenever it is asked about.
    pub pod_notes: BTreeMap<PodKey, Vec<Note>>,
    /// What should be known of files.
    pub remarks: Vec<String>,
    /// Objects of other kinds, by kind.
    pub skipped: BTreeMap<String, usize>,
}

impl Manifests {
    /// Reads all manifests of the paths.
    ///
    /// # Errors
    /// Something could not be read. Nobody can say what is missing, so there is no answer from the rest.
    pub fn read(paths: &[PathBuf], reading: UnknownFields) -> Result<Self, UnreadableManifests> {
        Self::of(&ManifestTexts::read(paths)?, reading)
    }

    /// Reads manifests that are at hand.
    ///
    /// # Errors
    /// Something in them is no object.
    pub fn of(texts: &ManifestTexts, reading: UnknownFields) -> Result<Self, UnreadableManifests> {
        let mut collector = ManifestCollector::new(reading);
        for text in &texts.read {
            collector.read_text(text);
        }
        for path in &texts.ignored {
            let remark = format!(
                "{}: ignored, its name ends in none of .yaml, .yml, .json",
                path.display()
            );
            collector.manifests.remarks.push(remark);
        }
        collector.finish()
    }
}

/// The kinds of skipped objects that are told; what is not a cluster's has rarely so many.
const MAX_KINDS: usize = 50;

impl Manifests {
    /// What agents told of their nodes' addresses.
    pub fn reports(&self) -> impl Iterator<Item = &NodeAddressReport> {
        self.address_reports.iter().filter_map(|entity| {
            let Entity::NodeAddressReport(report) = entity else {
                return None;
            };
            Some(report)
        })
    }

    /// Whether a rule about the API server is about some server names alone. The policy is named as in reports, with its kind.
    #[must_use]
    pub fn asks_for_server_name(&self, policy: &str, rule: usize) -> bool {
        let mut policies = self.api_server_policies.iter();
        let own = policies.find(|own| own.to_string() == policy);
        let mut rules = own.iter().flat_map(|own| &own.rules);
        rules.any(|own| own.index == rule && own.server_names != ServerNames::Any)
    }

    /// The same cluster with the API server's egress selections among the pods, and with the policies about them alone, as
    /// they are about connections of this server name.
    #[must_use]
    pub fn of_api_server(&self, server_name: &ServerName) -> Self {
        let mut manifests = self.clone();
        let about = ApiServerPolicy::about(&self.api_server_policies, server_name);
        manifests.policies = ApiServerPolicy::lower(&about);
        let members = Selection::ALL.map(|selection| {
            let member = PodMember {
                pod: selection.pod(),
                is_ready: false,
                is_made_up: false,
            };
            (selection.key(), member)
        });
        manifests.members.extend(members);
        manifests
    }

    /// Says which kinds were skipped, each in a line.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_skipped(&self, out: &mut impl Write) -> io::Result<()> {
        for (kind, count) in self.skipped.iter().take(MAX_KINDS) {
            writeln!(out, "skipped {count} of kind {kind}: no policy depends on it")?;
        }
        let rest = self.skipped.values().skip(MAX_KINDS);
        match rest.clone().count() {
            0 => Ok(()),
            kinds => writeln!(
                out,
                "skipped {} of {kinds} more kinds: no policy depends on them",
                rest.sum::<usize>()
            ),
        }
    }

    /// Policies about nodes or an API server of which the manifests do not say enough.
    fn unknown_places(&self) -> Vec<Diagnostic> {
        let (mut reports, mut declared) = (Vec::new(), Vec::new());
        for place in &self.address_reports {
            match place {
                Entity::NodeAddressReport(report) => reports.push(report.clone()),
                Entity::ApiServerAddresses(addresses) => declared.push(addresses.clone()),
                Entity::Namespace(_)
                | Entity::Pod(_)
                | Entity::Node(_)
                | Entity::Service(_)
                | Entity::EndpointSlice(_)
                | Entity::Policy(_) => {}
            }
        }
        let cluster = Cluster {
            nodes: &self.nodes,
            reports: &reports,
            pods: &[],
            services: &self.services,
            slices: &self.slices,
            declared: &declared,
        };
        unknown_addresses(&self.policies, &cluster)
    }
}

struct ManifestCollector {
    reading: UnknownFields,
    manifests: Manifests,
    problems: Vec<Problem>,
    /// Each object that was found, and whether it is a workload.
    seen: BTreeMap<EntityKey, LoweredObject>,
    /// The same of policies about the API server, by name.
    api_server: BTreeMap<Arc<str>, LoweredObject>,
    /// Objects that own a pod or a workload.
    owners: BTreeSet<ObjectRef>,
}

#[derive(Clone)]
struct LoweredObject {
    file: Arc<str>,
    reference: ObjectRef,
    is_workload: bool,
}

impl ManifestCollector {
    fn new(reading: UnknownFields) -> Self {
        Self {
            reading,
            manifests: Manifests::default(),
            problems: Vec::new(),
            seen: BTreeMap::new(),
            api_server: BTreeMap::new(),
            owners: BTreeSet::new(),
        }
    }

    fn read_text(&mut self, ManifestText { file, text }: &ManifestText) {
        let manifest = read(text, file);
        for (kind, count) in manifest.skipped {
            *self.manifests.skipped.entry(kind).or_default() += count;
        }
        self.problems.extend(manifest.problems);
        for document in manifest.documents {
            self.take_object(&document.object, file);
        }
    }

    fn take_object(&mut self, object: &Object, file: &Arc<str>) {
        let lowered = lower_as(object, self.reading);
        let about = subject_of_notes(object, &lowered);
        for diagnostic in &lowered.diagnostics {
            let notes = self.manifests.object_notes.entry(about.clone()).or_default();
            notes.push(Note::of(diagnostic, Some(file)));
        }
        if let Some(policy) = lowered.api_server {
            self.take_api_server_policy(policy, object, file);
        }
        for entity in lowered.entities {
            self.take_entity(entity, object, file);
        }
    }

    /// Of two in one file its reader has told.
    fn take_api_server_policy(&mut self, policy: ApiServerPolicy, object: &Object, file: &Arc<str>) {
        let found = LoweredObject {
            file: Arc::clone(file),
            reference: object.reference(),
            is_workload: false,
        };
        match self.api_server.get(&policy.name) {
            Some(first) if first.file != found.file => {
                self.problems.push(duplicate(object, first, &found));
            }
            Some(_) => {}
            None => {
                self.api_server.insert(Arc::clone(&policy.name), found);
                self.manifests.api_server_policies.push(policy);
            }
        }
    }

    fn take_entity(&mut self, entity: Entity, object: &Object, file: &Arc<str>) {
        let found = LoweredObject {
            file: Arc::clone(file),
            reference: object.reference(),
            is_workload: matches!(object.kind, Kind::Workload | Kind::CronJob),
        };
        let key = entity.key();
        if let Some(first) = self.seen.get(&key).cloned() {
            if first.reference == found.reference || (!first.is_workload && !found.is_workload) {
                return self.note_duplicate(object, &first, &found);
            }
            self.note_namesakes(&key, &first, &found);
            if found.is_workload {
                return;
            }
        }
        self.seen.insert(key, found);
        self.keep(entity, object);
    }

    /// Of two in one file its reader has told.
    fn note_duplicate(&mut self, object: &Object, first: &LoweredObject, second: &LoweredObject) {
        if (&first.file, &first.reference) != (&second.file, &second.reference) {
            self.problems.push(duplicate(object, first, second));
        }
    }

    fn keep(&mut self, entity: Entity, object: &Object) {
        match entity {
            Entity::Namespace(namespace) => self.manifests.namespaces.push(namespace),
            Entity::Pod(pod) => self.keep_pod(pod, object),
            Entity::Node(node) => self.manifests.nodes.push(node),
            Entity::Service(service) => self.manifests.services.push(service),
            Entity::EndpointSlice(slice) => self.manifests.slices.push(slice),
            Entity::NodeAddressReport(_) | Entity::ApiServerAddresses(_) => {
                self.manifests.address_reports.push(entity);
            }
            Entity::Policy(policy) => self.manifests.policies.push(policy),
        }
    }

    fn keep_pod(&mut self, pod: Pod, object: &Object) {
        let reference = object.reference();
        let owners = owners(object);
        if let Some(owner) = owners.first() {
            self.manifests.owners.insert(reference.clone(), owner.clone());
        }
        self.owners.extend(owners);
        let key = pod.key.clone();
        self.manifests.origins.insert(key.clone(), reference);
        let member = PodMember {
            is_ready: is_ready(object),
            pod,
            is_made_up: false,
        };
        self.manifests.members.insert(key, member);
    }

    /// Two things answer to one `namespace/name`: the pod is meant, else the workload that came first.
    fn note_namesakes(&mut self, key: &EntityKey, first: &LoweredObject, second: &LoweredObject) {
        let EntityKey::Pod(pod) = key else {
            return;
        };
        let (meant, other) = if second.is_workload {
            (first, second)
        } else {
            (second, first)
        };
        let (meant, other) = (&meant.reference, &other.reference);
        let message = format!("{meant} and {other} have one name; {pod} is taken to mean {meant}");
        let note = Note::new(Severity::Warning, "same-name", message);
        self.manifests
            .pod_notes
            .entry(pod.clone())
            .or_default()
            .push(note);
    }

    fn finish(mut self) -> Result<Manifests, UnreadableManifests> {
        let (errors, others): (Vec<_>, Vec<_>) = self
            .problems
            .into_iter()
            .partition(|problem| problem.severity == Severity::Error);
        if !errors.is_empty() {
            return Err(UnreadableManifests::Problems(errors));
        }
        for (key, member) in &mut self.manifests.members {
            let found = self.seen.get(&EntityKey::Pod(key.clone()));
            member.is_ready &= found.is_none_or(|found| !self.owners.contains(&found.reference));
        }
        self.manifests
            .remarks
            .extend(others.iter().map(Problem::to_string));
        let mut diagnostics = equal_priorities(&self.manifests.policies);
        diagnostics.extend(self.manifests.unknown_places());
        for diagnostic in diagnostics {
            let notes = self
                .manifests
                .object_notes
                .entry(diagnostic.object.clone())
                .or_default();
            notes.push(Note::of(&diagnostic, None));
        }
        Ok(self.manifests)
    }
}

/// The policy that an object stands for, else the object: the annotation of 2016 makes a policy of a namespace.
fn subject_of_notes(object: &Object, lowered: &Lowered) -> ObjectRef {
    let policy = lowered.entities.iter().find_map(|entity| match entity {
        Entity::Policy(policy) => Some(ObjectRef::from(&policy.id)),
        Entity::Namespace(_)
        | Entity::Pod(_)
        | Entity::Node(_)
        | Entity::Service(_)
        | Entity::EndpointSlice(_)
        | Entity::NodeAddressReport(_)
        | Entity::ApiServerAddresses(_) => None,
    });
    policy.unwrap_or_else(|| object.reference())
}

/// As within one file: of two objects only one can be meant.
fn duplicate(object: &Object, first: &LoweredObject, second: &LoweredObject) -> Problem {
    Problem {
        file: Arc::clone(&second.file),
        position: object.position(),
        code: Code::DuplicateObject,
        severity: Code::DuplicateObject.severity(),
        field: "metadata.name".to_owned(),
        found: format!("{} again, first in {}", second.reference, first.file),
        accepted: "each object once".to_owned(),
    }
}
