//! Pods whose address leads to another veth than before. An address is reused, and the link of the next pod
//! may be seen before the source reports that the earlier pod is gone. Until then, what is behind the new
//! veth counts as an unknown pod: it gets no rule and no record of the earlier one, and is closed.
//!
//! A living pod gets another cable only where its runtime makes its sandbox anew. The kubelet then reports other containers at
//! once, but so it does of a pod that is being taken down; so it is time that tells them apart: of a pod that is gone the source
//! tells within it.

use std::collections::BTreeSet;
use std::time::Duration;

use egret_kernel::links::Attachment;
use egret_shared::switch::{Switch, is_off};
use egret_shared::time::Timestamp;

use crate::node::Location;

/// How long the source has to tell that the pod is gone.
const TOLD_WITHIN: Duration = Duration::from_secs(60);

/// The cables by which a pod was found.
#[derive(Clone, Debug, Default)]
pub(super) struct MovedAddress {
    cables: BTreeSet<Attachment>,
    elsewhere: Option<Elsewhere>,
}

/// Others by which its address is found now.
#[derive(Clone, Debug)]
struct Elsewhere {
    cables: BTreeSet<Attachment>,
    /// None before the first look at the clock.
    since: Option<Timestamp>,
}

impl MovedAddress {
    /// Takes in where the pod's addresses lead now; says whether it has moved or returned. A pod that is found by none of its veths
    /// and by others has moved; one that is found by no veth at all may not have.
    pub(super) fn observe(&mut self, place: &Result<Vec<Location>, String>) -> bool {
        let cables: BTreeSet<Attachment> = place
            .iter()
            .flatten()
            .filter_map(|location| location.cable)
            .collect();
        let was_elsewhere = self.has_moved();
        if cables.is_empty() {
            return false;
        }
        if self.cables.is_empty() || !self.cables.is_disjoint(&cables) || is_off(Switch::SuspectCables) {
            self.cables = cables;
            self.elsewhere = None;
        } else if self.elsewhere.as_ref().is_none_or(|other| other.cables != cables) {
            self.elsewhere = Some(Elsewhere { cables, since: None });
        }
        was_elsewhere != self.has_moved()
    }

    pub(super) const fn has_moved(&self) -> bool {
        self.elsewhere.is_some()
    }

    /// Takes the other cables for its own once the source had its time; says whether it does now.
    pub(super) fn settle(&mut self, now: Timestamp) -> bool {
        let Some(other) = &mut self.elsewhere else {
            return false;
        };
        if now < other.since.get_or_insert(now).after(TOLD_WITHIN) {
            return false;
        }
        self.cables = std::mem::take(&mut other.cables);
        self.elsewhere = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use egret_kernel::iptables::InterfaceName;

    use super::*;

    fn at(cables: &[u32]) -> Result<Vec<Location>, String> {
        let by = |cable: &u32| Location {
            cable: Some(Attachment::to(cable)),
            ..Location::own(InterfaceName::new(format!("veth{cable}")).unwrap())
        };
        Ok(cables.iter().map(by).collect())
    }

    fn nowhere() -> Result<Vec<Location>, String> {
        Err("there is no route".to_owned())
    }

    fn by_no_cable() -> Result<Vec<Location>, String> {
        Ok(vec![Location::own(InterfaceName::new("cni0").unwrap())])
    }

    fn second(second: u64) -> Timestamp {
        Timestamp::from_millis(second * 1000)
    }

    #[test]
    fn a_pod_is_elsewhere_when_none_of_its_cables_is_left_and_others_are() {
        for (places, is_elsewhere) in [
            (vec![at(&[1])], false),
            (vec![at(&[1]), at(&[2])], true),
            (vec![at(&[1]), nowhere(), at(&[2])], true),
            (vec![at(&[1]), by_no_cable(), at(&[2])], true),
            (vec![at(&[1]), at(&[1, 2])], false),
            (vec![at(&[1]), at(&[1, 2]), at(&[2])], false),
            (vec![at(&[1, 2]), at(&[3])], true),
            (vec![at(&[1]), at(&[2]), nowhere()], true),
            (vec![at(&[1]), at(&[2]), at(&[1])], false),
            (vec![nowhere(), at(&[1])], false),
            (vec![by_no_cable(), by_no_cable()], false),
        ] {
            let mut home = MovedAddress::default();
            for place in &places {
                home.observe(place);
            }
            assert_eq!(home.has_moved(), is_elsewhere, "{places:?}");
        }
    }

    #[test]
    fn the_source_has_a_minute_from_the_last_cable_on() {
        let mut home = MovedAddress::default();
        home.observe(&at(&[1]));
        assert!(home.observe(&at(&[2])));
        assert!(!home.settle(second(0)) && !home.settle(second(59)));
        home.observe(&at(&[3]));
        assert!(!home.settle(second(60)) && !home.settle(second(119)));
        assert!(home.has_moved());
        assert!(home.settle(second(120)));
        assert!(!home.has_moved() && !home.observe(&at(&[3])) && home.observe(&at(&[2])));
    }
}
