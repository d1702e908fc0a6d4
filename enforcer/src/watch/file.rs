//! One file: what it said last that could be taken, and what is wrong with it now.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use egret_policies::api::manifest;
use egret_policies::diagnostic::Severity;
use egret_policies::lower::lower;
use egret_policies::model::Shared;
use egret_policies::model::cluster::{Entity, EntityKey};
use egret_shared::switch::{Switch, is_off};

use super::scan::Fingerprint;

/// A file of manifests.
#[derive(Debug, Default)]
pub(super) struct ManifestFile {
    fingerprint: Option<Fingerprint>,
    /// What is in force of it.
    pub(super) entities: Box<[Arc<Entity>]>,
    /// What is wrong with it as it is now, each in a line.
    pub(super) lines: Vec<(Severity, String)>,
    /// Why it, or an object in it, cannot be taken as it is now.
    pub(super) bad: Option<String>,
    was_valid: bool,
    /// Its objects as they last were without an error.
    last_valid: Box<[Arc<Entity>]>,
    /// What it has to be read from, one after the other, to say what it says: the last text without an error, and one
    /// with errors that was taken since; none where nobody keeps them.
    texts: Vec<Arc<[u8]>>,
}

impl ManifestFile {
    /// How it looked when it was read.
    pub(super) fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }

    /// A file that was read in an earlier life. It is read again when it is there.
    pub(super) fn stored(path: &Path, texts: &[Arc<[u8]>], shared: &mut Shared) -> Self {
        let mut file = Self::default();
        for text in texts {
            file.take_content(FileContent::of(path, Ok(text.to_vec())), path, shared);
        }
        file
    }

    pub(super) fn texts(&self) -> &[Arc<[u8]>] {
        &self.texts
    }

    /// Takes what was read. Where it cannot be taken, what it said before stays; where it said deny_everything before, what can be read
    /// of it counts, since to enforce deny_everything of it would be weaker. An object with an error is treated alike: an API
    /// server would have refused it and stored_texts the one before.
    pub(super) fn take(
        &mut self,
        path: &Path,
        content: FileContent,
        fingerprint: Fingerprint,
        shared: &mut Shared,
    ) {
        self.fingerprint = Some(fingerprint);
        self.take_content(content, path, shared);
    }

    /// Nobody asks for its texts.
    pub(super) fn forget_texts(&mut self) {
        self.texts = Vec::new();
    }

    fn take_content(&mut self, content: FileContent, path: &Path, shared: &mut Shared) {
        let name = path.display().to_string();
        let FileContent { read, text } = content;
        self.lines = read.lines;
        self.bad = read.bad;
        if self.bad.is_some() && is_off(Switch::KeepLastGood) {
            self.entities = Box::default();
        } else if self.bad.is_none() || !self.was_valid {
            self.take_objects(read.objects, &name, shared);
            self.keep_text(text);
        } else {
            self.report_kept(&name);
        }
        self.was_valid |= self.bad.is_none();
    }

    /// After it was taken. Without errors it says everything; with errors it says something beside what was there.
    fn keep_text(&mut self, text: Option<Vec<u8>>) {
        let last_good = usize::from(self.was_valid && self.bad.is_some());
        self.texts.truncate(last_good);
        self.texts.extend(text.map(Arc::from));
    }

    fn take_objects(&mut self, objects: Vec<LoweredObject>, name: &str, shared: &mut Shared) {
        let before = std::mem::take(&mut self.last_valid).into_iter();
        let before: BTreeMap<EntityKey, Arc<Entity>> = before.map(|entity| (entity.key(), entity)).collect();
        let (mut entities, mut last_valid) = (Vec::new(), Vec::new());
        for object in objects {
            for entity in object.entities {
                let last = before
                    .get(&entity.key())
                    .filter(|_| !is_off(Switch::KeepLastGood));
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

/// As much of a file as is looked at, and one octet by which it is seen that there is more.
pub(super) fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    let mut octets = Vec::new();
    let most = u64::try_from(manifest::MAX_BYTES + 1).map_err(io::Error::other)?;
    std::fs::File::open(path)?.take(most).read_to_end(&mut octets)?;
    Ok(octets)
}

/// What was read of a file, and understood without regard to what it said before.
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
