//! From a probe to its row.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use egret_policies::diagnostic::{ObjectRef, Severity};
use egret_policies::model::Direction;
use egret_policies::simulator::{ConnectionDecision, Decision};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::input::{Destination, Probe, ProbeProtocol, Source};
use super::judge::{Judge, is_forwarded_from_outside, protocol_of};
use super::questions::LoadedQuestions;
use super::route::{NameTarget, ProbeConnection, Route, Router, Unjudgeable};
use super::row::{ConnectionVerdict, EndVerdict, Row, VerdictWord};
use crate::cluster::selection::Selection;
use crate::cluster::{Cluster, PodMember};
use crate::manifests::note::Note;

/// Answers probes, and remembers which notes a row has carried.
#[derive(Debug)]
pub struct ProbeAnswerer<'a> {
    cluster: &'a Cluster,
    judge: &'a Judge,
    selection: Selection,
    object_notes: &'a BTreeMap<ObjectRef, Vec<Note>>,
    pod_notes: &'a BTreeMap<PodKey, Vec<Note>>,
    /// Of each pod that was asked about, what should be known whenever it is.
    member_notes: HashMap<PodKey, Vec<Note>>,
    carried: BTreeSet<ObjectRef>,
}

impl<'a> ProbeAnswerer<'a> {
    /// Answers from what was read.
    #[must_use]
    pub fn new(asked: &'a LoadedQuestions) -> Self {
        let manifests = &asked.manifests;
        Self {
            cluster: &asked.cluster,
            judge: &asked.judge,
            selection: Selection::new(manifests.policies.clone(), manifests.namespaces.clone()),
            object_notes: &manifests.object_notes,
            pod_notes: &manifests.pod_notes,
            member_notes: HashMap::new(),
            carried: BTreeSet::new(),
        }
    }

    /// The row of a probe.
    pub fn answer(&mut self, probe: &Probe) -> Row {
        let router = Router {
            cluster: self.cluster,
            told: self.judge.records(),
        };
        let mut row = match router.route(probe) {
            Ok(Route::Direct(connection)) => self.answer_one(probe, &connection),
            Ok(Route::Endpoints(connections)) => self.answer_endpoints(probe, connections),
            Ok(Route::Addresses(addresses)) => self.answer_addresses(probe, addresses),
            Err(unjudgeable) => self.no_answer(probe, &unjudgeable),
        };
        if let ProbeProtocol::Icmp {
            written_port: Some(port),
        } = probe.protocol
        {
            let message = format!("ICMP has no port: {port} is ignored");
            row.diagnostics
                .push(Note::new(Severity::Warning, "port-ignored", message));
        }
        row
    }

    /// The objects whose notes were on a row.
    #[must_use]
    pub const fn carried(&self) -> &BTreeSet<ObjectRef> {
        &self.carried
    }

    fn answer_one(&mut self, probe: &Probe, connection: &ProbeConnection) -> Row {
        let mut notes = self.notes_of_ends(probe);
        let decision = self.decide(connection, probe.moment(), &mut notes);
        let (egress, ingress) = self.ends(&decision, connection, probe.moment());
        let verdict = decision.verdict().into();
        Row {
            verdict,
            egress,
            ingress,
            ..row(probe, verdict, None, notes)
        }
    }

    fn answer_endpoints(&mut self, probe: &Probe, connections: Vec<ProbeConnection>) -> Row {
        let mut notes = self.notes_of_ends(probe);
        if let Some(message) = self.about_address(probe, &connections) {
            notes.push(Note::new(Severity::Info, "service-address", message));
        }
        if connections.is_empty() {
            let none = Some("no endpoints".to_owned());
            return Row {
                endpoints: Some(Vec::new()),
                ..row(probe, VerdictWord::Deny, none, notes)
            };
        }
        let parts: Vec<ConnectionVerdict> = connections
            .iter()
            .map(|connection| self.part(connection, probe.moment(), &mut notes))
            .collect();
        Row {
            endpoints: Some(parts.clone()),
            ..row_of_parts(probe, &parts, notes)
        }
    }

