//! A folder of manifests, watched: for a laptop, a demo, a host without Kubernetes.
//!
//! The kernel tells when something happens there; then the whole folder is looked at, by names, sizes and times. So it
//! is from time to time when the kernel tells nothing: that also sees what mounts, links that lead elsewhere and other
//! machines do. A file that nobody is known to have finished has to be still for a moment before it counts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use egret_policies::compiler::Event;
use egret_policies::diagnostic::Severity;
use egret_policies::model::Shared;
use egret_policies::model::cluster::{Entity, EntityKey};
use egret_shared::rt::clock;
use egret_shared::switch::{Switch, is_off};
use egret_shared::time::Timestamp;
use tokio::sync::mpsc;

use crate::engine::{Input, SourceState};
use crate::state::{Known, ObjectKeeper, Texts, date_of};

mod news;
mod scan;
mod file;
mod reading;
mod merge;
pub(super) mod closed;

use file::{File, octets_of};
use news::News;
use reading::{Octets, TOGETHER, Understood, understand};
use scan::{Fingerprint, scan};

/// How long it must have been still, unless all that changed is known to be whole: an editor writes in several steps.
const STILL: Duration = Duration::from_millis(40);
/// How long at start a folder that cannot be read is waited for, before what it said in an earlier life counts.
const PATIENCE: Duration = Duration::from_secs(1);

/// The files that there are, and how they look from outside.
type Found = BTreeMap<PathBuf, Fingerprint>;

/// A watched folder.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    files: BTreeMap<PathBuf, File>,
    told: BTreeMap<EntityKey, Arc<Entity>>,
    shared: Shared,
    state: SourceState,
    reported: Vec<(Severity, String)>,
    /// What it said in an earlier life, until it counts or the folder speaks.
    known: Option<Known>,
    keeper: Option<ObjectKeeper>,
    kept: Texts,
    /// When it was first found that the folder cannot be read.
    silent_since: Option<Timestamp>,
}

