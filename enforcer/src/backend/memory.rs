//! A kernel in memory: tests ask it for verdicts, and it runs where no kernel may be changed.

use std::sync::{Arc, Mutex, PoisonError};

use egret_policies::rules::Batch;
use egret_policies::simulator::Simulator;
use egret_shared::time::Timestamp;

use super::none::NoVerdicts;
use super::{Backend, BackendError, SyncStatus, VerdictCounters};

/// The backend. Clones share the maps, so that a test reads them while the engine writes.
#[derive(Clone, Debug, Default)]
pub struct InMemory {
    kernel: Arc<Mutex<Simulator>>,
    broken: Option<String>,
}

impl InMemory {
    /// A copy of the maps.
    #[must_use]
    pub fn kernel(&self) -> Simulator {
        // A panic during a write leaves valid maps, though not those of a batch.
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn status(&self) -> SyncStatus {
        SyncStatus {
            broken: self.broken.clone(),
            ..SyncStatus::default()
        }
    }
}

impl Backend for InMemory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn adopt(&mut self, _now: Timestamp) -> Result<(), BackendError> {
        Ok(())
    }

    fn apply(&mut self, batch: &Batch, now: Timestamp) -> SyncStatus {
        let mut kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = kernel.apply(batch, now) {
            self.broken = Some(error.to_string());
        }
        drop(kernel);
        self.status()
    }

    fn links_changed(&mut self, _now: Timestamp) -> SyncStatus {
        self.status()
    }

    fn reconcile(&mut self, _now: Timestamp) -> SyncStatus {
        self.status()
    }

    fn counters(&self) -> Arc<dyn VerdictCounters> {
        Arc::new(NoVerdicts)
    }

    fn dump(&self) -> String {
        let kernel = self.kernel();
        let sets = kernel.sets().map(|set| {
            let members: Vec<String> = kernel
                .members(set.id)
                .map(|(member, _)| format!("{member:?}"))
                .collect();
            format!(
                "set {} {:?} {}: {}\n",
                set.id.digest(),
                set.kind,
                set.description,
                members.join(", ")
            )
        });
        let pods = kernel.pods().map(|pod| format!("{pod:#?}\n"));
        let node = kernel.node().map(|node| format!("{node:#?}\n"));
        sets.chain(pods).chain(node).collect()
    }

    fn remove_everything(&mut self) -> Result<(), BackendError> {
        *self.kernel.lock().unwrap_or_else(PoisonError::into_inner) = Simulator::new();
        Ok(())
    }
}
