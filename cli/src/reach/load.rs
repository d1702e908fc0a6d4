//! From manifests to rules, for all pods at once.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use egret_policies::compiler::DnsStandIn;
use egret_policies::diagnostic::ObjectRef;
use egret_policies::model::{Enforcement, Policy};
use egret_policies::simulator::Simulator;
use egret_shared::pod::PodKey;

use crate::cluster::{Cluster, make_up_addresses, selection};
use crate::manifests::Manifests;
use crate::manifests::cluster::NOW;
use crate::manifests::text::{ManifestTexts, read_stdin_once};
use crate::manifests::unreadable::UnreadableManifests;
use crate::options::ManifestOptions;

/// Manifests, the cluster that they describe, and its rules.
#[derive(Debug)]
pub struct LoadedCluster {
    /// What was read.
    pub manifests: Manifests,
    /// Who has which address.
    pub cluster: Cluster,
    /// The rules of all pods.
    pub simulator: Simulator,
    /// The policies and Namespaces that say of themselves to be in audit.
    pub audited: Vec<ObjectRef>,
}

impl LoadedCluster {
    /// Reads and compiles manifests.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn read(from: &ManifestOptions) -> Result<Self, UnreadableManifests> {
        Self::of_texts(&ManifestTexts::read(&from.manifests)?, from)
    }

    /// Compiles manifests that are at hand.
    ///
    /// # Errors
    /// Something in them is no object.
    pub fn of_texts(texts: &ManifestTexts, from: &ManifestOptions) -> Result<Self, UnreadableManifests> {
        let manifests = Manifests::of(texts, from.unknown_fields())?;
        let dns = from.dns.stand_in();
        let made_up = make_up_addresses(&manifests.pods_without_address(), &manifests.used_addresses(&dns));
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
    pub fn read_both(before: &[PathBuf], after: &ManifestOptions) -> Result<[Self; 2], UnreadableManifests> {
        let (reading, dns) = (after.unknown_fields(), after.dns.stand_in());
        read_stdin_once(before.iter().chain(&after.manifests).map(PathBuf::as_path))?;
        let before = Manifests::read(before, reading)?;
        let loaded = Manifests::read(&after.manifests, reading)?;
        let (mut in_use, used_after) = (before.used_addresses(&dns), loaded.used_addresses(&dns));
        in_use.addresses.extend(used_after.addresses);
        in_use.networks.extend(used_after.networks);
        let mut without = before.pods_without_address();
        without.extend(loaded.pods_without_address());
        let made_up = make_up_addresses(&without, &in_use);
        let [before, loaded] = [before, loaded].map(|manifests| Self::of(manifests, &made_up, dns.clone()));
        Ok(match after.as_enforced {
            true => [before, loaded.as_enforced()],
            false => [before, loaded],
        })
    }

    pub(crate) fn of(mut manifests: Manifests, made_up: &BTreeMap<PodKey, IpAddr>, dns: DnsStandIn) -> Self {
        manifests.give_addresses(made_up);
        let simulator = compile(&manifests, &dns);
        let cluster = manifests.cluster(dns);
        Self {
            audited: audited(&manifests),
            manifests,
            cluster,
            simulator,
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
        self.simulator = compile(&self.manifests, self.cluster.dns());
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

fn compile(manifests: &Manifests, dns: &DnsStandIn) -> Simulator {
    Simulator::of(&mut manifests.compiler(dns).in_sync(), NOW)
}
