//! Asking upstreams (`forward`): in the order of the policy, with failover, within the client's patience; equal
//! questions are asked once.
//!
//! ```text
//!  Forwarder: which upstream ──▶ Upstream: how ──┬──▶ udp: sockets of one's own, or lanes that are shared
//!                                                └──▶ stream: connections that are shared, with TLS or without
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
mod udp;
mod udp_socket;
mod socket_limit;
mod stream;
mod connection;
mod dial;
pub(crate) mod tls;
mod io_error;
mod resolv;
mod resolver_names;
mod counters;
mod singleflight;
pub mod client_chosen;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::config::model::{self, Zone};
use crate::dns::answer::{Answer, TtlLimits};
use crate::dns::message::{Query, WireName, rcode};
use crate::enforcement::client::Payer;
use crate::limits::permits::{Loss, Places, Tally};
use crate::telemetry::metrics::{Metrics, Retry, Transport};
use crate::upstream::pending_query::Matched;
use counters::Shared;
use failover::{Budget, Choice, Course, Next, Turn};
use selection::Order;
use server::Inquiry;
use timers::wait_until;

pub use build::Unusable;
pub use failure::{Failure, extended};
pub use resolv::search_domains;
pub use resolver_names::look_up;
pub use singleflight::{Flights, Landings};
pub use socket_limit::limit_sockets;
pub use tls::TlsError;
pub(crate) use udp::is_near;

/// What holds for one question, whoever is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long the client is kept waiting.
    pub patience: Duration,
    /// The largest datagram that upstreams are told to send.
    pub udp_size: u16,
    /// Between what TTLs are brought.
    pub ttl: TtlLimits,
    /// Whose place it takes of those that there are (`max_concurrent`).
    pub payer: Payer,
}

/// Asks the upstreams of one `forward`.
#[derive(Debug)]
pub struct Forwarder {
    from: Zone,
    except: Vec<Zone>,
    next: Vec<u8>,
    next_on_nodata: bool,
    failover: Vec<u8>,
    read_timeout: Duration,
    choice: Choice,
    /// How many questions may be under way (`max_concurrent`); 0 means any number.
    max_concurrent: usize,
    under_way: Arc<Tally<Loss>>,
    budget: Budget,
    metrics: Arc<Metrics>,
}

impl Forwarder {
    /// Knows nothing of any upstream yet. Files that the plan names are read.
    ///
    /// # Errors
    /// What of the plan cannot be put in force.
    pub fn new(plan: &model::Forward, metrics: Arc<Metrics>) -> Result<Self, Unusable> {
        let upstreams = build::upstreams(plan, &metrics)?;
        let choice = Choice {
            order: Order::new(plan.policy, upstreams.len()),
            attempts: match plan.max_connect_attempts {
                None => 2 * upstreams.len(),
                Some(0) => usize::MAX,
                Some(most) => usize::try_from(most).unwrap_or(usize::MAX),
            },
            upstreams,
            fails_fast: plan.fails_fast,
            shared: Shared::register(),
        };
        Ok(Self {
            from: plan.from,
            except: plan.except.clone(),
            next: plan.next.clone(),
            next_on_nodata: plan.next_on_nodata,
            failover: plan.failover.clone(),
            read_timeout: plan.read_timeout,
            choice,
            max_concurrent: plan.max_concurrent,
            under_way: Arc::default(),
            budget: Budget::new(),
            metrics,
        })
    }

    /// Whether it is asked for this name: below `from`, and not below an exception. The name of `from` itself cannot
    /// be excepted, as in CoreDNS.
    #[must_use]
    pub fn holds(&self, name: &WireName) -> bool {
        let is_excepted = || self.except.iter().any(|zone| zone.holds(name));
        name == self.from.apex() || self.from.holds(name) && !is_excepted()
    }

    /// Whether the next `forward` that holds the name is to be asked, since this one answered so (`next`,
    /// `next_on_nodata`).
    #[must_use]
    pub fn passes_on(&self, answer: &Answer) -> bool {
        let is_empty = || answer.message().octets()[6..8] == [0, 0];
        self.next.contains(&answer.rcode())
            || self.next_on_nodata && answer.rcode() == rcode::NOERROR && is_empty()
    }