impl Directory {
    /// The folder, not looked at yet.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            files: BTreeMap::new(),
            told: BTreeMap::new(),
            shared: Shared::default(),
            state: SourceState::default(),
            reported: Vec::new(),
            known: None,
            keeper: None,
            kept: Texts::new(),
            silent_since: None,
        }
    }

    /// What the folder said in an earlier life counts until it can be read, and what it says is kept for a later one.
    #[must_use]
    pub fn keeping(self, known: Option<Known>, keeper: Option<ObjectKeeper>) -> Self {
        Self {
            known,
            keeper,
            ..self
        }
    }

    /// Tells the engine what is there and what changes, until the engine ends.
    pub async fn watch(mut self, engine: mpsc::Sender<Input>) {
        let mut news = News::open();
        loop {
            let looked = match scan(&self.root, &mut news) {
                Ok(found) => self.settled(found, &mut news).await,
                Err(reason) => Err(reason),
            };
            match looked {
                Err(reason) => {
                    let is_news = self.is_unreadable(reason);
                    let known = self.fall_back(clock::now());
                    let is_due = is_news || known.is_some();
                    if is_due && self.send(&engine, known.unwrap_or_default()).await.is_err() {
                        return;
                    }
                }
                Ok(found) if self.is_due(&found, &news) => {
                    let inputs = self.take(&found, &mut news);
                    if self.send(&engine, inputs).await.is_err() {
                        return;
                    }
                }
                Ok(_unchanged) => {}
            }
            news.wait(self.state.unreadable.is_none()).await;
        }
    }

    fn is_due(&self, found: &Found, news: &News) -> bool {
        let now = clock::now();
        let is_other = |(path, fingerprint): (&PathBuf, &_)| {
            self.is_other(path, fingerprint) && !news.is_half(path, now)
        };
        !self.state.is_complete
            || self.state.unreadable.is_some()
            || news.names_any()
            || found.iter().any(is_other)
            || self.files.keys().any(|path| !found.contains_key(path))
    }

    fn is_other(&self, path: &Path, fingerprint: &Fingerprint) -> bool {
        self.files.get(path).and_then(File::fingerprint) != Some(*fingerprint)
    }

    /// Looks again until two looks see the same, if something changed of which it is not known that it is whole.
    async fn settled(&self, mut found: Found, news: &mut News) -> Result<Found, String> {
        let now = clock::now();
        let is_swapped = |path: &PathBuf, fingerprint: &Fingerprint| {
            let before = self.files.get(path).and_then(File::fingerprint);
            self.state.is_complete && fingerprint.is_other_target(before)
        };
        let is_finished = |(path, fingerprint): (&PathBuf, &Fingerprint)| {
            !self.is_other(path, fingerprint)
                || news.is_whole(path)
                || news.is_half(path, now)
                || is_swapped(path, fingerprint)
        };
        if found.iter().all(is_finished) {
            return Ok(found);
        }
        // A folder that never rests is taken as it is: each file that is whole counts.
        for _ in 0..25 {
            tokio::time::sleep(STILL).await;
            news.hear();
            let again = scan(&self.root, news)?;
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
        } else if self.known.is_some() {
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

    /// The events by which what was known comes to count, once, when the folder was waited for.
    fn fall_back(&mut self, now: Timestamp) -> Option<Vec<Event>> {
        let since = *self.silent_since.get_or_insert(now);
        if now.since(since) < PATIENCE || is_off(Switch::KeepObjects) {
            return None;
        }
        let known = self.known.take()?;
        self.recall(&known);
        let mut merged = merge::merge(&self.files);
        if known.is_of_other_boot {
            let closing = closed::to_all().map(|(key, entity)| (key, Arc::new(entity)));
            merged.entities.extend(closing);
        }
        let events = merge::events(&self.told, &merged.entities);
        self.told = merged.entities;
        let at = date_of(known.seconds);
        tracing::warn!(folder = %self.root.display(), at, objects = self.told.len(), other_boot = known.is_of_other_boot, "what the folder said last counts until it can be read");
        self.state.known_at = Some(at);
        self.state.is_closed = known.is_of_other_boot;
        Some(events)
    }

    fn recall(&mut self, known: &Known) {
        let recalled =
            |(path, texts): (&PathBuf, &Vec<_>)| (path.clone(), File::known(path, texts, &mut self.shared));
        self.files = known.texts.iter().map(recalled).collect();
    }

    /// Hands over what the files say, where that is not what was handed over.
    fn keep(&mut self) {
        let Some(keeper) = &self.keeper else {
            return;
        };
        let texts = |(path, file): (&PathBuf, &File)| (path.clone(), file.texts().to_vec());
        let kept: Texts = self.files.iter().map(texts).collect();
        if kept != self.kept {
            keeper.keep(kept.clone());
            self.kept = kept;
        }
    }

    /// Reads what changed; returns the events that follow. What is being written is as it was before.
    fn take(&mut self, found: &Found, news: &mut News) -> Vec<Event> {
        if let Some(known) = self.known.take() {
            // A file that cannot be taken now goes on saying what it said.
            self.recall(&known);
        }
        self.files.retain(|path, _| found.contains_key(path));
        let is_due = |(path, fingerprint): &(&PathBuf, &Fingerprint)| {
            self.is_other(path, fingerprint) || news.is_whole(path)
        };
        let due: Vec<(&PathBuf, &Fingerprint)> = found.iter().filter(is_due).collect();
        for together in due.chunks(TOGETHER) {
            self.read(together, news);
        }
        news.was_taken();
        let merged = merge::merge(&self.files);
        let events = merge::events(&self.told, &merged.entities);
        self.told = merged.entities;
        self.state = SourceState {
            is_complete: true,
            unreadable: None,
            known_at: None,
            is_closed: false,
            files: self.files.len(),
            bad: merged.bad,
            diagnostics: merged.severities,
        };
        self.log(&merged.lines);
        self.keep();
        events
    }

    /// Reads files, but those that somebody is heard to write until they were read: that is told when it is over.
    fn read(&mut self, due: &[(&PathBuf, &Fingerprint)], news: &mut News) {
        let mut whole = Vec::with_capacity(due.len());
        for (path, fingerprint) in due {
            let octets = octets_of(path);
            news.hear();
            if !news.is_half(path, clock::now()) {
                whole.push(Octets {
                    path: (*path).clone(),
                    fingerprint: **fingerprint,
                    octets,
                });
            }
        }
        for Understood {
            path,
            fingerprint,
            content,
        } in understand(whole)
        {
            let file = self.files.entry(path.clone()).or_default();
            file.take(&path, content, fingerprint, &mut self.shared);
            if self.keeper.is_none() {
                file.forget_texts();
            }
        }
    }

    /// Says each thing once, as long as it stays the same.
    fn log(&mut self, lines: &[(Severity, String)]) {
        for (severity, line) in lines.iter().filter(|line| !self.reported.contains(line)) {
            match severity {
                Severity::Error => tracing::error!("{line}"),
                Severity::Warning => tracing::warn!("{line}"),
                Severity::Info => tracing::info!("{line}"),
            }
        }
        self.reported = lines.to_vec();
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

/// Whether a file holds manifests, by its name.
fn is_manifest(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| ["yaml", "yml", "json"].contains(&extension))
}
