//! NXDOMAIN cuts (RFC 8020): answering below a denied name, and pre-queries for the name above.

use std::sync::Arc;

use egret_shared::rt::{clock, task};
use egret_shared::time::Timestamp;

use crate::cache::nxdomain_cut::{CutQuery, Denial, PreQuery, PreQueryOutcome};
use crate::cache::{Key, Kind, Provenance};
use crate::dns::message::{CLASS_IN, Query, flag, kind, rcode};

use super::chain::own;
use super::{
    AnswerSource, Cancellation, PreQueryResult, QueryContext, ResolveError, ResolvedAnswer, ZoneBinding,
};

impl ZoneBinding {
    /// The denial of a name above the query's, if the query would go to an upstream.
    #[must_use]
    pub fn denied_below(&self, key: &Key, query: &Query, now: Timestamp) -> Option<Arc<Denial>> {
        let cuts = self.block.cuts()?;
        let denial = cuts.denial(self.asked(key, query)?, now)?;
        self.would_be_asked(query).then_some(denial)
    }

    fn would_be_asked(&self, query: &Query) -> bool {
        self.may_ask_outside && self.block.may_forward(query) && self.block.forwards(&query.question.name)
    }

    /// The answer by an NXDOMAIN cut, for a query that another one led to.
    pub(super) fn denied_below_answer(
        &self,
        key: Option<&Key>,
        query: &Query,
        context: &QueryContext,
        now: Timestamp,
    ) -> Option<Arc<ResolvedAnswer>> {
        let denial = self.denied_below(key?, query, now)?;
        self.block.count_cut();
        let size = u16::MAX;
        let reply = denial.reply(query, now, self.block.keeps_ttls(), size.into(), size);
        let resolved = self.block.chain.uncached(
            own(reply, now)?,
            context,
            Provenance::Upstream,
            AnswerSource::Cache,
        );
        Some(Arc::new(resolved))
    }

    /// Updates the cuts with an upstream's answer: all names above an existing one exist; the name above denied ones may be
    /// worth a pre-query, which no query waits for.
    pub(super) fn update_cuts(
        self: &Arc<Self>,
        key: &Key,
        query: &Query,
        context: &QueryContext,
        resolved: &ResolvedAnswer,
    ) {
        let (Some(cuts), Some(asked)) = (self.block.cuts(), self.asked(key, query)) else {
            return;
        };
        // Without recursion an upstream answers from its cache, not with what exists.
        if resolved.source != AnswerSource::Forward || query.flags & flag::RD == 0 {
            return;
        }
        let answer = resolved.answer.get();
        let denied_for = resolved
            .cacheable
            .filter(|cacheable| cacheable.kind == Kind::NameError);
        match (answer.rcode(), denied_for) {
            (rcode::NOERROR, _) => cuts.note_existing(asked, clock::now),
            (rcode::NXDOMAIN, Some(cacheable)) => {
                let until = answer.arrived().after(cacheable.lifetime);
                if let Some(pre_query) = cuts.note_denied(asked, until, clock::now()) {
                    self.inquire(pre_query, query, context);
                }
            }
            (_other_code, _) => {}
        }
    }

    /// Sends a pre-query in a task of its own, for A as RFC 9156 section 2.1 advises.
    fn inquire(self: &Arc<Self>, pre_query: PreQuery, query: &Query, context: &QueryContext) {
        let question = query.asking(pre_query.name(), kind::A, CLASS_IN);
        let (binding, context) = (Arc::clone(self), context.clone());
        drop(task::spawn_brief(async move {
            let key = binding.block.key(&question);
            let resolved = binding
                .find(key.as_ref(), &question, &context, None, Cancellation::Never)
                .await;
            let heard = binding.heard(&resolved);
            binding.block.count_pre_query(match &heard {
                PreQueryOutcome::Denied(..) => PreQueryResult::Denied,
                PreQueryOutcome::Exists(_) => PreQueryResult::Exists,
                PreQueryOutcome::Nothing => PreQueryResult::Failed,
            });
            pre_query.end(heard, clock::now());
        }));
    }

    /// What an answer says of its name. An answer that may not be cached is not used for cuts either.
    fn heard(&self, resolved: &Result<Arc<ResolvedAnswer>, ResolveError>) -> PreQueryOutcome {
        let Ok(resolved) = resolved else {
            return PreQueryOutcome::Nothing;
        };
        let answer = resolved.answer.get();
        let is_from_upstream =
            resolved.source == AnswerSource::Forward && resolved.provenance == Provenance::Upstream;
        let Some(cacheable) = self.block.cacheability(resolved).filter(|_| is_from_upstream) else {
            return PreQueryOutcome::Nothing;
        };
        let until = answer.arrived().after(cacheable.lifetime);
        match cacheable.kind {
            Kind::NameError => Denial::read(&answer.message(), answer.arrived())
                .map_or(PreQueryOutcome::Nothing, |denial| {
                    PreQueryOutcome::Denied(denial, until)
                }),
            Kind::Answer | Kind::Other | Kind::Denial if answer.rcode() == rcode::NOERROR => {
                PreQueryOutcome::Exists(until)
            }
            Kind::Answer | Kind::Other | Kind::Denial | Kind::Failure => PreQueryOutcome::Nothing,
        }
    }

    fn asked<'a>(&'a self, key: &Key, query: &'a Query) -> Option<CutQuery<'a>> {
        (query.question.class == CLASS_IN).then(|| CutQuery {
            name: &query.question.name,
            apex: self.zone.apex(),
            class: key.class(),
        })
    }
}
