//! From manifests to rules, for all pods at once.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use egret_policies::api::UnknownFields;
use egret_policies::compiler::{Compiler, DnsStandIn, Event, NodeScope, Settings};
use egret_policies::diagnostic::ObjectRef;
use egret_policies::model::cluster::Entity;
use egret_policies::model::{Enforcement, Policy};
use egret_policies::simulator::Simulator;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::input::From;
use crate::verdict::cluster::{Cluster, Member, Used, make_up};
use crate::verdict::manifests::Manifests;
use crate::verdict::selection;
use crate::verdict::texts::{Texts, read_stdin_once};
use crate::verdict::unreadable::UnreadableManifests;

/// No record lives at any moment: one is as good as another.
const NOW: Timestamp = Timestamp::from_millis(0);

/// Manifests, the cluster that they describe, and its rules.
#[derive(Debug)]
pub struct Loaded {
    /// What was read.
    pub manifests: Manifests,
    /// Who has which address.
    pub cluster: Cluster,
    /// The rules of all pods.
    pub memory: Simulator,
    /// The policies and Namespaces that say of themselves to be in audit.
    pub audited: Vec<ObjectRef>,
}

impl Loaded {
    /// Reads and compiles manifests.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn read(from: &From) -> Result<Self, UnreadableManifests> {
        Self::of_texts(&Texts::read(&from.manifests)?, from)
    }

    /// Compiles manifests that are at hand.
    ///
    /// # Errors
    /// Something in them is no object.
    pub fn of_texts(texts: &Texts, from: &From) -> Result<Self, UnreadableManifests> {
        let manifests = Manifests::of(texts, reading(from.as_stored))?;
        let dns = from.dns.stand_in();
        let made_up = make_up(&without_address(&manifests), &used(&manifests, &dns));
        let loaded = Self::of(manifests, &made_up, dns);
        Ok(match from.as_enforced {
            true => loaded.as_enforced(),
            false => loaded,
        })
    }

    /// Reads and compiles two sets of manifests. A pod without an address is made up the same one in both.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn read_both(before: &[PathBuf], after: &From) -> Result<[Self; 2], UnreadableManifests> {
        let (reading, dns) = (reading(after.as_stored), after.dns.stand_in());
        read_stdin_once(before.iter().chain(&after.manifests).map(PathBuf::as_path))?;
        let before = Manifests::read(before, reading)?;
        let loaded = Manifests::read(&after.manifests, reading)?;
        let (mut in_use, used_after) = (used(&before, &dns), used(&loaded, &dns));
        in_use.addresses.extend(used_after.addresses);
        in_use.networks.extend(used_after.networks);
        let mut without = without_address(&before);
        without.extend(without_address(&loaded));
        let made_up = make_up(&without, &in_use);
        let [before, loaded] = [before, loaded].map(|manifests| Self::of(manifests, &made_up, dns.clone()));
        Ok(match after.as_enforced {
            true => [before, loaded.as_enforced()],
            false => [before, loaded],
        })
    }

    pub(crate) fn of(mut manifests: Manifests, made_up: &BTreeMap<PodKey, IpAddr>, dns: DnsStandIn) -> Self {
        give_addresses(&mut manifests, made_up);
        let cluster = Cluster::new(
            manifests.members.values().cloned().collect(),
            manifests.nodes.clone(),
            manifests.services.clone(),
            manifests.slices.clone(),
        )
        .with_reports(manifests.reports())
        .with_dns(dns);
        let memory = compile(&manifests, cluster.dns());
        Self {
            audited: audited(&manifests),
            manifests,
            cluster,
            memory,
        }
    }

    /// The same with nothing in audit.
    #[must_use]
    pub fn as_enforced(mut self) -> Self {
        if self.audited.is_empty() {
            return self;
        }
        for policy in &mut self.manifests.policies {
            policy.enforcement = Enforcement::Enforced;
        }
        for namespace in &mut self.manifests.namespaces {
            namespace.enforcement = Enforcement::Enforced;
        }
        self.memory = compile(&self.manifests, self.cluster.dns());
        self
    }

    /// What should be known besides the answer.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_remarks(&self, out: &mut impl Write) -> io::Result<()> {
        for remark in &self.manifests.remarks {
            writeln!(out, "{remark}")?;
        }
        if let Some(remark) = self.cluster.nobody_behind_dnsd() {
            writeln!(out, "{remark}")?;
        }
        self.manifests.write_skipped(out)?;
        for object in audited(&self.manifests) {
            writeln!(
                out,
                "{object} is in audit, and not in force: --as-enforced shows what would be"
            )?;
        }
        let notes = self.manifests.object_notes.values();
        for note in notes.flatten().chain(self.manifests.pod_notes.values().flatten()) {
            writeln!(out, "{note}")?;
        }
        self.write_remark_on_addresses(out)
    }

    fn write_remark_on_addresses(&self, out: &mut impl Write) -> io::Result<()> {
        let made_up: Vec<String> = self
            .manifests
            .members
            .values()
            .filter(|member| member.is_made_up)
            .map(|member| member.pod.key.to_string())
            .collect();
        let has_networks = |policy: &Policy| selection::networks(policy).next().is_some();
        let (Some(first), true) = (made_up.first(), self.manifests.policies.iter().any(has_networks)) else {
            return Ok(());
        };
        let who = match made_up.len() {
            1 => format!("{first} has no address in the manifests: one was"),
            count => format!("{count} pods ({first}, …) have no address in the manifests: theirs were"),
        };
        writeln!(
            out,
            "warning made-up-address: {who} made up, and compared with the networks of rules"
        )
    }
}

