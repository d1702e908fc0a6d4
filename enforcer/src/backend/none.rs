//! No kernel: everything is computed and nothing is enforced.

use std::sync::Arc;

use egret_policies::rules::Batch;
use egret_shared::time::Timestamp;

use super::{Backend, BackendError, SyncStatus, VerdictCount, VerdictCounters};

/// The backend that does nothing.
#[derive(Debug)]
pub struct Unenforced;

impl Backend for Unenforced {
    fn name(&self) -> &'static str {
        "none"
    }

    fn adopt(&mut self, _now: Timestamp) -> Result<(), BackendError> {
        Ok(())
    }

    fn apply(&mut self, _batch: &Batch, _now: Timestamp) -> SyncStatus {
        SyncStatus::default()
    }

    fn links_changed(&mut self, _now: Timestamp) -> SyncStatus {
        SyncStatus::default()
    }

    fn reconcile(&mut self, _now: Timestamp) -> SyncStatus {
        SyncStatus::default()
    }

    fn counters(&self) -> Arc<dyn VerdictCounters> {
        Arc::new(NoVerdicts)
    }

    fn dump(&self) -> String {
        "nothing is in a kernel\n".to_owned()
    }

    fn remove_everything(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

/// Counters that are always empty.
#[derive(Debug)]
pub struct NoVerdicts;

impl VerdictCounters for NoVerdicts {
    fn read(&self) -> Result<Vec<VerdictCount>, BackendError> {
        Ok(Vec::new())
    }

    fn by_series(&self, _most: usize) -> Result<Vec<VerdictCount>, BackendError> {
        Ok(Vec::new())
    }
}
