//! One upstream: the transport of a query, and the fallbacks when the response is not as expected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use egret_shared::rt::{clock, task};
use tokio::time::Instant;

use super::Limits;
use super::dial::Dial;
use super::failure::Failure;
use super::health::Health;
use super::pool_limits::PoolLimits;
use super::stream::Connections;
use super::udp::UdpSockets;
use super::udp_socket::Datagram;
use crate::config::model::Protocol;
use crate::dns::answer::Answer;
use crate::dns::message::{Message, Query, kind, rcode};
use crate::net;
use crate::upstream::counters::UpstreamMetrics;
use crate::upstream::health_check::Check;
use crate::upstream::metrics::{Metrics, Retry};
use crate::upstream::pending_query::{Case, PendingQuery, Transport, ValidatedResponse};

/// A response within so many times the recent latency is not slow.
const USUAL: u32 = 4;
/// A response within this time is never slow.
const SOON: Duration = Duration::from_millis(50);
/// The longest wait for a response after an ICMP error.
const LONGEST_GRACE: Duration = Duration::from_millis(500);

/// A query for an upstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpstreamRequest<'a> {
    pub(super) query: &'a Query<'a>,
    /// The client's transport.
    pub(super) client: net::Transport,
    pub(super) limits: &'a Limits,
}

/// The options of an upstream.
#[derive(Clone, Debug)]
pub(super) struct UpstreamOptions {
    pub(super) protocol: Protocol,
    pub(super) force_tcp: bool,
    pub(super) prefer_udp: bool,
    pub(super) pool: PoolLimits,
    pub(super) read_timeout: Duration,
    /// 0: no health checks.
    pub(super) max_fails: u32,
    pub(super) check: Check,
}

/// An upstream server.
#[derive(Debug)]
pub(super) struct Upstream {
    options: UpstreamOptions,
    sockets: UdpSockets,
    connections: Connections,
    pub(super) health: Health,
    upstream_metrics: UpstreamMetrics,
    metrics: Arc<Metrics>,
    is_swept: AtomicBool,
}

impl Upstream {
    pub(super) fn new(dial: Dial, options: UpstreamOptions, metrics: Arc<Metrics>) -> Self {
        Self {
            sockets: UdpSockets::new(dial.to, dial.source, options.pool),
            upstream_metrics: UpstreamMetrics::register(dial.to),
            connections: Connections::new(dial, &options.pool, options.read_timeout),
            options,
            health: Health::default(),
            metrics,
            is_swept: AtomicBool::new(false),
        }
    }

    /// Sends a query and waits without a deadline; records latency, health and metrics.
    pub(super) async fn ask(
        self: &Arc<Self>,
        request: UpstreamRequest<'_>,
        begun: Instant,
    ) -> Result<ValidatedResponse<Answer>, Failure> {
        self.upstream_metrics.asked();
        let result = self.answer(request).await;
        match &result {
            Ok(answer) => {
                let span = begun.elapsed();
                self.health.record_response(span);
                self.upstream_metrics.answered(answer.get().rcode(), span);
                self.metrics.seconds.record(span.as_secs_f64());
            }
            Err(failure) => self.failed(*failure),
        }
        self.keep_swept();
        result
    }

    /// Records a failed attempt: the upstream is queried last for a while, and checked.
    pub(super) fn failed(self: &Arc<Self>, failure: Failure) {
        self.metrics.error(failure);
        match failure {
            // It is not the upstream's fault.
            Failure::Local | Failure::OverLimit | Failure::AllDead => {}
            Failure::Timeout | Failure::Unreachable | Failure::Nonsense | Failure::Unproven => {
                self.health.avoid(clock::now());
                self.check_until_it_lives();
            }
        }
    }

    /// Whether it counts as down.
    pub(super) fn is_down(&self) -> bool {
        self.health.is_down(self.options.max_fails)
    }

    /// How long a response usually takes at most: after that, a datagram may be lost, or a connection dead. `None` where the
    /// latency is unknown or near the timeout.
    pub(super) fn usual(&self, patience: Duration) -> Option<Duration> {
        let usual = (self.health.latency()? * USUAL).max(SOON);
        (usual < patience / 2).then_some(usual)
    }

