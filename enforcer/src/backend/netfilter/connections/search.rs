//! Searches open connections that are to be judged again, in two parts. The search dumps conntrack on any thread, while sets and
//! rules go on changing; one search serves all changes that came before it. The backend then takes in what was found, and judges it by the
//! rules and sets of that moment. A flow that opens in between is judged by the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use egret_kernel::conntrack::{Conntrack, Flow, FlowFilter};
use egret_kernel::{Mark, netlink, rcu};
use egret_policies::rules::Direction;

use super::affected::AffectedConnections;
use super::expired_records;
use super::flow_dump::{FlowDump, FlowQuery};
use super::revoked::{Revoked, RevokedFlows};
use super::{Connections, InForce, Reevaluation};
use crate::backend::netfilter::marks::Marks;
use crate::backend::netfilter::names::PodChains;
use crate::backend::{ConnectionSearch, SearchResult};

/// The search under way, if there is one.
#[derive(Debug, Default)]
pub(super) struct Search(Option<RunningSearch>);

#[derive(Debug)]
struct RunningSearch {
    about: Reevaluation,
    answer: Answer,
}

/// What was found; none before the search ran.
type Answer = Arc<Mutex<Option<SearchOutcome>>>;

/// Flows as they were at one moment.
#[derive(Debug)]
struct SearchOutcome {
    /// Whether no packet that met changed members as they were is still on its way.
    settled: Result<(), rcu::Error>,
    flows: Result<Flows, netlink::Error>,
}

#[derive(Debug)]
struct Flows {
    asked: Vec<Flow>,
    /// Those that are revoked, where that was to be read.
    revoked: Option<Vec<Revoked>>,
}

