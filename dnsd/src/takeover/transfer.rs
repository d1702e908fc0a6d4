//! The transfer of state to a new process: the response gate's view of the enforcer, the observations, the cached answers.

//!
//! The new process receives it before it reads queries, while the old process still answers; what the old one learns
//! meanwhile is asked for and observed again. A part of the state is valid by itself: what arrived before the time-out
//! counts. When anything is invalid, nothing counts.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::clock;

use crate::enforcement::gate::{GateRecord, GateSnapshot};
use crate::enforcement::gated::ResponseGate;
use crate::pipeline::Resolver;
use crate::takeover::state::{InvalidState, StateRecord};
use crate::takeover::{OldProcess, StateSource, TakeoverError};
use crate::zones::{CacheExport, CacheImport, ExportStep, InvalidCacheRecord};

/// How long the transfer may take. The old process answers meanwhile, but the rollout waits.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Octets of answers in one message.
const BATCH_OCTETS: usize = 32 << 10;

/// The state of a dnsd that serves.
#[derive(Debug)]
pub struct ProcessState {
    /// Has the caches.
    pub resolver: Arc<Resolver>,
    /// The response gate.
    pub gate: Arc<ResponseGate>,
}

/// What was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferSummary {
    /// Whether the old process was connected to an enforcer.
    pub is_connected: bool,
    /// Cached answers.
    pub answers: usize,
    /// Observations.
    pub observations: usize,
    /// Whether the state arrived as a whole.
    pub is_whole: bool,
}

impl StateSource for ProcessState {
    fn export(&self, emit: &mut dyn FnMut(&[StateRecord]) -> io::Result<()>) -> io::Result<()> {
        self.gate.export(|record| emit(&[StateRecord::Gate(record)]))?;
        let serving = self.resolver.serving();
        let mut caches = CacheExport::new(&serving);
        while let Some(step) = caches.next(clock::now()) {
            match step {
                ExportStep::Block(block) => emit(&[StateRecord::Block(block)])?,
                ExportStep::Answers(answers) => {
                    let mut batch = Vec::new();
                    let mut octets = 0;
                    for answer in answers {
                        octets += answer.octets.len();
                        batch.push(StateRecord::Answer(answer));
                        if octets > BATCH_OCTETS {
                            emit(&batch)?;
                            batch.clear();
                            octets = 0;
                        }
                    }
                    emit(&batch)?;
                }
            }
        }
        emit(&[StateRecord::End])
    }
}

/// Receives the old process's state and begins with it.
///
/// # Errors
/// When the state is invalid; then none of it was taken.
pub fn inherit(
    old_process: &OldProcess,
    resolver: &Resolver,
    gate: &ResponseGate,
) -> Result<TransferSummary, TakeoverError> {
    let serving = resolver.serving();
    let mut caches = CacheImport::new(&serving);
    let (mut summary, mut snapshot, mut interests) =
        (TransferSummary::default(), GateSnapshot::default(), Vec::new());
    let now = clock::now;
    let mut take_gate = |record| {
        match record {
            GateRecord::Enforcer { since, is_connected } if since <= now() => {
                snapshot.since = Some(since);
                summary.is_connected = is_connected;
            }
            GateRecord::Enforcer { .. } => return Err(InvalidCacheRecord("a time in the future")),
            GateRecord::Interest(interest) => interests.push(interest),
            GateRecord::InterestComplete => snapshot.interests = Some(std::mem::take(&mut interests)),
            GateRecord::Observation(observation) => snapshot.records.push(observation),
        }
        Ok(())
    };
    let received = old_process.state(TIMEOUT, |record| {
        match record {
            StateRecord::Gate(record) => take_gate(record)?,
            StateRecord::Block(block) => caches.block(&block),
            StateRecord::Answer(answer) => caches.answer(&answer, now())?,
            StateRecord::End => {}
        }
        Ok::<_, InvalidState>(())
    });
    match received {
        Ok(is_whole) => {
            summary.is_whole = is_whole;
            summary.observations = snapshot.records.len();
            summary.answers = serving.cache_figures().0;
            gate.restore(snapshot);
            Ok(summary)
        }
        Err(error) => {
            caches.discard();
            Err(error)
        }
    }
}
