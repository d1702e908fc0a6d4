//! Pods whose address leads to another veth than before. An address is reused, and the link of the next pod
//! may be seen before the source reports that the earlier pod is gone. Until then, what is behind the new
//! veth counts as an unknown pod: it gets no rule and no record of the earlier one, and is closed.
//!
//! A living pod gets another veth only where its runtime makes its sandbox anew. The kubelet then reports other containers at
//! once, but so it does of a pod that is being taken down; so it is time that tells them apart: of a pod that is gone the source
//! tells within it.

use std::collections::BTreeSet;
use std::time::Duration;

use egret_kernel::links::Attachment;
use egret_shared::time::Timestamp;

use crate::node::Location;

/// How long the source has to tell that the pod is gone.
const SETTLE_AFTER: Duration = Duration::from_secs(60);

/// The veths by which a pod was found.
#[derive(Clone, Debug, Default)]
pub(super) struct MovedAddress {
    veths: BTreeSet<Attachment>,
    moved_to: Option<OtherVeths>,
}

/// Others by which its address is found now.
#[derive(Clone, Debug)]
struct OtherVeths {
    veths: BTreeSet<Attachment>,
    /// None before the first look at the clock.
    since: Option<Timestamp>,
}

impl MovedAddress {
    /// Takes in where the pod's addresses lead now; says whether it has moved or returned. A pod that is found by none of its veths
    /// and by others has moved; one that is found by no veth at all may not have.
    pub(super) fn observe(&mut self, place: &Result<Vec<Location>, String>) -> bool {
        let veths: BTreeSet<Attachment> = place
            .iter()
            .flatten()
            .filter_map(|location| location.cable)
            .collect();
        let had_moved = self.has_moved();
        if veths.is_empty() {
            return false;
        }
        if self.veths.is_empty() || !self.veths.is_disjoint(&veths) {
            self.veths = veths;
            self.moved_to = None;
        } else if self.moved_to.as_ref().is_none_or(|other| other.veths != veths) {
            self.moved_to = Some(OtherVeths { veths, since: None });
        }
        had_moved != self.has_moved()
    }

    pub(super) const fn has_moved(&self) -> bool {
        self.moved_to.is_some()
    }

    /// Takes the other veths for its own once the source had its time; says whether it does now.
    pub(super) fn settle(&mut self, now: Timestamp) -> bool {
        let Some(other) = &mut self.moved_to else {
            return false;
        };
        if now < other.since.get_or_insert(now).after(SETTLE_AFTER) {
            return false;
        }
        self.veths = std::mem::take(&mut other.veths);
        self.moved_to = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use egret_kernel::iptables::InterfaceName;

    use super::*;

    fn at(veths: &[u32]) -> Result<Vec<Location>, String> {
        let by = |cable: &u32| Location {
            cable: Some(Attachment::to(cable)),
            ..Location::own(InterfaceName::new(format!("veth{cable}")).unwrap())
        };
        Ok(veths.iter().map(by).collect())
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
    fn an_address_has_moved_when_all_its_veths_are_replaced() {
        for (places, has_moved) in [
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
            let mut address = MovedAddress::default();
            for place in &places {
                address.observe(place);
            }
            assert_eq!(address.has_moved(), has_moved, "{places:?}");
        }
    }

    #[test]
    fn the_source_has_a_minute_from_the_last_new_veth() {
        let mut address = MovedAddress::default();
        address.observe(&at(&[1]));
        assert!(address.observe(&at(&[2])));
        assert!(!address.settle(second(0)) && !address.settle(second(59)));
        address.observe(&at(&[3]));
        assert!(!address.settle(second(60)) && !address.settle(second(119)));
        assert!(address.has_moved());
        assert!(address.settle(second(120)));
        assert!(!address.has_moved() && !address.observe(&at(&[3])) && address.observe(&at(&[2])));
    }
}
