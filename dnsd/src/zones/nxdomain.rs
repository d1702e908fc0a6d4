//! Names below one that was denied: how a question is answered for it, and how the name above comes to be known.

use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::{clock, task};
use egret_shared::time::Timestamp;

use crate::cache::nxdomain_cut::{CutQuery, Denial, PendingPreQuery, PreQuery, PreQueryOutcome};
use crate::cache::{Key, Kind, Provenance};
use crate::dns::message::{CLASS_IN, Query, flag, kind, rcode};
use crate::telemetry::metrics::CutInquiry;

use super::chain::own;
use super::{By, Entry, Failed, Known, Stays, Terms};

impl Entry {
    /// The denial of a name above that of a question which would be asked of upstreams now.
    #[must_use]
    pub fn denied_below(&self, key: &Key, query: &Query, now: Timestamp) -> Option<Arc<Denial>> {
        let cuts = self.block.cuts()?;
        let denial = cuts.denial(self.asked(key, query)?, now)?;
        self.would_be_asked(query).then_some(denial)
    }

    fn would_be_asked(&self, query: &Query) -> bool {
        self.may_ask_outside && self.block.may_forward(query) && self.block.forwards(&query.question.name)
    }

    /// Whether a question waits for the name above it, which is asked for from now on if it was not before.
    #[must_use]
    pub fn pre_query_first(
        self: &Arc<Self>,
        key: &Key,
        query: &Query,
        terms: &Terms,
    ) -> Option<PendingPreQuery> {
        let cuts = self.block.cuts()?;
        if query.flags & flag::RD == 0 || !self.would_be_asked(query) {
            return None;
        }
        let mut pre_query_first = cuts.pre_query_first(self.asked(key, query)?, clock::now)?;
        if let Some(pre_query) = pre_query_first.pre_query.take() {
            self.inquire(pre_query, query, terms);
        }
        Some(pre_query_first)
    }

    /// The denial of the name above, if that is what is heard of it in time; and how long that took.
    pub async fn denied_first(
        &self,
        pre_query_first: PendingPreQuery,
        key: &Key,
        query: &Query<'_>,
    ) -> Result<Arc<Denial>, Duration> {
        let begun = clock::now();
        pre_query_first.end().await;
        let now = clock::now();
        self.denied_below(key, query, now).ok_or_else(|| now.since(begun))
    }

    /// The same as an answer, for a question that comes from another one.
    pub(super) fn known_denied_below(
        &self,
        key: Option<&Key>,
        query: &Query,
        terms: &Terms,
        now: Timestamp,
    ) -> Option<Arc<Known>> {
        let denial = self.denied_below(key?, query, now)?;
        self.block.count_cut();
        let size = u16::MAX;
        let reply = denial.reply(query, now, self.block.keeps_ttls(), size.into(), size);
        let known = self
            .block
            .chain
            .unkept(own(reply, now)?, terms, Provenance::Upstream, By::Cache);
        Some(Arc::new(known))
    }

    /// What an upstream says of a name it may say of those above: all above an existing one exist, and one above denied ones
    /// is worth a question, which nobody waits for.
    pub(super) fn learn_what_is_above(
        self: &Arc<Self>,
        key: &Key,
        query: &Query,
        terms: &Terms,
        known: &Known,
    ) {
        let (Some(cuts), Some(asked)) = (self.block.cuts(), self.asked(key, query)) else {
            return;
        };
        // Without recursion an upstream says what it has, and not what there is.
        if known.by != By::Forward || query.flags & flag::RD == 0 {
            return;
        }
        let answer = known.answer.get();
        let denied_for = known.kept.filter(|kept| kept.kind == Kind::NameError);
        match (answer.rcode(), denied_for) {
            (rcode::NOERROR, _) => cuts.note_existing(asked, clock::now),
            (rcode::NXDOMAIN, Some(kept)) => {
                let until = answer.arrived().after(kept.lifetime);
                if let Some(pre_query) = cuts.note_denied(asked, until, clock::now()) {
                    self.inquire(pre_query, query, terms);
                }
            }
            (_other_code, _) => {}
        }
    }

    /// Asks for a name in a task of its own, by A as RFC 9156 section 2.1 advises.
    fn inquire(self: &Arc<Self>, pre_query: PreQuery, query: &Query, terms: &Terms) {
        let question = query.asking(pre_query.name(), kind::A, CLASS_IN);
        let (entry, terms) = (Arc::clone(self), terms.clone());
        drop(task::spawn_brief(async move {
            let key = entry.block.key(&question);
            let known = entry
                .find(key.as_ref(), &question, &terms, None, Stays::Always)
                .await;
            let heard = entry.heard(&known);
            entry.block.count_inquiry(match &heard {
                PreQueryOutcome::Denied(..) => CutInquiry::Denied,
                PreQueryOutcome::Exists(_) => CutInquiry::Exists,
                PreQueryOutcome::Nothing => CutInquiry::Failed,
            });
            pre_query.end(heard, clock::now());
        }));
    }

    /// What an answer says of its name. One that is not kept is not believed for others either.
    fn heard(&self, known: &Result<Arc<Known>, Failed>) -> PreQueryOutcome {
        let Ok(known) = known else {
            return PreQueryOutcome::Nothing;
        };
        let answer = known.answer.get();
        let is_from_upstream = known.by == By::Forward && known.provenance == Provenance::Upstream;
        let Some(kept) = self.block.judged(known).filter(|_| is_from_upstream) else {
            return PreQueryOutcome::Nothing;
        };
        let until = answer.arrived().after(kept.lifetime);
        match kept.kind {
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
