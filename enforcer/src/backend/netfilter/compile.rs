//! What the tables are to hold: chains that all pods share, and those of each pod. Only what may have changed is rendered.

use std::collections::BTreeSet;

use egret_kernel::Family;
use egret_kernel::iptables::InterfaceName;
use egret_policies::rules::Direction;
use egret_shared::pod::PodKey;

use crate::backend::netfilter::driver::Netfilter;
use crate::backend::netfilter::marks::PodMarks;
use crate::backend::netfilter::model::attachment::Attached;
use crate::backend::netfilter::model::available_sets::AvailableSets;
use crate::backend::netfilter::model::ipvs::has_ipvs;
use crate::backend::netfilter::model::pods::LocalPod;
use crate::backend::netfilter::model::settings::Settings;
use crate::backend::netfilter::model::settings::Telling;
use crate::backend::netfilter::model::unknown_pods::Closed;
use crate::backend::netfilter::names::{self, PodChains};
use crate::backend::netfilter::render::chains::Chains;
use crate::backend::netfilter::render::dispatch::{self, Exposed};
use crate::backend::netfilter::render::encapsulation;
use crate::backend::netfilter::render::ipvs::{self, Led};
use crate::backend::netfilter::render::nflog;
use crate::backend::netfilter::render::source_check;
use crate::backend::netfilter::render::{self, Surroundings};
use crate::backend::netfilter::sets::There;
use crate::backend::netfilter::tables::family_table::{Part, Table};

/// What a pod's chains depend on besides its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rendered {
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
    /// Only its generation is another one.
    is_asked_again: bool,
}

/// What the chains that all pods share depend on. It changes where a pod comes, goes or moves, and not with what its rules say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shared {
    attached: Vec<Attached>,
    closed: Closed,
    /// UDP ports at which the node takes packets out of datagrams.
    encapsulation_ports: BTreeSet<u16>,
    exposed: Option<Exposed>,
    /// None where there is no IPVS.
    led: Option<Vec<Led>>,
    /// The chains about bridges, by table.
    bridges: [Chains; 2],
}

impl Shared {
    fn chains(&self, at: usize, family: Family, settings: &Settings) -> Chains {
        let Self {
            attached,
            closed,
            exposed,
            encapsulation_ports,
            ..
        } = self;
        let mut chains = dispatch::shared(attached, closed, *exposed, settings.marks, settings.deny, family);
        if let Some(led) = &self.led {
            ipvs::add(&mut chains, led, family);
        }
        chains.extend(self.bridges[at].clone());
        let encapsulated = encapsulation::chain(encapsulation_ports, family);
        chains.insert(names::encapsulation().as_str().to_owned(), encapsulated);
        if settings.telling.is_some() {
            nflog::tell_of_shared(&mut chains, settings.marks);
        }
        chains.extend(source_check::chains(attached, closed, settings.telling, family));
        chains
    }
}

impl Netfilter {
    /// What the tables are to hold now.
    pub(crate) fn want_chains(&mut self, without: &BTreeSet<PodKey>) {
        let there = self.sets.lock().there();
        self.want_chains_over(&there, without);
    }

    /// What they are to hold over these sets. Does not ask for any other, so the sets may be somebody else's meanwhile.
    pub(crate) fn want_chains_over(&mut self, there: &There, without: &BTreeSet<PodKey>) {
        let stale = self.stale_chains(there.listing);
        self.want_shared(without);
        self.want_exposed(&there.sets);
        for Stale {
            pod,
            marks,
            is_asked_again,
        } in &stale
        {
            let Some(local) = self.pods.get(pod) else { continue };
            let interfaces = local.interfaces();
            for table in &mut self.tables {
                let around = Surroundings {
                    family: table.family(),
                    sets: &there.sets,
                    interfaces: &interfaces,
                    tells: self.settings.telling.is_some(),
                };
                if *is_asked_again {
                    table.want_anew(render::generation(local.rules(), *marks, around));
                } else {
                    table.want_part(Part::Pod(pod.clone()), render::pod(local.rules(), *marks, around));
                }
            }
        }
        for table in &mut self.tables {
            table.retain_parts(|part| match part {
                Part::Shared | Part::Exposed => true,
                Part::Pod(pod) => self.pods.contains(pod),
            });
        }
        self.note_rendered(&stale, there);
        if let Some(telling) = self.settings.telling {
            self.want_telling(telling);
        }
    }

