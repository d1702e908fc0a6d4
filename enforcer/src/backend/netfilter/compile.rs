//! The desired chains: those that all pods share, and those of each pod. Only what may have changed is rendered.

use std::collections::BTreeSet;

use egret_kernel::Family;
use egret_kernel::iptables::InterfaceName;
use egret_policies::rules::Direction;
use egret_shared::pod::PodKey;

use crate::backend::netfilter::bridges::EnabledBridges;
use crate::backend::netfilter::denials::DenialRegistry;
use crate::backend::netfilter::marks::PodMarks;
use crate::backend::netfilter::marks::generations::Generations;
use crate::backend::netfilter::model::attachment::PodAttachment;
use crate::backend::netfilter::model::available_sets::AvailableSets;
use crate::backend::netfilter::model::ipvs::has_ipvs;
use crate::backend::netfilter::model::pods::LocalPod;
use crate::backend::netfilter::model::pods::Pods;
use crate::backend::netfilter::model::pods::names_any;
use crate::backend::netfilter::model::settings::NflogSettings;
use crate::backend::netfilter::model::settings::Settings;
use crate::backend::netfilter::model::unknown_pods::ClosedInterfaces;
use crate::backend::netfilter::names::{self, PodChains};
use crate::backend::netfilter::render::chains::Chains;
use crate::backend::netfilter::render::dispatch::{self, Exposed};
use crate::backend::netfilter::render::encapsulation;
use crate::backend::netfilter::render::ipvs::{self, IpvsPod};
use crate::backend::netfilter::render::nflog;
use crate::backend::netfilter::render::source_check;
use crate::backend::netfilter::render::{self, RenderContext};
use crate::backend::netfilter::sets::SetsSnapshot;
use crate::backend::netfilter::tables::family_table::ChainOwner;
use crate::backend::netfilter::tables::ruleset::Ruleset;
use egret_policies::rules::SetId;
use std::collections::BTreeMap;

/// What a pod's chains depend on besides its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rendered {
    marks: PodMarks,
    interfaces: Vec<InterfaceName>,
    /// All its sets were there, in this listing of the kernel's sets.
    listing: u64,
}

/// A pod whose chains are not what would be rendered now.
struct Stale {
    pod: PodKey,
    /// Of its flows.
    marks: PodMarks,
    /// Its rules are the same.
    is_generation_alone: bool,
}

/// What the chains that all pods share depend on. It changes where a pod comes, goes or moves, and not with what its rules say.
#[derive(Debug, PartialEq, Eq)]
struct Shared {
    attached: Vec<PodAttachment>,
    closed: ClosedInterfaces,
    /// UDP ports at which the node takes packets out of datagrams.
    encapsulation_ports: BTreeSet<u16>,
    exposed: Option<Exposed>,
    /// None where there is no IPVS.
    ipvs_pods: Option<Vec<IpvsPod>>,
    /// The chains about bridges.
    bridges: [(Family, Chains); 2],
}

impl Shared {
    fn chains(&self, family: Family, settings: &Settings) -> Chains {
        let Self {
            attached,
            closed,
            exposed,
            encapsulation_ports,
            ..
        } = self;
        let mut chains = dispatch::shared(attached, closed, *exposed, settings.marks, settings.deny, family);
        if let Some(ipvs_pods) = &self.ipvs_pods {
            ipvs::add(&mut chains, ipvs_pods, family);
        }
        let bridges = self.bridges.iter().filter(|(of, _)| *of == family);
        chains.extend(bridges.flat_map(|(_, chains)| chains.clone()));
        let encapsulated = encapsulation::chain(encapsulation_ports, family);
        chains.insert(names::encapsulation().as_str().to_owned(), encapsulated);
        if settings.telling.is_some() {
            nflog::tell_of_shared(&mut chains, settings.marks);
        }
        chains.extend(source_check::chains(attached, closed, settings.telling, family));
        chains
    }
}

/// What the desired chains are compiled from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs<'a> {
    pub(super) settings: &'a Settings,
    pub(super) pods: &'a Pods,
    pub(super) generations: &'a Generations,
    pub(super) bridges: &'a EnabledBridges,
    pub(super) denials: &'a DenialRegistry,
}

impl Inputs<'_> {
    fn context<'b>(
        &self,
        family: Family,
        sets: &'b AvailableSets,
        interfaces: &'b [InterfaceName],
    ) -> RenderContext<'b> {
        RenderContext {
            family,
            sets,
            interfaces,
            tells: self.settings.telling.is_some(),
        }
    }
}

