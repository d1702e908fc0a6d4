//! Plays a story: its objects through the reader and lowering into compiler and memory, and into the oracle, and
//! holds both and the second opinion together for every connection, after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use egret_policies::api::manifest;
use egret_policies::compiler::{Compiler, Event, InSync};
use egret_policies::lower::lower;
use egret_policies::model::Direction;
use egret_policies::model::cluster::{Entity, EntityKey};
use egret_policies::oracle::World;
use egret_policies::records::{PodSnapshot, RecordCursor, RecordSnapshot, SnapshotBuilder};
use egret_policies::simulator::{
    Connection, ConnectionEnd, Decision, EndKind as MemoryWho, ForwardedConnection, Simulator, Verdict,
};
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;
use serde_json::Value;

use crate::ids::{Id, Ids};
use crate::reference::{Cluster, PolicyReader, START, Verdicts};
use crate::scenario::{Answer, Flow, Scenario, Side, Step, Style, Who, text};

/// What came of a story.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Judged {
    /// Connections, each end for itself.
    pub(crate) connections: usize,
    /// The numbers that decided one of them.
    pub(crate) hits: Ids,
}

/// Two that should agree do not.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    /// The connection, where it is about one.
    pub(crate) flow: Option<Box<Flow>>,
    pub(crate) sentence: String,
}

/// Plays a story to its end; looks for the hits of some numbers.
pub(crate) fn judge(story: &Scenario, wanted: Ids) -> Result<Judged, Difference> {
    let mut play = Play::begin(story, wanted);
    let beginning = story
        .steps
        .iter()
        .take_while(|step| matches!(step, Step::Apply(_)))
        .count();
    for (number, step) in story.steps.iter().enumerate().skip(beginning) {
        play.take(number, step)?;
    }
    play.hold()?;
    Ok(play.judged)
}

struct Play<'s> {
    story: &'s Scenario,
    wanted: Ids,
    compiler: Compiler<InSync>,
    memory: Simulator,
    world: World,
    now: Timestamp,
    /// What each object stands for, by its kind and name.
    stands_for: BTreeMap<String, Vec<Entity>>,
    /// What is written down.
    written: SnapshotBuilder,
    judged: Judged,
}

impl<'s> Play<'s> {
    fn begin(story: &'s Scenario, wanted: Ids) -> Self {
        let settings = story.setting.settings();
        let mut syncing = Compiler::new(settings.clone());
        let mut world = World::new(settings);
        let now = Timestamp::from_millis(START);
        let mut stands_for: BTreeMap<String, Vec<Entity>> = BTreeMap::new();
        let steps = story.steps.iter().enumerate();
        for (number, step) in steps {
            let Step::Apply(object) = step else { break };
            let entities = entities(object, number);
            for event in replace(&mut stands_for, object, entities) {
                tell_world(&mut world, &event);
                syncing.handle(event, now);
            }
        }
        let mut play = Self {
            story,
            wanted,
            compiler: syncing.in_sync(),
            memory: Simulator::new(),
            world,
            now,
            stands_for,
            written: SnapshotBuilder::default(),
            judged: Judged::default(),
        };
        play.write_all();
        play.poll();
        play
    }

    fn take(&mut self, number: usize, step: &Step) -> Result<(), Difference> {
        let (before, then) = (self.memory.clone(), self.now);
        match step {
            Step::Apply(object) => {
                let entities = entities(object, number);
                self.change(object, entities);
            }
            Step::Delete(object) => self.change(object, Vec::new()),
            Step::Observed(answer) => {
                let client = answer.client.to_canonical();
                // What waits for a pod to come is the subject of tests of its own.
                if self.world.owner(client).is_some() {
                    let observation = observation(answer, self.now);
                    self.world.observe(&observation, self.now);
                    self.compiler.handle(Event::Observed(observation), self.now);
                }
            }
            Step::Sleep(seconds) => {
                self.now = self.now.after(std::time::Duration::from_secs(*seconds));
            }
            Step::Restart => {
                self.restart();
                return Ok(());
            }
        }
        let asked = self.poll();
        self.hold_written()?;
        self.hold_asked(number, &before, then, &asked)
    }

    fn change(&mut self, object: &Value, entities: Vec<Entity>) {
        for event in replace(&mut self.stands_for, object, entities) {
            tell_world(&mut self.world, &event);
            self.compiler.handle(event, self.now);
        }
    }

