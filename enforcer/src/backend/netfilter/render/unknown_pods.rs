//! The lines of the dispatch that close unknown pods.

use egret_kernel::Family;
use egret_kernel::iptables::{Rule as Line, Target};
use egret_policies::rules::Direction;

use super::conn_state::{neighbours, related};
use super::through;
use crate::backend::netfilter::denials::label::Label;
use crate::backend::netfilter::model::unknown_pods::ClosedInterfaces;
use crate::backend::netfilter::names;
use crate::backend::{Action, Decider};

impl ClosedInterfaces {
    /// The last lines of the dispatch, after all known pods.
    pub(in crate::backend::netfilter) fn lines(&self, direction: Direction) -> impl Iterator<Item = Line> {
        let excluded = self
            .excluded
            .iter()
            .map(move |name| through(Line::to(Target::Return), direction, name.clone()));
        let closed = self.interfaces.iter().map(move |pattern| {
            let close = Line::to(Target::Goto(names::unknown(direction)));
            through(close, direction, pattern.clone())
        });
        excluded.chain(closed)
    }
}

/// Denies packets of unknown pods, ICMP errors included: these quote packets of others. The chain is separate because the dispatch
/// is rewritten with each pod, and its counters would be lost. With br_netfilter, neighbour discovery between pods of a bridge passes
/// this chain.
pub(in crate::backend::netfilter) fn chain(direction: Direction, family: Family) -> Vec<String> {
    let label = Label::of_no_policy(Decider::UnknownPod, Action::Deny, direction);
    let close = Line::to(Target::Goto(names::deny())).comment(&label.to_string());
    let errors = match direction {
        Direction::Egress => None,
        Direction::Ingress => Some(related(family)),
    };
    let lines = errors.into_iter().chain([close]);
    neighbours(family)
        .chain(lines.map(|line| line.to_string()))
        .collect()
}
