//! Messages for the enforcer: new observations in a bounded queue, and behind them a resync of the records. When the
//! queue overflows, it is dropped and all records are sent again: an overflow costs work, never a record.
//!
//! An observation that a held response waits for is sent at once, with all before it. Others are sent at once unless
//! something was sent within `BATCH_INTERVAL`: then they are batched, since each message wakes both daemons.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use egret_shared::link::ToEnforcer;
use egret_shared::observation::Observation;
use egret_shared::revision::Sequence;
use egret_shared::time::Timestamp;

use crate::enforcement::client::ClientId;
use crate::enforcement::records::{NameId, Records};

/// The capacity of the queue.
const MAX_QUEUED: usize = 8192;
/// How long an observation that no response waits for is batched after a message.
const BATCH_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(super) struct SendQueue {
    queue: VecDeque<(Sequence, Observation)>,
    /// When the queue was last sent from, on this connection.
    sent: Option<Timestamp>,
    /// Whether the queue is due now.
    flushes: bool,
    resync: Resync,
    overflowed: bool,
}

/// The progress of a resync.
#[derive(Debug, Default)]
enum Resync {
    /// None is under way.
    #[default]
    Done,
    /// It starts when the interests are complete, or at this time.
    Due(Option<Timestamp>),
    /// It starts with the next message.
    Ready(VecDeque<(IpAddr, NameId)>),
    /// These are still to be sent.
    Sending(VecDeque<(IpAddr, NameId)>),
}

impl SendQueue {
    pub(super) fn push(&mut self, sequence: Sequence, observation: Observation) {
        if self.queue.len() < MAX_QUEUED {
            self.queue.push_back((sequence, observation));
        } else {
            self.overflowed = true;
        }
    }

    pub(super) const fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Makes all that is queued due now.
    pub(super) fn flush(&mut self) {
        self.flushes = !self.queue.is_empty();
    }

    /// When the next message is due; a time in the past means now.
    pub(super) fn due(&self) -> Option<Timestamp> {
        const NOW: Timestamp = Timestamp::from_millis(0);
        let is_resyncing = matches!(self.resync, Resync::Ready(_) | Resync::Sending(_));
        if self.overflowed || self.flushes || is_resyncing {
            return Some(NOW);
        }
        let batched_until = |sent: Timestamp| sent.after(BATCH_INTERVAL);
        (!self.queue.is_empty()).then(|| self.sent.map_or(NOW, batched_until))
    }

    /// Whether the queue is empty and no resync is due.
    pub(super) fn is_idle(&self) -> bool {
        !self.overflowed && self.queue.is_empty() && matches!(self.resync, Resync::Done)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn begin_resync(&mut self) {
        self.resync = Resync::Due(None);
    }

    pub(super) fn wait_for_interest(&mut self, until: Timestamp) {
        self.resync = Resync::Due(Some(until));
    }

    pub(super) const fn interest_deadline(&self) -> Option<Timestamp> {
        match self.resync {
            Resync::Due(deadline) => deadline,
            Resync::Done | Resync::Ready(_) | Resync::Sending(_) => None,
        }
    }

    /// Starts the resync that is due.
    pub(super) fn stop_waiting(&mut self, records: &Records) {
        if matches!(self.resync, Resync::Due(_)) {
            let keys = records.keys();
            self.resync = Resync::Ready(keys.into());
        }
    }

    /// The next message. The queue is sent first: its sequences are lower than those of the resync, and sequences must
    /// arrive in order.
    pub(super) fn next(
        &mut self,
        records: &mut Records,
        now: Timestamp,
        identify: impl FnMut(IpAddr) -> ClientId,
    ) -> Option<ToEnforcer> {
        if let Some((sequence, observation)) = self.queue.pop_front() {
            self.sent = Some(now);
            self.flush();
            return Some(ToEnforcer::Observed {
                sequence,
                observation,
            });
        }
        match std::mem::take(&mut self.resync) {
            Resync::Ready(keys) => {
                self.resync = Resync::Sending(keys);
                Some(ToEnforcer::ResyncStarted)
            }
            Resync::Sending(keys) => Some(self.send_next(keys, records, now, identify)),
            idle @ (Resync::Done | Resync::Due(_)) => {
                self.resync = idle;
                None
            }
        }
    }

    fn send_next(
        &mut self,
        mut keys: VecDeque<(IpAddr, NameId)>,
        records: &mut Records,
        now: Timestamp,
        mut identify: impl FnMut(IpAddr) -> ClientId,
    ) -> ToEnforcer {
        while let Some((client, name)) = keys.pop_front() {
            if let Some((sequence, observation)) = records.renumber(identify(client), name, now) {
                self.resync = Resync::Sending(keys);
                return ToEnforcer::Observed {
                    sequence,
                    observation,
                };
            }
        }
        ToEnforcer::ResyncEnded {
            through: records.latest(),
        }
    }
}
