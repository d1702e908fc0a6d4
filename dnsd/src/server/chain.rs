//! What a block does for a question that it has no answer to: the part of the chain behind the cache.

use std::sync::Arc;

use egret_shared::rt::clock;

use crate::answer::{Answer, TtlLimits};
use crate::cache::{Maker, Verdict};
use crate::config::Config;
use crate::exchange::Matched;
use crate::forward::{Failure, Forwarder, Limits, Unusable};
use crate::message::{Message, Query, explained_reply, rcode};
use crate::metrics::Metrics;
use crate::observe::observe;
use crate::plan;

use super::{By, Known, Terms};

/// Extended DNS Errors (RFC 8914 §4) of what no upstream is to blame for.
mod extended {
    /// The server is no authority for the name, and has nobody to ask.
    pub(super) const NOT_AUTHORITATIVE: u16 = 20;
    /// The operator does not want the question to be asked.
    pub(super) const PROHIBITED: u16 = 18;
}

/// The chain of a block.
#[derive(Debug)]
pub(super) struct Chain {
    cache: Option<plan::CacheRules>,
    bufsize: Option<u16>,
    forward: Vec<Forwarder>,
    metrics: Arc<Metrics>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Upstreams gave none.
    Upstream(Failure),
    /// Nothing in the chain answers for this name.
    NoAnswer,
    /// Only somebody outside could be asked, for a name of the cluster.
    Kept,
    /// No block answers for this name here.
    NoBlock,
    /// More queries wait than may.
    Crowded,
}

impl Failed {
    /// The code that the client gets.
    #[must_use]
    pub const fn rcode(self) -> u8 {
        match self {
            Self::Upstream(failure) => failure.rcode(),
            Self::NoAnswer | Self::Crowded => rcode::SERVFAIL,
            Self::Kept | Self::NoBlock => rcode::REFUSED,
        }
    }

    /// The reason that it gets (RFC 8914).
    #[must_use]
    pub const fn extended_error(self) -> u16 {
        match self {
            Self::Upstream(failure) => failure.extended_error(),
            Self::NoAnswer | Self::NoBlock => extended::NOT_AUTHORITATIVE,
            Self::Kept => extended::PROHIBITED,
            Self::Crowded => Failure::OverLimit.extended_error(),
        }
    }

    /// The reason for people. It ends as CoreDNS' does where operators' patterns for `consolidate` look for that.
    #[must_use]
    pub const fn said(self) -> &'static str {
        match self {
            Self::Upstream(Failure::Timeout) => "no upstream answered: i/o timeout",
            Self::Upstream(Failure::Unreachable) => "no upstream can be reached: connection refused",
            Self::Upstream(Failure::Local) => "this host has no socket or memory left",
            Self::Upstream(Failure::OverLimit) => "concurrent queries exceeded maximum",
            Self::Upstream(Failure::AllDead) => "no healthy proxies",
            Self::Upstream(Failure::Nonsense) => "an upstream's answer is no answer to the question",
            Self::Upstream(Failure::Unproven) => "tls: an upstream did not prove who it is",
            Self::NoAnswer => "no next plugin found",
            Self::Kept => "a name of the cluster, and only somebody outside could be asked",
            Self::NoBlock => "no server block answers for this name here",
            Self::Crowded => "more queries wait for upstreams than may",
        }
    }
}

impl Chain {
    pub(super) fn new(plan: &plan::Block, metrics: &Arc<Metrics>) -> Result<Self, Unusable> {
        let forward = plan.forward.iter();
        let forward = forward.map(|forward| Forwarder::new(forward, Arc::clone(metrics)));
        Ok(Self {
            cache: plan.cache.clone(),
            bufsize: plan.bufsize,
            forward: forward.collect::<Result<_, _>>()?,
            metrics: Arc::clone(metrics),
        })
    }

    /// Answers, or says why not.
    pub(super) async fn solve(&self, query: Query, terms: &Terms) -> Result<Known, Failed> {
        match self.forward(&query, terms).await {
            Ok(answer) => Ok(self.known(answer, Maker::Upstream, By::Forward, terms)),
            Err(failed) => self.known_failure(&query, failed, terms).ok_or(failed),
        }
    }

    /// The first that is asked for the name answers; the next where it passes on what it heard.
    async fn forward(&self, query: &Query, terms: &Terms) -> Result<Matched<Answer>, Failed> {
        let limits = Limits {
            patience: terms.config.total_timeout,
            udp_size: self.udp_size(&terms.config),
            ttl: terms.config.ttl,
        };
        let mut heard = None;
        let name = &query.question.name;
        for forwarder in self.forward.iter().filter(|forwarder| forwarder.holds(name)) {
            if !terms.may_ask_outside {
                return Err(Failed::Kept);
            }
            let answer = forwarder
                .ask(query, terms.arrival.transport, &limits)
                .await
                .map_err(Failed::Upstream)?;
            if !forwarder.passes_on(answer.get()) {
                return Ok(answer);
            }
            heard = Some(answer);
        }
        heard.ok_or(Failed::NoAnswer)
    }

    /// The largest datagram, to clients and from upstreams (`bufsize`).
    fn udp_size(&self, config: &Config) -> u16 {
        self.bufsize.unwrap_or(config.max_udp_size)
    }

    /// What an answer tells and how long it is kept: its TTLs are brought between the limits first, since the client
    /// believes what it is told.
    fn known(&self, mut answer: Matched<Answer>, maker: Maker, by: By, terms: &Terms) -> Known {
        if !answer.get().is_readable() {
            self.metrics.unreadable_answers.increment(1);
        }
        let verdict = self
            .cache
            .as_ref()
            .map(|rules| Verdict::of(rules, &answer.get().message(), maker));
        if let Some(verdict) = &verdict {
            answer.limit_ttls(&verdict.ttls);
        }
        let (told, protected) = observe(&answer, &terms.config.protected);
        self.metrics.protected.increment(protected as u64);
        let is_shareable = answer.get().is_shareable();
        Known {
            kept: verdict
                .and_then(|verdict| verdict.kept())
                .filter(|_| is_shareable),
            told,
            maker,
            by,
            failed: None,
            answer,
        }
    }

    /// A failure that is kept for a while, so that those who ask again do not make it worse (RFC 9520 §3.1).
    fn known_failure(&self, query: &Query, failed: Failed, terms: &Terms) -> Option<Known> {
        let rules = self.cache.as_ref().filter(|rules| !rules.servfail.is_zero())?;
        let remembered = match failed {
            Failed::Upstream(failure) => failure.rcode() == rcode::SERVFAIL && failure != Failure::Local,
            Failed::NoAnswer | Failed::Kept | Failed::NoBlock | Failed::Crowded => false,
        };
        if !remembered {
            return None;
        }
        let size = self.udp_size(&terms.config);
        let octets = explained_reply(query, failed.rcode(), failed.extended_error(), size);
        let message = Message::read(&octets).expect("dnsd's own reply can be read");
        let verdict = Verdict::of(rules, &message, Maker::Own);
        let question = *message.question();
        let limits = TtlLimits {
            at_least: 0,
            at_most: u32::MAX,
        };
        let answer = Matched::own(Answer::new(octets, &question, clock::now(), &limits));
        Some(Known {
            answer,
            told: None,
            kept: verdict.kept(),
            maker: Maker::Own,
            by: By::Server,
            failed: Some(failed),
        })
    }
}
