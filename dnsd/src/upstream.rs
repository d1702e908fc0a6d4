//! Asking upstreams (`forward`): in the order of the policy, with failover, within the client's patience; equal

//! questions are asked once.
//!
//! ```text
//!  Forwarder: which upstream ──▶ Upstream: how ──┬──▶ udp: a socket per query, or shared sockets
//!                                                └──▶ stream: shared connections, with or without TLS
//! ```

pub mod pending_query;
mod build;
mod failure;
mod failover;
mod selection;
mod timers;
mod server;
mod health;
mod health_check;
mod pool_limits;
mod udp;
mod udp_socket;
mod socket_limit;
mod stream;
mod connection;
mod dial;
mod tls;
mod io_error;
mod resolv;
mod resolver_names;
mod counters;
mod metrics;
mod singleflight;
pub mod client_chosen;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::config::model::{self, Zone};
use crate::dns::answer::{Answer, TtlLimits};
use crate::dns::message::{Query, WireName, rcode};
use crate::limits::permits::{FairSemaphore, PermitLimits, RevokeSender};
use crate::limits::quota_key::QuotaKey;
use crate::net::Transport;
use crate::upstream::pending_query::ValidatedResponse;
use counters::ForwardMetrics;
use failover::{Attempt, Failover, HedgeBudget, NextAttempt, Selection};
use selection::UpstreamOrder;
use server::UpstreamRequest;
use timers::wait_until;

pub use self::metrics::Metrics;
use self::metrics::Retry;
pub use build::InvalidForward;
pub use failure::{Failure, extended};
pub use resolv::search_domains;
pub use resolver_names::look_up;
pub use singleflight::{CompletionCount, Singleflight};
pub use socket_limit::limit_sockets;
pub use tls::TlsError;
pub(crate) use udp::is_near;

/// The limits of one query, for all upstreams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long the client waits at most.
    pub patience: Duration,
    /// The UDP payload size of EDNS towards upstreams.
    pub udp_size: u16,
    /// The bounds of TTLs.
    pub ttl: TtlLimits,
    /// Whose permit of `max_concurrent` it takes.
    pub quota_key: QuotaKey,
}

/// Queries the upstreams of one `forward`.
#[derive(Debug)]
pub struct Forwarder {
    from: Zone,
    except: Vec<Zone>,
    next: Vec<u8>,
    next_on_nodata: bool,
    failover: Vec<u8>,
    read_timeout: Duration,
    selection: Selection,
    /// The limit of concurrent queries (`max_concurrent`); 0 is no limit.
    max_concurrent: usize,
    under_way: Arc<FairSemaphore<RevokeSender>>,
    budget: HedgeBudget,
    metrics: Arc<Metrics>,
}

impl Forwarder {
    /// Builds the upstreams of a plan; reads the files that it names.
    ///
    /// # Errors
    /// Why the plan cannot be used.
    pub fn new(plan: &model::Forward, metrics: Arc<Metrics>) -> Result<Self, InvalidForward> {
        let upstreams = build::upstreams(plan, &metrics)?;
        let selection = Selection {
            order: UpstreamOrder::new(plan.policy, upstreams.len()),
            attempts: match plan.max_connect_attempts {
                None => 2 * upstreams.len(),
                Some(0) => usize::MAX,
                Some(most) => usize::try_from(most).unwrap_or(usize::MAX),
            },
            upstreams,
            fails_fast: plan.fails_fast,
            metrics: ForwardMetrics::register(),
        };
        Ok(Self {
            from: plan.from,
            except: plan.except.clone(),
            next: plan.next.clone(),
            next_on_nodata: plan.next_on_nodata,
            failover: plan.failover.clone(),
            read_timeout: plan.read_timeout,
            selection,
            max_concurrent: plan.max_concurrent,
            under_way: Arc::default(),
            budget: HedgeBudget::new(),
            metrics,
        })
    }

    /// Whether it forwards this name: below `from`, and not below an exception. The name of `from` itself cannot be excepted,
    /// as in CoreDNS.
    #[must_use]
    pub fn holds(&self, name: &WireName) -> bool {
        let is_excepted = || self.except.iter().any(|zone| zone.holds(name));
        name == self.from.apex() || self.from.holds(name) && !is_excepted()
    }

    /// Whether the next `forward` of the name is queried after this answer (`next`, `next_on_nodata`).
    #[must_use]
    pub fn passes_on(&self, answer: &Answer) -> bool {
        let is_empty = || answer.message().octets()[6..8] == [0, 0];
        self.next.contains(&answer.rcode())
            || self.next_on_nodata && answer.rcode() == rcode::NOERROR && is_empty()
    }

