//! Unknown pods: those whose interface is seen before their rules are known.
//!
//! What is a pod's interface when nothing is known of the pod is said by its name; and a bridge behind which a known pod
//! is holds the unknown ones as well. These lines come behind those of the known pods:
//!
//! ```text
//!  EGRET-FROM ─ -i veth1 ▸ goto EGRET-E-x
//!             ├ -i veth2 ▸ goto EGRET-E-y
//!             └ -i cali+ ▸ goto EGRET-UNKNOWN-E ─ goto EGRET-DENY
//! ```

use std::collections::BTreeSet;

use egret_kernel::iptables::{InterfaceName, InterfacePattern};

use crate::backend::netfilter::model::attachment::PodAttachment;
use crate::backend::unknown_pods::Stance;
use crate::node::{self, ENCAPSULATION_PORTS, Locate};

/// How unknown pods are treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPods {
    /// Whether they are closed.
    pub stance: Stance,
    /// Where they are.
    pub interfaces: Vec<InterfacePattern>,
}

/// Interfaces of unknown pods.
#[derive(Debug, Default)]
pub(super) struct UnknownInterfaces {
    pods: Option<UnknownPods>,
    /// None before the first batch.
    has_policies: Option<bool>,
    surroundings: node::NodeInterfaces,
    /// Beginnings of the names of interfaces that a warning was logged about.
    warned: BTreeSet<String>,
}

impl UnknownInterfaces {
    pub(super) fn of(pods: UnknownPods) -> Self {
        Self {
            pods: Some(pods),
            ..Self::default()
        }
    }

    /// UDP ports at which the node takes packets out of datagrams.
    pub(super) fn encapsulation_ports(&self) -> BTreeSet<u16> {
        let known = self.surroundings.encapsulation_ports.iter().copied();
        known.chain(ENCAPSULATION_PORTS).collect()
    }

    /// Reads the node's links again; says whether anything changed.
    pub(super) fn read_surroundings(&mut self, locate: &mut dyn Locate) -> bool {
        match locate.node_interfaces() {
            Ok(surroundings) => std::mem::replace(&mut self.surroundings, surroundings) != self.surroundings,
            Err(reason) => {
                tracing::warn!(
                    reason,
                    "the node's links cannot be looked at; they count as they were"
                );
                false
            }
        }
    }

    /// Bridges of pods, and what is named as pods', where unknown pods are closed.
    pub(super) fn closed_interfaces(&self, bridges: BTreeSet<InterfaceName>) -> Vec<InterfacePattern> {
        let closing = self
            .pods
            .as_ref()
            .filter(|pods| pods.stance.closes(self.has_policies));
        let Some(UnknownPods {
            interfaces: named, ..
        }) = closing
        else {
            return Vec::new();
        };
        let is_other = |bridge: &InterfaceName| !named.iter().any(|pattern| pattern.matches(bridge.as_str()));
        let holds_pods_alone = |bridge: &InterfaceName| self.surroundings.veth_bridges.contains(bridge);
        let others = bridges.into_iter().filter(is_other).filter(holds_pods_alone);
        let others: Vec<InterfacePattern> = others.map(InterfacePattern::from).collect();
        [named.clone(), others].concat()
    }

    /// Uplinks of the node whose names match.
    pub(super) fn excluded(&self, interfaces: &[InterfacePattern]) -> Vec<InterfaceName> {
        let is_closed =
            |uplink: &&InterfaceName| interfaces.iter().any(|pattern| pattern.matches(uplink.as_str()));
        self.surroundings
            .uplinks
            .iter()
            .filter(is_closed)
            .cloned()
            .collect()
    }

    pub(super) fn set_has_policies(&mut self, has_policies: Option<bool>) {
        self.has_policies = has_policies.or(self.has_policies);
    }

    /// Warns of an interface of a pod that the configuration does not name, once for each beginning of a name.
    pub(super) fn warn_open(&mut self, name: &InterfaceName) {
        let letters = |letter: char| !letter.is_ascii_alphabetic();
        let beginning = name.as_str().trim_end_matches(letters);
        if self.warned.insert(beginning.to_owned()) {
            tracing::warn!(
                interface = name.as_str(),
                "a pod is behind an interface that podInterfaces does not name: new pods behind such interfaces are open until they are known"
            );
        }
    }
}

/// What is closed in the dispatch, behind the lines of the pods that have chains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClosedInterfaces {
    /// Pods that are known, and whose chains the kernel refuses.
    pub pods: Vec<PodAttachment>,
    /// Interfaces whose names match those of pods, and that are uplinks of the node.
    pub excluded: Vec<InterfaceName>,
    /// Where unknown pods are; none where they are not closed.
    pub interfaces: Vec<InterfacePattern>,
}

impl ClosedInterfaces {
    /// Whether anything at all is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.interfaces.is_empty()
    }
}
