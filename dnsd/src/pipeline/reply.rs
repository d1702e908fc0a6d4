//! From an answer to the client's reply: observed, held until the enforcer has realized it, counted and logged.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::time::Timestamp;

use super::query::QueryView;
use super::{Disposition, Resolver};
use crate::cache::nxdomain_cut::Denial;
use crate::cache::{Class, Hit};
use crate::config::{Config, OnStall};
use crate::dns::answer::Ttls;
use crate::dns::message::{
    Query, Refusal, bad_version_reply, error_reply, explained_reply, header_reply, rcode,
};
use crate::enforcement::client::ClientId;
use crate::enforcement::gate::{Origin, Stall};
use crate::enforcement::gated::{Admission, GatedResponse};
use crate::enforcement::observation::AnswerObservation;
use crate::zones::{
    AnswerSource, AnsweredQuery, CacheCounters, PacketInfo, ResolveError, ResolvedAnswer, StoredAnswer,
    ZoneTable,
};

/// The shortest lifetime of a stale answer's addresses, in seconds: its TTL may be 0, and its client connects all the same.
const STALE_LIFETIME_SECONDS: u64 = 30;

/// Whether a reply is sent at once.
pub(super) enum Delivery {
    Now(Vec<u8>, AnswerSource),
    Held(UnsentReply, GatedResponse),
}

/// A reply that is held.
#[derive(Debug)]
pub(super) struct UnsentReply {
    pub(super) reply: Vec<u8>,
    pub(super) source: AnswerSource,
    /// The reply in its place, where a stall is configured to fail.
    pub(super) servfail: Vec<u8>,
}

impl Resolver {
    /// Answers from a cache entry.
    pub(super) fn cached(&self, query: QueryView<'_>, hit: &Hit<StoredAnswer>, now: Timestamp) -> Delivery {
        self.count_hit(query, hit.class);
        if matches!(hit.ttls, Ttls::All(_)) {
            query.binding.count_cache(CacheCounters::served_stale);
        }
        let answer = hit.value.answer(hit.arrived);
        let (reply, is_whole) = query.reply(&answer, hit.ttls);
        let observer = query.observer(&reply, is_whole);
        let Some(client_id) = observer.filter(|_| hit.value.has_addresses()) else {
            return Delivery::Now(reply, AnswerSource::Cache);
        };
        if matches!(hit.ttls, Ttls::CountedDown(_)) && self.is_observed(query, client_id, hit) {
            self.learn(query, hit, now);
            return Delivery::Now(reply, AnswerSource::Cache);
        }
        let Some(observation) = hit.value.observation(hit.arrived) else {
            return Delivery::Now(reply, AnswerSource::Cache);
        };
        let observation = with_given_ttls(Cow::Owned(observation), hit.arrived, hit.ttls, now);
        self.admit(query, reply, AnswerSource::Cache, client_id, observation, now)
    }

    /// Whether a client was given these addresses before, as nearly always.
    fn is_observed(&self, query: QueryView<'_>, client_id: ClientId, hit: &Hit<StoredAnswer>) -> bool {
        let bitmap = hit.value.bitmap();
        if self.gate.is_marked(client_id, bitmap) {
            match query.counters {
                Some(counters) => counters.observation(),
                None => self.metrics.gate.observations.increment(1),
            }
            return true;
        }
        let addresses = hit.value.addresses(hit.arrived);
        let is_observed = |question: &str| self.gate.settle(client_id, question, addresses, bitmap);
        hit.value.with_question(is_observed).unwrap_or(false)
    }

    fn count_hit(&self, query: QueryView<'_>, class: Class) {
        if let Some(counters) = query.counters {
            return counters.hit(query.binding, class);
        }
        self.metrics.cache_hits.increment(1);
        query.binding.count_cache(|counters| counters.hits(class, 1));
    }

    /// Answers with a resolved answer. Takes the observation out when the `Arc` is unique, which avoids a clone.
    pub(super) fn resolved(
        &self,
        query: QueryView<'_>,
        mut resolved: Arc<ResolvedAnswer>,
        ttls: Ttls,
        now: Timestamp,
    ) -> Delivery {
        let own = Arc::get_mut(&mut resolved).and_then(|resolved| resolved.observation.take());
        let observation = own
            .map(Cow::Owned)
            .or_else(|| resolved.observation.as_ref().map(Cow::Borrowed));
        let (answer, source) = (resolved.answer.get(), resolved.source);
        let (reply, is_whole) = query.reply(&answer.view(), ttls);
        let (Some(client_id), Some(observation)) = (query.observer(&reply, is_whole), observation) else {
            return Delivery::Now(reply, source);
        };
        let observation = with_given_ttls(observation, answer.arrived(), ttls, now);
        self.admit(query, reply, source, client_id, observation, now)
    }

