//! Queries on connections: few, shared, kept while they are used.
//!
//! A connection carries many queries at once. Another is opened only when all are busy, or have a response outstanding for so
//! long that they may be dead.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;

use super::connection::{Connection, ConnectionError, Lifetime, RawResponse};
use super::dial::Dial;
use super::failure::Failure;
use super::pool_limits::PoolLimits;
use crate::dns::answer::{Answer, TtlLimits};
use crate::upstream::counters::UpstreamMetrics;
use crate::upstream::metrics::{Metrics, Retry};
use crate::upstream::pending_query::{PendingQuery, ValidatedResponse};

/// Queries on one connection before another is opened: some servers answer sequentially.
const BUSY: usize = 32;
/// Connections to one upstream: servers limit them per client.
const MAX_CONNECTIONS: usize = 64;
/// Queries on one connection at most: far fewer than ids.
const FULL: usize = 1_024;

/// The connections to one upstream.
#[derive(Debug)]
pub(super) struct Connections {
    dial: Arc<Dial>,
    lifetime: Lifetime,
    max_age: Duration,
    most_idle: usize,
    /// Locked for a few operations on the list.
    open: Mutex<Vec<Arc<Connection>>>,
}

impl Connections {
    pub(super) fn new(dial: Dial, pool: &PoolLimits, read_timeout: Duration) -> Self {
        Self {
            dial: Arc::new(dial),
            lifetime: Lifetime {
                idle: pool.expire,
                silent: read_timeout,
            },
            max_age: pool.max_age,
            most_idle: pool.most_idle,
            open: Mutex::default(),
        }
    }

    /// Sends a query and waits as long as a connection may be silent. If the upstream closes a reused connection, as it may at
    /// any time (RFC 7766 §6.2.4), the query is sent once more on a new one.
    pub(super) async fn ask(
        &self,
        mut pending_query: PendingQuery,
        ttl: &TtlLimits,
        upstream_metrics: &UpstreamMetrics,
        metrics: &Metrics,
    ) -> Result<ValidatedResponse<Answer>, Failure> {
        let begun = clock::now();
        let (mut connection, is_new) = self.any(begun, upstream_metrics)?;
        let mut response = connection.ask(pending_query.octets().to_vec()).await;
        if response.as_ref().err() == Some(&ConnectionError::Ended) && !is_new {
            metrics.retry(Retry::Closed);
            connection = self.made_since(begun, upstream_metrics)?;
            response = connection.ask(pending_query.octets().to_vec()).await;
        }
        self.settle(&connection);
        let RawResponse { id, octets } = response.map_err(|error| match error {
            ConnectionError::Unconnected(failure) => failure,
            ConnectionError::Ended => Failure::Unreachable,
        })?;
        pending_query.set_id(id);
        pending_query
            .validate(&octets, clock::now(), ttl)
            .map_err(|mismatch| {
                metrics.mismatch(mismatch);
                Failure::Nonsense
            })
    }

    /// The connection with the fewest queries, or a new one; and whether it is new.
    fn any(
        &self,
        now: Timestamp,
        upstream_metrics: &UpstreamMetrics,
    ) -> Result<(Arc<Connection>, bool), Failure> {
        let mut open = self.list();
        open.retain(|connection| !self.is_over(connection, now));
        let usable = open.iter().filter(|connection| connection.is_usable(now));
        let idlest = usable.min_by_key(|connection| connection.under_way()).cloned();
        match idlest {
            Some(idlest) if idlest.under_way() < BUSY || open.len() >= MAX_CONNECTIONS => {
                self.reuse(idlest, upstream_metrics).map(|reused| (reused, false))
            }
            Some(_) | None => self
                .open(&mut open, upstream_metrics)
                .map(|opened| (opened, true)),
        }
    }

    /// A connection opened after the query began: older ones may be as dead as the first one tried.
    fn made_since(
        &self,
        begun: Timestamp,
        upstream_metrics: &UpstreamMetrics,
    ) -> Result<Arc<Connection>, Failure> {
        let mut open = self.list();
        open.retain(|connection| !connection.is_over());
        let young = open.iter().find(|connection| {
            connection.made() >= begun && connection.is_usable(begun) && connection.under_way() < BUSY
        });
        match young.cloned() {
            Some(young) => self.reuse(young, upstream_metrics),
            None => self.open(&mut open, upstream_metrics),
        }
    }

    fn reuse(
        &self,
        connection: Arc<Connection>,
        upstream_metrics: &UpstreamMetrics,
    ) -> Result<Arc<Connection>, Failure> {
        if connection.under_way() >= FULL {
            return Err(Failure::Local);
        }
        upstream_metrics.reused(self.dial.connection_kind());
        Ok(connection)
    }

    fn open(
        &self,
        open: &mut Vec<Arc<Connection>>,
        upstream_metrics: &UpstreamMetrics,
    ) -> Result<Arc<Connection>, Failure> {
        if open.len() >= MAX_CONNECTIONS {
            return Err(Failure::Local);
        }
        upstream_metrics.opened(self.dial.connection_kind());
        let connection = Arc::new(Connection::open(Arc::clone(&self.dial), self.lifetime));
        open.push(Arc::clone(&connection));
        Ok(connection)
    }

    /// After a query: drops connections above the limit of idle ones. A dropped one ends with its last query.
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
