//! Pods that nobody knows yet: what comes from a pod's interface, or goes to it, before it is known with its rules.
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
use egret_policies::rules::Direction;
use egret_shared::pod::PodKey;
use egret_shared::switch::{Switch, is_off};

use super::settings::Settings;
use crate::backend::BackendError;
use crate::backend::netfilter::driver::Netfilter;
use crate::backend::netfilter::names;
use crate::backend::netfilter::render::chains::Chains;
use crate::backend::netfilter::render::dispatch;

use crate::backend::netfilter::model::attachment::Attached;
use crate::backend::netfilter::tables::family_table::Table;
use crate::node::{self, ENCAPSULATION_PORTS, Locate};

/// What happens to pods that are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPods {
    /// Whether they are closed.
    pub stance: Stance,
    /// Where they are.
    pub interfaces: Vec<InterfacePattern>,
}

/// Whether pods that are not known are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// Always.
    Deny,
    /// As soon as the cluster has any policy, and as long as it is not known whether it has.
    DenyOncePolicies,
    /// Never.
    Allow,
}

impl UnknownPods {
    /// Whether they are closed where the cluster has policies, has none, or may have some.
    #[must_use]
    pub fn are_closed(&self, has_policies: Option<bool>) -> bool {
        match self.stance {
            Stance::Deny | Stance::DenyOncePolicies if is_off(Switch::CloseUnknown) => false,
            Stance::Deny => true,
            Stance::DenyOncePolicies => has_policies.unwrap_or(true),
            Stance::Allow => false,
        }
    }
}

/// What the backend knows about pods that nobody knows.
#[derive(Debug, Default)]
pub(crate) struct Unknown {
    pods: Option<UnknownPods>,
    /// None before the first batch.
    pub(crate) has_policies: Option<bool>,
    around: node::Surroundings,
    /// Beginnings of the names of interfaces that were told of.
    told: BTreeSet<String>,
}

impl Unknown {
    pub(crate) fn of(pods: UnknownPods) -> Self {
        Self {
            pods: Some(pods),
            ..Self::default()
        }
    }

    /// UDP ports at which the node takes packets out of datagrams.
    pub(crate) fn encapsulation_ports(&self) -> BTreeSet<u16> {
        let known = self.around.encapsulation_ports.iter().copied();
        known.chain(ENCAPSULATION_PORTS).collect()
    }

    /// Looks at the node's links again; says whether anything is otherwise.
    pub(crate) fn look_around(&mut self, locate: &mut dyn Locate) -> bool {
        match locate.surroundings() {
            Ok(around) => std::mem::replace(&mut self.around, around) != self.around,
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
    fn interfaces(&self, bridges: BTreeSet<InterfaceName>) -> Vec<InterfacePattern> {
        let closing = self
            .pods
            .as_ref()
            .filter(|pods| pods.are_closed(self.has_policies));
        let Some(UnknownPods {
            interfaces: named, ..
        }) = closing
        else {
            return Vec::new();
        };
        let is_other = |bridge: &InterfaceName| !named.iter().any(|pattern| pattern.matches(bridge.as_str()));
        let holds_pods_alone = |bridge: &InterfaceName| self.around.bridges_of_cables.contains(bridge);
        let others = bridges.into_iter().filter(is_other).filter(holds_pods_alone);
        let others: Vec<InterfacePattern> = others.map(InterfacePattern::from).collect();
        [named.clone(), others].concat()
    }

    fn spared(&self, interfaces: &[InterfacePattern]) -> Vec<InterfaceName> {
        let is_closed =
            |uplink: &&InterfaceName| interfaces.iter().any(|pattern| pattern.matches(uplink.as_str()));
        self.around.uplinks.iter().filter(is_closed).cloned().collect()
    }
}

impl Netfilter {
    /// What is closed; `refused` are pods whose chains the kernel refuses.
    pub(crate) fn closed(&self, refused: &BTreeSet<PodKey>) -> Closed {
        let places = self.pods.values().filter_map(|local| local.place.as_ref().ok());
        let bridges = places.flatten().filter(|location| location.is_bridge);
        let interfaces = self
            .unknown
            .interfaces(bridges.map(|location| location.interface.clone()).collect());
        Closed {
            pods: self.attached(|pod| refused.contains(pod)),
            spared: self.unknown.spared(&interfaces),
            interfaces,
        }
    }

    /// Tells once of each kind of interface that pods have and nobody named: the next pod there is open until it is known.
    pub(crate) fn tell_open_interfaces(&mut self) {
        let closed = self.closed(&BTreeSet::new()).interfaces;
        let is_open = |name: &&InterfaceName| !closed.iter().any(|pattern| pattern.matches(name.as_str()));
        let places = self.pods.values().filter_map(|local| local.place.as_ref().ok());
        let open: BTreeSet<&InterfaceName> = places
            .flatten()
            .map(|location| &location.interface)
            .filter(is_open)
            .collect();
        for name in open.into_iter().filter(|_| !closed.is_empty()) {
            let beginning = name
                .as_str()
                .trim_end_matches(|letter: char| !letter.is_ascii_alphabetic());
            if self.unknown.told.insert(beginning.to_owned()) {
                tracing::warn!(
                    interface = name.as_str(),
                    "a pod is behind an interface that podInterfaces does not name: new pods behind such interfaces are open until they are known"
                );
            }
        }
    }

    /// Writes the chains that are there without any pod, where there are none, and leaves what else there is.
    pub(crate) fn close_before_the_first_batch(&mut self) -> Result<bool, BackendError> {
        self.unknown.look_around(self.locate.as_mut());
        let closed = self.closed(&BTreeSet::new());
        if closed.is_empty() {
            return Ok(false);
        }
        for table in &mut self.tables {
            let held = table.chains.programmed().iter();
            let mut wanted: Chains = held.map(|(name, rules)| (name.clone(), rules.to_vec())).collect();
            if !wanted.contains_key(names::forward().as_str()) {
                let Settings { marks, deny, .. } = self.settings;
                wanted.extend(dispatch::shared(&[], &closed, None, marks, deny, table.family()));
            }
            table.want(wanted);
        }
        let changes = self.tables.each_ref().map(Table::pending);
        self.write(changes)
            .map_err(|error| BackendError::new("cannot close pods that are not known", error))?;
        Ok(self.tables.iter().all(|table| {
            let chains = table.chains.programmed();
            chains.contains_key(names::unknown(Direction::Egress).as_str())
        }))
    }
}

/// What is closed in the dispatch, behind the lines of the pods that have chains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// Pods that are known, and whose chains the kernel refuses.
    pub pods: Vec<Attached>,
    /// Interfaces that are named as pods', and are none: the node is reached by them.
    pub spared: Vec<InterfaceName>,
    /// Where unknown pods are; none where they are not closed.
    pub interfaces: Vec<InterfacePattern>,
}

impl Closed {
    /// Whether anything at all is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.interfaces.is_empty()
    }
}
