//! Questions on connections: few, shared, kept while they are used.
//!
//! A connection carries many questions at once, so there are as many connections as questions keep busy, not one for
//! each. Another is opened only when all have enough to do, or owe an answer for so long that they may be dead.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;

use super::connection::{Connection, Lifetime, Lost, Told};
use super::dial::Dial;
use super::failure::Failure;
use super::udp::Keeping;
use crate::dns::answer::{Answer, TtlLimits};
use crate::upstream::counters::Meter;
use crate::upstream::metrics::{Metrics, Retry};
use crate::upstream::pending_query::{Exchange, Matched};

/// Questions on one connection before another is opened: some servers answer one after the other.
const BUSY: usize = 32;
/// Connections to one upstream: a server limits how many a client may have.
const MOST: usize = 64;
/// Questions on one connection at most: far fewer than there are ids.
const FULL: usize = 1_024;

/// The connections to one upstream.
#[derive(Debug)]
pub(super) struct Connections {
    dial: Arc<Dial>,
    lifetime: Lifetime,
    max_age: Duration,
    most_idle: usize,
    /// Held for a few operations on the list.
    open: Mutex<Vec<Arc<Connection>>>,
}

impl Connections {
    pub(super) fn new(dial: Dial, keeping: &Keeping, read_timeout: Duration) -> Self {
        Self {
            dial: Arc::new(dial),
            lifetime: Lifetime {
                idle: keeping.expire,
                silent: read_timeout,
            },
            max_age: keeping.max_age,
            most_idle: keeping.most_idle,
            open: Mutex::default(),
        }
    }

    /// Asks, and waits for as long as a connection may be silent. What was asked on a connection that the upstream
    /// closed, as it may at any time (RFC 7766 §6.2.4), is asked once more on a new one.
    pub(super) async fn ask(
        &self,
        mut exchange: Exchange,
        ttl: &TtlLimits,
        meter: &Meter,
        metrics: &Metrics,
    ) -> Result<Matched<Answer>, Failure> {
        let begun = clock::now();
        let (mut connection, is_new) = self.any(begun, meter)?;
        let mut told = connection.ask(exchange.octets().to_vec()).await;
        if told.as_ref().err() == Some(&Lost::Ended) && !is_new {
            metrics.retry(Retry::Closed);
            connection = self.made_since(begun, meter)?;
            told = connection.ask(exchange.octets().to_vec()).await;
        }
        self.settle(&connection);
        let Told { id, octets } = told.map_err(|lost| match lost {
            Lost::Unconnected(failure) => failure,
            Lost::Ended => Failure::Unreachable,
        })?;
        exchange.set_id(id);
        exchange.take(&octets, clock::now(), ttl).map_err(|mismatch| {
            metrics.mismatch(mismatch);
            Failure::Nonsense
        })
    }

    /// The one with the fewest questions, or a new one; whether it is new.
    fn any(&self, now: Timestamp, meter: &Meter) -> Result<(Arc<Connection>, bool), Failure> {
        let mut open = self.list();
        open.retain(|connection| !self.is_over(connection, now));
        let usable = open.iter().filter(|connection| connection.is_usable(now));
        let idlest = usable.min_by_key(|connection| connection.under_way()).cloned();
        match idlest {
            Some(idlest) if idlest.under_way() < BUSY || open.len() >= MOST => {
                self.reuse(idlest, meter).map(|reused| (reused, false))
            }
            Some(_) | None => self.open(&mut open, meter).map(|opened| (opened, true)),
        }
    }

    /// One that came about after the question did: what was idle then may be as dead as the first that was tried.
    fn made_since(&self, begun: Timestamp, meter: &Meter) -> Result<Arc<Connection>, Failure> {
        let mut open = self.list();
        open.retain(|connection| !connection.is_over());
        let young = open.iter().find(|connection| {
            connection.made() >= begun && connection.is_usable(begun) && connection.under_way() < BUSY
        });
        match young.cloned() {
            Some(young) => self.reuse(young, meter),
            None => self.open(&mut open, meter),
        }
    }

    fn reuse(&self, connection: Arc<Connection>, meter: &Meter) -> Result<Arc<Connection>, Failure> {
        if connection.under_way() >= FULL {
            return Err(Failure::Local);
        }
        meter.reused(self.dial.carrier());
        Ok(connection)
    }

    fn open(&self, open: &mut Vec<Arc<Connection>>, meter: &Meter) -> Result<Arc<Connection>, Failure> {
        if open.len() >= MOST {
            return Err(Failure::Local);
        }
        meter.opened(self.dial.carrier());
        let connection = Arc::new(Connection::open(Arc::clone(&self.dial), self.lifetime));
        open.push(Arc::clone(&connection));
        Ok(connection)
    }

    /// After a question: keeps no more idle ones than may be. One that is let go ends when its last question has.
    fn settle(&self, used: &Arc<Connection>) {
        if self.most_idle == 0 || used.under_way() > 0 {
            return;
        }
        let mut open = self.list();
        let idle = open
            .iter()
            .filter(|connection| connection.under_way() == 0)
            .count();
        if idle > self.most_idle {
            open.retain(|connection| !Arc::ptr_eq(connection, used));
        }
    }

    fn is_over(&self, connection: &Connection, now: Timestamp) -> bool {
        connection.is_over() || !self.max_age.is_zero() && now.since(connection.made()) >= self.max_age
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
