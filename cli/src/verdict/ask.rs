//! What is asked, and of whom: manifests, records and probes are read, addresses are made up for the pods
//! that have none, and everything is compiled.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use egret_policies::api::UnknownFields;
use egret_policies::compiler::DnsStandIn;
use egret_policies::diagnostic::ObjectRef;

use super::cluster::{Cluster, Used, make_up};
use super::dns::Dns;
use super::input::{BadQuestion, Destination, Probe, Question, ReadError, Record, Source, read_lines};
use super::judge::{Judge, Unused};
use super::manifests::Manifests;
use super::selection;
use super::texts::read_stdin_once;
use super::unreadable::UnreadableManifests;

/// Questions on the command line, with what they are about.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("asked").required(true).args(["probes", "from"]))]
pub struct Ask {
    /// Files or folders (with all below them) of YAML or JSON manifests; "-" is standard input
    ///
    /// Namespaces, Pods, workloads (each counts as one pod of its template), Nodes, Services,
    /// EndpointSlices and policies are read; other kinds are counted and skipped, and so are files whose
    /// name ends in none of .yaml, .yml and .json.
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    manifests: Vec<PathBuf>,
    /// The connections to judge, one JSON object a line; "-" is standard input
    #[arg(long, value_name = "FILE")]
    probes: Option<PathBuf>,
    #[command(flatten)]
    question: Question,
    /// What pods were told for names, one JSON object a line
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
    /// Read policies as an API server would have stored them
    ///
    /// Unknown fields are dropped with a warning. Without this, a rule with a field that nobody knows is
    /// taken for a mistake and fails closed.
    #[arg(long)]
    as_stored: bool,
    #[command(flatten)]
    dns: Dns,
}

/// Everything that was read.
#[derive(Debug)]
pub struct Asked {
    /// The questions.
    pub probes: Vec<Probe>,
    /// Whether there is one question, asked on the command line.
    pub is_single: bool,
    /// What the manifests hold.
    pub manifests: Manifests,
    /// Who there is.
    pub cluster: Cluster,
    /// Who answers.
    pub judge: Judge,
    /// Records of nobody.
    pub unused: Unused,
}

/// Why there are no answers at all.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The manifests cannot be read.
    #[error(transparent)]
    Manifests(#[from] UnreadableManifests),
    /// The probes or records cannot be read.
    #[error(transparent)]
    Input(#[from] ReadError),
    /// The question cannot be understood.
    #[error(transparent)]
    Question(#[from] BadQuestion),
}

impl Ask {
    /// Reads everything.
    ///
    /// # Errors
    /// Why there are no answers at all.
    pub fn read(&self) -> Result<Asked, AskError> {
        let reading = if self.as_stored {
            UnknownFields::AsStored
        } else {
            UnknownFields::AsWritten
        };
        let others = self.probes.iter().chain(&self.records);
        read_stdin_once(self.manifests.iter().chain(others).map(PathBuf::as_path))?;
        let mut manifests = Manifests::read(&self.manifests, reading)?;
        let question = self.question.probe()?;
        let is_single = question.is_some();
        let mut probes: Vec<Probe> = question.into_iter().collect();
        if let Some(path) = &self.probes {
            probes.extend(read_lines(path, Probe::parse)?);
        }
        let records = match &self.records {
            Some(path) => read_lines(path, Record::parse)?,
            None => Vec::new(),
        };
        let dns = self.dns.stand_in();
        give_addresses(&mut manifests, &probes, &records, &dns);
        let cluster = cluster_of(&manifests)
            .with_reports(manifests.reports())
            .with_dns(dns);
        let (judge, unused) = Judge::new(&manifests, &cluster, &records);
        Ok(Asked {
            probes,
            is_single,
            manifests,
            cluster,
            judge,
            unused,
        })
    }
}

/// Makes up addresses for the pods that have none. Pods of a node's network have the node's.
fn give_addresses(manifests: &mut Manifests, probes: &[Probe], records: &[Record], dns: &DnsStandIn) {
    let mut used = used(manifests, probes, records);
    used.addresses.extend(&dns.addresses);
    let without = manifests
        .members
        .values()
        .filter(|member| member.is_policed() && member.pod.addresses.is_empty())
        .map(|member| member.pod.key.clone())
        .collect();
    for (key, address) in make_up(&without, &used) {
        if let Some(member) = manifests.members.get_mut(&key) {
            member.pod.addresses = vec![address];
            member.is_made_up = true;
        }
    }
}

fn used(manifests: &Manifests, probes: &[Probe], records: &[Record]) -> Used {
    let mut used = Used::default();
    let addresses = &mut used.addresses;
    addresses.extend(
        manifests
            .members
            .values()
            .flat_map(|member| &member.pod.addresses),
    );
    addresses.extend(manifests.nodes.iter().flat_map(|node| &node.addresses));
    addresses.extend(manifests.services.iter().flat_map(|service| &service.addresses));
    addresses.extend(
        manifests
            .services
            .iter()
            .flat_map(|service| &service.external_addresses),
    );
    addresses.extend(manifests.slices.iter().flat_map(|slice| &slice.addresses));
    addresses.extend(records.iter().map(|record| record.address));
    for probe in probes {
        addresses.extend(probe.addresses());
    }
    used.networks
        .extend(manifests.nodes.iter().flat_map(|node| &node.pod_networks));
    used.networks
        .extend(manifests.policies.iter().flat_map(selection::networks));
    used
}

impl Probe {
    fn addresses(&self) -> impl Iterator<Item = std::net::IpAddr> {
        let from = match &self.from {
            Source::Address(address) => Some(*address),
            Source::Pod(_) | Source::Node(_) => None,
        };
        let to = match &self.to {
            Destination::Address(address) => Some(*address),
            Destination::Pod(_) | Destination::Service(_) | Destination::Name(_) | Destination::Node(_) => {
                None
            }
        };
        from.into_iter().chain(to)
    }
}

fn cluster_of(manifests: &Manifests) -> Cluster {
    Cluster::new(
        manifests.members.values().cloned().collect(),
        manifests.nodes.clone(),
        manifests.services.clone(),
        manifests.slices.clone(),
    )
}

/// What no row carries.
pub(crate) fn write_remarks(
    asked: &Asked,
    carried: &BTreeSet<ObjectRef>,
    out: &mut impl Write,
) -> io::Result<()> {
    let manifests = &asked.manifests;
    for remark in asked.unused.remarks() {
        writeln!(out, "{remark}")?;
    }
    if let Some(remark) = asked.cluster.nobody_behind_dnsd() {
        writeln!(out, "{remark}")?;
    }
    for remark in &manifests.remarks {
        writeln!(out, "{remark}")?;
    }
    manifests.write_skipped(out)?;
    let others = manifests
        .object_notes
        .iter()
        .filter(|(object, _)| !carried.contains(object));
    for note in others.flat_map(|(_, notes)| notes) {
        writeln!(out, "{note}")?;
    }
    Ok(())
}
