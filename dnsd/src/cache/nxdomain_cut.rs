//! NXDOMAIN cuts (RFC 8020): what is below a name that does not exist does not exist either. In the zones of search lists such
//! names are denied without a query, once the upstream has denied the name above them.
//!
//! ```text
//!  api.example.com.shop.svc.cluster.local   denied, and so was another name below com.…
//!              com.shop.svc.cluster.local   pre-query in the background: also denied ──▶ a cut, for its negative TTL
//!                  shop.svc.cluster.local   exists
//! ```
//!
//! The denial of a name says nothing of the name above it, so that one is queried by itself in the background (a pre-query). That
//! is done only where the server is known to answer for empty non-terminals: CoreDNS' plugin `kubernetes` answers for namespaces
//! and services without records (plugin/kubernetes/parse.go, kubernetes.go). Other servers deny empty non-terminals, which is why
//! resolvers believe such denials in signed zones only (unbound's `harden-below-nxdomain`). An existing name opens all names above
//! it for an hour.

mod ancestors;
mod public_suffix;
mod denial;
mod negative_tree;
mod candidate_labels;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use egret_shared::time::Timestamp;

use crate::config::model::{CutZone, ZoneKind};
use crate::dns::message::WireName;

pub use denial::Denial;

use ancestors::{Ancestors, Level};
use candidate_labels::CandidateLabels;
use negative_tree::{NegativeTree, NodeState};

/// How long a name stays open after something below it was found to exist.
const PROVEN: Duration = Duration::from_secs(3_600);
/// How long no other pre-query of a name is sent while one is outstanding, or after one failed.
const PAUSE: Duration = Duration::from_secs(5);
/// The longest cut in a zone of the host's search list: the negative TTL of node-local-dns' Corefile.
const SEARCHED: Duration = Duration::from_secs(5);
/// Outstanding pre-queries.
const MAX_PRE_QUERIES: usize = 16;

/// The NXDOMAIN cuts of a block, and the names known to exist.
#[derive(Debug)]
pub struct NxdomainCuts {
    zones: Vec<CutZone>,
    /// Held for one operation.
    known: Mutex<State>,
    under_way: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    tree: NegativeTree,
    candidates: CandidateLabels,
}

/// A name with what its answer depends on.
#[derive(Clone, Copy, Debug)]
pub struct CutQuery<'a> {
    /// The name.
    pub name: &'a WireName,
    /// The highest name that the block answers for.
    pub apex: &'a WireName,
    /// DO and CD, which are kept apart as in the cache: 0 to 3.
    pub class: u8,
}

/// A name to be queried; it counts as outstanding until it is dropped.
#[derive(Debug)]
pub struct PreQuery {
    cuts: Arc<NxdomainCuts>,
    /// The denied name below it.
    denied: WireName,
    apex: WireName,
    class: u8,
    level: Level,
    name: WireName,
}

/// The outcome of a pre-query.
#[derive(Debug)]
pub enum PreQueryOutcome {
    /// It does not exist, for so long.
    Denied(Denial, Timestamp),
    /// It does, for so long.
    Exists(Timestamp),
    /// Nothing that could be relied on.
    Nothing,
}

impl NxdomainCuts {
    /// No cuts, in these zones.
    #[must_use]
    pub fn new(zones: &[CutZone]) -> Self {
        Self {
            zones: zones.to_vec(),
            known: Mutex::default(),
            under_way: AtomicUsize::new(0),
        }
    }

    /// The cut that a name is below, if any.
    #[must_use]
    pub fn denial(&self, asked: CutQuery<'_>, now: Timestamp) -> Option<Arc<Denial>> {
        let ancestors = self.ancestors(asked)?;
        self.lock().tree.denial(asked.class, &ancestors, now).cloned()
    }

    /// Notes that a name exists, and so all above it.
    pub fn note_existing(&self, asked: CutQuery<'_>, now: impl FnOnce() -> Timestamp) {
        let Some(ancestors) = self.ancestors(asked) else {
            return;
        };
        let (mut known, now) = (self.lock(), now());
        for level in [Level::Upper, Level::Lower] {
            let is_proven = known
                .tree
                .is_proven(asked.class, &ancestors, level, now.after(PROVEN / 2));
            if !is_proven {
                let state = NodeState::Open {
                    until: now.after(PROVEN),
                    is_proven: true,
                };
                known.tree.set(asked.class, &ancestors, level, state, now);
            }
        }
    }

