//! What a block does for a question that it has no answer to: the part of the chain behind the cache.

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
use crate::plugins::template::Answered;
use crate::plugins::{Outcome, append, whoami};
use crate::takeover::state::KeptAnswer;
use crate::telemetry::metrics::Metrics;
use crate::upstream::pending_query::ValidatedResponse;
use crate::upstream::{Failure, Forwarder, InvalidForward, Limits};

use super::{By, Known, Terms, Unfit};
use crate::zones::failure::Failed;
use crate::zones::local_plugins::Own;

/// The chain of a block.
#[derive(Debug)]
pub(super) struct Chain {
    cache: Option<model::CacheRules>,
    bufsize: Option<u16>,
    pub(super) own: Own,
    forward: Vec<Asked>,
    /// Whether an answer may be for one client alone.
    pub(super) tells_clients_apart: bool,
    metrics: Arc<Metrics>,
}

impl Chain {
    pub(super) fn new(plan: &model::Block, before: &[&Self], metrics: &Arc<Metrics>) -> Result<Self, Unfit> {
        let forward = plan.forward.iter().map(|plan| Asked::new(plan, before, metrics));
        let own = Own::new(plan).map_err(|error| Unfit::Own(plan.origin.clone(), error))?;
        Ok(Self {
            cache: plan.cache.clone(),
            bufsize: plan.bufsize,
            tells_clients_apart: own.tells_clients_apart(),
            own,
            forward: forward.collect::<Result<_, _>>()?,
            metrics: Arc::clone(metrics),
        })
    }

    /// Answers, or says why not: the question as the rules make it, and what they did taken back in the answer.
    pub(super) async fn solve(&self, query: &Query<'_>, terms: &Terms) -> Result<Known, Failed> {
        let solved = match &self.own.rewrite {
            None => self.make(query, terms).await,
            // Boxed, like all that is rare: it must not make every waiting query as large as itself.
            Some(rules) => Box::pin(self.rewritten(rules, query, terms)).await,
        };
        match solved {
            Ok(made) => Ok(self.known(made, &query.question, &terms.table.config.protected)),
            Err(failed) => self.known_failure(query, failed, terms).ok_or(failed),
        }
    }

    async fn rewritten(&self, rules: &Rules, query: &Query<'_>, terms: &Terms) -> Result<Made, Failed> {
        let (asked, revert) = rules
            .apply(query.owned(), &terms.endpoints())
            .map_err(|_no_name| Failed::Rewrite)?;
        let made = self.make(&asked, terms).await?;
        if revert.is_nothing() {
            return Ok(made);
        }
        let octets = made.answer.get().message().octets().to_vec();
        let found = match revert.target(&octets) {
            Some(target) => terms.follow(&asked, &target).await.ok(),
            None => None,
        };
        let octets = revert
            .apply(octets, found.as_deref(), u16::MAX)
            .map_err(|_unusable| Failed::Rewrite)?;
        Ok(Made {
            answer: own(octets, made.answer.get().arrived()).ok_or(Failed::Rewrite)?,
            provenance: if revert.may_deny_otherwise(&asked) {
                Provenance::Local
            } else {
                made.provenance
            },
            by: made.by,
            is_shareable: revert.is_shareable() && made.is_shareable,
        })
    }

    /// The parts of the chain in their order: templates, hosts, upstreams, whoami.
    async fn make(&self, query: &Query<'_>, terms: &Terms) -> Result<Made, Failed> {
        let (endpoints, size) = (terms.endpoints(), u16::MAX);
        if let Some(templates) = &self.own.templates {
            let Answered { outcome, matched } = templates.answer(query, &endpoints, size);
            if let Some(matched) = matched {
                terms.count_template(&matched);
            }
            if outcome != Outcome::Next {
                let made = Box::pin(local(outcome, query, terms, By::Template)).await?;
                return Ok(Made {
                    is_shareable: !templates.tell_clients_apart(),
                    ..made
                });
            }
        }
        if let Some(hosts) = &self.own.hosts {
            let outcome = hosts.table().answer(query, size);
            if outcome != Outcome::Next {
                return Box::pin(local(outcome, query, terms, By::Hosts)).await;
            }
        }
        match self.forward(query, terms).await {
            Ok(answer) => Ok(Made {
                answer,
                provenance: Provenance::Upstream,
                by: By::Forward,
                is_shareable: true,
            }),
            Err(Failed::NoAnswer) if self.own.whoami => {
                let octets = whoami::answer(query, &endpoints, size).map_err(|_too_long| Failed::NoAnswer)?;
                let made = Box::pin(local(Outcome::Answer(octets), query, terms, By::Whoami)).await?;
                // It tells one client about itself.
                Ok(Made {
                    is_shareable: false,
                    ..made
                })
            }
            Err(failed) => Err(failed),
        }
    }