    /// That something else is judged than the address of the probe.
    fn about_address(&self, probe: &Probe, connections: &[ProbeConnection]) -> Option<String> {
        let is_node = match &probe.to {
            Destination::Address(address) => self.cluster.nodes_at(*address).is_some(),
            Destination::Node(_) => true,
            Destination::Pod(_) | Destination::Service(_) | Destination::Name(_) => return None,
        };
        let (to, port) = (&probe.to, &probe.protocol);
        if !is_node {
            return Some(format!(
                "{to} is the address of a Service: its endpoints are judged"
            ));
        }
        let mut masked = connections.iter().filter_map(|connection| {
            let entry = connection.taken_by?;
            (entry.seen_source != connection.source).then_some(entry.address)
        });
        let seen = masked.next().map(|node| {
            format!("; those on other nodes see {node}, not who connects (externalTrafficPolicy: Cluster)")
        });
        Some(format!(
            "{port} of {to} is the port of a Service: its endpoints are judged{}",
            seen.unwrap_or_default()
        ))
    }

    fn answer_addresses(&mut self, probe: &Probe, reached: Vec<NameTarget>) -> Row {
        let mut notes = self.notes_of_ends(probe);
        let mut parts = Vec::with_capacity(reached.len());
        for NameTarget { told, connection } in reached {
            parts.push(match connection {
                Ok(connection) => ConnectionVerdict {
                    address: told,
                    ..self.part(&connection, probe.moment(), &mut notes)
                },
                Err(Unjudgeable::NoEndpoints) => {
                    unjudged_part(told, VerdictWord::Deny, &Unjudgeable::NoEndpoints)
                }
                Err(unjudgeable) => unjudged_part(told, VerdictWord::Error, &unjudgeable),
            });
        }
        Row {
            addresses: Some(parts.clone()),
            ..row_of_parts(probe, &parts, notes)
        }
    }

    fn no_answer(&mut self, probe: &Probe, unjudgeable: &Unjudgeable) -> Row {
        let notes = self.notes_of_ends(probe);
        row(probe, VerdictWord::Error, Some(unjudgeable.to_string()), notes)
    }

    fn part(
        &mut self,
        connection: &ProbeConnection,
        now: Timestamp,
        notes: &mut RowNotes,
    ) -> ConnectionVerdict {
        let decision = self.decide(connection, now, notes);
        let (egress, ingress) = self.ends(&decision, connection, now);
        ConnectionVerdict {
            address: connection.destination,
            port: connection.port.map(|(_, port)| port.get()),
            pod: self
                .cluster
                .pod_at(connection.destination)
                .map(|member| member.pod.key.clone()),
            verdict: decision.verdict().into(),
            reason: None,
            egress,
            ingress,
        }
    }

    /// Both sides, with what policies in audit would deny.
    fn ends(
        &self,
        decision: &ConnectionDecision,
        connection: &ProbeConnection,
        now: Timestamp,
    ) -> (Option<EndVerdict>, Option<EndVerdict>) {
        let end = |direction, decision: &Decision| {
            let would = self.judge.would_deny(self.cluster, connection, direction, now);
            Some(EndVerdict::from(decision).with_audit(would.as_ref()))
        };
        (
            end(Direction::Egress, &decision.egress),
            end(Direction::Ingress, &decision.ingress),
        )
    }

    fn decide(
        &mut self,
        connection: &ProbeConnection,
        now: Timestamp,
        notes: &mut RowNotes,
    ) -> ConnectionDecision {
        let decision = self.judge.decide(self.cluster, connection, now);
        let source = self.cluster.pod_at(connection.source);
        let destination = self.cluster.pod_at(connection.destination);
        for member in [source, destination].into_iter().flatten() {
            self.note_member(member, notes);
        }
        if is_forwarded_from_outside(self.cluster, connection) {
            self.note_exposure(notes);
        }
        for (direction, of_end) in [
            (Direction::Egress, &decision.egress),
            (Direction::Ingress, &decision.ingress),
        ] {
            self.note_made_up(direction, &connection.seen(direction), of_end, notes);
        }
        decision
    }

    /// What should be known of the pods that the probe names, whatever comes of it.
    fn notes_of_ends(&mut self, probe: &Probe) -> RowNotes {
        let mut notes = RowNotes::default();
        for member in named_ends(probe)
            .into_iter()
            .filter_map(|key| self.cluster.member(key))
        {
            self.note_member(member, &mut notes);
        }
        notes
    }

    fn note_member(&mut self, member: &PodMember, notes: &mut RowNotes) {
        if !notes.members.insert(member.pod.key.clone()) {
            return;
        }
        if !self.member_notes.contains_key(&member.pod.key) {
            let found = self.find_notes(member);
            self.member_notes.insert(member.pod.key.clone(), found);
        }
        for note in self.member_notes.get(&member.pod.key).into_iter().flatten() {
            notes.push(note.clone());
        }
    }

