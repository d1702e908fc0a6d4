//! The engine's replies to operators.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use egret_policies::diagnostic::{Code, Diagnostic, ObjectRef, Severity};
use egret_policies::records::RecordStats;
use egret_shared::pod::PodKey;
use egret_shared::rt::clock;

use super::{Engine, Phase};
use crate::backend::bypass::BypassReport;
use crate::backend::{Backend, Pending};

/// A request of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminQuery {
    /// The state of enforcement.
    Report,
    /// The records, as text.
    Records,
    /// Desired and programmed rules, as text.
    Rules,
}

/// A reply.
#[derive(Clone, Debug)]
pub enum AdminReply {
    /// The state of enforcement.
    Report(Box<Report>),
    /// A page of text.
    Page(String),
}

/// The state of enforcement.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Why the node is not enforced as it should be; empty when it is.
    pub reasons: Vec<String>,
    /// Pods of this node.
    pub pods: usize,
    /// Pods for which the kernel is not yet as it should be.
    pub pods_pending: usize,
    /// Records and their limits.
    pub records: RecordStats,
    /// Revision of the last batch.
    pub revision: u64,
    /// The state of the source.
    pub source: SourceState,
    /// Why not all that was read is in the kernel; none if it is.
    pub behind: Option<String>,
    /// Ways past the rules.
    pub bypass_report: BypassReport,
}

/// The state of a source of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceState {
    /// Whether all objects were read once.
    pub is_complete: bool,
    /// Why it cannot be read now. The node is not ready.
    pub unreadable: Option<String>,
    /// Why what is in force may be older than what the source has: it is away, and was read before. The node stays ready,
    /// because nothing that it could do would bring the source back.
    pub outdated: Option<String>,
    /// The age of the stored objects that are used instead of a source that was never read, as RFC 3339.
    pub known_at: Option<String>,
    /// Whether the stored objects are of another boot: all pods are closed, because their addresses may be others'.
    pub is_closed: bool,
    /// Files that were read.
    pub files: usize,
    /// Files that are invalid, and why; their last valid content stays in force.
    pub bad: Vec<String>,
    /// Diagnostics by severity.
    pub diagnostics: BTreeMap<Severity, usize>,
    /// The highest `metadata.resourceVersion` of each kind of policy that was read; empty where the source has none.
    pub versions: BTreeMap<&'static str, u64>,
    /// Policies that are enforced closed, in part or as a whole; the first hundred.
    pub rejected: Vec<RejectedObject>,
    /// How many there are.
    pub rejected_number: usize,
}

/// A policy that is enforced closed, in part or as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedObject {
    /// Which one.
    pub object: ObjectRef,
    /// The first thing that is wrong with it.
    pub code: Code,
    /// The same, for people.
    pub message: String,
}

impl From<&Diagnostic> for RejectedObject {
    fn from(diagnostic: &Diagnostic) -> Self {
        Self {
            object: diagnostic.object.clone(),
            code: diagnostic.code,
            message: diagnostic.to_string(),
        }
    }
}

impl SourceState {
    /// Why the source is unreadable, and what is in force instead.
    fn source_error(&self) -> Option<String> {
        let why = self.unreadable.as_deref()?;
        Some(match &self.known_at {
            None => format!("the source cannot be read: {why}"),
            Some(at) if self.is_closed => format!(
                "running on what was known at {at}, before a boot, and closed to the pods of then: the source cannot be read: {why}"
            ),
            Some(at) => format!("running on what was known at {at}: the source cannot be read: {why}"),
        })
    }
}

impl Engine {
    pub(super) fn answer(&self, backend: &dyn Backend, what: AdminQuery) -> AdminReply {
        match what {
            AdminQuery::Report => AdminReply::Report(Box::new(self.report(backend))),
            AdminQuery::Records => AdminReply::Page(self.records_page()),
            AdminQuery::Rules => AdminReply::Page(backend.dump()),
        }
    }

