//! What is counted of queries.

use std::sync::Arc;

use metrics::{Counter, counter};

use crate::config::OnStall;
use crate::enforcement::client::Unidentified;
use crate::enforcement::gate::Stall;
use crate::limits::rate::OverRate;
use crate::net::Transport;
use crate::{enforcement, upstream, zones};

/// Who answers an intercepted query; the label `upstream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intercepted {
    /// The own upstreams, as for other queries.
    Ours,
    /// The resolver that the client asked.
    Original,
}

labels! { Intercepted: Ours => "ours", Original => "original" }

const RCODES: [&str; 7] = [
    "NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "OTHER",
];

/// The counters of queries, and those of the rooms below.
#[derive(Debug)]
pub struct Metrics {
    queries: [[Counter; 2]; Transport::ALL.len()],
    responses: [Counter; RCODES.len()],
    unattributed: [Counter; 4],
    stalls: [[Counter; 5]; 3],
    over_rate: [Counter; 2],
    intercepted: [Counter; 2],
    /// Messages without a reply, since they are no queries.
    pub ignored: Counter,
    /// Queries that the kernel answered: they are among all others, too.
    pub kernel_answers: Counter,
    /// Queries answered from a cache.
    pub cache_hits: Counter,
    /// Queries that no cache could answer.
    pub cache_misses: Counter,
    /// Of upstreams.
    pub upstream: Arc<upstream::Metrics>,
    /// Of the response gate.
    pub gate: Arc<enforcement::Metrics>,
    /// Of server blocks.
    pub zones: Arc<zones::Metrics>,
}

impl Metrics {
    /// Registers them at zero.
    #[must_use]
    pub fn register() -> Self {
        describe();
        Self {
            queries: Transport::ALL.map(|transport| {
                ["IPv4", "IPv6"].map(|family| {
                    counter!("egret_dnsd_queries_total", "transport" => transport.label(), "family" => family)
                })
            }),
            responses: RCODES.map(|rcode| counter!("egret_dnsd_responses_total", "rcode" => rcode)),
            unattributed: Unidentified::ALL
                .map(|reason| counter!("egret_dnsd_unattributed_total", "reason" => reason.label())),
            stalls: OnStall::ALL.map(|action| {
                Stall::ALL.map(|reason| {
                    counter!("egret_dnsd_stalls_total", "action" => action.label(), "reason" => reason.label())
                })
            }),
            over_rate: OverRate::ALL
                .map(|over| counter!("egret_dnsd_over_rate_total", "limit" => over.label())),
            intercepted: Intercepted::ALL
                .map(|upstream| counter!("egret_dnsd_intercepted_total", "upstream" => upstream.label())),
            ignored: counter!("egret_dnsd_ignored_total"),
            kernel_answers: counter!("egret_dnsd_kernel_answers_total"),
            cache_hits: counter!("egret_dnsd_cache_hits_total"),
            cache_misses: counter!("egret_dnsd_cache_misses_total"),
            upstream: Arc::new(upstream::Metrics::register()),
            gate: Arc::new(enforcement::Metrics::register()),
            zones: Arc::new(zones::Metrics::register()),
        }
    }

    /// Counts queries.
    pub fn queries(&self, transport: Transport, is_ipv6: bool, count: u64) {
        self.queries[transport.counted()][usize::from(is_ipv6)].increment(count);
    }

    /// Counts an intercepted query.
    pub fn intercepted(&self, upstream: Intercepted) {
        self.intercepted[upstream as usize].increment(1);
    }

    /// Counts replies.
    pub fn responses(&self, rcode: u8, count: u64) {
        self.responses[usize::from(rcode).min(RCODES.len() - 1)].increment(count);
    }

    /// Counts a query of no pod.
    pub fn unattributed(&self, reason: Unidentified) {
        self.unattributed[reason as usize].increment(1);
    }

    /// Counts a query above a rate limit.
    pub fn over_rate(&self, over: OverRate) {
        self.over_rate[over as usize].increment(1);
    }

    /// Counts an answer whose hold ended before it was realized.
    pub fn stall(&self, action: OnStall, reason: Stall) {
        self.stalls[action as usize][reason as usize].increment(1);
    }
}

fn describe() {
    describe! {
        counter "egret_dnsd_queries_total": "Queries received, by transport and address family.";
        counter "egret_dnsd_responses_total": "Replies sent, by response code.";
        counter "egret_dnsd_ignored_total": "Messages received that are not queries: not answered.";
        counter "egret_dnsd_unattributed_total": "Queries that belong to no pod: answered, not recorded; by reason.";
        counter "egret_dnsd_kernel_answers_total": "Queries that the kernel answered in dnsd's place.";
        counter "egret_dnsd_cache_hits_total": "Queries answered from the cache.";
        counter "egret_dnsd_cache_misses_total": "Queries that were not in the cache.";
        counter "egret_dnsd_stalls_total": "Answers no longer held although not realized, by action and reason.";
        counter "egret_dnsd_over_rate_total": "Queries refused because a client, or all clients, exceeded the rate.";
        counter "egret_dnsd_intercepted_total": "Intercepted queries to other resolvers, by where they were sent.";
    }
}
