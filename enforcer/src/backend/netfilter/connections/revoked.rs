//! Flows that are revoked, cached: each change needs them, and there may be many. A change may allow some of them again; these are
//! looked for a few at a time, the longest waiting first.

use std::collections::{BTreeSet, VecDeque};

use egret_kernel::conntrack::Flow;
use egret_policies::rules::{Direction, SetId};
use egret_shared::pod::PodKey;

/// A flow, and for which of its directions it is revoked.
#[derive(Clone, Debug)]
pub(super) struct Revoked {
    pub(super) direction: Direction,
    pub(super) flow: Flow,
}

/// Pods and sets that changed: they may allow again what was revoked.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub(super) pods: BTreeSet<PodKey>,
    pub(super) sets: BTreeSet<SetId>,
}

#[derive(Debug, Default)]
pub(super) struct RevokedFlows {
    /// What no change since can have allowed again.
    settled: Vec<Revoked>,
    /// What the changes may have allowed again.
    reconsidered: VecDeque<Revoked>,
    changed: Changed,
}

impl RevokedFlows {
    pub(super) fn is_empty(&self) -> bool {
        self.settled.is_empty() && self.reconsidered.is_empty()
    }

    pub(super) fn add(&mut self, revoked: impl IntoIterator<Item = Revoked>) {
        self.settled.extend(revoked);
    }

    /// Has all of them looked at again: these pods and sets changed. What still waits to be looked at comes first.
    pub(super) fn reconsider(&mut self, pods: BTreeSet<PodKey>, sets: BTreeSet<SetId>) {
        if self.is_empty() || pods.is_empty() && sets.is_empty() {
            return;
        }
        self.reconsidered.extend(self.settled.drain(..));
        self.changed.pods.extend(pods);
        self.changed.sets.extend(sets);
    }

    /// Whether some are still to be looked at.
    pub(super) fn has_reconsidered(&self) -> bool {
        !self.reconsidered.is_empty()
    }

    /// Takes out what is allowed again, at most `most` flows, and looks at no more than `looks`.
    pub(super) fn take_allowed(
        &mut self,
        (most, looks): (usize, usize),
        is_allowed: impl Fn(&Revoked, &Changed) -> bool,
    ) -> Vec<Revoked> {
        let mut allowed = Vec::new();
        for _ in 0..looks {
            let Some(next) = self.reconsidered.pop_front() else {
                break;
            };
            if is_allowed(&next, &self.changed) {
                allowed.push(next);
                if allowed.len() == most {
                    break;
                }
            } else {
                self.settled.push(next);
            }
        }
        if self.reconsidered.is_empty() {
            self.changed = Changed::default();
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use egret_kernel::conntrack::{ProtocolDetail, Status, Tuple};

    use super::*;

    fn flow(port: u16) -> Revoked {
        let address = [10, 0, 0, 1].into();
        let tuple = Tuple {
            source: address,
            destination: address,
            protocol: 17,
            detail: ProtocolDetail::Ports {
                source: port,
                destination: 9,
            },
        };
        let flow = Flow {
            original: tuple,
            reply: tuple,
            mark: 0,
            status: Status(0),
            timeout: None,
            zone: 0,
        };
        Revoked {
            direction: Direction::Egress,
            flow,
        }
    }

    fn port(revoked: &Revoked) -> u16 {
        match revoked.flow.original.detail {
            ProtocolDetail::Ports { source, .. } => source,
            other => panic!("{other:?}"),
        }
    }

    fn pod(name: &str) -> BTreeSet<PodKey> {
        BTreeSet::from([PodKey::new("default", name)])
    }

    #[test]
    fn each_flow_is_looked_at_once_for_a_change_and_no_more_at_once_than_allowed() {
        let mut flows = RevokedFlows::default();
        flows.add((0..10).map(flow));
        assert!(!flows.has_reconsidered(), "nothing changed");
        flows.reconsider(pod("a"), BTreeSet::new());
        let is_even =
            |one: &Revoked, changed: &Changed| changed.pods == pod("a") && port(one).is_multiple_of(2);
        let mut take = |most, looks| -> Vec<u16> {
            let taken = flows.take_allowed((most, looks), is_even);
            taken.iter().map(port).collect()
        };
        assert_eq!(take(9, 3), [0, 2], "three are looked at");
        assert_eq!(take(1, 9), [4], "one is taken");
        assert_eq!(take(9, 9), [6, 8]);
        assert!(take(9, 9).is_empty(), "each was looked at");
        assert!(!flows.has_reconsidered() && !flows.is_empty());
    }

    #[test]
    fn a_change_meanwhile_has_all_looked_at_for_both_and_those_that_waited_first() {
        let mut flows = RevokedFlows::default();
        flows.add((0..4).map(flow));
        flows.reconsider(pod("a"), BTreeSet::new());
        assert!(flows.take_allowed((9, 2), |_, _| false).is_empty());
        flows.reconsider(pod("b"), BTreeSet::new());
        let both: BTreeSet<PodKey> = [pod("a"), pod("b")].into_iter().flatten().collect();
        let taken = flows.take_allowed((9, 9), |_, changed| changed.pods == both);
        assert_eq!(taken.iter().map(port).collect::<Vec<_>>(), [2, 3, 0, 1]);
        assert!(flows.is_empty());
        flows.add([flow(9)]);
        flows.reconsider(pod("c"), BTreeSet::new());
        let taken = flows.take_allowed((9, 9), |_, changed| changed.pods == pod("c"));
        assert_eq!(taken.len(), 1, "earlier changes are forgotten with their flows");
    }
}
