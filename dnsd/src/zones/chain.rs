//! The plugins of a block behind the cache: they resolve what the cache does not have.

use std::sync::Arc;

use egret_shared::net::IpNet;
use egret_shared::rt::clock;
use egret_shared::time::Timestamp;

use crate::cache::{Cacheability, Provenance};
use crate::config::Config;
use crate::config::model;
use crate::dns::answer::{Answer, TtlLimits};
use crate::dns::message::{Message, Query, Question, WireName, explained_reply, rcode};
use crate::enforcement::observation::{observe, observe_of};
use crate::plugins::rewrite::Rules;
use crate::plugins::template::TemplateResult;
use crate::plugins::{Outcome, append, whoami};
use crate::upstream::pending_query::ValidatedResponse;
use crate::upstream::{self, Failure, Forwarder, InvalidForward, Limits};

use super::{AnswerRecord, AnswerSource, InvalidPlan, Metrics, QueryContext, ResolvedAnswer, Telemetry};
use crate::zones::failure::ResolveError;
use crate::zones::local_plugins::LocalPlugins;

/// The plugins of a block, behind the cache.
#[derive(Debug)]
pub(super) struct Chain {
    cache: Option<model::CacheRules>,
    bufsize: Option<u16>,
    pub(super) own: LocalPlugins,
    forward: Vec<ForwardPlugin>,
    /// Whether an answer may depend on the client.
    pub(super) depends_on_client: bool,
    metrics: Arc<Metrics>,
}

impl Chain {
    pub(super) fn new(
        plan: &model::Block,
        before: &[&Self],
        telemetry: &Telemetry,
    ) -> Result<Self, InvalidPlan> {
        let forward = plan
            .forward
            .iter()
            .map(|plan| ForwardPlugin::new(plan, before, &telemetry.upstream));
        let own =
            LocalPlugins::new(plan).map_err(|error| InvalidPlan::LocalPlugin(plan.origin.clone(), error))?;
        Ok(Self {
            cache: plan.cache.clone(),
            bufsize: plan.bufsize,
            depends_on_client: own.depends_on_client(),
            own,
            forward: forward.collect::<Result<_, _>>()?,
            metrics: Arc::clone(&telemetry.metrics),
        })
    }

    /// Resolves a query: rewritten by the rules, and the answer rewritten back.
    pub(super) async fn resolve(
        &self,
        query: &Query<'_>,
        context: &QueryContext,
    ) -> Result<ResolvedAnswer, ResolveError> {
        let resolved = match &self.own.rewrite {
            None => self.run_plugins(query, context).await,
            // Boxed: the rare path must not enlarge the future of every pending query.
            Some(rules) => Box::pin(self.rewritten(rules, query, context)).await,
        };
        match resolved {
            Ok(made) => Ok(self.resolved(made, &query.question, &context.table.config.protected)),
            Err(error) => self.cacheable_failure(query, error, context).ok_or(error),
        }
    }

    async fn rewritten(
        &self,
        rules: &Rules,
        query: &Query<'_>,
        context: &QueryContext,
    ) -> Result<ChainAnswer, ResolveError> {
        let (asked, revert) = rules
            .apply(query.owned(), &context.endpoints())
            .map_err(|_no_name| ResolveError::Rewrite)?;
        let made = self.run_plugins(&asked, context).await?;
        if revert.is_nothing() {
            return Ok(made);
        }
        let octets = made.answer.get().message().octets().to_vec();
        let found = match revert.target(&octets) {
            Some(target) => context.follow(&asked, &target).await.ok(),
            None => None,
        };
        let octets = revert
            .apply(octets, found.as_deref(), u16::MAX)
            .map_err(|_unusable| ResolveError::Rewrite)?;
        Ok(ChainAnswer {
            answer: own(octets, made.answer.get().arrived()).ok_or(ResolveError::Rewrite)?,
            provenance: if revert.may_deny_otherwise(&asked) {
                Provenance::Local
            } else {
                made.provenance
            },
            source: made.source,
            is_shareable: revert.is_shareable() && made.is_shareable,
        })
    }