fn audited(manifests: &Manifests) -> Vec<ObjectRef> {
    let namespaces = manifests.namespaces.iter();
    let namespaces = namespaces.filter(|namespace| namespace.enforcement.is_audit());
    let namespaces = namespaces.map(|namespace| ObjectRef {
        kind: "Namespace".into(),
        namespace: None,
        name: Arc::clone(&namespace.name),
    });
    let policies = manifests
        .policies
        .iter()
        .filter(|policy| policy.enforcement.is_audit());
    namespaces
        .chain(policies.map(|policy| ObjectRef::from(&policy.id)))
        .collect()
}

const fn reading(as_stored: bool) -> UnknownFields {
    if as_stored {
        UnknownFields::AsStored
    } else {
        UnknownFields::AsWritten
    }
}

fn without_address(manifests: &Manifests) -> BTreeSet<PodKey> {
    manifests
        .members
        .values()
        .filter(|member| is_without_address(member))
        .map(|member| member.pod.key.clone())
        .collect()
}

fn is_without_address(member: &Member) -> bool {
    member.is_policed() && member.pod.addresses.is_empty()
}

fn give_addresses(manifests: &mut Manifests, made_up: &BTreeMap<PodKey, IpAddr>) {
    for member in manifests.members.values_mut() {
        let address = made_up
            .get(&member.pod.key)
            .filter(|_| is_without_address(member));
        if let Some(address) = address {
            member.pod.addresses = vec![*address];
            member.is_made_up = true;
        }
    }
}

fn used(manifests: &Manifests, dns: &DnsStandIn) -> Used {
    let pods = manifests
        .members
        .values()
        .flat_map(|member| &member.pod.addresses);
    let nodes = manifests.nodes.iter().flat_map(|node| &node.addresses);
    let services = manifests.services.iter().flat_map(|service| &service.addresses);
    let slices = manifests.slices.iter().flat_map(|slice| &slice.addresses);
    let of_nodes = manifests.nodes.iter().flat_map(|node| node.pod_networks.clone());
    let of_policies = manifests.policies.iter().flat_map(selection::networks);
    Used {
        addresses: pods
            .chain(nodes)
            .chain(services)
            .chain(slices)
            .chain(&dns.addresses)
            .copied()
            .collect(),
        networks: of_nodes.chain(of_policies).collect(),
    }
}

fn compile(manifests: &Manifests, dns: &DnsStandIn) -> Simulator {
    let mut compiler = Compiler::new(Settings {
        dns: dns.clone(),
        ..Settings::for_scope(NodeScope::All)
    });
    let namespaces = manifests.namespaces.iter().cloned().map(Entity::Namespace);
    let nodes = manifests.nodes.iter().cloned().map(Entity::Node);
    let policies = manifests.policies.iter().cloned().map(Entity::Policy);
    let members = manifests.members.values();
    let pods = members.map(|member| Entity::Pod(member.pod.clone()));
    let services = manifests.services.iter().cloned().map(Entity::Service);
    let slices = manifests.slices.iter().cloned().map(Entity::EndpointSlice);
    let places = services.chain(slices).chain(manifests.places.iter().cloned());
    for entity in namespaces.chain(nodes).chain(places).chain(policies).chain(pods) {
        compiler.handle(Event::Apply(entity), NOW);
    }
    let mut compiler = compiler.in_sync();
    let mut memory = Simulator::new();
    while let Some(batch) = compiler.poll_batch(NOW) {
        memory
            .apply(&batch, NOW)
            .expect("every batch of the compiler can be applied");
    }
    memory
}
