//! Asking upstreams: in order, with failover, within the client's patience; equal questions are asked once.

mod ask;
mod flights;
mod health;

use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::switch::{self, Switch};
use tokio::time::Instant;

use crate::answer::Answer;
use crate::config::{Config, Upstream};
use crate::exchange::{Case, Matched};
use crate::message::{Query, rcode};
use crate::metrics::{Metrics, Retry, UpstreamError};
use health::Health;

pub use flights::Flights;

/// How often all upstreams are gone through: a datagram may be lost.
const ROUNDS: usize = 2;

/// Asks upstreams, and remembers which of them say nothing.
#[derive(Debug)]
pub struct Forwarder {
    health: Health,
    metrics: Arc<Metrics>,
}

impl Forwarder {
    /// Knows nothing of any upstream yet.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            health: Health::default(),
            metrics,
        }
    }

    /// Asks the upstreams in turn until one answers or the time is up. An answer that says "I failed" or "I
    /// refuse" is kept, in case nobody has a better one.
    ///
    /// # Errors
    /// Why the last one gave none.
    pub async fn forward(&self, query: &Query, config: &Config) -> Result<Matched<Answer>, UpstreamError> {
        let begun = Instant::now();
        let (mut failure, mut poor) = (UpstreamError::Timeout, None);
        let order = self.health.order(&config.upstreams, clock::now());
        for (turn, upstream) in std::iter::repeat_n(&order, ROUNDS).flatten().enumerate() {
            let left = config.total_timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            if turn > 0 {
                self.metrics.retry(Retry::Failed);
            }
            match self.attempt(query, config, *upstream, left).await {
                Ok(answer) if is_good(&answer) || order.len() == 1 => return Ok(answer),
                Ok(answer) => poor = poor.or(Some(answer)),
                Err(error) => failure = error,
            }
        }
        poor.ok_or(failure)
    }

    async fn attempt(
        &self,
        query: &Query,
        config: &Config,
        upstream: Upstream,
        left: Duration,
    ) -> Result<Matched<Answer>, UpstreamError> {
        let begun = Instant::now();
        let attempt = Attempt {
            query,
            config,
            metrics: &self.metrics,
            upstream,
        };
        let result = attempt.within(left.min(config.try_timeout)).await;
        self.health.note(upstream, result.is_ok(), clock::now());
        match &result {
            Ok(_) => self
                .metrics
                .upstream_seconds
                .record(begun.elapsed().as_secs_f64()),
            Err(error) => self.metrics.upstream_error(*error),
        }
        result
    }
}

fn is_good(answer: &Matched<Answer>) -> bool {
    !matches!(
        answer.get().rcode(),
        rcode::SERVFAIL | rcode::REFUSED | rcode::NOTIMP
    )
}

/// One upstream is asked.
struct Attempt<'a> {
    query: &'a Query,
    config: &'a Config,
    metrics: &'a Metrics,
    upstream: Upstream,
}

impl Attempt<'_> {
    async fn within(&self, patience: Duration) -> Result<Matched<Answer>, UpstreamError> {
        let answer = tokio::time::timeout(patience, self.answer()).await;
        answer.unwrap_or(Err(UpstreamError::Timeout))
    }

    /// Over UDP first; over TCP if it is to be so, if the answer was cut, or if the upstream does not keep the case.
    async fn answer(&self) -> Result<Matched<Answer>, UpstreamError> {
        if self.upstream.tcp_only || self.config.force_tcp {
            return self.over_tcp().await;
        }
        match self.over_udp(Case::Mixed).await? {
            ask::Datagram::Answer(answer) if is_cut(&answer) => {
                self.metrics.retry(Retry::Truncated);
                // Without TCP, the cut answer is better than none: the client may have a way.
                Ok(self.over_tcp().await.unwrap_or(answer))
            }
            ask::Datagram::Answer(answer) => Ok(answer),
            ask::Datagram::OtherCase => self.without_case().await,
        }
    }

    async fn without_case(&self) -> Result<Matched<Answer>, UpstreamError> {
        self.metrics.retry(Retry::Case);
        if let Ok(answer) = self.over_tcp().await {
            return Ok(answer);
        }
        self.metrics.retry(Retry::Plain);
        match self.over_udp(Case::Plain).await? {
            ask::Datagram::Answer(answer) => Ok(answer),
            ask::Datagram::OtherCase => Err(UpstreamError::Timeout),
        }
    }

    async fn over_udp(&self, case: Case) -> Result<ask::Datagram, UpstreamError> {
        ask::over_udp(self.query, case, self.upstream.address, self.config, self.metrics).await
    }

    async fn over_tcp(&self) -> Result<Matched<Answer>, UpstreamError> {
        ask::over_tcp(self.query, self.upstream.address, self.config, self.metrics).await
    }
}

fn is_cut(answer: &Matched<Answer>) -> bool {
    answer.get().message().is_truncated() && !switch::is_off(Switch::RetryTruncated)
}