    /// Runs the plugins in their order: templates, hosts, upstreams, whoami.
    async fn run_plugins(
        &self,
        query: &Query<'_>,
        context: &QueryContext,
    ) -> Result<ChainAnswer, ResolveError> {
        let (endpoints, size) = (context.endpoints(), u16::MAX);
        if let Some(templates) = &self.own.templates {
            let TemplateResult { outcome, matched } = templates.answer(query, &endpoints, size);
            if let Some(matched) = matched {
                context.count_template(&matched);
            }
            if outcome != Outcome::Next {
                let made = Box::pin(local(outcome, query, context, AnswerSource::Template)).await?;
                return Ok(ChainAnswer {
                    is_shareable: !templates.depend_on_client(),
                    ..made
                });
            }
        }
        if let Some(hosts) = &self.own.hosts {
            let outcome = hosts.table().answer(query, size);
            if outcome != Outcome::Next {
                return Box::pin(local(outcome, query, context, AnswerSource::Hosts)).await;
            }
        }
        match self.forward(query, context).await {
            Ok(answer) => Ok(ChainAnswer {
                answer,
                provenance: Provenance::Upstream,
                source: AnswerSource::Forward,
                is_shareable: true,
            }),
            Err(ResolveError::NoAnswer) if self.own.whoami => {
                let octets =
                    whoami::answer(query, &endpoints, size).map_err(|_too_long| ResolveError::NoAnswer)?;
                let made = Box::pin(local(
                    Outcome::Answer(octets),
                    query,
                    context,
                    AnswerSource::Whoami,
                ))
                .await?;
                // The answer is the client's own address.
                Ok(ChainAnswer {
                    is_shareable: false,
                    ..made
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Asks the first `forward` that covers the name; the next one where its response is one of `next`.
    async fn forward(
        &self,
        query: &Query<'_>,
        context: &QueryContext,
    ) -> Result<ValidatedResponse<Answer>, ResolveError> {
        let limits = Limits {
            patience: context.table.config.total_timeout.saturating_sub(context.waited),
            udp_size: self.udp_size(&context.table.config),
            ttl: context.table.config.ttl,
            quota_key: context.quota_key,
        };
        if !context.may_forward {
            return Err(ResolveError::Loop);
        }
        let mut last = None;
        let name = &query.question.name;
        let forwarders = self.forward.iter().map(|asked| &asked.forwarder);
        for forwarder in forwarders.filter(|forwarder| forwarder.holds(name)) {
            if !context.may_ask_outside {
                return Err(ResolveError::ClusterName);
            }
            let answer = forwarder
                .ask(query, context.arrival.transport, &limits)
                .await
                .map_err(ResolveError::Upstream)?;
            if !forwarder.passes_on(answer.get()) {
                return Ok(answer);
            }
            last = Some(answer);
        }
        last.ok_or(ResolveError::NoAnswer)
    }

    /// Whether an upstream may be asked for a name.
    pub(super) fn forwards(&self, name: &WireName) -> bool {
        self.forward.iter().any(|asked| asked.forwarder.holds(name))
    }

    /// The largest UDP message, to clients and from upstreams (`bufsize`).
    fn udp_size(&self, config: &Config) -> u16 {
        self.bufsize.unwrap_or(config.max_udp_size)
    }

    /// Judges an answer: its observation and its cacheability. Its TTLs are limited first, since clients use them.
    fn resolved(&self, made: ChainAnswer, asked: &Question, protected: &[IpNet]) -> ResolvedAnswer {
        let ChainAnswer {
            mut answer,
            provenance,
            source,
            is_shareable,
        } = made;
        if !answer.get().is_readable() {
            self.metrics.unreadable_answers.increment(1);
        }
        let message = answer.get().message_about(asked);
        let question = *message.question();
        let verdict = self
            .cache
            .as_ref()
            .map(|rules| Cacheability::of(rules, &message, provenance));
        if let Some(verdict) = &verdict {
            answer.limit_ttls(&verdict.ttls);
        }
        let (observation, left_out) = observe_of(&question, &answer, protected);
        self.metrics.protected.increment(left_out as u64);
        let is_shareable = is_shareable && answer.get().is_shareable();
        ResolvedAnswer {
            cacheable: verdict
                .and_then(|verdict| verdict.kept())
                .filter(|_| is_shareable),
            observation,
            provenance,
            source,
            error: None,
            answer,
        }
    }

    /// Judges an answer of the old process's cache by the own rules; none where it is no message.
    pub(super) fn inherited(&self, cacheable: &AnswerRecord, protected: &[IpNet]) -> Option<ResolvedAnswer> {
        let made = ChainAnswer {
            answer: own(cacheable.octets.clone(), cacheable.arrived)?,
            provenance: cacheable.provenance,
            source: cacheable.source,
            is_shareable: true,
        };
        let question = *made.answer.get().message().question();
        Some(ResolvedAnswer {
            error: cacheable.error,
            ..self.resolved(made, &question, protected)
        })
    }

    /// An answer that dns64 synthesized.
    pub(super) fn synthesized(
        &self,
        answer: ValidatedResponse<Answer>,
        context: &QueryContext,
    ) -> ResolvedAnswer {
        self.uncached(answer, context, Provenance::Local, AnswerSource::Dns64)
    }

    /// An answer that is observed but not cached.
    pub(super) fn uncached(
        &self,
        answer: ValidatedResponse<Answer>,
        context: &QueryContext,
        provenance: Provenance,
        source: AnswerSource,
    ) -> ResolvedAnswer {
        let (observation, protected) = observe(&answer, &context.table.config.protected);
        self.metrics.protected.increment(protected as u64);
        ResolvedAnswer {
            answer,
            observation,
            cacheable: None,
            provenance,
            source,
            error: None,
        }
    }

    /// A failure as a cacheable answer, so that repeated queries do not load failing upstreams (RFC 9520 §3.1).
    fn cacheable_failure(
        &self,
        query: &Query,
        error: ResolveError,
        context: &QueryContext,
    ) -> Option<ResolvedAnswer> {
        let rules = self.cache.as_ref().filter(|rules| !rules.servfail.is_zero())?;
        let is_cacheable = match error {
            ResolveError::Upstream(failure) => {
                failure.rcode() == rcode::SERVFAIL && failure != Failure::Local
            }
            ResolveError::NoAnswer
            | ResolveError::ClusterName
            | ResolveError::NoBlock
            | ResolveError::OverLimit
            | ResolveError::Rewrite
            | ResolveError::Local
            | ResolveError::TooDeep
            | ResolveError::Loop => false,
        };
        if !is_cacheable {
            return None;
        }
        let size = self.udp_size(&context.table.config);
        let octets = explained_reply(query, error.rcode(), error.extended_error(), size);
        let message = Message::read(&octets).expect("dnsd's own reply can be read");
        let verdict = Cacheability::of(rules, &message, Provenance::Local);
        let cacheable = verdict.kept();
        let answer = own(octets, clock::now()).expect("dnsd's own reply can be read");
        Some(ResolvedAnswer {
            answer,
            observation: None,
            cacheable,
            provenance: Provenance::Local,
            source: AnswerSource::Server,
            error: Some(error),
        })
    }
}

/// A `forward` of the plan with its upstreams.
#[derive(Debug)]
struct ForwardPlugin {
    plan: model::Forward,
    forwarder: Arc<Forwarder>,
}

impl ForwardPlugin {
    /// Reuses the forwarder of an equal plan, with its health checks and connections.
    fn new(
        plan: &model::Forward,
        before: &[&Chain],
        metrics: &Arc<upstream::Metrics>,
    ) -> Result<Self, InvalidForward> {
        let plan = plan.clone();
        let is_same = |other: &&Self| {
            let moved = model::Forward {
                origin: plan.origin.clone(),
                ..other.plan.clone()
            };
            moved == plan && !reads_files(&plan)
        };
        let same = before.iter().flat_map(|chain| &chain.forward).find(is_same);
        let forwarder = match same {
            Some(same) => Arc::clone(&same.forwarder),
            None => Arc::new(Forwarder::new(&plan, Arc::clone(metrics))?),
        };
        Ok(Self { plan, forwarder })
    }
}

/// Whether the upstreams depend on files or names beside the plan.
pub(super) fn reads_files(plan: &model::Forward) -> bool {
    plan.to.iter().any(|upstream| match upstream.host {
        model::UpstreamHost::Address(_) => false,
        model::UpstreamHost::ResolvConf(_) | model::UpstreamHost::Name(..) => true,
    })
}

/// An answer of a plugin.
struct ChainAnswer {
    answer: ValidatedResponse<Answer>,
    provenance: Provenance,
    source: AnswerSource,
    /// Whether other clients may be given it.
    is_shareable: bool,
}

/// The answer of a local plugin. An alias is resolved as if a client had asked for its target.
async fn local(
    outcome: Outcome,
    query: &Query<'_>,
    context: &QueryContext,
    source: AnswerSource,
) -> Result<ChainAnswer, ResolveError> {
    let octets = match outcome {
        Outcome::Answer(octets) => octets,
        Outcome::Follow(octets, target) => match context.follow(query, &target).await {
            Ok(found) => append(octets, &found, query, u16::MAX),
            Err(_nothing_found) => octets,
        },
        Outcome::Fail | Outcome::Next => return Err(ResolveError::Local),
    };
    Ok(ChainAnswer {
        answer: own(octets, clock::now()).ok_or(ResolveError::Local)?,
        provenance: Provenance::Local,
        source,
        is_shareable: true,
    })
}

/// A message that dnsd made, as an answer; none where it cannot be read.
pub(super) fn own(octets: Vec<u8>, made: Timestamp) -> Option<ValidatedResponse<Answer>> {
    const ANY: TtlLimits = TtlLimits {
        at_least: 0,
        at_most: u32::MAX,
    };
    let question = *Message::read(&octets).ok()?.question();
    Some(ValidatedResponse::own(Answer::new(octets, &question, made, &ANY)))
}