    fn report(&self, backend: &dyn Backend) -> Report {
        let bypass_report = backend.bypass_report();
        let only_inside = |pod: &&PodKey| !self.status.pending.contains_key(*pod);
        let mut reasons = self.reasons(backend);
        let inside = bypass_report.pending.iter();
        reasons.extend(inside.map(|(pod, why)| format!("pod {pod} is pending in its own namespace: {why}")));
        Report {
            reasons,
            pods: self.local.len(),
            pods_pending: self.status.pending.len()
                + bypass_report.pending.keys().filter(only_inside).count(),
            records: self.compiler.record_stats(),
            revision: match &self.compiler {
                Phase::Running(compiler) => compiler.revision().as_u64(),
                Phase::Starting { .. } | Phase::Transition => 0,
            },
            source: self.source.clone(),
            behind: self.behind(backend),
            bypass_report,
        }
    }

    /// A pod without an interface is not behind: what it will be held to is known when it has one.
    fn behind(&self, backend: &dyn Backend) -> Option<String> {
        if !matches!(self.compiler, Phase::Running(_)) {
            return Some("the source or the kernel was not read yet".to_owned());
        }
        let broken = self.status.broken.as_ref();
        let broken = broken.map(|why| format!("the backend {} fails: {why}", backend.name()));
        let refused_pod = || {
            self.status
                .pending
                .iter()
                .find_map(|(pod, pending)| match pending {
                    Pending::Refused(why) => Some(format!("pod {pod} is pending: {why}")),
                    Pending::Unattached(_) => None,
                })
        };
        broken
            .or_else(|| self.status.refused.clone())
            .or_else(refused_pod)
    }

    fn reasons(&self, backend: &dyn Backend) -> Vec<String> {
        let mut reasons = Vec::new();
        match &self.compiler {
            Phase::Starting {
                is_complete,
                read_error,
                is_closed,
                resync_deadline,
                ..
            } => {
                if resync_deadline.is_some() {
                    reasons.push("a dnsd is waited for, to tell again what pods were told".to_owned());
                }
                if !is_complete {
                    let why = self.source.unreadable.as_deref().unwrap_or("it is being read");
                    reasons.push(format!("the source is not in sync: {why}"));
                    if *is_closed {
                        reasons.push(
                            "pods are closed until it is known whether there is a policy (onUnknownPod)"
                                .to_owned(),
                        );
                    }
                    if self.source.known_at.is_some() && backend.is_in_force() {
                        reasons.push(
                            "rules of an earlier enforcer stay in force until the source can be read"
                                .to_owned(),
                        );
                    }
                }
                reasons.extend(
                    read_error
                        .iter()
                        .map(|reason| format!("the kernel cannot be read: {reason}")),
                );
            }
            Phase::Running(_) => reasons.extend(self.source.source_error()),
            Phase::Transition => {}
        }
        reasons.extend(
            self.status
                .broken
                .iter()
                .map(|why| format!("the backend {} fails: {why}", backend.name())),
        );
        reasons.extend(self.status.refused.clone());
        let pending = |(pod, why): (&PodKey, &Pending)| format!("pod {pod} is pending: {why}");
        reasons.extend(self.status.pending.iter().map(pending));
        reasons
    }

    fn records_page(&self) -> String {
        let now = clock::now();
        let mut text = String::from("POD NAME ADDRESS SECONDS-LEFT\n");
        let records: Box<dyn Iterator<Item = _>> = match &self.compiler {
            Phase::Starting { compiler, .. } => Box::new(compiler.records()),
            Phase::Running(compiler) => Box::new(compiler.records()),
            Phase::Transition => Box::new(std::iter::empty()),
        };
        for record in records {
            let left = record.expires.since(now).as_secs();
            writeln!(text, "{} {} {} {left}", record.pod, record.name, record.address)
                .expect("a String takes any text");
        }
        text
    }
}
