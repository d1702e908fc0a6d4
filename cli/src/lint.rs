//! `egret lint`: what is wrong with manifests, and what is probably not meant.

use std::io::{self, Write};
use std::net::IpAddr;

use clap::Args;
use egret_policies::diagnostic::{Code, ObjectRef, Severity};

use crate::manifests::text::ManifestTexts;
use crate::options::{ManifestOptions, ReachError};
use crate::output::{Format, TerminalWrite};
use crate::reach::load::LoadedCluster;

pub mod code;
pub mod finding;
pub mod scope;
mod subjects;
mod order;
mod cover;
mod ports;
mod names;
mod firewalls;
mod text;

use crate::manifests::objects::WrittenObjects;
use code::SAME_NAME;
use finding::Finding;
use scope::LintScope;

/// What is asked on the command line.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct Arguments {
    #[command(flatten)]
    from: ManifestOptions,
    /// The addresses of the DNS server that pods ask; otherwise the pods k8s-app=kube-dns of kube-system
    #[arg(long, value_name = "ADDRESS")]
    dns: Vec<IpAddr>,
    /// How to print the findings
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    output: Format,
}

const AFTER_HELP: &str = "\
  egret lint --manifests policies/ cluster/ --dns 169.254.20.10

Exit status:
  0  nothing is found, or nothing worse than infos
  1  warnings or errors are found
  2  bad usage, or input that cannot be read";

/// Whether something is to be corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LintResult {
    /// Nothing but infos.
    Clean,
    /// A warning or an error.
    Found,
}

impl Arguments {
    /// Looks: findings go to `out`, what was not read to `remarks`.
    ///
    /// # Errors
    /// Why nothing can be said.
    pub fn run(
        &self,
        out: &mut impl TerminalWrite,
        remarks: &mut impl Write,
    ) -> Result<LintResult, ReachError> {
        let texts = ManifestTexts::read(&self.from.manifests)?;
        let loaded = LoadedCluster::of_texts(&texts, &self.from)?.as_enforced();
        let objects = WrittenObjects::of(&texts);
        write_remarks(&loaded, &objects, remarks)?;
        let servers: Vec<IpAddr> = self
            .dns
            .iter()
            .chain(&loaded.cluster.dns().addresses)
            .copied()
            .collect();
        let findings = find(&loaded, &objects, &servers);
        self.output.write(&findings, || text::table(&findings), out)?;
        Ok(cleanness(&findings))
    }
}

/// Everything that is found, by file and line.
#[must_use]
pub fn find(loaded: &LoadedCluster, objects: &WrittenObjects, dns: &[IpAddr]) -> Vec<Finding> {
    let scope = LintScope::new(loaded, objects);
    let mut findings: Vec<Finding> = objects.problems.iter().map(Finding::of_problem).collect();
    findings.extend(noted(loaded, objects));
    findings.extend(subjects::selecting_nothing(&scope));
    findings.extend(order::never_reached(&scope));
    findings.extend(order::equal(&scope));
    findings.extend(subjects::one_family(&scope));
    findings.extend(ports::unserved(&scope));
    findings.extend(ports::of_services(&scope));
    let servers = names::servers(&scope, dns);
    findings.extend(names::without_dns(&scope, &servers));
    findings.extend(firewalls::without_dns(&scope, &servers));
    findings.extend(firewalls::denied_endpoints(&scope));
    findings.extend(names::of_services(&scope));
    findings.extend(names::in_baseline(&scope));
    findings.extend(subjects::in_audit(&scope));
    findings.sort();
    findings.dedup();
    findings
}

/// What reading and lowering noted. Equal priorities are looked at again: only where they matter.
fn noted(loaded: &LoadedCluster, objects: &WrittenObjects) -> Vec<Finding> {
    let manifests = &loaded.manifests;
    let mut findings = Vec::new();
    for (object, notes) in &manifests.object_notes {
        let others = notes.iter().filter(|note| note.code != Code::EqualPriority.id());
        findings.extend(others.map(|note| Finding::of_note(note, objects, object)));
    }
    for (pod, notes) in &manifests.pod_notes {
        let origin = manifests.origins.get(pod).cloned();
        let object = origin.unwrap_or_else(|| ObjectRef {
            kind: "Pod".into(),
            namespace: Some(pod.namespace().into()),
            name: pod.name().into(),
        });
        let finding =
            |message: &str| Finding::new(SAME_NAME, objects, &object, "metadata.name", message.to_owned());
        findings.extend(notes.iter().map(|note| finding(&note.message)));
    }
    findings
}

fn cleanness(findings: &[Finding]) -> LintResult {
    let counts = |finding: &Finding| match finding.severity {
        Severity::Error | Severity::Warning => true,
        Severity::Info => false,
    };
    if findings.iter().any(counts) {
        LintResult::Found
    } else {
        LintResult::Clean
    }
}

/// Problems of files are findings; what else is remarked of files is not.
fn write_remarks(loaded: &LoadedCluster, objects: &WrittenObjects, out: &mut impl Write) -> io::Result<()> {
    let problems: Vec<String> = objects.problems.iter().map(ToString::to_string).collect();
    for remark in &loaded.manifests.remarks {
        if !problems.contains(remark) {
            writeln!(out, "{remark}")?;
        }
    }
    loaded.manifests.write_skipped(out)
}