    /// The first that is asked for the name answers; the next where it passes on what it heard.
    async fn forward(&self, query: &Query<'_>, terms: &Terms) -> Result<ValidatedResponse<Answer>, Failed> {
        let limits = Limits {
            patience: terms.table.config.total_timeout.saturating_sub(terms.waited),
            udp_size: self.udp_size(&terms.table.config),
            ttl: terms.table.config.ttl,
            quota_key: terms.quota_key,
        };
        if !terms.may_forward {
            return Err(Failed::Loop);
        }
        let mut heard = None;
        let name = &query.question.name;
        let forwarders = self.forward.iter().map(|asked| &asked.forwarder);
        for forwarder in forwarders.filter(|forwarder| forwarder.holds(name)) {
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

    /// Whether somebody is asked for a name.
    pub(super) fn forwards(&self, name: &WireName) -> bool {
        self.forward.iter().any(|asked| asked.forwarder.holds(name))
    }

    /// The largest datagram, to clients and from upstreams (`bufsize`).
    fn udp_size(&self, config: &Config) -> u16 {
        self.bufsize.unwrap_or(config.max_udp_size)
    }

    /// What an answer tells and how long it is kept: its TTLs are brought between the limits first, since the client
    /// believes what it is told.
    fn known(&self, made: Made, asked: &Question, protected: &[IpNet]) -> Known {
        let Made {
            mut answer,
            provenance,
            by,
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
        let (told, left_out) = observe_of(&question, &answer, protected);
        self.metrics.protected.increment(left_out as u64);
        let is_shareable = is_shareable && answer.get().is_shareable();
        Known {
            kept: verdict
                .and_then(|verdict| verdict.kept())
                .filter(|_| is_shareable),
            told,
            provenance,
            by,
            failed: None,
            answer,
        }
    }

    /// An answer that another dnsd kept, by the rules and limits of this one; nothing where it is no message.
    pub(super) fn inherited(&self, kept: &KeptAnswer, protected: &[IpNet]) -> Option<Known> {
        let made = Made {
            answer: own(kept.octets.clone(), kept.arrived)?,
            provenance: kept.provenance,
            by: kept.by,
            is_shareable: true,
        };
        let question = *made.answer.get().message().question();
        Some(Known {
            failed: kept.failed,
            ..self.known(made, &question, protected)
        })
    }

    /// An answer that dns64 made.
    pub(super) fn made_of_a(&self, answer: ValidatedResponse<Answer>, terms: &Terms) -> Known {
        self.unkept(answer, terms, Provenance::Local, By::Dns64)
    }

    /// An answer that is told, and kept for nobody else.
    pub(super) fn unkept(
        &self,
        answer: ValidatedResponse<Answer>,
        terms: &Terms,
        provenance: Provenance,
        by: By,
    ) -> Known {
        let (told, protected) = observe(&answer, &terms.table.config.protected);
        self.metrics.protected.increment(protected as u64);
        Known {
            answer,
            told,
            kept: None,
            provenance,
            by,
            failed: None,
        }
    }

    /// A failure that is kept for a while, so that those who ask again do not make it worse (RFC 9520 §3.1).
    fn known_failure(&self, query: &Query, failed: Failed, terms: &Terms) -> Option<Known> {
        let rules = self.cache.as_ref().filter(|rules| !rules.servfail.is_zero())?;
        let remembered = match failed {
            Failed::Upstream(failure) => failure.rcode() == rcode::SERVFAIL && failure != Failure::Local,
            Failed::NoAnswer
            | Failed::Kept
            | Failed::NoBlock
            | Failed::Crowded
            | Failed::Rewrite
            | Failed::Local
            | Failed::TooDeep
            | Failed::Loop => false,
        };
        if !remembered {
            return None;
        }
        let size = self.udp_size(&terms.table.config);
        let octets = explained_reply(query, failed.rcode(), failed.extended_error(), size);
        let message = Message::read(&octets).expect("dnsd's own reply can be read");
        let verdict = Cacheability::of(rules, &message, Provenance::Local);
        let kept = verdict.kept();
        let answer = own(octets, clock::now()).expect("dnsd's own reply can be read");
        Some(Known {
            answer,
            told: None,
            kept,
            provenance: Provenance::Local,
            by: By::Server,
            failed: Some(failed),
        })
    }
}

/// Somebody who is asked.
#[derive(Debug)]
struct Asked {
    plan: model::Forward,
    forwarder: Arc<Forwarder>,
}

impl Asked {
    /// Who is asked already goes on being asked, with what is known of their health, and over the same connections.
    fn new(plan: &model::Forward, before: &[&Chain], metrics: &Arc<Metrics>) -> Result<Self, InvalidForward> {
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

/// Whether whom it asks depends on files, or names, besides what is written: they are looked at again.
pub(super) fn reads_files(plan: &model::Forward) -> bool {
    plan.to.iter().any(|upstream| match upstream.host {
        model::UpstreamHost::Address(_) => false,
        model::UpstreamHost::ResolvConf(_) | model::UpstreamHost::Name(..) => true,
    })
}

/// An answer and where it came from.
struct Made {
    answer: ValidatedResponse<Answer>,
    provenance: Provenance,
    by: By,
    /// Whether other clients may be given it.
    is_shareable: bool,
}

/// What dnsd says itself; an alias is followed as a client would.
async fn local(outcome: Outcome, query: &Query<'_>, terms: &Terms, by: By) -> Result<Made, Failed> {
    let octets = match outcome {
        Outcome::Answer(octets) => octets,
        Outcome::Follow(octets, target) => match terms.follow(query, &target).await {
            Ok(found) => append(octets, &found, query, u16::MAX),
            Err(_nothing_found) => octets,
        },
        Outcome::Fail | Outcome::Next => return Err(Failed::Local),
    };
    Ok(Made {
        answer: own(octets, clock::now()).ok_or(Failed::Local)?,
        provenance: Provenance::Local,
        by,
        is_shareable: true,
    })
}

/// A message of dnsd's own as an answer; nothing where it cannot be read.
pub(super) fn own(octets: Vec<u8>, made: Timestamp) -> Option<ValidatedResponse<Answer>> {
    const ANY: TtlLimits = TtlLimits {
        at_least: 0,
        at_most: u32::MAX,
    };
    let question = *Message::read(&octets).ok()?.question();
    Some(ValidatedResponse::own(Answer::new(octets, &question, made, &ANY)))
}