    /// How long a response is waited for after an ICMP error: a live upstream has answered by then.
    fn grace(&self) -> Duration {
        let usual = self.health.latency().map(|latency| latency * USUAL);
        usual.unwrap_or(SOON).clamp(SOON, LONGEST_GRACE)
    }

    fn transport(&self, client: net::Transport) -> Transport {
        let is_by_connection = match self.options.protocol {
            Protocol::Tcp | Protocol::Tls => true,
            Protocol::Dns if self.options.force_tcp => true,
            Protocol::Dns if self.options.prefer_udp => false,
            Protocol::Dns => client.is_stream(),
        };
        if is_by_connection {
            Transport::Tcp
        } else {
            Transport::Udp
        }
    }

    /// Without an OPT if the upstream is known to lack EDNS, or says so now (RFC 6891 §7).
    async fn answer(&self, request: UpstreamRequest<'_>) -> Result<ValidatedResponse<Answer>, Failure> {
        let transport = self.transport(request.client);
        if request.query.edns.is_some() && self.health.knows_edns(clock::now()) {
            match self.send(transport, request, Opt::Sent).await? {
                Reply::Answer(answer) if !refuses_edns(&answer) => return Ok(answer),
                Reply::Answer(_) | Reply::Bare => {}
            }
            self.metrics.retry(Retry::Edns);
            let without = Box::pin(self.send(transport, request, Opt::Left))
                .await?
                .answer()?;
            if without.get().rcode() != rcode::FORMERR {
                self.health.does_not_know_edns(clock::now());
            }
            return Ok(without);
        }
        self.send(transport, request, Opt::Left).await?.answer()
    }

    async fn send(
        &self,
        transport: Transport,
        request: UpstreamRequest<'_>,
        opt: Opt,
    ) -> Result<Reply, Failure> {
        match transport {
            // Boxed: the rare path must not enlarge every query's future.
            Transport::Tcp => Box::pin(self.over_tcp(request, opt)).await,
            Transport::Udp if self.health.keeps_case(clock::now) => {
                match self.over_udp(request, opt, Case::Mixed).await? {
                    Datagram::Answer(answer) if is_truncated_response(&answer) => {
                        Box::pin(self.retry_truncated(answer, request, opt)).await
                    }
                    Datagram::Answer(answer) => Ok(Reply::Answer(answer)),
                    Datagram::Bare => Ok(Reply::Bare),
                    Datagram::OtherCase => Box::pin(self.retry_case(request, opt)).await,
                }
            }
            Transport::Udp => Box::pin(self.retry_case(request, opt)).await,
        }
    }

    /// Retries a truncated response over TCP; if that fails, the truncated one is returned.
    async fn retry_truncated(
        &self,
        truncated: ValidatedResponse<Answer>,
        request: UpstreamRequest<'_>,
        opt: Opt,
    ) -> Result<Reply, Failure> {
        self.metrics.retry(Retry::Truncated);
        Ok(self
            .over_tcp(request, opt)
            .await
            .unwrap_or(Reply::Answer(truncated)))
    }

    /// Retries over TCP, which cannot be forged off-path; over UDP in lower case only where it has no TCP.
    async fn retry_case(&self, request: UpstreamRequest<'_>, opt: Opt) -> Result<Reply, Failure> {
        self.metrics.retry(Retry::Case);
        if let Ok(reply) = self.over_tcp(request, opt).await {
            self.health.does_not_keep_case(clock::now());
            return Ok(reply);
        }
        self.metrics.retry(Retry::Plain);
        match self.over_udp(request, opt, Case::Plain).await? {
            Datagram::Answer(answer) => Ok(Reply::Answer(answer)),
            Datagram::Bare => Ok(Reply::Bare),
            Datagram::OtherCase => Err(Failure::Nonsense),
        }
    }

    async fn over_udp(
        &self,
        request: UpstreamRequest<'_>,
        opt: Opt,
        case: Case,
    ) -> Result<Datagram, Failure> {
        let pending_query = opt.pending_query(request, Transport::Udp, case);
        self.sockets
            .ask(
                pending_query,
                &request.limits.ttl,
                self.grace(),
                &self.upstream_metrics,
                &self.metrics,
            )
            .await
    }

    async fn over_tcp(&self, request: UpstreamRequest<'_>, opt: Opt) -> Result<Reply, Failure> {
        let pending_query = opt.pending_query(request, Transport::Tcp, Case::Mixed);
        self.connections
            .ask(
                pending_query,
                &request.limits.ttl,
                &self.upstream_metrics,
                &self.metrics,
            )
            .await
            .map(Reply::Answer)
    }

