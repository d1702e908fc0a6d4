//! The admin endpoints of the controller.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use egret_shared::rt::admin::AdminHandler;
use egret_shared::rt::{clock, telemetry};
use egret_shared::time::Timestamp;
use tokio::sync::watch;

use super::lease::Leadership;
use crate::engine::SourceState;

/// A loop that has not turned for so long hangs: it turns every five seconds, and waits for a request three.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// How far the controller is.
#[derive(Debug)]
pub(super) struct Progress {
    state: Mutex<(Timestamp, SourceState)>,
    leadership: watch::Receiver<Leadership>,
}

impl Progress {
    pub(super) fn new(leadership: watch::Receiver<Leadership>) -> Self {
        Self {
            state: Mutex::new((clock::now(), SourceState::default())),
            leadership,
        }
    }

    pub(super) fn turned(&self, now: Timestamp) {
        self.lock().0 = now;
    }

    pub(super) fn source(&self, state: SourceState) {
        self.lock().1 = state;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Timestamp, SourceState)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers requests of operators.
#[derive(Debug)]
pub(super) struct ControllerAdmin {
    pub(super) progress: Arc<Progress>,
    pub(super) recorder: telemetry::Metrics,
}

impl AdminHandler for ControllerAdmin {
    fn health(&self) -> Result<(), String> {
        let hangs_for = clock::now().since(self.progress.lock().0);
        if hangs_for > HANGS_AFTER {
            return Err(format!("the controller hangs for {} s", hangs_for.as_secs()));
        }
        Ok(())
    }

    /// A replica that only waits is ready. It stays so while the API server is away: another start would not help.
    fn readiness(&self) -> Result<String, String> {
        let source = self.progress.lock().1.clone();
        if !source.is_complete {
            let why = source.unreadable.unwrap_or_else(|| "it is being read".to_owned());
            return Err(format!("the source is not in sync: {why}"));
        }
        let leadership = self
            .progress
            .leadership
            .borrow()
            .clone()
            .at(clock::now())
            .to_string();
        Ok(match source.unreadable {
            None => format!("ready: {leadership}"),
            Some(why) => format!("ready: {leadership}\nthe source cannot be read: {why}"),
        })
    }

    fn metrics(&self) -> String {
        self.recorder.render()
    }

    fn page(&self, _path: &str) -> Option<String> {
        None
    }
}