    fn want_shared(&mut self, without: &BTreeSet<PodKey>) {
        let without = without | &self.pods.moved();
        let attached = self.pods.attached(|pod| !without.contains(pod));
        let has_ipvs = has_ipvs();
        let shared = Shared {
            closed: self.pods.closed(&without),
            encapsulation_ports: self.pods.encapsulation_ports(),
            exposed: self.pods.node_rules().map(|_| Exposed {
                unmarked: self.settings.marks.unmarked(Direction::Egress),
                by_ipvs: has_ipvs,
            }),
            led: has_ipvs.then(|| self.led(&attached)),
            attached,
            bridges: Family::BOTH.map(|family| self.turned_on.chain(family)),
        };
        let is_new = self.shared.as_ref() != Some(&shared);
        for (at, table) in self.tables.iter_mut().enumerate() {
            if is_new || !table.has(&Part::Shared) {
                table.want_part(Part::Shared, shared.chains(at, table.family(), &self.settings));
            }
        }
        self.shared = Some(shared);
    }

    fn want_exposed(&mut self, sets: &AvailableSets) {
        for table in &mut self.tables {
            let around = Surroundings {
                family: table.family(),
                sets,
                interfaces: &[],
                tells: self.settings.telling.is_some(),
            };
            let rules = self.pods.node_rules();
            let chains = rules.map(|rules| render::exposed(rules, around));
            table.want_part(Part::Exposed, chains.unwrap_or_default());
        }
    }

    fn want_telling(&mut self, telling: Telling) {
        let touched = self
            .tables
            .iter_mut()
            .flat_map(|table| table.want_telling(telling));
        let touched = touched.collect();
        let programs = self.tables.iter().map(Table::programs).collect();
        let why = |chain: &str| self.tables.iter().find_map(|table| table.told.why(chain));
        self.denials.want(programs, touched, why);
    }

    /// Has rules do without sets that the kernel did not take in whole, where what they lack would pass: they close then. What
    /// only allows may lack something. Says whether rules are to be written for that.
    pub(crate) fn withhold_sets(&self) -> bool {
        let mut sets = self.sets.lock();
        if sets.failed().is_empty() {
            return false;
        }
        sets.withhold(&self.pods.sets_needed_whole())
    }

    /// Whether IPVS came or went since the chains were wanted.
    pub(crate) fn has_ipvs_changed(&self) -> bool {
        let output = names::output();
        let is_asked = |table: &Table| table.chains.desired().contains_key(output.as_str());
        self.tables.iter().any(|table| is_asked(table) != has_ipvs())
    }

    fn led(&self, attached: &[Attached]) -> Vec<Led> {
        let with_chains = |(pod, local): (&PodKey, &LocalPod)| {
            let chains = PodChains::of(pod);
            let attached = attached.iter().find(|attached| attached.chains == chains)?;
            let led = Led::of(attached, local.rules());
            let is_refused = self.refused.contains_key(pod);
            Some(if is_refused { led.refused() } else { led })
        };
        self.pods.iter().filter_map(with_chains).collect()
    }

    fn stale_chains(&self, listing: u64) -> Vec<Stale> {
        let stale = self.pods.iter().filter_map(|(pod, local)| {
            let marks = self.generations.marks(PodChains::of(pod))?;
            let part = Part::Pod(pod.clone());
            let is_there = self.tables.iter().all(|table| table.has(&part));
            let before = self.rendered.get(pod).filter(|_| is_there);
            let is_same =
                |before: &Rendered| before.listing == listing && before.interfaces == local.interfaces();
            let before = before.filter(|before| is_same(before));
            (before.map(|before| before.marks) != Some(marks)).then(|| Stale {
                pod: pod.clone(),
                marks,
                is_asked_again: before.is_some(),
            })
        });
        stale.collect()
    }

    /// Takes note of what chains were rendered from. What closes for want of a set is rendered again each time.
    fn note_rendered(&mut self, stale: &[Stale], there: &There) {
        let sets = &*there.sets;
        for Stale {
            pod,
            marks,
            is_asked_again,
        } in stale
        {
            let Some(local) = self.pods.get(pod) else {
                continue;
            };
            if let Some(rendered) = self.rendered.get_mut(pod).filter(|_| *is_asked_again) {
                rendered.marks = *marks;
                continue;
            }
            self.written.rendered += 1;
            for direction in Direction::ALL {
                if let Some(reason) = render::why_unasked(local.rules(), direction, sets) {
                    let direction = direction.word();
                    tracing::warn!(%pod, direction, reason, "it is not told what policies in audit would deny");
                }
            }
            let decide = local.rules().egress.sets().chain(local.rules().ingress.sets());
            let is_whole = decide
                .chain(local.rules().audit.sets())
                .all(|id| sets.contains_key(&id));
            let rendered = is_whole.then(|| Rendered {
                marks: *marks,
                interfaces: local.interfaces(),
                listing: there.listing,
            });
            match rendered {
                Some(rendered) => drop(self.rendered.insert(pod.clone(), rendered)),
                None => drop(self.rendered.remove(pod)),
            }
        }
    }
}