/// Why connections that changed members affect are not judged alone.
#[derive(Debug, thiserror::Error)]
enum Unknown {
    #[error(transparent)]
    Passing(#[from] rcu::Error),
    #[error(transparent)]
    Flows(#[from] netlink::Error),
    #[error("{0} flows are concerned, and to mark each takes longer than to write chains")]
    Many(usize),
}

/// Setting a mark takes 10 to 25 µs; a new generation for all pods of a node, half a second.
const MANY: usize = 1 << 12;

impl Search {
    /// What the last search was about, and what it found, once it has run.
    fn end(&mut self) -> Option<(Reevaluation, SearchOutcome)> {
        let running = self.0.as_ref()?;
        let found = running
            .answer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()?;
        self.0.take().map(|running| (running.about, found))
    }
}

/// What one search asks the kernel.
struct Inquiry {
    /// Flows of pods whose rules changed.
    query: FlowQuery,
    /// Changed members: the sets are programmed by then.
    affected: AffectedConnections,
    /// The marks of revoked flows, where these are to be read.
    reload: Option<Marks>,
}

impl Inquiry {
    fn run(self) -> SearchOutcome {
        let settled = if self.affected.is_empty() {
            Ok(())
        } else {
            rcu::wait()
        };
        SearchOutcome {
            settled,
            flows: self.list(),
        }
    }

    fn list(&self) -> Result<Flows, netlink::Error> {
        let mut conntrack = Conntrack::open()?;
        let more = if self.reload.is_some() {
            Direction::ALL.len()
        } else {
            0
        };
        let query = self.query.clone().and(self.affected.query());
        let dump = FlowDump::query(&mut conntrack, &query, more)?;
        let revoked = self.reload.map(|marks| revoked(&mut conntrack, marks, &dump));
        let mut asked = dump.flows;
        asked.retain(|flow| self.query.is_about(flow) || self.affected.touch(flow));
        Ok(Flows {
            asked,
            revoked: revoked.transpose()?,
        })
    }
}

/// The flows that are revoked, out of all that there are or as the kernel tells.
fn revoked(conntrack: &mut Conntrack, marks: Marks, dump: &FlowDump) -> Result<Vec<Revoked>, netlink::Error> {
    let mut revoked = Vec::new();
    for direction in Direction::ALL {
        let mark = marks.revoked(direction);
        let flows = if dump.is_all {
            let marked = dump.flows.iter().filter(|flow| mark.is_in(flow.mark));
            marked.cloned().collect()
        } else {
            conntrack.dump(&FlowFilter {
                mark: Some(mark),
                ..FlowFilter::ALL
            })?
        };
        revoked.extend(flows.into_iter().map(|flow| Revoked { direction, flow }));
    }
    Ok(revoked)
}

impl Connections {
    /// Has these connections re-evaluated once a search has found them.
    pub(in crate::backend) fn reevaluate_members(&mut self, affected: AffectedConnections) {
        self.due.affected.extend(affected);
    }

    /// Whether no search for connections of changed members is due or under way.
    pub(in crate::backend) fn has_no_member_search(&self) -> bool {
        let mut running = self.search.0.iter();
        self.due.affected.is_empty() && running.all(|search| search.about.affected.is_empty())
    }

    /// A search for those who are due, unless there is one under way or its flows are not judged yet.
    pub(in crate::backend) fn begin_search(
        &mut self,
        in_force: InForce<'_>,
        is_broken: bool,
    ) -> Option<ConnectionSearch> {
        let is_busy = self.search.0.is_some() || !self.unjudged.as_slice().is_empty();
        if is_busy || is_broken || self.is_waiting {
            return None;
        }
        let about = self.due.take_programmed(in_force);
        let reload = std::mem::take(&mut self.reload);
        if about.is_empty() && !reload {
            return None;
        }
        let inquiry = Inquiry {
            query: about.query(in_force),
            affected: about.affected.clone(),
            reload: reload.then_some(in_force.marks),
        };
        let answer = Answer::default();
        self.search = Search(Some(RunningSearch {
            about,
            answer: Arc::clone(&answer),
        }));
        Some(Box::new(move || {
            let found = inquiry.run();
            let is_nothing = matches!(&found, SearchOutcome { settled: Ok(()), flows: Ok(Flows { asked, revoked: None }) } if asked.is_empty());
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            if is_nothing {
                SearchResult::Nothing
            } else {
                SearchResult::Something
            }
        }))
    }

    /// Takes in what the search found, to be judged. Says whether one has ended.
    ///
    /// # Errors
    /// Pods for whose changed members it failed: all their connections are to be re-evaluated.
    pub(in crate::backend) fn finish_search(
        &mut self,
        in_force: InForce<'_>,
    ) -> Result<bool, AffectedConnections> {
        let Some((mut about, SearchOutcome { settled, flows })) = self.search.end() else {
            return Ok(false);
        };
        let affected = std::mem::take(&mut about.affected).among(|pod| in_force.pods.contains(pod));
        let outcome = match flows {
            Err(error) => {
                self.put_off(about, &error);
                Err(error.into())
            }
            Ok(Flows { mut asked, revoked }) => {
                if let Some(revoked) = revoked {
                    self.revoked = RevokedFlows::default();
                    self.revoked.add(revoked);
                    let all = in_force.pods.keys().cloned().collect();
                    self.revoked.reconsider(all, BTreeSet::new());
                }
                let unmarked = settled
                    .map_err(Unknown::from)
                    .and_then(|()| unmark(in_force, &affected, &mut asked));
                self.judged = about;
                self.unjudged = asked.into_iter();
                unmarked
            }
        };
        match outcome {
            Ok(()) => self.judged.affected = affected,
            Err(_) if affected.is_empty() => {}
            Err(why) => {
                tracing::debug!(%why, pods = affected.pods().len(), "all that pods have open is asked again");
                return Err(affected);
            }
        }
        Ok(true)
    }

    /// Asks about these again after the next batch or comparison: the kernel refused something.
    pub(super) fn put_off(&mut self, about: Reevaluation, error: &netlink::Error) {
        tracing::warn!(%error, "connections that are forbidden by now may go on until it is tried again");
        self.due.extend(about);
        self.is_waiting = true;
        // Some may be revoked.
        self.reload = true;
    }
}

/// Clears the mark by which flows pass the rules.
fn unmark(in_force: InForce<'_>, affected: &AffectedConnections, flows: &mut [Flow]) -> Result<(), Unknown> {
    let concerned = concerned(in_force, affected, flows);
    if concerned.len() > MANY {
        return Err(Unknown::Many(concerned.len()));
    }
    if concerned.is_empty() {
        return Ok(());
    }
    let marks: Vec<_> = concerned
        .iter()
        .map(|(at, unmarked)| (&flows[*at], *unmarked))
        .collect();
    let outcome = Conntrack::open().and_then(|mut conntrack| conntrack.set_marks(&marks));
    outcome?;
    for (at, unmarked) in concerned {
        flows[at].mark &= !unmarked.mask().get();
    }
    Ok(())
}

/// Flows that pass by a mark from before members changed, and the mark that clears it. They pass by the mark, whatever their
/// source address is.
fn concerned(in_force: InForce<'_>, affected: &AffectedConnections, flows: &[Flow]) -> Vec<(usize, Mark)> {
    if flows.is_empty() || affected.is_empty() {
        return Vec::new();
    }
    let (allowed, owners) = (allowed_marks(in_force, affected), in_force.pods.by_address());
    let is_allowed = |flow: &Flow, direction: Direction| {
        let mut marks = allowed.get(&direction).into_iter().flatten();
        marks.any(|mark| mark.is_in(flow.mark))
    };
    let outlasts = |flow: &Flow, direction: Direction| {
        let owner = owners.get(&flow.original.source);
        let outlasts = owner.map(|rules| expired_records::outlasts(flow, rules, in_force.sets));
        direction == Direction::Egress && outlasts == Some(true)
    };
    let each = flows.iter().enumerate().filter(|(_, flow)| affected.touch(flow));
    let each = each.flat_map(|(at, flow)| Direction::ALL.map(|direction| (at, flow, direction)));
    each.filter(|(_, flow, direction)| is_allowed(flow, *direction) && !outlasts(flow, *direction))
        .map(|(at, _, direction)| (at, in_force.marks.unmarked(direction)))
        .collect()
}

/// The marks of flows that the rules of affected pods allowed.
fn allowed_marks(in_force: InForce<'_>, affected: &AffectedConnections) -> BTreeMap<Direction, Vec<Mark>> {
    let mut allowed: BTreeMap<Direction, Vec<Mark>> = BTreeMap::new();
    for (pod, direction) in affected.pods() {
        let marks = in_force.generations.marks(PodChains::of(pod));
        let mark = marks.map(|marks| marks.of(*direction));
        let known = allowed.entry(*direction).or_default();
        let mark = mark.filter(|mark| !known.contains(mark));
        known.extend(mark);
    }
    allowed
}