    /// The daemon starts anew, with what it wrote down.
    fn restart(&mut self) {
        let remembered = self.written.clone().finish();
        let mut syncing = Compiler::new(self.story.setting.settings());
        for entity in self.stands_for.values().flatten() {
            syncing.handle(Event::Apply(entity.clone()), self.now);
        }
        for told in remembered {
            syncing.handle(Event::Restored(told), self.now);
        }
        self.compiler = syncing.in_sync();
        self.memory = Simulator::new();
        self.write_all();
        self.poll();
    }

    /// What is written down from now on begins with all that is known.
    fn write_all(&mut self) {
        self.compiler.track_record_changes();
        self.written = SnapshotBuilder::default();
        all(&self.compiler).for_each(|told| self.written.apply(told.into()));
    }

    /// What is written down, put together, is what is known.
    fn hold_written(&mut self) -> Result<(), Difference> {
        let changes = self.compiler.take_record_changes();
        changes.into_iter().for_each(|change| self.written.apply(change));
        let written = records(self.written.clone().finish());
        let known = records(all(&self.compiler));
        if written == known {
            return Ok(());
        }
        let differs: Vec<_> = written.symmetric_difference(&known).collect();
        Err(Difference {
            flow: None,
            sentence: format!("what is written down is not what is known: {differs:?}"),
        })
    }

    /// Applies all batches; returns whose connections are to be asked again.
    fn poll(&mut self) -> BTreeSet<(PodKey, Direction)> {
        let mut asked = BTreeSet::new();
        while let Some(batch) = self.compiler.poll_batch(self.now) {
            self.memory.apply(&batch, self.now).expect("a batch applies");
            asked.extend(batch.reevaluate);
        }
        asked
    }

    // === Open connections ===

    /// What a change closes is asked again; what only time closes is not.
    fn hold_asked(
        &mut self,
        number: usize,
        before: &Simulator,
        then: Timestamp,
        asked: &BTreeSet<(PodKey, Direction)>,
    ) -> Result<(), Difference> {
        let by_time = then != self.now;
        if by_time && !asked.is_empty() {
            return Err(Difference {
                flow: None,
                sentence: format!("{asked:?} are asked again because time goes by"),
            });
        }
        for flow in &self.story.flows {
            for connection in ends(flow).into_iter().flatten() {
                let is_there = |memory: &Simulator| memory.pod(&connection.pod).is_some();
                if !is_there(before) || !is_there(&self.memory) {
                    continue;
                }
                let (old, new) = (
                    before.decide(&connection, then),
                    self.memory.decide(&connection, self.now),
                );
                if old.verdict == Verdict::Deny || new.verdict == Verdict::Allow {
                    continue;
                }
                if by_time {
                    continue;
                }
                if !asked.contains(&(connection.pod.clone(), connection.direction)) {
                    return Err(Difference {
                        flow: Some(Box::new(flow.clone())),
                        sentence: format!("{connection:?} is denied now and is not asked again"),
                    });
                }
                self.judged.hits.add(Id::C43);
                if new.tier == "cef" {
                    self.judged.hits.add(Id::E8);
                }
                let is_of_2016 = new.tier == "np" && connection.direction == Direction::Ingress;
                if is_of_2016 && self.wanted.has(Id::P6) {
                    let cluster = Cluster::after(self.story, number + 1);
                    if PolicyReader::new(&cluster, None).is_annotated(connection.pod.namespace()) {
                        self.judged.hits.add(Id::P6);
                    }
                }
            }
        }
        Ok(())
    }

    // === Verdicts ===

    fn hold(&mut self) -> Result<(), Difference> {
        let with_rules: BTreeSet<PodKey> = self.memory.pods().map(|rules| rules.pod.clone()).collect();
        let local: BTreeSet<PodKey> = self.world.local_pods().collect();
        if with_rules != local {
            let sentence = format!("{with_rules:?} have rules, {local:?} are local");
            return Err(Difference { flow: None, sentence });
        }
        let cluster = Cluster::after(self.story, self.story.steps.len());
        for flow in &self.story.flows {
            let reading = PolicyReader::new(&cluster, None);
            let read = reading.decide(flow);
            self.hold_flow(&cluster, flow, read)?;
            self.hold_entering(&cluster, flow)?;
            self.look_for_hits(&cluster, flow, &reading, read);
        }
        Ok(())
    }

