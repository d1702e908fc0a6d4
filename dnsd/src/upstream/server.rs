//! One upstream: how it is asked, and what it means when it does not answer as expected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use egret_shared::rt::{clock, task};
use egret_shared::switch::{self, Switch};
use tokio::time::Instant;

use super::Limits;
use super::dial::Dial;
use super::failure::Failure;
use super::health::Health;
use super::stream::Connections;
use super::udp::{Datagram, Keeping, Sockets};
use crate::config::model::Protocol;
use crate::dns::answer::Answer;
use crate::dns::message::{Message, Query, kind, rcode};
use crate::telemetry::metrics::{self, Metrics, Retry};
use crate::upstream::counters::Meter;
use crate::upstream::health_check::Check;
use crate::upstream::pending_query::{Case, Exchange, Matched, Transport};

/// So many times its latency of late is still usual.
const USUAL: u32 = 4;
/// Nobody who answers so soon is slow.
const SOON: Duration = Duration::from_millis(50);
/// So long an answer is waited for at most after a hint that none will come.
const LONGEST_GRACE: Duration = Duration::from_millis(500);

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inquiry<'a> {
    pub(super) query: &'a Query<'a>,
    /// How the client came.
    pub(super) client: metrics::Transport,
    pub(super) limits: &'a Limits,
}

/// How an upstream is spoken to.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    pub(super) protocol: Protocol,
    pub(super) force_tcp: bool,
    pub(super) prefer_udp: bool,
    pub(super) keeping: Keeping,
    pub(super) read_timeout: Duration,
    /// 0 for no checks.
    pub(super) max_fails: u32,
    pub(super) check: Check,
}

/// Someone who is asked.
#[derive(Debug)]
pub(super) struct Upstream {
    manner: Manner,
    sockets: Sockets,
    connections: Connections,
    pub(super) health: Health,
    meter: Meter,
    metrics: Arc<Metrics>,
    is_swept: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Datagram,
    Connection,
}

impl Upstream {
    pub(super) fn new(dial: Dial, manner: Manner, metrics: Arc<Metrics>) -> Self {
        Self {
            sockets: Sockets::new(dial.to, dial.source, manner.keeping),
            meter: Meter::register(dial.to),
            connections: Connections::new(dial, &manner.keeping, manner.read_timeout),
            manner,
            health: Health::default(),
            metrics,
            is_swept: AtomicBool::new(false),
        }
    }

    /// Asks, from now on, and waits for ever; what happens is remembered and counted.
    pub(super) async fn ask(
        self: &Arc<Self>,
        inquiry: Inquiry<'_>,
        begun: Instant,
    ) -> Result<Matched<Answer>, Failure> {
        self.meter.asked();
        let result = self.answer(inquiry).await;
        match &result {
            Ok(answer) => {
                let span = begun.elapsed();
                self.health.answered(span);
                self.meter.answered(answer.get().rcode(), span);
                self.metrics.upstream_seconds.record(span.as_secs_f64());
            }
            Err(failure) => self.failed(*failure),
        }
        self.keep_swept();
        result
    }

    /// It gave no answer: it is asked last for a while, and checked.
    pub(super) fn failed(self: &Arc<Self>, failure: Failure) {
        self.metrics.upstream_error(failure);
        match failure {
            // It is not the upstream's fault.
            Failure::Local | Failure::OverLimit | Failure::AllDead => {}
            Failure::Timeout | Failure::Unreachable | Failure::Nonsense | Failure::Unproven => {
                self.health.shun(clock::now());
                self.check_until_it_lives();
            }
        }
    }

    /// Whether it counts as dead.
    pub(super) fn is_dead(&self) -> bool {
        self.health.is_dead(self.manner.max_fails)
    }

    /// How long it usually takes at most: after that, a datagram may be lost, or a connection dead. Nothing where
    /// that is not known, or is no less than it is waited for anyway.
    pub(super) fn usual(&self, patience: Duration) -> Option<Duration> {
        let usual = (self.health.latency()? * USUAL).max(SOON);
        (usual < patience / 2).then_some(usual)
    }

