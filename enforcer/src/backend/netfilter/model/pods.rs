//! The pods of this node: their rules, and where they are attached.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use egret_kernel::iptables::InterfaceName;
use egret_policies::rules::{Action, Direction, NodeRules, PodRules, SetId};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::attachment::{PodAttachment, PodInterface};
use super::egress_firewall::EgressFirewall;
use super::moved_address::MovedAddress;
use super::unknown_pods::{ClosedInterfaces, UnknownInterfaces, UnknownPods};
use crate::backend::netfilter::names::PodChains;
use crate::node::{Locate, Location};

/// All pods of this node, and the rules for clients outside.
#[derive(Debug)]
pub(in crate::backend) struct Pods {
    locate: Box<dyn Locate>,
    pods: BTreeMap<PodKey, LocalPod>,
    /// None where no rule concerns clients outside.
    node_rules: Option<NodeRules>,
    unknown: UnknownInterfaces,
}

/// A pod of this node.
#[derive(Debug)]
pub(in crate::backend) struct LocalPod {
    rules: PodRules,
    /// Shared with the bypass detector, which gets it with each change.
    firewall: Arc<EgressFirewall>,
    locations: Result<Vec<Location>, String>,
    moved: MovedAddress,
}

impl LocalPod {
    pub(in crate::backend) const fn rules(&self) -> &PodRules {
        &self.rules
    }

    pub(in crate::backend) const fn firewall(&self) -> &Arc<EgressFirewall> {
        &self.firewall
    }

    /// Where it is attached.
    ///
    /// # Errors
    /// Why that is not known, in words.
    pub(in crate::backend) const fn locations(&self) -> Result<&Vec<Location>, &String> {
        self.locations.as_ref()
    }

    /// Whether its address leads to another veth than before, which may be another pod's.
    pub(in crate::backend) const fn has_moved(&self) -> bool {
        self.moved.has_moved()
    }

    /// Its interfaces on the node's side, as far as they are known.
    pub(in crate::backend) fn interfaces(&self) -> Vec<InterfaceName> {
        let locations = self.locations.iter().flatten();
        locations.map(|location| location.interface.clone()).collect()
    }
}

impl Pods {
    pub(in crate::backend) fn new(locate: Box<dyn Locate>) -> Self {
        Self {
            locate,
            pods: BTreeMap::new(),
            node_rules: None,
            unknown: UnknownInterfaces::default(),
        }
    }

    /// How unknown pods are treated. Without it their interfaces are left open.
    pub(in crate::backend) fn set_unknown(&mut self, pods: UnknownPods) {
        self.unknown = UnknownInterfaces::of(pods);
    }

    /// Whether the cluster has policies; what is not said stays.
    pub(in crate::backend) fn set_has_policies(&mut self, has_policies: Option<bool>) {
        self.unknown.set_has_policies(has_policies);
    }

    /// Takes new or changed pods.
    pub(in crate::backend) fn replace(&mut self, replaced: &[PodRules]) {
        self.locate.forget_links();
        for rules in replaced {
            let locations = self.locate.locate(&rules.addresses);
            let is_same = |before: &&LocalPod| {
                before.rules.addresses == rules.addresses && !is_another_run(&before.rules, rules)
            };
            let before = self.pods.get(&rules.pod).filter(is_same);
            let mut moved = before.map(|before| before.moved.clone()).unwrap_or_default();
            moved.observe(&locations);
            let pod = LocalPod {
                rules: rules.clone(),
                firewall: Arc::new(EgressFirewall::of(&rules.egress.tiers)),
                locations,
                moved,
            };
            self.pods.insert(rules.pod.clone(), pod);
        }
    }

    pub(in crate::backend) fn replace_node_rules(&mut self, replaced: Option<&NodeRules>) {
        if let Some(rules) = replaced {
            let has_rules = !rules.exposed.tiers.is_empty();
            self.node_rules = has_rules.then(|| rules.clone());
        }
    }

    pub(in crate::backend) fn remove(&mut self, pod: &PodKey) {
        self.pods.remove(pod);
    }

    /// Forgets all pods; the rules for clients outside stay.
    pub(in crate::backend) fn clear(&mut self) {
        self.pods.clear();
    }

    pub(in crate::backend) fn clear_node_rules(&mut self) {
        self.node_rules = None;
    }

    pub(in crate::backend) const fn node_rules(&self) -> Option<&NodeRules> {
        self.node_rules.as_ref()
    }

    pub(in crate::backend) fn get(&self, pod: &PodKey) -> Option<&LocalPod> {
        self.pods.get(pod)
    }