    /// Passes an observation to the response gate, which decides whether its reply is held.
    fn admit(
        &self,
        query: QueryView<'_>,
        reply: Vec<u8>,
        source: AnswerSource,
        client_id: ClientId,
        observation: Cow<'_, AnswerObservation>,
        now: Timestamp,
    ) -> Delivery {
        let origin = match source {
            AnswerSource::Cache => Origin::Cache,
            AnswerSource::Server
            | AnswerSource::Forward
            | AnswerSource::Template
            | AnswerSource::Hosts
            | AnswerSource::Dns64
            | AnswerSource::Whoami => Origin::Upstream,
        };
        match self
            .gate
            .admit(client_id, query.quota_key, observation, origin, now)
        {
            Admission::Now => Delivery::Now(reply, source),
            Admission::OverLimit => {
                // Whatever `onStall` says: failing would turn a flood of queries into an outage.
                self.metrics.stall(OnStall::Release, Stall::OverLimit);
                Delivery::Now(reply, source)
            }
            Admission::Held(held) => {
                let servfail = error_reply(query.query, rcode::SERVFAIL, query.udp_size());
                let unsent = UnsentReply {
                    reply,
                    source,
                    servfail,
                };
                Delivery::Held(unsent, held)
            }
        }
    }

    /// Denies a name below a denied one. The reply has no addresses to observe.
    pub(super) fn deny(&self, query: QueryView<'_>, denial: &Denial, now: Timestamp) -> Disposition {
        let (block, limit) = (&query.binding.block, query.datagram_limit());
        block.count_cut();
        let reply = denial.reply(query.query, now, block.keeps_ttls(), limit, query.udp_size());
        self.reply(query, reply, AnswerSource::Cache)
    }

    pub(super) fn fail(&self, query: QueryView<'_>, error: ResolveError) -> Disposition {
        query.binding.block.log_error(query.query, error);
        let (code, reason) = (error.rcode(), error.extended_error());
        let reply = explained_reply(query.query, code, reason, query.udp_size());
        self.reply(query, reply, AnswerSource::Server)
    }

    /// Refuses a query for a name that no block answers at this address.
    pub(super) fn refuse_unknown(
        &self,
        query: &Query,
        packet: &PacketInfo,
        table: &ZoneTable,
        octets: &[u8],
    ) -> Disposition {
        let error = ResolveError::NoBlock;
        let size = table.config.max_udp_size;
        let reply = explained_reply(query, error.rcode(), error.extended_error(), size);
        table.note_dropped(&AnsweredQuery {
            query,
            arrival: packet,
            octets: octets.len(),
            reply: &reply,
            span: Duration::ZERO,
        });
        self.metrics.responses(error.rcode(), 1);
        Disposition::Reply(reply)
    }

    /// Refuses a message that is no query to be answered.
    pub(super) fn refuse(&self, octets: &[u8], refusal: Refusal, config: &Config) -> Disposition {
        let reply = match refusal {
            Refusal::Silence => {
                self.metrics.ignored.increment(1);
                return Disposition::NoReply;
            }
            Refusal::Reply(code) => header_reply(octets, code),
            Refusal::BadVersion => bad_version_reply(octets, config.max_udp_size),
        };
        self.metrics.responses(reply[3] & 0xf, 1);
        Disposition::Reply(reply)
    }

    /// Counts and logs a reply that is sent now.
    pub(super) fn reply(&self, query: QueryView<'_>, reply: Vec<u8>, source: AnswerSource) -> Disposition {
        let rcode = reply[3] & 0xf;
        let answered = |span| AnsweredQuery {
            query: query.query,
            arrival: query.packet,
            octets: query.query_octets,
            reply: &reply,
            span,
        };
        match query.counters {
            Some(counters) => counters.response(rcode),
            None => self.metrics.responses(rcode, 1),
        }
        match query.counters {
            Some(counters) if !query.binding.is_logged() => {
                counters.note(query.binding, &answered(Duration::ZERO), source);
            }
            Some(_) | None if query.binding.is_observed() => {
                query.binding.record(&answered(query.received.elapsed()), source);
            }
            Some(_) | None => {}
        }
        Disposition::Reply(reply)
    }
}

/// An observation with the lifetimes that its client derives from the TTLs of the reply.
fn with_given_ttls(
    observation: Cow<'_, AnswerObservation>,
    arrived: Timestamp,
    ttls: Ttls,
    now: Timestamp,
) -> Cow<'_, AnswerObservation> {
    match ttls {
        Ttls::CountedDown(_) => observation,
        Ttls::Original => Cow::Owned(observation.later(now.since(arrived))),
        Ttls::All(seconds) => {
            let seconds = u64::from(seconds).max(STALE_LIFETIME_SECONDS);
            Cow::Owned(observation.expiring(now.after(Duration::from_secs(seconds))))
        }
    }
}