    /// How long an answer is waited for once the kernel was told by ICMP that nobody answers. Who lives has answered by then, and where
    /// nobody is, another one is asked hardly later.
    fn grace(&self) -> Duration {
        let usual = self.health.latency().map(|latency| latency * USUAL);
        usual.unwrap_or(SOON).clamp(SOON, LONGEST_GRACE)
    }

    fn way(&self, client: metrics::Transport) -> Way {
        let is_by_connection = match self.manner.protocol {
            Protocol::Tcp | Protocol::Tls => true,
            Protocol::Dns if self.manner.force_tcp => true,
            Protocol::Dns if self.manner.prefer_udp => false,
            Protocol::Dns => client.is_stream(),
        };
        if is_by_connection {
            Way::Connection
        } else {
            Way::Datagram
        }
    }

    /// Without an OPT if it is known not to understand one, or says so now (RFC 6891 §7).
    async fn answer(&self, inquiry: Inquiry<'_>) -> Result<Matched<Answer>, Failure> {
        let way = self.way(inquiry.client);
        if inquiry.query.edns.is_some() && self.health.knows_edns(clock::now()) {
            match self.by(way, inquiry, Opt::Sent).await? {
                Reply::Answer(answer) if !refuses_edns(&answer) => return Ok(answer),
                Reply::Answer(_) | Reply::Bare => {}
            }
            self.metrics.retry(Retry::Edns);
            let without = Box::pin(self.by(way, inquiry, Opt::Left)).await?.answer()?;
            if without.get().rcode() != rcode::FORMERR {
                self.health.does_not_know_edns(clock::now());
            }
            return Ok(without);
        }
        self.by(way, inquiry, Opt::Left).await?.answer()
    }

    async fn by(&self, way: Way, inquiry: Inquiry<'_>, opt: Opt) -> Result<Reply, Failure> {
        match way {
            // Boxed: the rare way must not make every waiting question as large as itself.
            Way::Connection => Box::pin(self.over_tcp(inquiry, opt)).await,
            Way::Datagram if self.health.keeps_case(clock::now) => {
                match self.over_udp(inquiry, opt, Case::Mixed).await? {
                    Datagram::Answer(answer) if is_cut(&answer) => {
                        Box::pin(self.instead_of(answer, inquiry, opt)).await
                    }
                    Datagram::Answer(answer) => Ok(Reply::Answer(answer)),
                    Datagram::Bare => Ok(Reply::Bare),
                    Datagram::OtherCase => Box::pin(self.without_case(inquiry, opt)).await,
                }
            }
            Way::Datagram => Box::pin(self.without_case(inquiry, opt)).await,
        }
    }

    /// Without TCP, the cut answer is better than none: the client may have a way.
    async fn instead_of(
        &self,
        cut: Matched<Answer>,
        inquiry: Inquiry<'_>,
        opt: Opt,
    ) -> Result<Reply, Failure> {
        self.metrics.retry(Retry::Truncated);
        Ok(self.over_tcp(inquiry, opt).await.unwrap_or(Reply::Answer(cut)))
    }

    /// Over TCP nobody else can answer; in lower case only where it has no TCP.
    async fn without_case(&self, inquiry: Inquiry<'_>, opt: Opt) -> Result<Reply, Failure> {
        self.metrics.retry(Retry::Case);
        if let Ok(reply) = self.over_tcp(inquiry, opt).await {
            self.health.does_not_keep_case(clock::now());
            return Ok(reply);
        }
        self.metrics.retry(Retry::Plain);
        match self.over_udp(inquiry, opt, Case::Plain).await? {
            Datagram::Answer(answer) => Ok(Reply::Answer(answer)),
            Datagram::Bare => Ok(Reply::Bare),
            Datagram::OtherCase => Err(Failure::Nonsense),
        }
    }

