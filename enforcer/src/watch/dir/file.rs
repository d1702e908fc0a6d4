//! One file: what it said last that could be taken, and what is wrong with it now.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use egret_policies::api::manifest;
use egret_policies::diagnostic::Severity;
use egret_policies::lower::lower;
use egret_policies::model::cluster::{Entity, EntityKey};
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
    /// Why it, or an object in it, cannot be taken as it is now.
    pub(super) bad: Option<String>,
    has_good: bool,
    /// Its objects as they last were without an error.
    sound: BTreeMap<EntityKey, Entity>,
    /// What it has to be read from, one after the other, to say what it says: the last text without an error, and one
    /// with errors that was taken since.
    texts: Vec<Arc<[u8]>>,
}

impl File {
    /// How it looked when it was read.
    pub(super) fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }

    /// A file that was read in an earlier life. It is read again when it is there.
    pub(super) fn known(path: &Path, texts: &[Arc<[u8]>]) -> Self {
        let mut file = Self::default();
        for text in texts {
            file.take_text(Ok(text.to_vec()), &path.display().to_string());
        }
        file
    }

    pub(super) fn texts(&self) -> &[Arc<[u8]>] {
        &self.texts
    }

    /// Takes what was read. Where it cannot be taken, what it said before stays; where it said nothing before, what can be read
    /// of it counts, since to enforce nothing of it would be weaker. An object with an error is treated alike: an API
    /// server would have refused it and kept the one before.
    pub(super) fn take_octets(&mut self, path: &Path, octets: io::Result<Vec<u8>>, fingerprint: Fingerprint) {
        self.fingerprint = Some(fingerprint);
        self.take_text(octets, &path.display().to_string());
    }

    fn take_text(&mut self, octets: io::Result<Vec<u8>>, name: &str) {
        let (read, text) = match octets {
            Ok(octets) => (Read::of(&octets, name), Some(octets)),
            Err(error) => (Read::failed(format!("{name}: {error}")), None),
        };
        self.lines = read.lines;
        self.bad = read.bad;
        if self.bad.is_some() && is_off(Switch::KeepLastGood) {
            self.entities.clear();
        } else if self.bad.is_none() || !self.has_good {
            self.take(read.objects, name);
            self.keep_text(text);
        } else {
            self.say_kept(name);
        }
        self.has_good |= self.bad.is_none();
    }

    /// After it was taken. Without errors it says everything; with errors it says something beside what was there.
    fn keep_text(&mut self, text: Option<Vec<u8>>) {
        let last_good = usize::from(self.has_good && self.bad.is_some());
        self.texts.truncate(last_good);
        self.texts.extend(text.map(Arc::from));
    }

    fn take(&mut self, objects: Vec<Object>, name: &str) {
        let before = std::mem::take(&mut self.sound);
        self.entities.clear();
        for object in objects {
            for entity in object.entities {
                let last = before
                    .get(&entity.key())
                    .filter(|_| !is_off(Switch::KeepLastGood));
                match (&object.error, last) {
                    (None, _) => self.keep(entity),
                    (Some(error), Some(last)) => {
                        self.bad.get_or_insert_with(|| error.clone());
                        self.say_kept(&format!("{name}: {}", last.key()));
                        self.keep(last.clone());
                    }
                    (Some(_), None) => self.entities.push(entity),
                }
            }
        }
    }

    fn keep(&mut self, entity: Entity) {
        self.sound.insert(entity.key(), entity.clone());
        self.entities.push(entity);
    }

    fn say_kept(&mut self, what: &str) {
        self.lines.push((
            Severity::Warning,
            format!("{what}: not taken as it is now; what it said before stays in force"),
        ));
    }
}

/// As much of a file as is looked at, and one octet by which it is seen that there is more.
pub(super) fn octets_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut octets = Vec::new();
    let most = u64::try_from(manifest::MAX_BYTES + 1).map_err(io::Error::other)?;
    std::fs::File::open(path)?.take(most).read_to_end(&mut octets)?;
    Ok(octets)
}

struct Object {
    entities: Vec<Entity>,
    error: Option<String>,
}

struct Read {
    objects: Vec<Object>,
    lines: Vec<(Severity, String)>,
    bad: Option<String>,
}

impl Read {
    fn failed(reason: String) -> Self {
        Self {
            objects: Vec::new(),
            lines: vec![(Severity::Error, reason.clone())],
            bad: Some(reason),
        }
    }

    fn of(octets: &[u8], name: &str) -> Self {
        let manifest = manifest::read_octets(octets, name);
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
        let mut objects = Vec::new();
        for document in &manifest.documents {
            let lowered = lower(&document.object);
            let found: Vec<(Severity, String)> = lowered
                .diagnostics
                .iter()
                .map(|found| (found.severity, format!("{name}: {found}")))
                .collect();
            let error = found.iter().find(|(severity, _)| *severity == Severity::Error);
            objects.push(Object {
                entities: lowered.entities,
                error: error.map(|(_, line)| line.clone()),
            });
            lines.extend(found);
        }
        Self { objects, lines, bad }
    }
}