/// Keeps the desired chains up to date.
#[derive(Debug, Default)]
pub(super) struct Compiler {
    shared: Option<Shared>,
    /// From what the chains of each pod are. A pod that is left out is rendered in any case.
    rendered: BTreeMap<PodKey, Rendered>,
}

impl Compiler {
    /// Has the chains of a pod rendered again.
    pub(super) fn forget(&mut self, pod: &PodKey) {
        self.rendered.remove(pod);
    }

    /// Makes the tables desire what follows from the inputs over these sets; pods `without` chains are closed.
    pub(super) fn update(
        &mut self,
        inputs: Inputs<'_>,
        sets: &SetsSnapshot,
        without: &BTreeSet<PodKey>,
        ruleset: &mut Ruleset,
    ) {
        let stale = self.stale_chains(inputs, sets.listing, ruleset);
        self.update_shared(inputs, without, ruleset);
        update_exposed(inputs, &sets.sets, ruleset);
        for stale in &stale {
            update_pod(stale, inputs, &sets.sets, ruleset);
        }
        ruleset.retain_owners(|owner| match owner {
            ChainOwner::Shared | ChainOwner::Exposed => true,
            ChainOwner::Pod(pod) => inputs.pods.contains(pod),
        });
        self.note_rendered(&stale, inputs, sets, ruleset);
        if let Some(telling) = inputs.settings.telling {
            update_telling(telling, inputs.denials, ruleset);
        }
    }

    fn update_shared(&mut self, inputs: Inputs<'_>, without: &BTreeSet<PodKey>, ruleset: &mut Ruleset) {
        let Inputs { settings, pods, .. } = inputs;
        let without = without | &pods.moved();
        let attached = pods.attached(|pod| !without.contains(pod));
        let has_ipvs = has_ipvs();
        let shared = Shared {
            closed: pods.closed(&without),
            encapsulation_ports: pods.encapsulation_ports(),
            exposed: pods.node_rules().map(|_| Exposed {
                unmarked: settings.marks.unmarked(Direction::Egress),
                by_ipvs: has_ipvs,
            }),
            ipvs_pods: has_ipvs.then(|| ipvs_pods(pods, &attached, ruleset.refused())),
            attached,
            bridges: Family::ALL.map(|family| (family, inputs.bridges.chain(family))),
        };
        let is_new = self.shared.as_ref() != Some(&shared);
        if is_new || !ruleset.has(&ChainOwner::Shared) {
            ruleset.set_desired_for(&ChainOwner::Shared, |family| shared.chains(family, settings));
        }
        self.shared = Some(shared);
    }

    fn stale_chains(&self, inputs: Inputs<'_>, listing: u64, ruleset: &Ruleset) -> Vec<Stale> {
        let stale = inputs.pods.iter().filter_map(|(pod, local)| {
            let marks = inputs.generations.marks(PodChains::of(pod))?;
            let has_chains = ruleset.has(&ChainOwner::Pod(pod.clone()));
            let before = self.rendered.get(pod).filter(|_| has_chains);
            let is_same =
                |before: &Rendered| before.listing == listing && before.interfaces == local.interfaces();
            let before = before.filter(|before| is_same(before));
            (before.map(|before| before.marks) != Some(marks)).then(|| Stale {
                pod: pod.clone(),
                marks,
                is_generation_alone: before.is_some(),
            })
        });
        stale.collect()
    }

    /// Takes note of what chains were rendered from. What closes for want of a set is rendered again each time.
    fn note_rendered(
        &mut self,
        stale: &[Stale],
        inputs: Inputs<'_>,
        there: &SetsSnapshot,
        ruleset: &mut Ruleset,
    ) {
        let sets = &*there.sets;
        for Stale {
            pod,
            marks,
            is_generation_alone,
        } in stale
        {
            let Some(local) = inputs.pods.get(pod) else {
                continue;
            };
            if let Some(rendered) = self.rendered.get_mut(pod).filter(|_| *is_generation_alone) {
                rendered.marks = *marks;
                continue;
            }
            ruleset.count_rendered(1);
            let rules = local.rules();
            for direction in Direction::ALL {
                if let Some(reason) = render::why_not_audited(rules, direction, sets) {
                    let direction = direction.word();
                    tracing::warn!(%pod, direction, reason, "it is not told what policies in audit would deny");
                }
            }
            let decide = rules.egress.sets().chain(rules.ingress.sets());
            let is_whole = decide.chain(rules.audit.sets()).all(|id| sets.contains_key(&id));
            self.rendered.remove(pod);
            if is_whole {
                let rendered = Rendered {
                    marks: *marks,
                    interfaces: local.interfaces(),
                    listing: there.listing,
                };
                self.rendered.insert(pod.clone(), rendered);
            }
        }
    }
}

