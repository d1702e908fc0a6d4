//! A manifest file: its last valid content, and its diagnostics.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use egret_policies::api::manifest;
use egret_policies::diagnostic::Severity;
use egret_policies::lower::lower;
use egret_policies::model::Shared;
use egret_policies::model::cluster::{Entity, EntityKey};

use super::scan::Fingerprint;

/// A manifest file.
#[derive(Debug, Default)]
pub(super) struct ManifestFile {
    fingerprint: Option<Fingerprint>,
    /// Its objects that are in force.
    pub(super) entities: Box<[Arc<Entity>]>,
    /// Diagnostics of its current content.
    pub(super) lines: Vec<(Severity, String)>,
    /// Why its current content, or an object in it, is invalid.
    pub(super) bad: Option<String>,
    was_valid: bool,
    /// The last valid version of its objects.
    last_valid: Box<[Arc<Entity>]>,
    /// Texts whose parsing in order gives the objects in force: the last one without an error, and a later one with
    /// errors. None if nothing is stored.
    texts: Vec<Arc<[u8]>>,
}

impl ManifestFile {
    /// Its fingerprint when it was read.
    pub(super) fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }

    /// A stored file. It is read again when it exists.
    pub(super) fn stored(path: &Path, texts: &[Arc<[u8]>], shared: &mut Shared) -> Self {
        let mut file = Self::default();
        for text in texts {
            file.update_content(FileContent::of(path, Ok(text.to_vec())), path, shared);
        }
        file
    }

    pub(super) fn texts(&self) -> &[Arc<[u8]>] {
        &self.texts
    }

    /// Updates it with its new content. If that is invalid, the objects of before stay in force. If there were none,
    /// the readable part counts, because nothing would be weaker. An object with an error is treated alike: an API
    /// server would have refused it and kept the last version.
    pub(super) fn update(
        &mut self,
        path: &Path,
        content: FileContent,
        fingerprint: Fingerprint,
        shared: &mut Shared,
    ) {
        self.fingerprint = Some(fingerprint);
        self.update_content(content, path, shared);
    }

    /// Drops its texts.
    pub(super) fn forget_texts(&mut self) {
        self.texts = Vec::new();
    }

    fn update_content(&mut self, content: FileContent, path: &Path, shared: &mut Shared) {
        let name = path.display().to_string();
        let FileContent { read, text } = content;
        self.lines = read.lines;
        self.bad = read.bad;
        if self.bad.is_none() || !self.was_valid {
            self.update_objects(read.objects, &name, shared);
            self.keep_text(text);
        } else {
            self.report_kept(&name);
        }
        self.was_valid |= self.bad.is_none();
    }

    /// Keeps the text, after an update. Text without errors replaces all others.
    fn keep_text(&mut self, text: Option<Vec<u8>>) {
        let last_good = usize::from(self.was_valid && self.bad.is_some());
        self.texts.truncate(last_good);
        self.texts.extend(text.map(Arc::from));
    }

    fn update_objects(&mut self, objects: Vec<LoweredObject>, name: &str, shared: &mut Shared) {
        let before = std::mem::take(&mut self.last_valid).into_iter();
        let before: BTreeMap<EntityKey, Arc<Entity>> = before.map(|entity| (entity.key(), entity)).collect();
        let (mut entities, mut last_valid) = (Vec::new(), Vec::new());
        for object in objects {
            for entity in object.entities {
                let last = before.get(&entity.key());
                let taken = match (&object.error, last) {
                    (Some(error), Some(last)) => {
                        self.bad.get_or_insert_with(|| error.clone());
                        self.report_kept(&format!("{name}: {}", last.key()));
                        Arc::clone(last)
                    }
                    (None, _) | (Some(_), None) => Arc::new(shared.entity(entity)),
                };
                if object.error.is_none() || last.is_some() {
                    last_valid.push(Arc::clone(&taken));
                }
                entities.push(taken);
            }
        }
        self.entities = entities.into();
        self.last_valid = last_valid.into();
    }

    fn report_kept(&mut self, what: &str) {
        self.lines.push((
            Severity::Warning,
            format!("{what}: not taken as it is now; what it said before stays in force"),
        ));
    }
}

/// Reads a file up to one octet more than the limit, which shows that it is too large.
pub(super) fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    let mut octets = Vec::new();
    let most = u64::try_from(manifest::MAX_BYTES + 1).map_err(io::Error::other)?;
    std::fs::File::open(path)?.take(most).read_to_end(&mut octets)?;
    Ok(octets)
}

/// The parsed content of a file, without regard to what it was before.
pub(super) struct FileContent {
    read: Parsed,
    text: Option<Vec<u8>>,
}

impl FileContent {
    pub(super) fn of(path: &Path, octets: io::Result<Vec<u8>>) -> Self {
        let name = path.display().to_string();
        match octets {
            Ok(octets) => Self {
                read: Parsed::of(&octets, &name),
                text: Some(octets),
            },
            Err(error) => Self {
                read: Parsed::failed(format!("{name}: {error}")),
                text: None,
            },
        }
    }
}

struct LoweredObject {
    entities: Vec<Entity>,
    error: Option<String>,
}

struct Parsed {
    objects: Vec<LoweredObject>,
    lines: Vec<(Severity, String)>,
    bad: Option<String>,
}

impl Parsed {
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
            objects.push(LoweredObject {
                entities: lowered.entities,
                error: error.map(|(_, line)| line.clone()),
            });
            lines.extend(found);
        }
        Self { objects, lines, bad }
    }
}
