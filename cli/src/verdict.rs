//! `egret verdict`: what the policies in manifests say of connections, without a cluster.
//!
//! ```text
//!  manifests ──▶ api, lower ──▶ compiler ──▶ memory ──┐
//!  records ───────────────────────┘                   ├──▶ rows
//!  probes ──▶ route (addresses, endpoints, ports) ────┘
//! ```
//!
//! The answer comes from the rules that a node would have, for every pod. What is done here is what no node
//! does: addresses are made up for pods without one, names and Services are resolved.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use egret_policies::api::Reading;
use egret_policies::diagnostic::ObjectRef;

pub mod answer;
pub mod cluster;
pub mod files;
pub mod input;
pub mod judge;
pub mod manifests;
pub mod note;
pub mod route;
pub mod row;
pub mod selection;
pub mod table;

use answer::Answerer;
use cluster::{Cluster, Used, make_up};
use input::{Destination, Probe, ReadError, Record, Source, read_lines};
use judge::Judge;
use manifests::{Manifests, UnreadableManifests};
use row::{Row, Word};
use selection::Selection;

/// What is asked on the command line.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct Arguments {
    /// Files or folders (with all below them) of YAML or JSON manifests
    ///
    /// Namespaces, Pods, workloads (each counts as one pod of its template), Nodes, Services,
    /// EndpointSlices and policies are read; other kinds are counted and skipped, and so are files whose
    /// name ends in none of .yaml, .yml and .json.
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    manifests: Vec<PathBuf>,
    /// The connections to judge, one JSON object a line; "-" is standard input
    #[arg(long, value_name = "FILE")]
    probes: PathBuf,
    /// What pods were told for names, one JSON object a line
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
    /// How to print the answers
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Read policies as an API server would have stored them
    ///
    /// Unknown fields are dropped with a warning. Without this, a rule with a field that nobody knows is
    /// taken for a mistake and fails closed.
    #[arg(long)]
    as_stored: bool,
}

const AFTER_HELP: &str = "\
Probes:
  {\"id\": \"1\", \"from\": \"shop/client\", \"to\": \"tools/worker\", \"protocol\": \"TCP\", \"port\": 80}

  id        a string, given back in the row
  from      \"namespace/pod\" or {\"ip\": \"192.0.2.1\"}
  to        as from, or {\"service\": \"namespace/name\"}, or {\"name\": \"api.example.com\"}
  protocol  TCP, UDP, SCTP or ICMP (which has no port)
  port      the destination port; with a service, the port of the Service
  family    IPv4 or IPv6; otherwise the first that both ends have

Records:
  {\"pod\": \"shop/client\", \"name\": \"api.example.com\", \"address\": \"203.0.113.7\", \"ttl\": 30}

Exit status:
  0  every probe has a verdict
  2  bad usage, input that cannot be read, or a probe that cannot be judged (its row says why)";

/// How to print the answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Table,
    /// For programs: one object a line, in the order of the probes
    Json,
}

/// Why there are no answers at all.
#[derive(Debug, thiserror::Error)]
pub enum VerdictError {
    /// The manifests cannot be read.
    #[error(transparent)]
    Manifests(#[from] UnreadableManifests),
    /// The probes or records cannot be read.
    #[error(transparent)]
    Input(#[from] ReadError),
    /// The answers cannot be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

/// Whether all was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every probe has a verdict.
    Answered,
    /// Some probe could not be judged.
    Unanswered,
}

impl Arguments {
    /// Answers the probes: rows go to `out`, all that belongs to no row to `remarks`.
    ///
    /// # Errors
    /// Why there are no answers at all.
    pub fn run(&self, out: &mut impl Write, remarks: &mut impl Write) -> Result<Outcome, VerdictError> {
        let reading = if self.as_stored {
            Reading::AsStored
        } else {
            Reading::AsWritten
        };
        let mut manifests = Manifests::read(&self.manifests, reading)?;
        let probes = read_lines(&self.probes, Probe::parse)?;
        let records = match &self.records {
            Some(path) => read_lines(path, Record::parse)?,
            None => Vec::new(),
        };
        give_addresses(&mut manifests, &probes, &records);
        let cluster = cluster_of(&manifests);
        let (judge, unused) = Judge::new(&manifests, &cluster, &records);
        let mut answerer = Answerer {
            cluster: &cluster,
            judge: &judge,
            selection: Selection::new(manifests.policies.clone(), manifests.namespaces.clone()),
            object_notes: &manifests.object_notes,
            pod_notes: &manifests.pod_notes,
            member_notes: HashMap::new(),
            carried: BTreeSet::new(),
        };
        let answers: Vec<(&Probe, Row)> = probes
            .iter()
            .map(|probe| (probe, answerer.answer(probe)))
            .collect();
        for remark in unused.remarks() {
            writeln!(remarks, "{remark}")?;
        }
        write_remarks(&manifests, answerer.carried(), remarks)?;
        self.write(&answers, out)?;
        Ok(outcome(&answers))
    }

    fn write(&self, answers: &[(&Probe, Row)], out: &mut impl Write) -> io::Result<()> {
        match self.output {
            Output::Table => write!(out, "{}", table::render(answers))?,
            Output::Json => {
                for (_, row) in answers {
                    serde_json::to_writer(&mut *out, row)?;
                    writeln!(out)?;
                }
            }
        }
        out.flush()
    }
}

fn outcome(answers: &[(&Probe, Row)]) -> Outcome {
    if answers.iter().any(|(_, row)| row.verdict == Word::Error) {
        Outcome::Unanswered
    } else {
        Outcome::Answered
    }
}

/// Makes up addresses for the pods that have none. Pods of a node's network have the node's.
fn give_addresses(manifests: &mut Manifests, probes: &[Probe], records: &[Record]) {
    let used = used(manifests, probes, records);
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
            Source::Pod(_) => None,
        };
        let to = match &self.to {
            Destination::Address(address) => Some(*address),
            Destination::Pod(_) | Destination::Service(_) | Destination::Name(_) => None,
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
fn write_remarks(
    manifests: &Manifests,
    carried: &BTreeSet<ObjectRef>,
    out: &mut impl Write,
) -> io::Result<()> {
    for remark in &manifests.remarks {
        writeln!(out, "{remark}")?;
    }
    for (kind, count) in &manifests.skipped {
        writeln!(out, "skipped {count} of kind {kind}: no policy depends on it")?;
    }
    let others = manifests
        .object_notes
        .iter()
        .filter(|(object, _)| !carried.contains(object));
    for note in others.flat_map(|(_, notes)| notes) {
        writeln!(out, "{note}")?;
    }
    Ok(())
}
