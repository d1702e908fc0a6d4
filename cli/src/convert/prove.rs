//! That two lists of policies mean the same: the oracle, which decides from the objects and shares nothing with
//! the compiler, is asked about every connection that the rules of either can tell apart.
//!
//! Pods that no selector, network or named port of any policy tells from each other are asked about once (twice
//! for connections among themselves). Manifests seldom have a pod for every selector, so pods are made up for
//! those: what is proved holds for pods that are still to come, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use egret_policies::compiler::DnsStandIn;
use egret_policies::model::cluster::{Entity, EntityKey, NamedPort, Pod};
use egret_policies::model::{Direction, Enforcement, Policy, PolicyId};
use egret_policies::oracle::World;
use egret_policies::simulator::{Connection, Verdict};
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::time::Timestamp;

use crate::verdict::manifests::Manifests;

mod asked;
mod nodes;
mod classes;
mod made_up;
mod scene;
mod points;
mod said;

use points::{Other, Points, Told};
use said::Deciding;
use scene::Scene;

const NOW: Timestamp = Timestamp::from_millis(0);
/// Records live as long as the proof.
const LATER: Timestamp = Timestamp::from_millis(60_000);
/// The differences that are told.
const MOST_DIFFERENCES: usize = 10;

/// What was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proved {
    /// Connections, each as one of its pods sees it.
    pub connections: usize,
    /// Pods of the manifests for which some stand.
    pub pods: usize,
    /// Pods that were made up.
    pub made_up: usize,
}

/// A connection whose verdict differs.
#[derive(Clone, Debug)]
pub struct Difference {
    connection: Connection,
    peer: String,
    before: Deciding,
    after: Deciding,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Connection { pod, direction, .. } = &self.connection;
        let (word, way) = match direction {
            Direction::Egress => ("egress", "to"),
            Direction::Ingress => ("ingress", "from"),
        };
        let protocol = said::protocol(self.connection.protocol);
        let Self {
            peer, before, after, ..
        } = self;
        write!(
            f,
            "{word} of {pod} {way} {peer}, {protocol}: was {before}; would be {after}"
        )
    }
}

/// What differs, and how many connections more than are told.
#[derive(Clone, Debug)]
pub struct Differences {
    /// The first.
    pub first: Vec<Difference>,
    /// All of them, in number.
    pub count: usize,
}

/// Compares two lists of all policies, in the cluster of the manifests, where dnsd stands in for a Service. What is in audit
/// is in both, and means the same once it is in force.
///
/// # Errors
/// They do not mean the same.
pub fn prove(
    manifests: &Manifests,
    dns: &DnsStandIn,
    before: &[Policy],
    after: &[Policy],
) -> Result<Proved, Differences> {
    let proved = compare_all(manifests, dns, before, after)?;
    if !before
        .iter()
        .chain(after)
        .any(|policy| policy.enforcement.is_audit())
    {
        return Ok(proved);
    }
    let [before, after] = [before, after].map(enforced);
    compare_all(manifests, dns, &before, &after)
}

fn enforced(policies: &[Policy]) -> Vec<Policy> {
    let enforced = policies.iter().map(|policy| Policy {
        enforcement: Enforcement::Enforced,
        ..policy.clone()
    });
    enforced.collect()
}

fn compare_all(
    manifests: &Manifests,
    dns: &DnsStandIn,
    before: &[Policy],
    after: &[Policy],
) -> Result<Proved, Differences> {
    let scene = Scene::new(manifests, dns, &[before, after].concat());
    let mut selections = [before, after].map(|policies| scene.selection(policies));
    let (mut all, mut seen) = (Comparison::default(), BTreeSet::new());
    for pod in &scene.pods {
        let policies = selections
            .each_mut()
            .map(|selection| selection.policies_of(pod).cloned().collect::<Vec<_>>());
        if !seen.insert(Asked::of(&scene, pod, &policies)) {
            continue;
        }
        all.compare(&scene, pod, policies.each_ref().map(Vec::as_slice));
    }
    if all.count > 0 {
        return Err(Differences {
            first: all.differences,
            count: all.count,
        });
    }
    Ok(Proved {
        connections: all.connections,
        pods: scene.standing_for,
        made_up: scene.made_up,
    })
}

/// What the connections of a pod depend on: pods of which all this is equal are asked about once.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    policies: [Vec<PolicyId>; 2],
    ports: Vec<NamedPort>,
    /// What is told of places may depend on the node.
    node: Option<Arc<str>>,
}