    /// Queries upstreams until one answers, the time is up, or the permit is revoked for another client. After an answer with
    /// a code of `failover` the next one is queried, each once; the last such answer is returned if there is no better one.
    ///
    /// # Errors
    /// The failure of the last attempt.
    pub async fn ask(
        &self,
        query: &Query<'_>,
        client: Transport,
        limits: &Limits,
    ) -> Result<ValidatedResponse<Answer>, Failure> {
        let mut permit = match self.max_concurrent {
            0 => None,
            total => {
                // One client may use all of them.
                let permits = PermitLimits {
                    per_client: usize::MAX,
                    total,
                };
                let permit = self.under_way.acquire(limits.quota_key, permits);
                Some(permit.ok_or_else(|| self.over_limit())?)
            }
        };
        let lost = async {
            match &mut permit {
                Some(permit) => permit.revoked().await,
                None => std::future::pending().await,
            }
        };
        let request = UpstreamRequest {
            query,
            client,
            limits,
        };
        self.budget.earn();
        tokio::select! { biased; result = self.query_upstreams(request) => result, () = lost => Err(self.over_limit()), }
    }

    fn over_limit(&self) -> Failure {
        self.selection.metrics.rejected.increment(1);
        self.metrics.error(Failure::OverLimit);
        Failure::OverLimit
    }

    async fn query_upstreams(
        &self,
        request: UpstreamRequest<'_>,
    ) -> Result<ValidatedResponse<Answer>, Failure> {
        let mut now = Instant::now();
        let end = now + request.limits.patience;
        let mut attempts = Failover::new(&self.selection);
        let (mut failure, mut last_rejected, mut rejected) = (Failure::Timeout, None, 0);
        loop {
            let attempt = match attempts.next() {
                NextAttempt::Attempt(attempt) => attempt,
                NextAttempt::Exhausted => break,
                NextAttempt::AllDead => {
                    failure = Failure::AllDead;
                    break;
                }
            };
            let left = |now| end.saturating_duration_since(now);
            if !attempt.is_first {
                now = Instant::now();
            }
            if !attempt.pause.is_zero() {
                tokio::time::sleep(attempt.pause.min(left(now))).await;
                now = Instant::now();
            }
            let left = left(now);
            if left.is_zero() {
                break;
            }
            if !attempt.is_first {
                self.metrics.retry(Retry::Failed);
            }
            match self
                .attempt(attempt, request, now, left.min(self.read_timeout))
                .await
            {
                Ok(answer) if !self.failover.contains(&answer.get().rcode()) => return Ok(answer),
                Ok(answer) => {
                    last_rejected = Some(answer);
                    rejected += 1;
                    if rejected >= self.selection.upstreams.len() {
                        break;
                    }
                }
                Err(error) => {
                    attempts.failed();
                    failure = error;
                }
            }
        }
        last_rejected.ok_or(failure)
    }

    /// Queries one upstream. If it is slower than its recent latency, the backup is queried as well, once (a hedged query),
    /// and the first answer counts.
    async fn attempt(
        &self,
        attempt: Attempt<'_>,
        request: UpstreamRequest<'_>,
        begun: Instant,
        patience: Duration,
    ) -> Result<ValidatedResponse<Answer>, Failure> {
        let mut asking = pin!(attempt.upstream.ask(request, begun));
        if let Some(usual) = attempt.upstream.usual(patience) {
            if let Some(result) = wait_until(begun + usual, &mut asking).await {
                return result;
            }
            if self.budget.spend() {
                self.metrics.retry(Retry::Slow);
                // Boxed: the rare path must not enlarge every query's future.
                let backup = Box::pin(attempt.backup.ask(request, Instant::now()));
                let first = timeout_at(begun + patience, first_answer(asking, backup)).await;
                if !Arc::ptr_eq(attempt.upstream, attempt.backup) {
                    attempt.upstream.health.record_latency(begun.elapsed());
                }
                return first.unwrap_or_else(|_elapsed| Err(self.gave_up(attempt, request, patience)));
            }
        }
        let answer = timeout_at(begun + patience, asking).await;
        answer.unwrap_or_else(|_elapsed| Err(self.gave_up(attempt, request, patience)))
    }

    /// Timed out. An upstream that had hardly any time, since the client's was nearly up, is not blamed.
    fn gave_up(&self, attempt: Attempt<'_>, request: UpstreamRequest<'_>, patience: Duration) -> Failure {
        attempt.upstream.keep_swept();
        let fair = self.read_timeout.min(request.limits.patience) / 2;
        if patience >= fair {
            attempt.upstream.failed(Failure::Timeout);
        } else {
            self.metrics.error(Failure::Timeout);
        }
        Failure::Timeout
    }
}

/// The first answer; a failure counts only if the other fails as well.
async fn first_answer<T>(
    mut one: impl Future<Output = Result<T, Failure>> + Unpin,
    mut other: impl Future<Output = Result<T, Failure>> + Unpin,
) -> Result<T, Failure> {
    let (result, is_one) =
        tokio::select! { result = & mut one => (result, true), result = & mut other => (result, false), };
    match result {
        Ok(answer) => Ok(answer),
        Err(_one) if is_one => other.await,
        Err(_other) => one.await,
    }
}
