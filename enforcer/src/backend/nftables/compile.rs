//! The desired chains: those that all pods share, and those of each pod. Only what may have changed is rendered.

use std::collections::{BTreeMap, BTreeSet};

use egret_kernel::iptables::InterfaceName;
use egret_kernel::nftables::NftListing;
use egret_policies::rules::{DefaultAction, Direction, DirectionRules, NodeRules, Tier, TierRules};
use egret_shared::pod::PodKey;

use super::bridge_table::BridgeTable;
use super::dispatch::{self, IpvsPod, Shared, Style};
use super::pod::{self, RenderContext};
use super::refusals::Refusals;
use super::table::{ChainOwner, Table};
use crate::backend::netfilter::marks::PodMarks;
use crate::backend::netfilter::marks::generations::{ChainMark, Generations};
use crate::backend::netfilter::model::available_sets::AvailableSets;
use crate::backend::netfilter::model::ipvs::has_ipvs;
use crate::backend::netfilter::model::pods::Pods;
use crate::backend::netfilter::names::PodChains;

/// What the desired chains are compiled from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs<'a> {
    pub(super) style: Style,
    pub(super) pods: &'a Pods,
    pub(super) generations: &'a Generations,
    pub(super) refusals: &'a Refusals,
    /// Whether the kernel shows ports of bridges to tables.
    pub(super) sees_ports: bool,
}

impl<'a> Inputs<'a> {
    const fn context(&self, sets: &'a AvailableSets, interfaces: &'a [InterfaceName]) -> RenderContext<'a> {
        RenderContext {
            sets,
            interfaces,
            ends: self.style.ends,
        }
    }
}

/// Keeps the desired chains up to date.
#[derive(Debug, Default)]
pub(super) struct Compiler {
    shared: Option<Shared>,
    /// From what the chains of each pod are. A pod that is left out is rendered in any case.
    rendered: BTreeMap<PodKey, RenderedFrom>,
}

/// What a pod's chains depend on besides its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RenderedFrom {
    marks: PodMarks,
    interfaces: Vec<InterfaceName>,
}

impl Compiler {
    /// Has the chains of a pod rendered again.
    pub(super) fn forget(&mut self, pod: &PodKey) {
        self.rendered.remove(pod);
    }

    /// Takes over the generations of an earlier life.
    pub(super) fn adopt(&self, table: &NftListing, generations: &mut Generations) {
        let marks = table.chains.iter().filter_map(|(chain, listed)| {
            let direction = match chain.strip_prefix("EGRET-")?.get(..2)? {
                "E-" => Direction::Egress,
                "I-" => Direction::Ingress,
                _ => return None,
            };
            let (value, mask) = listed.rules.iter().find_map(|comment| pod::mark_in(comment))?;
            Some(ChainMark {
                chain,
                direction,
                value,
                mask,
            })
        });
        generations.adopt(marks);
    }

    /// Makes the table desire what follows from the inputs over these sets.
    pub(super) fn update(&mut self, inputs: Inputs<'_>, sets: &AvailableSets, table: &mut Table) {
        self.update_shared(inputs, table);
        match inputs.pods.node_rules() {
            Some(rules) => {
                let closed = nothing_exposed();
                let rules = if inputs.refusals.has_exposed() {
                    &closed
                } else {
                    rules
                };
                let rendered = pod::exposed(rules, inputs.context(sets, &[]));
                table.set_desired(ChainOwner::Exposed, rendered);
            }
            None => table.remove_desired(&ChainOwner::Exposed),
        }
        for (key, local) in inputs.pods.iter() {
            if inputs.refusals.has_pod(key) {
                self.rendered.remove(key);
                continue;
            }
            let Some(marks) = inputs.generations.marks(PodChains::of(key)) else {
                continue;
            };
            let interfaces = local.interfaces();
            let owner = ChainOwner::Pod(key.clone());
            let before = self.rendered.get(key).filter(|_| table.has(&owner));
            let before = before.filter(|before| before.interfaces == interfaces);
            match before {
                Some(before) if before.marks == marks => continue,
                Some(_) => {
                    let mut rendered = table.desired(&owner).cloned().unwrap_or_default();
                    pod::renew_generation(local.rules(), marks, &mut rendered);
                    table.set_desired(owner, rendered);
                }
                None => {
                    let context = inputs.context(sets, &interfaces);
                    table.set_desired(owner, pod::pod(local.rules(), marks, context));
                }
            }
            self.rendered
                .insert(key.clone(), RenderedFrom { marks, interfaces });
        }
        table.retain_pods(|pod| inputs.pods.contains(pod) && !inputs.refusals.has_pod(pod));
    }

    fn update_shared(&mut self, inputs: Inputs<'_>, table: &mut Table) {
        let pods = inputs.pods;
        let mut without = pods.moved();
        without.extend(
            inputs
                .refusals
                .pods()
                .keys()
                .filter(|pod| pods.contains(pod))
                .cloned(),
        );
        let attached = pods.attached(|pod| !without.contains(pod));
        let ipvs = has_ipvs().then(|| {
            let with_rules = pods.iter().filter_map(|(pod, local)| {
                let chains = PodChains::of(pod);
                let attached = attached.iter().find(|attached| attached.chains == chains)?;
                Some(IpvsPod::of(attached, local.rules()))
            });
            with_rules.collect()
        });
        let shared = Shared {
            closed: pods.closed(&without),
            encapsulation_ports: pods.encapsulation_ports(),
            is_exposed: pods.node_rules().is_some(),
            ipvs,
            attached,
        };
        if self.shared.as_ref() != Some(&shared) || !table.has(&ChainOwner::Shared) {
            let (rendered, lookups) = dispatch::render(&shared, inputs.style);
            table.set_shared(dispatch::base_chains(&shared), rendered, lookups);
            let pods = shared.attached.iter().chain(&shared.closed.pods);
            let bridge = inputs
                .sees_ports
                .then(|| BridgeTable::of(pods, inputs.style, table.has_bridge()));
            table.set_bridge(bridge.flatten());
        }
        self.shared = Some(shared);
    }

    /// Whether IPVS came or went since the chains were compiled.
    pub(super) fn has_ipvs_changed(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.ipvs.is_some()) != has_ipvs()
    }

    /// After a restart: pods and directions whose rules are not those that the open connections were allowed under; all of them,
    /// where the last life left it unknown.
    pub(super) fn stale_directions(
        &self,
        inputs: Inputs<'_>,
        sets: &AvailableSets,
        table: &NftListing,
    ) -> BTreeSet<(PodKey, Direction)> {
        let is_in_doubt = table.chains.contains_key(super::table::INQUIRY);
        let mut stale = BTreeSet::new();
        for (key, local) in inputs.pods.iter() {
            let interfaces = local.interfaces();
            let context = inputs.context(sets, &interfaces);
            for direction in Direction::ALL {
                let entry = table.chains.get(PodChains::of(key).entry(direction).as_str());
                let comments = entry.into_iter().flat_map(|chain| &chain.rules);
                let digest = comments.filter_map(|comment| pod::digest_in(comment)).next();
                let is_same = digest == Some(pod::digest_of(local.rules(), direction, context).as_str());
                if is_in_doubt || !is_same {
                    stale.insert((key.clone(), direction));
                }
            }
        }
        stale
    }
}

/// Rules that deny everything to clients outside.
fn nothing_exposed() -> NodeRules {
    let tier = TierRules {
        tier: Tier::ClusterEgressFirewall,
        rules: [].into(),
        default_action: DefaultAction::Deny,
    };
    NodeRules {
        exposed: DirectionRules::of(vec![tier]),
    }
}
