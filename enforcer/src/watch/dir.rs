//! Watches a folder of manifests: for a laptop, a demo, a host without Kubernetes.
//!
//! After an inotify event the whole folder is scanned by names, sizes and times. It is also scanned periodically, which
//! finds changes behind mounts and links, and by other machines. A changed file that is not known to be complete must
//! be stable for a moment before it is read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use egret_policies::compiler::Event;
use egret_policies::diagnostic::Severity;
use egret_policies::model::Shared;
use egret_policies::model::cluster::{Entity, EntityKey};
use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use tokio::sync::mpsc;

use super::deny_all;
use crate::engine::{Input, SourceState};
use crate::state::{ManifestTexts, ObjectWriter, StoredManifests, StoredObjects, TextChanges, date_of};

mod watcher;
mod scan;
mod file;
mod parse;
mod merge;

use file::{ManifestFile, read_limited};
use parse::{CHUNK, FileBytes, ParsedFile, parse_all};
use scan::{Fingerprint, scan};
use watcher::FolderWatcher;

/// How long changed files must be stable, unless all are known to be complete: an editor writes in several steps.
const STABLE_FOR: Duration = Duration::from_millis(40);
/// How long an unreadable folder is waited for at start, before the stored objects are used.
const PATIENCE: Duration = Duration::from_secs(1);

/// The files of a scan.
type Snapshot = BTreeMap<PathBuf, Fingerprint>;

/// A watched folder.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    files: BTreeMap<PathBuf, ManifestFile>,
    published: BTreeMap<EntityKey, Arc<Entity>>,
    shared: Shared,
    state: SourceState,
    logged: Vec<(Severity, String)>,
    /// The stored objects, until they are used or the folder is read.
    stored: Option<StoredObjects>,
    writer: Option<ObjectWriter>,
    /// What the writer has; none before it has anything.
    stored_texts: Option<ManifestTexts>,
    /// Since when the folder is unreadable.
    unreadable_since: Option<Timestamp>,
}

