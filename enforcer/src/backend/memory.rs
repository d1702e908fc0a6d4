//! A kernel made of maps: what tests ask for verdicts, and what runs where nobody may touch a kernel.

use std::sync::{Arc, Mutex, PoisonError};

use egret_policies::rules::Batch;
use egret_policies::simulator::Simulator;
use egret_shared::time::Timestamp;

use super::none::NoVerdicts;
use super::{Backend, BackendError, Standing, VerdictCounters};

/// The backend; clones share the maps, so that a test can look while the engine writes.
#[derive(Clone, Debug, Default)]
pub struct InMemory {
    kernel: Arc<Mutex<Simulator>>,
    broken: Option<String>,
}

impl InMemory {
    /// What it holds now.
    #[must_use]
    pub fn kernel(&self) -> Simulator {
        // A panic while it was written leaves maps that are whole, if not those of a batch.
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn standing(&self) -> Standing {
        Standing {
            broken: self.broken.clone(),
            ..Standing::default()
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

    fn apply(&mut self, batch: &Batch, now: Timestamp) -> Standing {
        let mut kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = kernel.apply(batch, now) {
            self.broken = Some(error.to_string());
        }
        drop(kernel);
        self.standing()
    }

    fn links_changed(&mut self, _now: Timestamp) -> Standing {
        self.standing()
    }

    fn reconcile(&mut self, _now: Timestamp) -> Standing {
        self.standing()
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