    pub(in crate::backend) fn contains(&self, pod: &PodKey) -> bool {
        self.pods.contains_key(pod)
    }

    pub(in crate::backend) fn iter(&self) -> impl Iterator<Item = (&PodKey, &LocalPod)> {
        self.pods.iter()
    }

    pub(in crate::backend) fn keys(&self) -> impl Iterator<Item = &PodKey> {
        self.pods.keys()
    }

    pub(in crate::backend) fn rules(&self) -> impl Iterator<Item = &PodRules> {
        self.pods.values().map(|pod| &pod.rules)
    }

    /// Both directions of the replaced pods that are other runs of the same name: nothing that was allowed to the run before is
    /// allowed to these.
    pub(in crate::backend) fn other_runs(&self, replaced: &[PodRules]) -> Vec<(PodKey, Direction)> {
        let is_another = |rules: &&PodRules| {
            let before = self.pods.get(&rules.pod);
            before.is_some_and(|pod| is_another_run(&pod.rules, rules))
        };
        let others = replaced.iter().filter(is_another);
        others
            .flat_map(|rules| Direction::ALL.map(|direction| (rules.pod.clone(), direction)))
            .collect()
    }

    /// Locates all pods again; says whether any moved.
    pub(in crate::backend) fn relocate(&mut self) -> bool {
        self.locate.forget_links();
        let mut has_changed = false;
        for pod in self.pods.values_mut() {
            let locations = self.locate.locate(&pod.rules.addresses);
            has_changed |= pod.moved.observe(&locations) || pod.locations != locations;
            pod.locations = locations;
        }
        has_changed
    }

    /// Reads the node's links again; says whether anything changed.
    pub(in crate::backend) fn read_surroundings(&mut self) -> bool {
        self.unknown.read_surroundings(self.locate.as_mut())
    }

    /// UDP ports at which the node takes packets out of datagrams.
    pub(in crate::backend) fn encapsulation_ports(&self) -> BTreeSet<u16> {
        self.unknown.encapsulation_ports()
    }

    /// Pods whose addresses lead to what may be other pods.
    pub(in crate::backend) fn moved(&self) -> BTreeSet<PodKey> {
        let moved = self.pods.iter().filter(|(_, pod)| pod.has_moved());
        moved.map(|(pod, _)| pod.clone()).collect()
    }

    /// Takes moved pods for the same ones once the source had time to report that they are gone; says whether it took any.
    pub(in crate::backend) fn settle_moved(&mut self, now: Timestamp) -> bool {
        let mut has_settled = false;
        for (pod, local) in &mut self.pods {
            if local.moved.settle(now) {
                tracing::warn!(
                    %pod,
                    "a pod has another cable than before, and its source does not say that it is gone: it is taken for the same"
                );
                has_settled = true;
            }
        }
        has_settled
    }

    fn all_locations(&self) -> impl Iterator<Item = &Location> {
        self.pods.values().flat_map(|pod| pod.locations.iter().flatten())
    }

    /// Bridges that pods are on.
    pub(in crate::backend) fn bridges(&self) -> BTreeSet<InterfaceName> {
        let bridges = self.all_locations().filter(|location| location.is_bridge);
        bridges.map(|location| location.interface.clone()).collect()
    }

    /// Pods with an interface, and whether it is theirs alone.
    pub(in crate::backend) fn attached(&self, which: impl Fn(&PodKey) -> bool) -> Vec<PodAttachment> {
        let mut users: BTreeMap<&InterfaceName, usize> = BTreeMap::new();
        for location in self.all_locations() {
            *users.entry(&location.interface).or_default() += 1;
        }
        let port = |location: &Location| {
            let is_shared =
                location.is_bridge || users.get(&location.interface).is_some_and(|users| *users > 1);
            let name = location.interface.clone();
            match &location.port {
                Some(port) => PodInterface::BridgePort {
                    bridge: name,
                    port: port.clone(),
                },
                None if is_shared => PodInterface::Shared(name),
                None => PodInterface::Own(name),
            }
        };
        let chosen = self.pods.iter().filter(|(pod, _)| which(pod));
        let attached = chosen.filter_map(|(pod, local)| {
            Some(PodAttachment {
                chains: PodChains::of(pod),
                interfaces: local.locations.as_ref().ok()?.iter().map(port).collect(),
                addresses: local.rules.addresses.clone(),
            })
        });
        attached.collect()
    }