    /// What should be known of the policies that are asked about clients outside.
    fn note_exposure(&mut self, notes: &mut RowNotes) {
        for policy in self.selection.rejecting() {
            let object = ObjectRef::from(&policy.id);
            for note in self.object_notes.get(&object).into_iter().flatten() {
                notes.push(note.clone());
                self.carried.insert(object.clone());
            }
        }
    }

    fn find_notes(&mut self, member: &PodMember) -> Vec<Note> {
        let mut found = self.pod_notes.get(&member.pod.key).cloned().unwrap_or_default();
        if !member.is_policed() {
            return found;
        }
        for policy in self.selection.selecting(&member.pod) {
            let object = ObjectRef::from(&policy.id);
            if let Some(notes) = self.object_notes.get(&object) {
                found.extend(notes.iter().cloned());
                self.carried.insert(object);
            }
        }
        found
    }

    fn note_made_up(
        &mut self,
        direction: Direction,
        connection: &ProbeConnection,
        decision: &Decision,
        notes: &mut RowNotes,
    ) {
        let (source, destination) = (
            self.cluster.pod_at(connection.source),
            self.cluster.pod_at(connection.destination),
        );
        let (subject, peer) = match direction {
            Direction::Egress => (source, destination),
            Direction::Ingress => (destination, source),
        };
        let (Some(subject), Some(peer)) = (subject, peer.filter(|peer| peer.is_made_up)) else {
            return;
        };
        let address = match direction {
            Direction::Egress => connection.destination,
            Direction::Ingress => connection.source,
        };
        let protocol = protocol_of(connection);
        if self
            .selection
            .compared_with_networks(&subject.pod, direction, address, protocol, decision)
        {
            notes.push(made_up_note(peer, address, direction, subject));
        }
    }
}

fn made_up_note(peer: &PodMember, address: IpAddr, direction: Direction, subject: &PodMember) -> Note {
    let message = format!(
        "{} has no address in the manifests: {address} was made up, and compared with the networks of a rule for the {} of {}",
        peer.pod.key,
        direction.word(),
        subject.pod.key,
    );
    Note::new(Severity::Warning, "made-up-address", message)
}

fn named_ends(probe: &Probe) -> Vec<&PodKey> {
    let from = match &probe.from {
        Source::Pod(key) => Some(key),
        Source::Address(_) | Source::Node(_) | Source::ApiServer(_) => None,
    };
    let to = match &probe.to {
        Destination::Pod(key) => Some(key),
        Destination::Address(_) | Destination::Service(_) | Destination::Name(_) | Destination::Node(_) => {
            None
        }
    };
    from.into_iter().chain(to).collect()
}

fn row(probe: &Probe, verdict: VerdictWord, reason: Option<String>, notes: RowNotes) -> Row {
    Row {
        id: probe.id.clone(),
        verdict,
        reason,
        egress: None,
        ingress: None,
        endpoints: None,
        addresses: None,
        diagnostics: notes.list,
    }
}

/// Of several connections the first that is denied speaks for all, else the first.
fn row_of_parts(probe: &Probe, parts: &[ConnectionVerdict], notes: RowNotes) -> Row {
    let verdict = VerdictWord::of_all(parts.iter().map(|part| part.verdict)).unwrap_or(VerdictWord::Error);
    let Some(speaker) = parts.iter().find(|part| part.verdict == verdict) else {
        let reason = Some("no record of the family".to_owned());
        return row(probe, VerdictWord::Error, reason, notes);
    };
    Row {
        egress: speaker.egress.clone(),
        ingress: speaker.ingress.clone(),
        ..row(probe, verdict, speaker.reason.clone(), notes)
    }
}

fn unjudged_part(address: IpAddr, verdict: VerdictWord, unjudgeable: &Unjudgeable) -> ConnectionVerdict {
    ConnectionVerdict {
        address,
        port: None,
        pod: None,
        verdict,
        reason: Some(unjudgeable.to_string()),
        egress: None,
        ingress: None,
    }
}

/// The notes of a row, each once.
#[derive(Debug, Default)]
struct RowNotes {
    list: Vec<Note>,
    members: BTreeSet<PodKey>,
}

impl RowNotes {
    fn push(&mut self, note: Note) {
        if !self.list.contains(&note) {
            self.list.push(note);
        }
    }
}