    async fn over_udp(&self, inquiry: Inquiry<'_>, opt: Opt, case: Case) -> Result<Datagram, Failure> {
        let exchange = opt.exchange(inquiry, Transport::Udp, case);
        self.sockets
            .ask(
                exchange,
                &inquiry.limits.ttl,
                self.grace(),
                &self.meter,
                &self.metrics,
            )
            .await
    }

    async fn over_tcp(&self, inquiry: Inquiry<'_>, opt: Opt) -> Result<Reply, Failure> {
        let exchange = opt.exchange(inquiry, Transport::Tcp, Case::Mixed);
        self.connections
            .ask(exchange, &inquiry.limits.ttl, &self.meter, &self.metrics)
            .await
            .map(Reply::Answer)
    }

    /// Asks what proves that it lives.
    async fn is_alive(&self) -> bool {
        let check = &self.manner.check;
        let limits = check.limits();
        let inquiry = Inquiry {
            query: &check.query(),
            client: metrics::Transport::Udp,
            limits: &limits,
        };
        let asking = async {
            match self.way(inquiry.client) {
                Way::Datagram => self.over_udp(inquiry, Opt::Left, Case::Plain).await.is_ok(),
                Way::Connection => match self.over_tcp(inquiry, Opt::Left).await {
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

    /// One task checks it, until a check succeeds or nobody asks it any longer.
    fn check_until_it_lives(self: &Arc<Self>) {
        if self.manner.max_fails == 0 || !self.health.begin_check() {
            return;
        }
        let (upstream, interval) = (Arc::downgrade(self), self.manner.check.interval());
        drop(task::spawn_brief(async move {
            while let Some(upstream) = upstream.upgrade() {
                if upstream.is_alive().await {
                    upstream.health.check_succeeded();
                    return;
                }
                upstream.health.check_failed();
                upstream.meter.check_failed();
                drop(upstream);
                tokio::time::sleep(interval).await;
            }
        }));
    }

    /// Sockets that are kept are closed in time though nobody asks any more.
    pub(super) fn keep_swept(self: &Arc<Self>) {
        let is_swept = self.is_swept.load(Ordering::Relaxed);
        if is_swept || self.sockets.count() == 0 || self.is_swept.swap(true, Ordering::Relaxed) {
            return;
        }
        let (upstream, pause) = (Arc::downgrade(self), self.manner.keeping.pause());
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
                // Another thread may have opened one since, and seen that they are swept.
                if upstream.sockets.count() == 0 || upstream.is_swept.swap(true, Ordering::Relaxed) {
                    return;
                }
            }
        }));
    }
}

/// What an upstream says.
enum Reply {
    Answer(Matched<Answer>),
    /// That it cannot read the question, without repeating it.
    Bare,
}

impl Reply {
    fn answer(self) -> Result<Matched<Answer>, Failure> {
        match self {
            Self::Answer(answer) => Ok(answer),
            Self::Bare => Err(Failure::Nonsense),
        }
    }
}

/// Whether the question has an OPT, if the client's had one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opt {
    Sent,
    Left,
}

impl Opt {
    fn exchange(self, inquiry: Inquiry<'_>, transport: Transport, case: Case) -> Exchange {
        match self {
            Self::Sent => Exchange::new(inquiry.query, transport, case, inquiry.limits.udp_size),
            Self::Left => Exchange::without_edns(inquiry.query, transport, case),
        }
    }
}

fn is_cut(answer: &Matched<Answer>) -> bool {
    answer.get().is_truncated() && !switch::is_off(Switch::RetryTruncated)
}

/// It cannot read an OPT, or not the version that everybody writes (BADVERS: the upper bits of the code are in the OPT).
fn refuses_edns(answer: &Matched<Answer>) -> bool {
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

impl Keeping {
    /// How often it is looked for sockets that nobody used for long.
    fn pause(&self) -> Duration {
        self.expire
            .clamp(Duration::from_millis(50), Duration::from_secs(1))
    }
}
