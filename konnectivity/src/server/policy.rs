//! The policies of the API server's connections as files have them, with objects of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use egret_policies::api::manifest::read_octets;
use egret_policies::api_server::needs_cluster;
use egret_policies::diagnostic::Severity;
use egret_policies::lower::lower;
use egret_policies::model::api_server::ApiServerPolicy;
use egret_policies::model::cluster::Entity;

const BASELINE: &str = include_str!("baseline.yaml");

/// What becomes of what the baseline speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Baseline {
    /// It is told in the audit log.
    Audit,
    /// It is refused, unless a policy allows it.
    Deny,
}

/// A file, or the files of a folder that end in .yaml, .yml or .json and do not begin with a dot.
#[derive(Clone, Debug)]
pub(super) struct PolicyFiles {
    path: Option<PathBuf>,
    baseline: Baseline,
    /// Objects of the cluster come from elsewhere.
    without_objects: bool,
}

/// What was read: the text of each file. Equal texts mean the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PolicyTexts(BTreeMap<PathBuf, Vec<u8>>);

/// Policies as they were understood.
#[derive(Debug)]
pub(super) struct Policies {
    pub(super) policies: Vec<ApiServerPolicy>,
    pub(super) cluster: Vec<Entity>,
    /// Of severity error: parts are closed, which were meant otherwise.
    pub(super) errors: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// Why there are no policies.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnusablePolicies {
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}", .0.join("; "))]
    Content(Vec<String>),
}

impl PolicyFiles {
    pub(super) fn new(path: Option<PathBuf>, baseline: Baseline, without_objects: bool) -> Self {
        Self {
            path,
            baseline,
            without_objects,
        }
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(super) fn read(&self) -> Result<PolicyTexts, UnusablePolicies> {
        let Some(path) = &self.path else {
            return Ok(PolicyTexts::default());
        };
        let files = files_of(path).map_err(failed(path))?;
        let text = |file: PathBuf| match fs::read(&file) {
            Ok(text) => Ok((file, text)),
            Err(source) => Err(failed(&file)(source)),
        };
        files
            .into_iter()
            .map(text)
            .collect::<Result<_, _>>()
            .map(PolicyTexts)
    }

    pub(super) fn understand(&self, texts: &PolicyTexts) -> Result<Policies, UnusablePolicies> {
        let mut reader = PolicyReader::default();
        let baseline = match self.baseline {
            Baseline::Audit => BASELINE.to_owned(),
            Baseline::Deny => BASELINE.replace("action: Audit", "action: Deny"),
        };
        reader.take("the baseline", baseline.as_bytes());
        for (path, octets) in &texts.0 {
            reader.take(&path.display().to_string(), octets);
        }
        if self.without_objects {
            if !reader.cluster.is_empty() {
                let text = "objects of the cluster in files are passed over: they come from the API server";
                reader.warnings.push(text.to_owned());
                reader.cluster.clear();
            }
        } else if needs_cluster(&reader.policies) && reader.cluster.is_empty() {
            let text = "rules ask for nodes, pods, services or external, and no object of the cluster is in the files: \
                        networks and domainNames need none";
            reader.problems.push(text.to_owned());
        }
        reader.finish()
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> UnusablePolicies {
    let path = path.to_owned();
    move |source| UnusablePolicies::Read { path, source }
}

fn files_of(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let is_manifest = |name: &str| {
            !name.starts_with('.') && [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end))
        };
        if file
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(is_manifest)
        {
            files.push(file);
        }
    }
    Ok(files)
}

#[derive(Default)]
struct PolicyReader {
    policies: Vec<ApiServerPolicy>,
    cluster: Vec<Entity>,
    names: BTreeSet<std::sync::Arc<str>>,
    problems: Vec<String>,
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl PolicyReader {
    fn take(&mut self, file: &str, octets: &[u8]) {
        let manifest = read_octets(octets, file);
        for problem in manifest.problems {
            match problem.severity {
                Severity::Error => self.problems.push(problem.to_string()),
                Severity::Warning | Severity::Info => self.warnings.push(problem.to_string()),
            }
        }
        for (kind, count) in manifest.skipped {
            let text = format!("{file}: {count} of {kind} skipped: no rule asks for it");
            self.warnings.push(text);
        }
        for document in manifest.documents {
            let lowered = lower(&document.object);
            for diagnostic in lowered.diagnostics {
                let text = format!("{file}: {diagnostic}");
                match diagnostic.severity {
                    Severity::Error => self.errors.push(text),
                    Severity::Warning | Severity::Info => self.warnings.push(text),
                }
            }
            if let Some(policy) = lowered.api_server {
                if !self.names.insert(policy.name.clone()) {
                    self.problems
                        .push(format!("{file}: {policy} again; each name once is accepted"));
                }
                self.policies.push(policy);
            }
            for entity in lowered.entities {
                match entity {
                    Entity::Policy(policy) => {
                        self.warnings
                            .push(format!("{file}: {} is about pods: passed over", policy.id));
                    }
                    entity => self.cluster.push(entity),
                }
            }
        }
    }

    fn finish(mut self) -> Result<Policies, UnusablePolicies> {
        if !self.problems.is_empty() {
            self.problems.append(&mut self.errors);
            return Err(UnusablePolicies::Content(self.problems));
        }
        Ok(Policies {
            policies: self.policies,
            cluster: self.cluster,
            errors: self.errors,
            warnings: self.warnings,
        })
    }
}
