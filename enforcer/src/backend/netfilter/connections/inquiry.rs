//! Re-evaluates affected connections in two parts. The inquiry dumps conntrack on any thread, while sets and
//! rules go on changing. The backend then takes in what was found. A flow that opens in between is judged by
//! the current sets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use egret_kernel::conntrack::{Conntrack, Flow};
use egret_kernel::{Mark, netlink, rcu};
use egret_policies::rules::Direction;

use super::affected::AffectedConnections;
use super::expired_records;
use super::flow_dump::FlowDump;
use super::{Connections, InForce};
use crate::backend::netfilter::names::PodChains;
use crate::backend::{ConnectionSearch, SearchResult};

/// Affected connections that wait for an inquiry. While there are any, the kernel holds the inquiry marker set.
#[derive(Debug, Default)]
pub(super) struct MemberInquiry {
    /// Those of the next inquiry.
    due: AffectedConnections,
    /// The inquiry under way.
    running: Option<RunningInquiry>,
}

#[derive(Debug)]
struct RunningInquiry {
    affected: Arc<AffectedConnections>,
    answer: InquiryResult,
}

/// What was found; none before the inquiry ran.
type InquiryResult = Arc<Mutex<Option<Result<FlowDump, Unknown>>>>;

/// Why the open connections are not known.
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

impl MemberInquiry {
    /// An inquiry about those who are due, unless there is one under way.
    fn begin(&mut self) -> Option<ConnectionSearch> {
        if self.running.is_some() || self.due.is_empty() {
            return None;
        }
        let affected = Arc::new(std::mem::take(&mut self.due));
        let running = RunningInquiry {
            affected: Arc::clone(&affected),
            answer: InquiryResult::default(),
        };
        let answer = Arc::clone(&running.answer);
        self.running = Some(running);
        Some(Box::new(move || {
            let found = look(&affected);
            let is_nothing = matches!(&found, Ok(dump) if dump.flows.is_empty());
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            if is_nothing {
                SearchResult::Nothing
            } else {
                SearchResult::Something
            }
        }))
    }

    /// What the last inquiry was about, and what it found, once it has run.
    fn end(&mut self) -> Option<(Arc<AffectedConnections>, Result<FlowDump, Unknown>)> {
        let running = self.running.as_ref()?;
        let found = running
            .answer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()?;
        self.running.take().map(|running| (running.affected, found))
    }
}

/// Connections from or to changed members. The sets are programmed by then.
fn look(affected: &AffectedConnections) -> Result<FlowDump, Unknown> {
    rcu::wait()?;
    let mut dump = FlowDump::query(&mut Conntrack::open()?, affected.query(), 0)?;
    dump.flows.retain(|flow| affected.touch(flow));
    Ok(dump)
}

impl Connections {
    /// Has these connections re-evaluated once an inquiry has found them.
    pub(in crate::backend) fn reevaluate_members(&mut self, affected: AffectedConnections) {
        self.inquiry.due.extend(affected);
    }

    /// Whether no inquiry is due or under way.
    pub(in crate::backend) fn has_no_inquiry(&self) -> bool {
        self.inquiry.due.is_empty() && self.inquiry.running.is_none()
    }

    /// An inquiry about those who are due, unless there is one under way.
    pub(in crate::backend) fn begin_inquiry(&mut self) -> Option<ConnectionSearch> {
        self.inquiry.begin()
    }

    /// Takes in what the inquiry found, and has it re-evaluated. Says whether one has ended.
    ///
    /// # Errors
    /// Pods for which the inquiry failed: all their connections are to be re-evaluated.
    pub(in crate::backend) fn finish_inquiry(
        &mut self,
        in_force: InForce<'_>,
    ) -> Result<bool, AffectedConnections> {
        let Some((affected, found)) = self.inquiry.end() else {
            return Ok(false);
        };
        let affected = affected.among(|pod| in_force.pods.contains(pod));
        match found.and_then(|dump| unmark(in_force, &affected, dump)) {
            Ok(dump) => self.suspect(affected, dump),
            Err(why) => {
                tracing::debug!(%why, pods = affected.pods().len(), "all that pods have open is asked again");
                return Err(affected);
            }
        }
        Ok(true)
    }
}

/// Clears the mark by which flows pass the rules.
fn unmark(
    in_force: InForce<'_>,
    affected: &AffectedConnections,
    mut dump: FlowDump,
) -> Result<FlowDump, Unknown> {
    let concerned = concerned(in_force, affected, &dump.flows);
    if concerned.len() > MANY {
        return Err(Unknown::Many(concerned.len()));
    }
    if concerned.is_empty() {
        return Ok(dump);
    }
    let marks: Vec<_> = concerned
        .iter()
        .map(|(at, unmarked)| (&dump.flows[*at], *unmarked))
        .collect();
    Conntrack::open()?.set_marks(&marks)?;
    for (at, unmarked) in concerned {
        dump.flows[at].mark &= !unmarked.mask().get();
    }
    Ok(dump)
}

/// Flows that pass by a mark from before members changed, and the mark that clears it. They pass by the mark, whatever their
/// source address is.
fn concerned(in_force: InForce<'_>, affected: &AffectedConnections, flows: &[Flow]) -> Vec<(usize, Mark)> {
    if flows.is_empty() {
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
    let each = flows.iter().enumerate();
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