    /// What is closed in the dispatch; `refused` are pods whose chains are not to be used.
    pub(in crate::backend) fn closed(&self, refused: &BTreeSet<PodKey>) -> ClosedInterfaces {
        let interfaces = self.unknown.closed_interfaces(self.bridges());
        ClosedInterfaces {
            pods: self.attached(|pod| refused.contains(pod)),
            excluded: self.unknown.excluded(&interfaces),
            interfaces,
        }
    }

    /// Warns once of each kind of interface that pods have and the configuration does not name: the next pod there is open
    /// until it is known.
    pub(in crate::backend) fn warn_open_interfaces(&mut self) {
        let closed = self.unknown.closed_interfaces(self.bridges());
        if closed.is_empty() {
            return;
        }
        let is_open = |name: &&InterfaceName| !closed.iter().any(|pattern| pattern.matches(name.as_str()));
        let open = self.all_locations().map(|location| &location.interface);
        let open: BTreeSet<InterfaceName> = open.filter(is_open).cloned().collect();
        for name in open {
            self.unknown.warn_open(&name);
        }
    }

    /// The pod behind an interface; where there are several, the one with the address.
    pub(in crate::backend) fn behind(&self, interface: &str, address: IpAddr) -> Option<&PodKey> {
        let is_behind = |pod: &LocalPod| {
            let mut locations = pod.locations.iter().flatten();
            !pod.has_moved() && locations.any(|location| location.interface.as_str() == interface)
        };
        let mut found: Vec<_> = self.pods.iter().filter(|(_, pod)| is_behind(pod)).collect();
        if found.len() > 1 {
            found.retain(|(_, pod)| pod.rules.addresses.contains(&address));
        }
        found.first().map(|(pod, _)| *pod)
    }

    /// The rules of pods by their addresses.
    pub(in crate::backend) fn by_address(&self) -> BTreeMap<IpAddr, &PodRules> {
        self.rules()
            .flat_map(|rules| rules.addresses.iter().map(move |address| (*address, rules)))
            .collect()
    }

    /// The first interface of each pod, by the pod's addresses.
    pub(in crate::backend) fn interfaces_by_address(&self) -> BTreeMap<IpAddr, &InterfaceName> {
        let mut found = BTreeMap::new();
        for pod in self.pods.values() {
            let interface = pod.locations.iter().flatten().next();
            let addresses = pod.rules.addresses.iter();
            found.extend(addresses.filter_map(|address| Some((*address, &interface?.interface))));
        }
        found
    }

    /// The sets that some rule needs whole: those of rules that deny or pass, and exceptions. A rule that only allows may lack
    /// members.
    pub(in crate::backend) fn sets_needed_whole(&self) -> BTreeSet<SetId> {
        let of_pods = self.rules().flat_map(|rules| [&rules.egress, &rules.ingress]);
        let of_node = self.node_rules.iter().map(|rules| &rules.exposed);
        let needed = of_pods.chain(of_node).flat_map(|direction| {
            let rules = direction.lists().flat_map(|tier| tier.rules.iter());
            let of_rules = rules.flat_map(|rule| {
                let all = (rule.action != Action::Allow).then(|| rule.sets());
                all.into_iter().flatten().chain(rule.except)
            });
            // Without a record in it the name of a Deny would not be asked.
            of_rules.chain(direction.names.iter().map(|names| names.records))
        });
        needed.collect()
    }

    /// Directions of pods whose rules name one of these sets.
    pub(in crate::backend) fn directions_naming(
        &self,
        sets: &BTreeSet<SetId>,
    ) -> BTreeSet<(PodKey, Direction)> {
        let directions = self.rules().flat_map(|rules| {
            let named = Direction::ALL
                .into_iter()
                .filter(|direction| names_any(rules, *direction, sets));
            named.map(|direction| (rules.pod.clone(), direction))
        });
        directions.collect()
    }

    /// The sets that egress firewalls name.
    pub(in crate::backend) fn firewall_sets(&self) -> impl Iterator<Item = SetId> {
        self.pods.values().flat_map(|pod| pod.firewall.sets())
    }
}

/// Whether a pod of the same name has taken another's place.
pub(in crate::backend) fn is_another_run(before: &PodRules, after: &PodRules) -> bool {
    before.uid.is_some() && after.uid.is_some() && before.uid != after.uid
}

/// Whether rules of a direction refer to one of these sets.
pub(in crate::backend) fn names_any(rules: &PodRules, direction: Direction, sets: &BTreeSet<SetId>) -> bool {
    !sets.is_empty() && rules.direction(direction).sets().any(|id| sets.contains(&id))
}