    /// A client outside that a Service leads on is judged by the node.
    fn hold_entering(&mut self, cluster: &Cluster, flow: &Flow) -> Result<(), Difference> {
        if flow.from.who != Who::Other || flow.dialled.is_none() {
            return Ok(());
        }
        let entering = ForwardedConnection {
            destination: flow.to.address,
            destination_is_own_node: flow.to.who == Who::OwnNode,
            protocol: flow.protocol,
        };
        let reading = PolicyReader::new(cluster, None);
        let read = reading.decide_entering(flow);
        let by_rules = self.memory.decide_entering(entering, self.now);
        let by_objects = self.world.decide_entering(entering);
        self.judged.connections += 1;
        if by_rules.verdict != by_objects || by_objects != read {
            return Err(Difference {
                flow: Some(Box::new(flow.clone())),
                sentence: format!(
                    "{entering:?}: the memory says {by_rules:?}, the oracle {by_objects:?}, the second reading {read:?}"
                ),
            });
        }
        for id in reading.consulted().iter().filter(|id| self.wanted.has(*id)) {
            if PolicyReader::new(cluster, Some(id)).decide_entering(flow) != read {
                self.judged.hits.add(id);
            }
        }
        Ok(())
    }

    fn hold_flow(&mut self, cluster: &Cluster, flow: &Flow, read: Verdicts) -> Result<(), Difference> {
        let is_hairpin = flow.from.who == flow.to.who;
        let mut decisions = Vec::new();
        let open = PolicyReader::of_open(cluster).decide(flow);
        let all = PolicyReader::of_all(cluster).decide(flow);
        let each = [
            (read.egress, open.egress, all.egress),
            (read.ingress, open.ingress, all.ingress),
        ];
        for (connection, (read, read_open, read_all)) in ends(flow).into_iter().zip(each) {
            let Some(connection) = connection else {
                decisions.push(None);
                continue;
            };
            self.judged.connections += 1;
            let by_objects = self.world.decide(&connection, self.now);
            let by_rules = self.memory.decide(&connection, self.now);
            let has_rules = self.memory.pod(&connection.pod).is_some();
            let differ = |sentence: String| {
                let flow = Some(Box::new(flow.clone()));
                Err(Difference { flow, sentence })
            };
            if has_rules && by_rules.verdict != by_objects {
                return differ(format!(
                    "{connection:?}: the memory says {by_rules:?}, the oracle {by_objects:?}"
                ));
            }
            if by_objects != read {
                return differ(format!(
                    "{connection:?}: the oracle says {by_objects:?} (of the rules: {by_rules:?}), the second reading {read:?}"
                ));
            }
            let open_by_objects = self.world.decide_open(&connection, self.now);
            let open_by_rules = self.memory.decide_open(&connection, self.now);
            if (has_rules && open_by_rules.verdict != open_by_objects) || open_by_objects != read_open {
                return differ(format!(
                    "{connection:?}, open before: the memory says {open_by_rules:?}, the oracle {open_by_objects:?}, the second reading {read_open:?}"
                ));
            }
            if by_objects != open_by_objects {
                self.judged.hits.add(Id::X11);
                self.judged.hits.add(Id::F16);
            }
            let would_by_objects = self.world.would_deny(&connection, self.now);
            let would_by_rules = self.memory.would_deny(&connection, self.now);
            let would_be_read = read == Verdict::Allow && read_all == Verdict::Deny;
            if (has_rules && would_by_rules.is_some() != would_by_objects)
                || would_by_objects != would_be_read
            {
                return differ(format!(
                    "{connection:?}, were all in force: the memory says {would_by_rules:?} would deny it, the oracle {would_by_objects:?}, the second reading {would_be_read:?}"
                ));
            }
            decisions.push(Some(by_rules));
        }
        if is_hairpin {
            Ok(())
        } else {
            self.hold_whole(flow, &decisions)
        }
    }

    /// Both ends together say what each says.
    fn hold_whole(&self, flow: &Flow, decisions: &[Option<Decision>]) -> Result<(), Difference> {
        let [from, to] = [&flow.from, &flow.to].map(|side| ConnectionEnd {
            address: side.address,
            kind: match &side.who {
                Who::Pod(key) => MemoryWho::Pod(key.parse().unwrap()),
                Who::OwnNode => MemoryWho::OwnNode,
                Who::Other => MemoryWho::Other,
            },
        });
        let whole = self.memory.decide_connection(&from, &to, flow.protocol, self.now);
        let each = [&whole.egress, &whole.ingress];
        let is_same = |(decision, whole): (&Option<Decision>, &Decision)| {
            decision
                .as_ref()
                .map_or(whole.verdict == Verdict::Allow, |decision| decision == whole)
        };
        if decisions.iter().zip(each).all(is_same) {
            return Ok(());
        }
        Err(Difference {
            flow: Some(Box::new(flow.clone())),
            sentence: format!("the ends say {decisions:?}, the whole {whole:?}"),
        })
    }

