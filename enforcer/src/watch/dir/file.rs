//! One file: what it said last that could be taken, and what is wrong with it now.

use std::path::Path;

use egret_policies::api::manifest;
use egret_policies::diagnostic::Severity;
use egret_policies::lower::lower;
use egret_policies::model::cluster::Entity;
use egret_shared::switch::{Switch, is_off};

use super::scan::Fingerprint;

/// A file of manifests.
#[derive(Debug, Default)]
pub(super) struct File {
    fingerprint: Option<Fingerprint>,
    /// What is in force of it.
    pub(super) entities: Vec<Entity>,
    /// What is wrong with it as it is now, each in a line.
    pub(super) lines: Vec<(Severity, String)>,
    /// Why it cannot be taken as it is now.
    pub(super) bad: Option<String>,
    has_good: bool,
}

impl File {
    pub(super) fn is_other(&self, fingerprint: Fingerprint) -> bool {
        self.fingerprint != Some(fingerprint)
    }

    /// Reads the file. Where it cannot be taken, what it said before stays; where it said nothing before, what can be read
    /// of it counts, since to enforce nothing of it would be weaker.
    pub(super) fn read(&mut self, path: &Path, fingerprint: Fingerprint) {
        self.fingerprint = Some(fingerprint);
        self.lines.clear();
        let name = path.display().to_string();
        let read = match std::fs::read(path) {
            Ok(octets) => Read::of(&String::from_utf8_lossy(&octets), &name),
            Err(error) => Read::failed(format!("{name}: {error}")),
        };
        self.lines = read.lines;
        self.bad = read.bad;
        if let Some(reason) = &self.bad {
            tracing::error!(
                file = name,
                kept = self.has_good,
                "a file cannot be taken: {reason}"
            );
        }
        if self.bad.is_some() && is_off(Switch::KeepLastGood) {
            self.entities.clear();
        } else if self.bad.is_none() || !self.has_good {
            self.entities = read.entities;
        }
        self.has_good |= self.bad.is_none();
    }
}

struct Read {
    entities: Vec<Entity>,
    lines: Vec<(Severity, String)>,
    bad: Option<String>,
}

impl Read {
    fn failed(reason: String) -> Self {
        Self {
            entities: Vec::new(),
            lines: vec![(Severity::Error, reason.clone())],
            bad: Some(reason),
        }
    }

    fn of(text: &str, name: &str) -> Self {
        let manifest = manifest::read(text, name);
        let errors = manifest
            .problems
            .iter()
            .filter(|problem| problem.severity == Severity::Error);
        let bad = errors
            .map(ToString::to_string)
            .reduce(|all, one| all + "; " + &one);
        let mut lines: Vec<(Severity, String)> = manifest
            .problems
            .iter()
            .map(|problem| (problem.severity, problem.to_string()))
            .collect();
        let mut entities = Vec::new();
        for document in &manifest.documents {
            let lowered = lower(&document.object);
            entities.extend(lowered.entities);
            lines.extend(
                lowered
                    .diagnostics
                    .iter()
                    .map(|found| (found.severity, format!("{name}: {found}"))),
            );
        }
        Self { entities, lines, bad }
    }
}