    /// Sends a health check.
    async fn is_alive(&self) -> bool {
        let check = &self.options.check;
        let limits = check.limits();
        let request = UpstreamRequest {
            query: &check.query(),
            client: net::Transport::Udp,
            limits: &limits,
        };
        let asking = async {
            match self.transport(request.client) {
                Transport::Udp => self.over_udp(request, Opt::Left, Case::Plain).await.is_ok(),
                Transport::Tcp => match self.over_tcp(request, Opt::Left).await {
                    Ok(_) | Err(Failure::Nonsense) => true,
                    Err(
                        Failure::Timeout
                        | Failure::Unreachable
                        | Failure::Local
                        | Failure::OverLimit
                        | Failure::AllDead
                        | Failure::Unproven,
                    ) => false,
                },
            }
        };
        tokio::time::timeout(check.patience(), asking)
            .await
            .unwrap_or(false)
    }

    /// Starts a task that checks it until a check succeeds or the upstream is dropped.
    fn check_until_it_lives(self: &Arc<Self>) {
        if self.options.max_fails == 0 || !self.health.begin_check() {
            return;
        }
        let (upstream, interval) = (Arc::downgrade(self), self.options.check.interval());
        drop(task::spawn_brief(async move {
            while let Some(upstream) = upstream.upgrade() {
                if upstream.is_alive().await {
                    upstream.health.check_succeeded();
                    return;
                }
                upstream.health.check_failed();
                upstream.upstream_metrics.check_failed();
                drop(upstream);
                tokio::time::sleep(interval).await;
            }
        }));
    }

    /// Keeps a task running that closes idle sockets, while there are any.
    pub(super) fn keep_swept(self: &Arc<Self>) {
        let is_swept = self.is_swept.load(Ordering::Relaxed);
        if is_swept || self.sockets.count() == 0 || self.is_swept.swap(true, Ordering::Relaxed) {
            return;
        }
        let (upstream, pause) = (Arc::downgrade(self), self.options.pool.sweep_interval());
        drop(task::spawn_brief(async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(upstream) = upstream.upgrade() else {
                    return;
                };
                if upstream.sockets.sweep(clock::now()) {
                    continue;
                }
                upstream.is_swept.store(false, Ordering::Relaxed);
                // Another thread may have opened a socket since, while the flag was still set.
                if upstream.sockets.count() == 0 || upstream.is_swept.swap(true, Ordering::Relaxed) {
                    return;
                }
            }
        }));
    }
}

/// The response of an upstream.
enum Reply {
    Answer(ValidatedResponse<Answer>),
    /// A bare header with FORMERR or NOTIMP.
    Bare,
}

impl Reply {
    fn answer(self) -> Result<ValidatedResponse<Answer>, Failure> {
        match self {
            Self::Answer(answer) => Ok(answer),
            Self::Bare => Err(Failure::Nonsense),
        }
    }
}

/// Whether the client's OPT is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opt {
    Sent,
    Left,
}

impl Opt {
    fn pending_query(self, request: UpstreamRequest<'_>, transport: Transport, case: Case) -> PendingQuery {
        match self {
            Self::Sent => PendingQuery::new(request.query, transport, case, request.limits.udp_size),
            Self::Left => PendingQuery::without_edns(request.query, transport, case),
        }
    }
}

fn is_truncated_response(answer: &ValidatedResponse<Answer>) -> bool {
    answer.get().is_truncated()
}

/// Whether a response rejects the OPT: FORMERR or NOTIMP without one, or BADVERS (its upper bits are in the OPT).
fn refuses_edns(answer: &ValidatedResponse<Answer>) -> bool {
    let opt = || opt_of(&answer.get().message());
    match answer.get().rcode() {
        rcode::FORMERR | rcode::NOTIMP => opt().is_none(),
        rcode::NOERROR => opt() == Some(1),
        _other => false,
    }
}

/// The upper bits of the response code, where there is an OPT.
fn opt_of(message: &Message<'_>) -> Option<u8> {
    let opt = message
        .records()
        .flatten()
        .find(|record| record.kind == kind::OPT)?;
    message.octets().get(opt.ttl_at).copied()
}