    /// A name was denied until `until`: whether one above it is to be asked for. It takes two different names below the same
    /// label, whatever base it stands below: a label that nobody uses twice is not worth a question, and who invents
    /// labels cannot double what is asked of upstreams. Where the name above was denied within the hour, one is enough:
    /// whoever asked for names below it does so again.
    #[must_use]
    pub fn note_denied(
        self: &Arc<Self>,
        asked: CutQuery<'_>,
        until: Timestamp,
        now: Timestamp,
    ) -> Option<PreQuery> {
        let ancestors = self.ancestors(asked)?;
        let mut known = self.lock();
        let level = known.tree.unknown(asked.class, &ancestors, now)?;
        let name = ancestors.at(level)?;
        let rest = &asked.name.as_octets()[..asked.name.as_octets().len() - name.len()];
        let is_common = known.candidates.repeats(ancestors::label(name), rest, until, now);
        if !is_common && !known.tree.was_denied(asked.class, &ancestors, level, now) {
            return None;
        }
        let (name, _) = WireName::read(name, 0).ok()?;
        let pre_query = self.enter(asked, level, name)?;
        let state = NodeState::Open {
            until: now.after(PAUSE),
            is_proven: false,
        };
        let has_room = known.tree.set(asked.class, &ancestors, level, state, now);
        has_room.then_some(pre_query)
    }

    /// The number of known names, and its limit.
    #[must_use]
    pub fn figures(&self) -> (usize, usize) {
        (self.lock().tree.len(), NegativeTree::MOST)
    }