fn update_pod(stale: &Stale, inputs: Inputs<'_>, sets: &AvailableSets, ruleset: &mut Ruleset) {
    let Some(local) = inputs.pods.get(&stale.pod) else {
        return;
    };
    let (rules, marks, interfaces) = (local.rules(), stale.marks, local.interfaces());
    let context = |family| inputs.context(family, sets, &interfaces);
    if stale.is_generation_alone {
        ruleset.update_desired(|family| render::generation(rules, marks, context(family)));
    } else {
        let owner = ChainOwner::Pod(stale.pod.clone());
        ruleset.set_desired_for(&owner, |family| render::pod(rules, marks, context(family)));
    }
}

fn update_exposed(inputs: Inputs<'_>, sets: &AvailableSets, ruleset: &mut Ruleset) {
    let rules = inputs.pods.node_rules();
    ruleset.set_desired_for(&ChainOwner::Exposed, |family| {
        let chains = rules.map(|rules| render::exposed(rules, inputs.context(family, sets, &[])));
        chains.unwrap_or_default()
    });
}

fn update_telling(telling: NflogSettings, denials: &DenialRegistry, ruleset: &mut Ruleset) {
    let touched = ruleset.update_denial_chains(telling);
    denials.set_desired(ruleset.programs().into(), touched, |chain| ruleset.denial(chain));
}

fn ipvs_pods(pods: &Pods, attached: &[PodAttachment], refused: &BTreeMap<PodKey, String>) -> Vec<IpvsPod> {
    let with_chains = |(pod, local): (&PodKey, &LocalPod)| {
        let chains = PodChains::of(pod);
        let attached = attached.iter().find(|attached| attached.chains == chains)?;
        let ipvs_pods = IpvsPod::of(attached, local.rules());
        let is_refused = refused.contains_key(pod);
        Some(if is_refused {
            ipvs_pods.refused()
        } else {
            ipvs_pods
        })
    };
    pods.iter().filter_map(with_chains).collect()
}

/// Before the first batch: desires the chains that close unknown pods beside those of an earlier life. Says whether there are
/// any to close.
pub(super) fn close_unknown_pods(settings: &Settings, pods: &Pods, ruleset: &mut Ruleset) -> bool {
    let closed = pods.closed(&BTreeSet::new());
    if closed.is_empty() {
        return false;
    }
    ruleset.set_desired(|family, programmed| {
        let held = programmed.iter();
        let mut desired: Chains = held.map(|(name, rules)| (name.clone(), rules.to_vec())).collect();
        if !desired.contains_key(names::forward().as_str()) {
            let Settings { marks, deny, .. } = *settings;
            desired.extend(dispatch::shared(&[], &closed, None, marks, deny, family));
        }
        desired
    });
    true
}

/// After a restart: pods and directions whose rules or members are not those that the open connections were allowed under; all
/// of them, where the last life left it unknown (`was_in_doubt`).
pub(super) fn stale_directions(
    inputs: Inputs<'_>,
    sets: &AvailableSets,
    shrunk: &BTreeSet<SetId>,
    had_inquiry_marker: bool,
    ruleset: &Ruleset,
) -> BTreeSet<(PodKey, Direction)> {
    let mut stale = BTreeSet::new();
    for (pod, local) in inputs.pods.iter() {
        let Some(marks) = inputs.generations.marks(PodChains::of(pod)) else {
            continue;
        };
        let interfaces = local.interfaces();
        for direction in Direction::ALL {
            let is_same = ruleset.holds(|family| {
                let context = inputs.context(family, sets, &interfaces);
                render::direction(local.rules(), direction, marks, context)
            });
            if had_inquiry_marker || !is_same || names_any(local.rules(), direction, shrunk) {
                stale.insert((pod.clone(), direction));
            }
        }
    }
    stale
}

/// Whether IPVS came or went since the chains were compiled.
pub(super) fn has_ipvs_changed(ruleset: &Ruleset) -> bool {
    ruleset.desires(names::output().as_str()) != has_ipvs()
}
