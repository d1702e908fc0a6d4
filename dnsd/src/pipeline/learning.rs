//! Which cached answers the kernel may give, and how they are counted there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use egret_shared::time::Timestamp;

use super::query::QueryView;
use super::{Metrics, Resolver};
use crate::cache::{Class, Hit};
use crate::dns::answer::Ttls;
use crate::dns::message::rcode;
use crate::hash::HashMap;
use crate::kernel_answers::{Answer, KernelAnswers, MAX_SERIES};
use crate::net::Transport;
use crate::zones::{AnswerSource, AnsweredQuery, Series, StoredAnswer, ZoneBinding};

/// The port at which the enforcer permits answers of the kernel.
const DNS_PORT: u16 = 53;

/// What the kernel answers, and how it is counted.
#[derive(Debug, Default)]
pub(super) struct Learning {
    pub(super) answers: Arc<KernelAnswers>,
    counted: Mutex<Counted>,
}

/// Series by number. Those of the configuration before are read for what came late, and end with the next one.
#[derive(Debug, Default)]
struct Counted {
    is_second_half: bool,
    numbers: HashMap<SeriesKey, u32>,
    series: Vec<CountedSeries>,
    of_before: Vec<CountedSeries>,
}

/// The binding by its address: the series has it.
type SeriesKey = (usize, Series, [usize; 2]);

#[derive(Debug)]
struct CountedSeries {
    number: u32,
    binding: Arc<ZoneBinding>,
    series: Series,
    class: Class,
    is_ipv6: bool,
    octets: [usize; 2],
    /// What is in the metrics already.
    counted: u64,
}

impl Learning {
    pub(super) fn of(answers: Arc<KernelAnswers>) -> Self {
        Self {
            answers,
            counted: Mutex::default(),
        }
    }

    /// Another configuration: its queries are counted in other series.
    pub(super) fn begin_configuration(&self, metrics: &Metrics, now: Timestamp) {
        self.answers.void_for_configuration(now);
        let mut counted = self.lock();
        counted.add_up(&self.answers, metrics);
        counted.of_before = std::mem::take(&mut counted.series);
        counted.numbers.clear();
        counted.is_second_half = !counted.is_second_half;
    }

    /// Adds what the kernel has answered to the metrics.
    pub(super) fn add_up(&self, metrics: &Metrics) {
        self.lock().add_up(&self.answers, metrics);
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
    /// The number of a series; none when all are taken.
    fn number(&mut self, key: SeriesKey, make: impl FnOnce(u32) -> Option<CountedSeries>) -> Option<u32> {
        const HALF: usize = MAX_SERIES / 2;
        if let Some(number) = self.numbers.get(&key) {
            return Some(*number);
        }
        let next = Some(self.series.len()).filter(|next| *next < HALF)?;
        let number = u32::try_from(next + if self.is_second_half { HALF } else { 0 }).ok()?;
        self.series.push(make(number)?);
        self.numbers.insert(key, number);
        Some(number)
    }

    fn add_up(&mut self, answers: &KernelAnswers, metrics: &Metrics) {
        for series in self.of_before.iter_mut().chain(&mut self.series) {
            match answers.answered(series.number) {
                Ok(answered) => series.count(answered, metrics),
                Err(error) => tracing::debug!(%error, "the kernel's answers cannot be counted"),
            }
        }
    }
}

impl CountedSeries {
    fn count(&mut self, answered: u64, metrics: &Metrics) {
        let more = answered - std::mem::replace(&mut self.counted, answered);
        if more == 0 {
            return;
        }
        metrics.kernel_answers.increment(more);
        metrics.queries(Transport::Udp, self.is_ipv6, more);
        metrics.responses(rcode::NOERROR, more);
        metrics.cache_hits.increment(more);
        metrics.gate.observations.increment(more);
        self.binding.count_cache(|counts| counts.hits(self.class, more));
        if let Some(counts) = &self.binding.counts {
            let octets = self.octets.map(|octets| octets as u64 * more);
            // Less than the first bucket's bound, and than a microsecond.
            counts.add(&self.series, more, octets, Duration::ZERO);
        }
    }
}

impl Resolver {
    /// Lets the kernel answer the next equal queries of this client, if dnsd would do nothing but answer. The client is known to have been
    /// given the addresses.
    pub(super) fn learn(&self, query: QueryView<'_>, hit: &Hit<StoredAnswer>, now: Timestamp) {
        let (Some(learnable), Some(interface), Some(server)) =
            (query.learnable, query.packet.interface, query.packet.asked)
        else {
            return;
        };
        if !is_only_answered(query) {
            return;
        }
        let answer = hit.value.answer(hit.arrived);
        let records = hit.value.addresses(hit.arrived).map(|observed| observed.expires);
        let answered = Answer {
            interface,
            client: query.packet.source.ip(),
            server,
            query: learnable.octets,
            has_opt: query.query.edns.is_some(),
            reply: &[],
            ttls: answer.ttls.unwrap_or_default(),
            arrived: hit.arrived,
            expires: records.fold(hit.fresh_until.min(learnable.until), Timestamp::min),
            generation: learnable.generation,
            series: 0,
        };
        let answers = &self.learning.answers;
        if answered.expires <= now {
            return;
        }
        let Some(repeated) = answers.is_repeated(&answered, now) else {
            return;
        };
        let (reply, is_whole) = query.reply(&answer, Ttls::Original);
        if !is_whole || reply[3] & 0xf != rcode::NOERROR {
            return;
        }
        let event = AnsweredQuery {
            query: query.query,
            arrival: query.packet,
            octets: learnable.octets.len(),
            reply: &reply,
            span: Duration::ZERO,
        };
        let (series, octets) = (
            Series::of(&event, AnswerSource::Cache),
            [event.octets, reply.len()],
        );
        let key = (Arc::as_ptr(query.binding).addr(), series, octets);
        let number = self.learning.lock().number(key, |number| {
            Some(CountedSeries {
                number,
                binding: Arc::clone(query.binding),
                series,
                class: hit.class,
                is_ipv6: answered.client.is_ipv6(),
                octets,
                counted: answers.answered(number).ok()?,
            })
        });
        if let Some(series) = number {
            let answered = Answer {
                reply: &reply,
                series,
                ..answered
            };
            answers.learn(&answered, repeated, now);
        }
    }
}

/// Whether equal queries have equal answers, and nothing but counters changes by them.
fn is_only_answered(query: QueryView<'_>) -> bool {
    let (table, plan) = (query.table, query.binding.block.plan());
    let is_limited =
        |limits: crate::limits::rate::RateLimits| limits.per_client.is_some() || limits.total.is_some();
    query.packet.transport == Transport::Udp
        && table.address.port() == DNS_PORT
        && table.intercepted(query.packet.asked).is_none()
        && !is_limited(table.config.queries_per_second)
        && !query.binding.is_logged()
        && plan.loadbalance.is_none()
        && plan.cache.as_ref().is_some_and(|cache| cache.prefetch.is_none())
}