impl Directory {
    /// The folder, before the first scan.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            files: BTreeMap::new(),
            published: BTreeMap::new(),
            shared: Shared::default(),
            state: SourceState::default(),
            logged: Vec::new(),
            stored: None,
            writer: None,
            stored_texts: None,
            unreadable_since: None,
        }
    }

    /// Uses stored objects until the folder can be read, and stores its content.
    #[must_use]
    pub fn with_store(self, stored: Option<StoredObjects>, writer: Option<ObjectWriter>) -> Self {
        Self {
            stored,
            writer,
            ..self
        }
    }

    /// Sends objects and changes to the engine, until the engine ends.
    pub async fn watch(mut self, engine: mpsc::Sender<Input>) {
        let mut watcher = FolderWatcher::open();
        loop {
            let looked = match scan(&self.root, &mut watcher) {
                Ok(found) => self.wait_until_stable(found, &mut watcher).await,
                Err(reason) => Err(reason),
            };
            match looked {
                Err(reason) => {
                    let is_news = self.is_unreadable(reason);
                    let stored = self.use_stored(clock::now());
                    let is_due = is_news || stored.is_some();
                    if is_due && self.send(&engine, stored.unwrap_or_default()).await.is_err() {
                        return;
                    }
                }
                Ok(found) if self.has_changes(&found, &watcher) => {
                    let inputs = self.reload(&found, &mut watcher);
                    if self.send(&engine, inputs).await.is_err() {
                        return;
                    }
                }
                Ok(_unchanged) => {}
            }
            watcher.wait(self.state.unreadable.is_none()).await;
        }
    }

    fn has_changes(&self, found: &Snapshot, watcher: &FolderWatcher) -> bool {
        let now = clock::now();
        let has_changed = |(path, fingerprint): (&PathBuf, &_)| {
            self.has_changed(path, fingerprint) && !watcher.is_being_written(path, now)
        };
        !self.state.is_complete
            || self.state.unreadable.is_some()
            || watcher.has_complete_files()
            || found.iter().any(has_changed)
            || self.files.keys().any(|path| !found.contains_key(path))
    }

    fn has_changed(&self, path: &Path, fingerprint: &Fingerprint) -> bool {
        self.files.get(path).and_then(ManifestFile::fingerprint) != Some(*fingerprint)
    }

    /// Scans until two scans are equal, if a changed file is not known to be complete.
    async fn wait_until_stable(
        &self,
        mut found: Snapshot,
        watcher: &mut FolderWatcher,
    ) -> Result<Snapshot, String> {
        let now = clock::now();
        let is_swapped = |path: &PathBuf, fingerprint: &Fingerprint| {
            let before = self.files.get(path).and_then(ManifestFile::fingerprint);
            self.state.is_complete && fingerprint.is_other_target(before)
        };
        let is_finished = |(path, fingerprint): (&PathBuf, &Fingerprint)| {
            !self.has_changed(path, fingerprint)
                || watcher.is_complete_file(path)
                || watcher.is_being_written(path, now)
                || is_swapped(path, fingerprint)
        };
        if found.iter().all(is_finished) {
            return Ok(found);
        }
        // A folder that never rests is read as it is: each complete file counts.
        for _ in 0..25 {
            tokio::time::sleep(STABLE_FOR).await;
            watcher.read_events();
            let again = scan(&self.root, watcher)?;
            if again == found {
                break;
            }
            found = again;
        }
        Ok(found)
    }

    fn is_unreadable(&mut self, reason: String) -> bool {
        if self.state.unreadable.as_ref() == Some(&reason) {
            return false;
        }
        let meanwhile = if self.state.is_complete {
            "what it said before stays in force"
        } else if self.stored.is_some() {
            "what the kernel holds of an earlier enforcer stays in force; where that is nothing, what the folder said last comes into force in a second"
        } else if self.state.known_at.is_some() {
            "what was known stays in force"
        } else {
            "until it was read once, what the kernel holds of an earlier enforcer stays in force; after a boot that is nothing, and pods are closed unless onUnknownPod is allow"
        };
        tracing::error!(folder = %self.root.display(), reason, meanwhile, "the source cannot be read");
        self.state.unreadable = Some(reason);
        true
    }

    /// The events that apply the stored objects, once, when the folder was unreadable for long enough.
    fn use_stored(&mut self, now: Timestamp) -> Option<Vec<Event>> {
        let since = *self.unreadable_since.get_or_insert(now);
        if now.since(since) < PATIENCE {
            return None;
        }
        let stored = self.stored.take()?.read()?;
        self.load_stored(&stored);
        let mut merged = merge::merge(&self.files);
        if stored.is_of_other_boot {
            let closing = deny_all::deny_all_policy().map(|(key, entity)| (key, Arc::new(entity)));
            merged.entities.extend(closing);
        }
        let events = merge::events(&self.published, &merged.entities);
        self.published = merged.entities;
        let at = date_of(stored.seconds);
        tracing::warn!(folder = %self.root.display(), at, objects = self.published.len(), other_boot = stored.is_of_other_boot, "what the folder said last counts until it can be read");
        self.state.known_at = Some(at);
        self.state.is_closed = stored.is_of_other_boot;
        Some(events)
    }

    fn load_stored(&mut self, stored: &StoredManifests) {
        let recalled = |(path, texts): (&PathBuf, &Vec<_>)| {
            (path.clone(), ManifestFile::stored(path, texts, &mut self.shared))
        };
        self.files = stored.texts.iter().map(recalled).collect();
    }

    /// Stores the texts of files that changed, and at first those of all.
    fn store_texts(&mut self) {
        let Some(writer) = &self.writer else {
            return;
        };
        let texts = |(path, file): (&PathBuf, &ManifestFile)| (path.clone(), file.texts().to_vec());
        let now: ManifestTexts = self.files.iter().map(texts).collect();
        let before = self.stored_texts.as_ref();
        let has_changed =
            |(path, texts): &(&PathBuf, &Vec<_>)| before.and_then(|of| of.get(*path)) != Some(*texts);
        let changed = now.iter().filter(has_changed);
        let mut changes: TextChanges = changed
            .map(|(path, texts)| (path.clone(), Some(texts.clone())))
            .collect();
        let gone = before
            .into_iter()
            .flat_map(BTreeMap::keys)
            .filter(|path| !now.contains_key(*path));
        changes.extend(gone.map(|path| (path.clone(), None)));
        if !changes.is_empty() || before.is_none() {
            writer.store(changes, true);
        }
        self.stored_texts = Some(now);
    }

    /// Reads changed files and returns the events. A file that is being written keeps its last content.
    fn reload(&mut self, found: &Snapshot, watcher: &mut FolderWatcher) -> Vec<Event> {
        if let Some(stored) = self.stored.take().and_then(|stored| stored.read()) {
            // A file that is invalid now keeps its stored content.
            self.load_stored(&stored);
        }
        self.files.retain(|path, _| found.contains_key(path));
        let is_due = |(path, fingerprint): &(&PathBuf, &Fingerprint)| {
            self.has_changed(path, fingerprint) || watcher.is_complete_file(path)
        };
        let due: Vec<(&PathBuf, &Fingerprint)> = found.iter().filter(is_due).collect();
        for together in due.chunks(CHUNK) {
            self.read(together, watcher);
        }
        watcher.clear_complete();
        let merged = merge::merge(&self.files);
        let events = merge::events(&self.published, &merged.entities);
        self.published = merged.entities;
        self.state = SourceState {
            is_complete: true,
            unreadable: None,
            outdated: None,
            known_at: None,
            is_closed: false,
            files: self.files.len(),
            bad: merged.bad,
            diagnostics: merged.severities,
            ..SourceState::default()
        };
        self.log(&merged.lines);
        self.store_texts();
        events
    }

    /// Reads files, except those that are written to until they were read: these are reported when they are closed.
    /// inotify is asked after each read, so no write is missed.
    fn read(&mut self, due: &[(&PathBuf, &Fingerprint)], watcher: &mut FolderWatcher) {
        let mut whole = Vec::with_capacity(due.len());
        for (path, fingerprint) in due {
            let octets = read_limited(path);
            watcher.read_events();
            if !watcher.is_being_written(path, clock::now()) {
                whole.push(FileBytes {
                    path: (*path).clone(),
                    fingerprint: **fingerprint,
                    octets,
                });
            }
        }
        for ParsedFile {
            path,
            fingerprint,
            content,
        } in parse_all(whole)
        {
            let file = self.files.entry(path.clone()).or_default();
            file.update(&path, content, fingerprint, &mut self.shared);
            if self.writer.is_none() {
                file.forget_texts();
            }
        }
    }

    /// Logs each diagnostic once.
    fn log(&mut self, lines: &[(Severity, String)]) {
        for (severity, line) in lines.iter().filter(|line| !self.logged.contains(line)) {
            match severity {
                Severity::Error => tracing::error!("{line}"),
                Severity::Warning => tracing::warn!("{line}"),
                Severity::Info => tracing::info!("{line}"),
            }
        }
        self.logged = lines.to_vec();
    }

    async fn send(
        &self,
        engine: &mpsc::Sender<Input>,
        events: Vec<Event>,
    ) -> Result<(), mpsc::error::SendError<Input>> {
        if !events.is_empty() {
            tracing::info!(folder = %self.root.display(), events = events.len(), files = self.state.files, "the source changed");
            engine.send(Input::Cluster(events)).await?;
        }
        engine.send(Input::Source(self.state.clone())).await
    }
}

/// Whether a file holds manifests, by its extension.
fn is_manifest(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| ["yaml", "yml", "json"].contains(&extension))
}