impl Asked {
    fn of(scene: &Scene, pod: &Pod, policies: &[Vec<Policy>; 2]) -> Self {
        let ids = |policies: &Vec<Policy>| policies.iter().map(|policy| policy.id.clone()).collect();
        Self {
            policies: policies.each_ref().map(ids),
            ports: pod.ports.clone(),
            node: pod.node.clone().filter(|_| !scene.common.is_empty()),
        }
    }
}

#[derive(Default)]
struct Comparison {
    connections: usize,
    differences: Vec<Difference>,
    count: usize,
}

impl Comparison {
    /// Compares all connections of a pod, if the policies about it are others than before.
    fn compare(&mut self, scene: &Scene, subject: &Pod, policies: [&[Policy]; 2]) {
        if policies[0] == policies[1] {
            return;
        }
        let both: Vec<&Policy> = policies.into_iter().flatten().collect();
        let points = Points::new(scene, subject, &both);
        let mut stages = policies.map(|policies| Stage::new(scene, subject, policies, &points.told));
        for other in &points.others {
            for stage in &mut stages {
                stage.enter(other);
            }
            for connection in points.connections(other) {
                self.connections += 1;
                let verdicts = stages
                    .each_ref()
                    .map(|stage| stage.world.decide(&connection, NOW));
                if verdicts[0] != verdicts[1] {
                    self.differ(connection, other, verdicts, &stages);
                }
            }
            for stage in &mut stages {
                stage.leave(other);
            }
        }
    }

    fn differ(
        &mut self,
        connection: Connection,
        other: &Other,
        verdicts: [Verdict; 2],
        stages: &[Stage<'_>; 2],
    ) {
        self.count += 1;
        if self.differences.len() < MOST_DIFFERENCES {
            let deciding = |side: usize| stages[side].deciding(&connection, other, verdicts[side]);
            self.differences.push(Difference {
                before: deciding(0),
                after: deciding(1),
                peer: other.who.clone(),
                connection,
            });
        }
    }
}

/// A pod, what is about it, and maybe somebody at the other end: nothing else can matter to a connection.
struct Stage<'a> {
    scene: &'a Scene,
    world: World,
    /// Who stays on it.
    staying: BTreeMap<EntityKey, Entity>,
    observations: Vec<Observation>,
}

impl<'a> Stage<'a> {
    fn new(scene: &'a Scene, subject: &Pod, policies: &[Policy], told: &[Told]) -> Self {
        let mut stage = Self {
            scene,
            world: World::new(scene.settings.clone()),
            staying: BTreeMap::new(),
            observations: observations(subject, told),
        };
        let policies = policies.iter().cloned().map(Entity::Policy);
        let subject = scene.pod(subject).into_iter();
        for entity in scene.common.iter().cloned().chain(subject).chain(policies) {
            stage.world.apply(entity.clone());
            stage.staying.insert(entity.key(), entity);
        }
        for observation in &stage.observations {
            stage.world.observe(observation, NOW);
        }
        stage
    }

    fn enter(&mut self, other: &Other) {
        for entity in self.new_with(other) {
            self.world.apply(entity.clone());
        }
    }

    fn leave(&mut self, other: &Other) {
        for entity in self.new_with(other) {
            self.world.delete(&entity.key());
        }
    }

    fn new_with<'o>(&self, other: &'o Other) -> Vec<&'o Entity> {
        let entities = other.entities.iter();
        entities
            .filter(|entity| !self.staying.contains_key(&entity.key()))
            .collect()
    }

    fn deciding(&self, connection: &Connection, other: &Other, verdict: Verdict) -> Deciding {
        let entities = self.staying.values().chain(self.new_with(other));
        Deciding::of(
            connection,
            verdict,
            &self.scene.settings,
            entities,
            &self.observations,
        )
    }
}

fn observations(subject: &Pod, told: &[Told]) -> Vec<Observation> {
    let Some(client) = subject.addresses.first() else {
        return Vec::new();
    };
    let observation = |told: &Told| Observation {
        client: *client,
        question: told.name.clone(),
        chain: Vec::new(),
        addresses: vec![ObservedAddress {
            address: told.address,
            expires: LATER,
        }],
    };
    told.iter().map(observation).collect()
}

#[cfg(test)]
mod tests;
