//! What is asked, and of whom: manifests, records and probes are read, addresses are made up for the pods
//! that have none, and everything is compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use egret_policies::compiler::DnsStandIn;
use egret_policies::diagnostic::ObjectRef;
use egret_policies::model::api_server::{Selection, ServerName};
use egret_shared::name::DnsName;

use super::input::{
    Destination, InvalidQuestion, Probe, QuestionOptions, ReadError, Record, Source, read_lines,
};
use super::judge::{Judge, UnusedRecords};
use crate::cluster::{Cluster, make_up_addresses};
use crate::manifests::Manifests;
use crate::manifests::text::read_stdin_once;
use crate::manifests::unreadable::UnreadableManifests;
use crate::options::{DnsOptions, unknown_fields};

/// Questions on the command line, with what they are about.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("asked").required(true).args(["probes", "from"]))]
pub struct QuestionArguments {
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
    question: QuestionOptions,
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
    dns: DnsOptions,
}

/// Everything that was read.
#[derive(Debug)]
pub struct LoadedQuestions {
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
    pub unused: UnusedRecords,
    /// The same for what the API server connects to, by the name that it asks for: a name opens its addresses for connections
    /// by that name alone, so where it asks for none there are no records.
    pub api_server: BTreeMap<ApiServerQuestion, Self>,
}

/// Why there are no answers at all.
#[derive(Debug, thiserror::Error)]
pub enum QuestionError {
    /// The manifests cannot be read.
    #[error(transparent)]
    Manifests(#[from] UnreadableManifests),
    /// The probes or records cannot be read.
    #[error(transparent)]
    Input(#[from] ReadError),
    /// The question cannot be understood.
    #[error(transparent)]
    Question(#[from] InvalidQuestion),
}

impl QuestionArguments {
    /// Reads everything.
    ///
    /// # Errors
    /// Why there are no answers at all.
    pub fn read(&self) -> Result<LoadedQuestions, QuestionError> {
        let others = self.probes.iter().chain(&self.records);
        read_stdin_once(self.manifests.iter().chain(others).map(PathBuf::as_path))?;
        let mut manifests = Manifests::read(&self.manifests, unknown_fields(self.as_stored))?;
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
        let (of_api_server, of_pods): (Vec<Record>, Vec<Record>) = records
            .into_iter()
            .partition(|record| Selection::is_one(&record.pod));
        let asked: BTreeSet<_> = probes.iter().filter_map(Probe::of_api_server).collect();
        let api_server = asked.into_iter().map(|asked| {
            let is_of_it = |record: &&Record| Some(&record.name) == asked.name.as_ref();
            let records: Vec<Record> = of_api_server.iter().filter(is_of_it).cloned().collect();
            let manifests = manifests.of_api_server(&asked.server_name);
            let loaded = LoadedQuestions::new(manifests, &records, dns.clone());
            (asked, loaded)
        });
        let api_server = api_server.collect();
        Ok(LoadedQuestions {
            probes,
            is_single,
            api_server,
            ..LoadedQuestions::new(manifests, &of_pods, dns)
        })
    }
}

/// What the rules about the API server are compiled for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiServerQuestion {
    /// The name that is connected to; none where it is an address.
    name: Option<DnsName>,
    /// What its client asks for by TLS.
    server_name: ServerName,
}

impl LoadedQuestions {
    fn new(manifests: Manifests, records: &[Record], dns: DnsStandIn) -> Self {
        let cluster = manifests.cluster(dns);
        let (judge, unused) = Judge::new(&manifests, &cluster, records);
        Self {
            probes: Vec::new(),
            is_single: false,
            manifests,
            cluster,
            judge,
            unused,
            api_server: BTreeMap::new(),
        }
    }

    /// Who is asked, by [`Self::part_of`].
    #[must_use]
    pub fn parts(&self) -> Vec<&Self> {
        std::iter::once(self).chain(self.api_server.values()).collect()
    }

    /// Which of the parts is asked about a probe.
    #[must_use]
    pub fn part_of(&self, probe: &Probe) -> usize {
        let asked = probe.of_api_server();
        let found = asked.and_then(|asked| self.api_server.keys().position(|key| *key == asked));
        found.map_or(0, |position| position + 1)
    }
}

impl Probe {
    /// Where the API server asks: for what.
    fn of_api_server(&self) -> Option<ApiServerQuestion> {
        let name = match (&self.from, &self.to) {
            (Source::ApiServer(_), Destination::Name(name)) => Some(name.clone()),
            (
                Source::ApiServer(_),
                Destination::Pod(_)
                | Destination::Address(_)
                | Destination::Service(_)
                | Destination::Node(_),
            ) => None,
            (Source::Pod(_) | Source::Address(_) | Source::Node(_), _) => return None,
        };
        let server_name = self.server_name.clone();
        let server_name = server_name.map_or(ServerName::Unknown, ServerName::Known);
        Some(ApiServerQuestion { name, server_name })
    }
}

/// Makes up addresses for the pods that have none: no probe or record is about one of them.
fn give_addresses(manifests: &mut Manifests, probes: &[Probe], records: &[Record], dns: &DnsStandIn) {
    let mut used = manifests.used_addresses(dns);
    used.addresses.extend(records.iter().map(|record| record.address));
    used.addresses.extend(probes.iter().flat_map(Probe::addresses));
    let made_up = make_up_addresses(&manifests.pods_without_address(), &used);
    manifests.give_addresses(&made_up);
}

impl Probe {
    fn addresses(&self) -> impl Iterator<Item = std::net::IpAddr> {
        let from = match &self.from {
            Source::Address(address) => Some(*address),
            Source::Pod(_) | Source::Node(_) | Source::ApiServer(_) => None,
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

/// What no row carries.
pub(crate) fn write_remarks(
    asked: &LoadedQuestions,
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