    /// A number is hit where its mistake makes another verdict.
    fn look_for_hits(&mut self, cluster: &Cluster, flow: &Flow, reading: &PolicyReader<'_>, read: Verdicts) {
        for id in reading.consulted().iter() {
            if !self.wanted.has(id) || self.judged.hits.has(id) {
                continue;
            }
            if PolicyReader::new(cluster, Some(id)).decide(flow) != read {
                self.judged.hits.add(id);
            }
        }
    }
}

/// What the source and the destination are asked; nothing where one is no pod.
fn ends(flow: &Flow) -> [Option<Connection>; 2] {
    let of = |subject: &Side, peer: &Side, direction| match &subject.who {
        Who::Pod(key) => Some(Connection {
            pod: key.parse().unwrap(),
            direction,
            peer: peer.address,
            peer_is_own_node: peer.who == Who::OwnNode,
            protocol: flow.protocol,
        }),
        Who::OwnNode | Who::Other => None,
    };
    [
        of(&flow.from, &flow.to, Direction::Egress),
        of(&flow.to, &flow.from, Direction::Ingress),
    ]
}

fn all(compiler: &Compiler<InSync>) -> impl Iterator<Item = PodSnapshot> {
    let mut walk = RecordCursor::default();
    std::iter::from_fn(move || compiler.next_records(&mut walk, 3))
}

/// A pod, its run, the name, the address, and until when.
type RecordRow = (PodKey, Option<Arc<str>>, String, IpAddr, Timestamp);

/// Which run of which pod was told what, until when.
fn records(remembered: impl IntoIterator<Item = PodSnapshot>) -> BTreeSet<RecordRow> {
    let of_pod = |pod: PodSnapshot| {
        let record = move |record: RecordSnapshot| {
            let name = record.name.to_string();
            (
                pod.pod.clone(),
                pod.uid.clone(),
                name,
                record.address,
                record.expires,
            )
        };
        pod.records.into_iter().map(record)
    };
    remembered.into_iter().flat_map(of_pod).collect()
}

/// Reads and lowers an object; every other one is written as a block of YAML.
fn entities(object: &Value, number: usize) -> Vec<Entity> {
    let style = if number.is_multiple_of(2) {
        Style::Json
    } else {
        Style::Yaml
    };
    let text = text(object, style);
    let manifest = manifest::read(&text, "story");
    assert!(manifest.is_whole(), "{:#?}\n{text}", manifest.problems);
    let documents = &manifest.documents;
    documents
        .iter()
        .flat_map(|document| lower(&document.object).entities)
        .collect()
}

/// The events by which an object becomes what it now stands for.
fn replace(stands_for: &mut BTreeMap<String, Vec<Entity>>, object: &Value, after: Vec<Entity>) -> Vec<Event> {
    let is_old = object["apiVersion"] == "extensions/v1beta1";
    let metadata = &object["metadata"];
    let name = format!(
        "{} {} {} {is_old}",
        object["kind"], metadata["namespace"], metadata["name"]
    );
    let before = stands_for.remove(&name).unwrap_or_default();
    let kept: BTreeSet<EntityKey> = after.iter().map(Entity::key).collect();
    let gone = before.iter().map(Entity::key).filter(|key| !kept.contains(key));
    let events = gone
        .map(Event::Delete)
        .chain(after.iter().cloned().map(Event::Apply))
        .collect();
    stands_for.insert(name, after);
    events
}

fn tell_world(world: &mut World, event: &Event) {
    match event {
        Event::Apply(entity) => world.apply(entity.clone()),
        Event::Delete(key) => world.delete(key),
        Event::Observed(_)
        | Event::Restored(_)
        | Event::NodeHolds(_)
        | Event::NetworkAdded(_)
        | Event::NetworkRemoved(_) => unreachable!("objects only"),
    }
}

fn observation(answer: &Answer, now: Timestamp) -> Observation {
    let expires = now.after(std::time::Duration::from_secs(answer.ttl));
    let addresses = answer.addresses.iter();
    Observation {
        client: answer.client,
        question: answer.question.parse().unwrap(),
        chain: answer.chain.iter().map(|name| name.parse().unwrap()).collect(),
        addresses: addresses
            .map(|address| ObservedAddress {
                address: *address,
                expires,
            })
            .collect(),
    }
}
