//! What is on its way to the enforcer: new observations in a bounded queue, and behind them a cursor over the
//! ledger. A queue that is full is thrown away, and everything is told again: an overflow costs work, never a record.
//!
//! What an answer waits for goes at once, and everything before it. What nobody waits for goes at once, too, unless
//! something went just before: then it waits for what comes in the same moment, since each message wakes both daemons.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use egret_shared::link::ToEnforcer;
use egret_shared::observation::Observation;
use egret_shared::revision::Sequence;
use egret_shared::switch::{self, Switch};
use egret_shared::time::Timestamp;

use crate::enforcement::client::Asker;
use crate::enforcement::records::{Id, Ledger};

/// Observations that may wait for the enforcer to read.
const MAX_QUEUED: usize = 8192;
/// How long what nobody waits for is kept back after something went.
const TOGETHER: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    queue: VecDeque<(Sequence, Observation)>,
    /// When something of the queue went last, on this connection.
    sent: Option<Timestamp>,
    /// Whether the queue is not to wait.
    hurries: bool,
    resync: Resync,
    overflowed: bool,
}

/// How far a resync is.
#[derive(Debug, Default)]
enum Resync {
    /// None is under way.
    #[default]
    Done,
    /// It is due once the interests are told, or at this moment.
    Due(Option<Timestamp>),
    /// It is about to start.
    Ready(VecDeque<(IpAddr, Id)>),
    /// These are still to be told.
    Telling(VecDeque<(IpAddr, Id)>),
}

impl Outgoing {
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

    /// Has all that is queued go at once.
    pub(super) fn hurry(&mut self) {
        self.hurries = !self.queue.is_empty();
    }

    /// When the next message is to go, if there is one: a moment that has passed means now.
    pub(super) fn due(&self) -> Option<Timestamp> {
        const NOW: Timestamp = Timestamp::from_millis(0);
        let is_telling = matches!(self.resync, Resync::Ready(_) | Resync::Telling(_));
        if self.overflowed || self.hurries || is_telling {
            return Some(NOW);
        }
        let kept_until = |sent: Timestamp| sent.after(TOGETHER);
        (!self.queue.is_empty()).then(|| self.sent.map_or(NOW, kept_until))
    }

    /// Whether nothing is on its way, and nothing is due.
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
            Resync::Done | Resync::Ready(_) | Resync::Telling(_) => None,
        }
    }

    /// Starts the resync that is due.
    pub(super) fn stop_waiting(&mut self, ledger: &Ledger) {
        if matches!(self.resync, Resync::Due(_)) {
            let keys = if switch::is_off(Switch::Resync) {
                Vec::new()
            } else {
                ledger.keys()
            };
            self.resync = Resync::Ready(keys.into());
        }
    }

    /// The next message. The queue goes first: its numbers were given before those of the resync, and numbers
    /// must arrive in order.
    pub(super) fn next(
        &mut self,
        ledger: &mut Ledger,
        now: Timestamp,
        who_has: impl FnMut(IpAddr) -> Asker,
    ) -> Option<ToEnforcer> {
        if let Some((sequence, observation)) = self.queue.pop_front() {
            self.sent = Some(now);
            self.hurry();
            return Some(ToEnforcer::Observed {
                sequence,
                observation,
            });
        }
        match std::mem::take(&mut self.resync) {
            Resync::Ready(keys) => {
                self.resync = Resync::Telling(keys);
                Some(ToEnforcer::ResyncStarted)
            }
            Resync::Telling(keys) => Some(self.tell_next(keys, ledger, now, who_has)),
            idle @ (Resync::Done | Resync::Due(_)) => {
                self.resync = idle;
                None
            }
        }
    }

    fn tell_next(
        &mut self,
        mut keys: VecDeque<(IpAddr, Id)>,
        ledger: &mut Ledger,
        now: Timestamp,
        mut who_has: impl FnMut(IpAddr) -> Asker,
    ) -> ToEnforcer {
        while let Some((client, name)) = keys.pop_front() {
            if let Some((sequence, observation)) = ledger.retell(who_has(client), name, now) {
                self.resync = Resync::Telling(keys);
                return ToEnforcer::Observed {
                    sequence,
                    observation,
                };
            }
        }
        ToEnforcer::ResyncEnded {
            through: ledger.latest(),
        }
    }
}