    /// Asks upstreams until one answers, the time is up, or another client is given the place. After an answer with a
    /// code of `failover` the next one is asked, each once; the last such answer is given if nobody has a better one.
    ///
    /// # Errors
    /// Why the last one gave none.
    pub async fn ask(
        &self,
        query: &Query<'_>,
        client: Transport,
        limits: &Limits,
    ) -> Result<Matched<Answer>, Failure> {
        let mut place = match self.max_concurrent {
            0 => None,
            total => {
                // One client may have all of them.
                let places = Places {
                    per_client: usize::MAX,
                    total,
                };
                let place = self.under_way.enter(limits.payer, places);
                Some(place.ok_or_else(|| self.over_limit())?)
            }
        };
        let lost = async {
            match &mut place {
                Some(place) => place.lost().await,
                None => std::future::pending().await,
            }
        };
        let inquiry = Inquiry {
            query,
            client,
            limits,
        };
        self.budget.earn();
        tokio::select! {
            biased;
            result = self.pursue(inquiry) => result,
            () = lost => Err(self.over_limit()),
        }
    }

    fn over_limit(&self) -> Failure {
        self.choice.shared.rejected.increment(1);
        self.metrics.upstream_error(Failure::OverLimit);
        Failure::OverLimit
    }

    async fn pursue(&self, inquiry: Inquiry<'_>) -> Result<Matched<Answer>, Failure> {
        let mut now = Instant::now();
        let end = now + inquiry.limits.patience;
        let mut course = Course::new(&self.choice);
        let (mut failure, mut poor, mut poor_ones) = (Failure::Timeout, None, 0);
        loop {
            let turn = match course.next() {
                Next::Ask(turn) => turn,
                Next::Nobody => break,
                Next::AllDead => {
                    failure = Failure::AllDead;
                    break;
                }
            };
            let left = |now| end.saturating_duration_since(now);
            if !turn.is_first {
                now = Instant::now();
            }
            if !turn.pause.is_zero() {
                tokio::time::sleep(turn.pause.min(left(now))).await;
                now = Instant::now();
            }
            let left = left(now);
            if left.is_zero() {
                break;
            }
            if !turn.is_first {
                self.metrics.retry(Retry::Failed);
            }
            match self
                .attempt(turn, inquiry, now, left.min(self.read_timeout))
                .await
            {
                Ok(answer) if !self.failover.contains(&answer.get().rcode()) => return Ok(answer),
                Ok(answer) => {
                    poor = Some(answer);
                    poor_ones += 1;
                    if poor_ones >= self.choice.upstreams.len() {
                        break;
                    }
                }
                Err(error) => {
                    course.failed();
                    failure = error;
                }
            }
        }
        poor.ok_or(failure)
    }

    /// Asks one upstream, from now on. If it is slower than it was of late, the backup is asked as well, once, and who answers
    /// first counts.
    async fn attempt(
        &self,
        turn: Turn<'_>,
        inquiry: Inquiry<'_>,
        begun: Instant,
        patience: Duration,
    ) -> Result<Matched<Answer>, Failure> {
        let mut asking = pin!(turn.upstream.ask(inquiry, begun));
        if let Some(usual) = turn.upstream.usual(patience) {
            if let Some(result) = wait_until(begun + usual, &mut asking).await {
                return result;
            }
            if self.budget.spend() {
                self.metrics.retry(Retry::Slow);
                // Boxed: the rare way must not make every waiting question as large as itself.
                let backup = Box::pin(turn.backup.ask(inquiry, Instant::now()));
                let first = timeout_at(begun + patience, first_answer(asking, backup)).await;
                if !Arc::ptr_eq(turn.upstream, turn.backup) {
                    turn.upstream.health.took(begun.elapsed());
                }
                return first.unwrap_or_else(|_elapsed| Err(self.gave_up(turn, inquiry, patience)));
            }
        }
        let answer = timeout_at(begun + patience, asking).await;
        answer.unwrap_or_else(|_elapsed| Err(self.gave_up(turn, inquiry, patience)))
    }

    /// Nobody answered in time. Who had hardly any of it, since the client's was nearly up, is not to blame.
    fn gave_up(&self, turn: Turn<'_>, inquiry: Inquiry<'_>, patience: Duration) -> Failure {
        turn.upstream.keep_swept();
        let fair = self.read_timeout.min(inquiry.limits.patience) / 2;
        if patience >= fair {
            turn.upstream.failed(Failure::Timeout);
        } else {
            self.metrics.upstream_error(Failure::Timeout);
        }
        Failure::Timeout
    }
}

/// Who answers first; a failure counts only if the other fails as well.
async fn first_answer<T>(
    mut one: impl Future<Output = Result<T, Failure>> + Unpin,
    mut other: impl Future<Output = Result<T, Failure>> + Unpin,
) -> Result<T, Failure> {
    let (result, is_one) = tokio::select! {
        result = &mut one => (result, true),
        result = &mut other => (result, false),
    };
    match result {
        Ok(answer) => Ok(answer),
        Err(_one) if is_one => other.await,
        Err(_other) => one.await,
    }
}
