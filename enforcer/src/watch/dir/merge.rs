//! Merges files into objects: each object counts once, whatever files it is in.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use egret_policies::compiler::Event;
use egret_policies::diagnostic::Severity;
use egret_policies::model::cluster::{Entity, EntityKey};

use super::file::ManifestFile;

/// The content of all files.
#[derive(Debug, Default)]
pub(super) struct Merged {
    pub(super) entities: BTreeMap<EntityKey, Arc<Entity>>,
    pub(super) bad: Vec<String>,
    pub(super) lines: Vec<(Severity, String)>,
    pub(super) severities: BTreeMap<Severity, usize>,
}

/// Merges the files. Of an object in two files, the one whose path sorts first counts.
pub(super) fn merge(files: &BTreeMap<PathBuf, ManifestFile>) -> Merged {
    let mut merged = Merged::default();
    let mut homes: BTreeMap<EntityKey, &Path> = BTreeMap::new();
    for (path, file) in files {
        merged.bad.extend(file.bad.clone());
        for (severity, line) in &file.lines {
            merged.note(*severity, line.clone());
        }
        for entity in &file.entities {
            match homes.entry(entity.key()) {
                Entry::Vacant(home) => {
                    home.insert(path);
                    merged.entities.insert(entity.key(), Arc::clone(entity));
                }
                Entry::Occupied(home) => {
                    let (key, first) = (entity.key(), home.get().display());
                    let line = format!("{}: {key:?} is also in {first}, which counts", path.display());
                    merged.note(Severity::Error, line);
                }
            }
        }
    }
    merged
}

/// The events between two states.
pub(super) fn events(
    before: &BTreeMap<EntityKey, Arc<Entity>>,
    after: &BTreeMap<EntityKey, Arc<Entity>>,
) -> Vec<Event> {
    let gone = before
        .keys()
        .filter(|key| !after.contains_key(*key))
        .cloned()
        .map(Event::Delete);
    let come = after
        .iter()
        .filter(|(key, entity)| before.get(*key) != Some(*entity));
    gone.chain(come.map(|(_, entity)| Event::Apply(Entity::clone(entity))))
        .collect()
}

impl Merged {
    fn note(&mut self, severity: Severity, line: String) {
        *self.severities.entry(severity).or_default() += 1;
        self.lines.push((severity, line));
    }
}