    fn ancestors<'a>(&self, asked: CutQuery<'a>) -> Option<Ancestors<'a>> {
        self.zone(asked.name)?.ancestors(asked.name)?.within(asked.apex)
    }

    fn zone(&self, name: &WireName) -> Option<&CutZone> {
        let zones = self.zones.iter().filter(|zone| zone.zone.holds(name));
        zones.max_by_key(|zone| zone.zone.apex().as_octets().len())
    }

    fn enter(self: &Arc<Self>, asked: CutQuery<'_>, level: Level, name: WireName) -> Option<PreQuery> {
        let pre_query = PreQuery {
            cuts: Arc::clone(self),
            denied: *asked.name,
            apex: *asked.apex,
            class: asked.class,
            level,
            name,
        };
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        (before < MAX_PRE_QUERIES).then_some(pre_query)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PreQuery {
    /// The name to be queried.
    #[must_use]
    pub const fn name(&self) -> &WireName {
        &self.name
    }

    /// Takes what was heard of it. What was proven meanwhile stays.
    pub fn end(self, heard: PreQueryOutcome, now: Timestamp) {
        let asked = CutQuery {
            name: &self.denied,
            apex: &self.apex,
            class: self.class,
        };
        let state = match heard {
            PreQueryOutcome::Denied(denial, until) => NodeState::Denied {
                denial: Arc::new(denial),
                until: self.bound(until, now),
            },
            PreQueryOutcome::Exists(until) => NodeState::Open {
                until,
                is_proven: false,
            },
            PreQueryOutcome::Nothing => NodeState::Open {
                until: now.after(PAUSE),
                is_proven: false,
            },
        };
        let Some(ancestors) = self.cuts.ancestors(asked) else {
            return;
        };
        let mut known = self.cuts.lock();
        if !known.tree.is_proven(self.class, &ancestors, self.level, now) {
            known.tree.set(self.class, &ancestors, self.level, state, now);
        }
    }

    fn bound(&self, until: Timestamp, now: Timestamp) -> Timestamp {
        match self.cuts.zone(&self.denied).map(|zone| zone.kind) {
            Some(ZoneKind::Searched) => until.min(now.after(SEARCHED)),
            Some(ZoneKind::Cluster | ZoneKind::Named) | None => until,
        }
    }
}

impl Drop for PreQuery {
    fn drop(&mut self) {
        self.cuts.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::Zone;
    use crate::dns::message::Message;

    const START: Timestamp = Timestamp::from_millis(1_000_000);

    fn at(seconds: u64) -> Timestamp {
        START.after(Duration::from_secs(seconds))
    }

    fn name(text: &str) -> WireName {
        WireName::parse(text).unwrap()
    }

    fn zone(text: &str, kind: ZoneKind) -> CutZone {
        CutZone {
            zone: Zone::new(name(text)),
            kind,
        }
    }

    fn cuts() -> Arc<NxdomainCuts> {
        Arc::new(NxdomainCuts::new(&[
            zone("cluster.local", ZoneKind::Cluster),
            zone("ec2.internal", ZoneKind::Named),
            zone("compute.internal", ZoneKind::Searched),
        ]))
    }

    /// A name, in a block for everything.
    fn with<T>(text: &str, act: impl FnOnce(CutQuery<'_>) -> T) -> T {
        let (name, apex) = (name(text), WireName::root());
        act(CutQuery {
            name: &name,
            apex: &apex,
            class: 0,
        })
    }

    fn denied(cuts: &Arc<NxdomainCuts>, text: &str, now: u64) -> Option<PreQuery> {
        with(text, |asked| cuts.note_denied(asked, at(now + 30), at(now)))
    }

    fn is_denied(cuts: &NxdomainCuts, text: &str, now: u64) -> bool {
        with(text, |asked| cuts.denial(asked, at(now)).is_some())
    }

    fn exists(cuts: &NxdomainCuts, text: &str, now: u64) {
        with(text, |asked| cuts.note_existing(asked, || at(now)));
    }

    /// The second name below a label.
    fn asked_above(cuts: &Arc<NxdomainCuts>, ancestor: &str, now: u64) -> Option<PreQuery> {
        assert!(
            denied(cuts, &format!("one.x.{ancestor}"), now).is_none(),
            "{ancestor}"
        );
        denied(cuts, &format!("two.x.{ancestor}"), now)
    }

    /// RFC 2308 section 2.1: a question, and the SOA of the root in the authority section.
    fn nxdomain(of: &str) -> PreQueryOutcome {
        let name = name(of);
        let mut octets = [0, 0, 0x81, 0x83, 0, 1, 0, 0, 0, 1, 0, 0].to_vec();
        octets.extend_from_slice(name.as_octets());
        octets.extend_from_slice(&[0, 1, 0, 1, 0, 0, 6, 0, 1, 0, 0, 0, 30, 0, 22]);
        octets.extend_from_slice(&[0; 22]);
        let denial = Denial::read(&Message::read(&octets).unwrap(), START);
        PreQueryOutcome::Denied(denial.unwrap(), at(30))
    }

    fn cut(cuts: &Arc<NxdomainCuts>, ancestor: &str) {
        let pre_query = asked_above(cuts, ancestor, 0).unwrap_or_else(|| panic!("{ancestor} is asked for"));
        assert_eq!(*pre_query.name(), name(ancestor));
        pre_query.end(nxdomain(ancestor), at(0));
    }

    #[test]
    fn candidates_are_one_label_below_a_base() {
        for (denied_names, asked) in [
            (
                ["a.x.com.cluster.local", "b.x.com.cluster.local"],
                Some("com.cluster.local"),
            ),
            (
                ["a.com.cluster.local", "b.com.cluster.local"],
                Some("com.cluster.local"),
            ),
            (
                ["a.x.com.svc.cluster.local", "b.x.com.svc.cluster.local"],
                Some("com.svc.cluster.local"),
            ),
            (
                ["a.x.com.ns.svc.cluster.local", "b.x.com.ns.svc.cluster.local"],
                Some("ns.svc.cluster.local"),
            ),
            (
                ["a.x.com.ec2.internal", "b.x.com.ec2.internal"],
                Some("com.ec2.internal"),
            ),
            (
                ["a.b.svc.ec2.internal", "c.svc.ec2.internal"],
                Some("svc.ec2.internal"),
            ),
            // One name, for whichever base, is one.
            (["a.x.com.cluster.local", "a.x.com.cluster.local"], None),
            (["a.x.com.cluster.local", "a.x.com.svc.cluster.local"], None),
            (["com.cluster.local", "com.cluster.local"], None),
            (["svc.cluster.local", "ns.svc.cluster.local"], None),
            (["a.x.pod.cluster.local", "b.x.pod.cluster.local"], None),
            (["a.x.dns.cluster.local", "b.x.dns.cluster.local"], None),
            (["a._udp.cluster.local", "b._udp.cluster.local"], None),
            (["a.*.svc.cluster.local", "b.*.svc.cluster.local"], None),
            (["a.x.com.example", "b.x.com.example"], None),
        ] {
            let cuts = cuts();
            assert!(denied(&cuts, denied_names[0], 0).is_none());
            let pre_query = denied(&cuts, denied_names[1], 0);
            let asked_for = pre_query.as_ref().map(|pre_query| *pre_query.name());
            assert_eq!(asked_for, asked.map(name), "{denied_names:?}");
        }
    }

    #[test]
    fn a_common_label_of_one_namespace_is_a_candidate_at_once_in_the_next() {
        let cuts = cuts();
        for namespace in ["one", "two"] {
            exists(&cuts, &format!("web.{namespace}.svc.cluster.local"), 0);
        }
        cut(&cuts, "com.one.svc.cluster.local");
        let next = denied(&cuts, "three.x.com.two.svc.cluster.local", 0);
        assert_eq!(*next.unwrap().name(), name("com.two.svc.cluster.local"));
    }

    #[test]
    fn a_cut_covers_names_below_it_and_ends_with_its_denial() {
        let cuts = cuts();
        cut(&cuts, "com.cluster.local");
        for (text, now, is_below) in [
            ("api.example.com.cluster.local", 0, true),
            ("x.com.cluster.local", 29, true),
            ("x.com.cluster.local", 30, false),
            ("com.cluster.local", 0, false),
            ("xcom.cluster.local", 0, false),
            ("a.xcom.cluster.local", 0, false),
            ("a.com.svc.cluster.local", 0, false),
            ("a.com.ec2.internal", 0, false),
        ] {
            assert_eq!(is_denied(&cuts, text, now), is_below, "{text} at {now}");
        }
        let with_do = with("a.com.cluster.local", |asked| {
            cuts.denial(CutQuery { class: 2, ..asked }, at(0)).is_some()
        });
        assert!(!with_do, "others asked without DO");
    }

    #[test]
    fn a_candidate_denied_within_the_hour_is_queried_again_after_one_denial_below_it() {
        const HOUR: u64 = 3_600;
        for (now, is_asked) in [(30, true), (HOUR + 29, true), (HOUR + 30, false)] {
            let cuts = cuts();
            cut(&cuts, "com.cluster.local");
            let again = denied(&cuts, "three.x.com.cluster.local", now);
            assert_eq!(again.is_some(), is_asked, "at {now}");
            assert!(
                denied(&cuts, "three.x.com.svc.cluster.local", now).is_none(),
                "of another base"
            );
        }
        let cuts = cuts();
        let exists = asked_above(&cuts, "com.cluster.local", 0).unwrap();
        exists.end(PreQueryOutcome::Exists(at(30)), at(0));
        assert!(
            denied(&cuts, "three.x.com.cluster.local", 60).is_none(),
            "it was not denied"
        );
    }

    #[test]
    fn an_existing_name_below_ends_a_cut_and_prevents_the_next() {
        let cuts = cuts();
        cut(&cuts, "com.cluster.local");
        exists(&cuts, "odd.com.cluster.local", 1);
        assert!(!is_denied(&cuts, "api.com.cluster.local", 1));
        assert!(asked_above(&cuts, "com.cluster.local", 2).is_none());
        let slow = asked_above(&cuts, "net.cluster.local", 2).unwrap();
        exists(&cuts, "odd.net.cluster.local", 3);
        slow.end(nxdomain("net.cluster.local"), at(4));
        assert!(
            !is_denied(&cuts, "api.net.cluster.local", 4),
            "it was proven while it was asked for"
        );
    }

    #[test]
    fn a_candidate_is_queried_once_while_pending_and_while_its_answer_lives() {
        let cuts = cuts();
        let first = asked_above(&cuts, "com.cluster.local", 0).unwrap();
        assert!(denied(&cuts, "three.x.com.cluster.local", 1).is_none());
        first.end(PreQueryOutcome::Exists(at(20)), at(1));
        assert!(denied(&cuts, "four.x.com.cluster.local", 19).is_none());
        let again = denied(&cuts, "five.x.com.cluster.local", 20).unwrap();
        again.end(PreQueryOutcome::Nothing, at(20));
        assert!(denied(&cuts, "six.x.com.cluster.local", 24).is_none());
        assert!(denied(&cuts, "seven.x.com.cluster.local", 25).is_some());
    }

    #[test]
    fn candidate_queries_at_once_are_limited() {
        let cuts = cuts();
        let asked = |number| asked_above(&cuts, &format!("n{number}.cluster.local"), 0);
        let under_way: Vec<PreQuery> = (0..MAX_PRE_QUERIES + 1).filter_map(asked).collect();
        assert_eq!(under_way.len(), MAX_PRE_QUERIES);
        drop(under_way);
        assert!(asked(MAX_PRE_QUERIES + 1).is_some());
    }

    #[test]
    fn candidates_are_in_the_blocks_own_zone() {
        let cuts = cuts();
        let apex = name("corp.ns.svc.cluster.local");
        for text in ["a.x.corp.ns.svc.cluster.local", "b.x.corp.ns.svc.cluster.local"] {
            let name = name(text);
            let asked = CutQuery {
                name: &name,
                apex: &apex,
                class: 0,
            };
            let pre_query = cuts.note_denied(asked, at(30), at(0));
            let asked_for = pre_query.map(|pre_query| *pre_query.name());
            assert_eq!(asked_for, text.starts_with('b').then_some(apex));
        }
    }

    #[test]
    fn search_domains_have_cuts_of_public_suffixes_only_for_five_seconds() {
        let cuts = cuts();
        assert!(asked_above(&cuts, "corp.compute.internal", 0).is_none());
        cut(&cuts, "com.compute.internal");
        for (now, is_below) in [(0, true), (4, true), (5, false)] {
            assert_eq!(
                is_denied(&cuts, "a.x.com.compute.internal", now),
                is_below,
                "at {now}"
            );
        }
    }
}
