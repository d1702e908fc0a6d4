//! Clients outside the cluster, whom Services lead no further than pods (`services.exposure`).

use std::collections::BTreeMap;

use egret_policies::rules::{DirectionRules, NodeRules, SetId, SetKind};

use super::layout::{Behind, ListName, PodValue};
use super::pod::{Kernel, PodLists, Scope, write_lists};
use super::render::render_outside;

/// Their rules.
#[derive(Debug)]
pub(super) struct Outside {
    rules: DirectionRules,
    lists: PodLists,
    /// Whether the kernel holds them as they are.
    is_programmed: bool,
}

impl Outside {
    /// Rules that are not in the kernel yet.
    pub(super) fn of(rules: &NodeRules) -> Self {
        Self {
            rules: rules.exposed.clone(),
            lists: PodLists::CLOSED,
            is_programmed: false,
        }
    }

    /// Whether they are to be programmed, as a pod would be.
    pub(super) fn is_due(&self, scope: Scope) -> bool {
        scope == Scope::All || !self.is_programmed
    }

    /// The lists that they name.
    pub(super) fn lists(&self) -> impl Iterator<Item = ListName> {
        self.lists.names()
    }

    /// Writes them. Rules that cannot be written let nobody in.
    pub(super) fn program(&mut self, kernel: &mut Kernel, sets: &BTreeMap<SetId, SetKind>) {
        if kernel.translation.fault().is_some() {
            return;
        }
        let written = self.write(kernel, sets);
        self.is_programmed = written.is_ok();
        let lists = written.unwrap_or_else(|why| {
            tracing::error!(why, "Services are closed to clients outside");
            PodLists::CLOSED
        });
        let value = PodValue {
            id: 0,
            generation: 1,
            own: Vec::new(),
            egress: lists.egress,
            ingress: ListName::EMPTY,
            audit: [ListName::EMPTY; 2],
            behind: Behind::Services,
        }
        .to_octets();
        self.lists = lists;
        let value = (!self.rules.tiers.is_empty()).then_some(&*value);
        if let Err(error) = kernel.translation.set_outside(value) {
            self.is_programmed = false;
            tracing::error!(%error, "what clients outside reach by Services is not judged");
        }
    }

    fn write(&self, kernel: &mut Kernel, sets: &BTreeMap<SetId, SetKind>) -> Result<PodLists, String> {
        if let Some(fault) = self.rules.sets().find_map(|set| kernel.tables.fault(set)) {
            return Err(format!("a member of a set is not as it should be: {fault:?}"));
        }
        let rendered =
            render_outside(&self.rules, |set| sets.get(&set).copied()).map_err(|error| error.to_string())?;
        if let Err(error) = kernel.counters.register(&rendered.labels, |_| true) {
            tracing::error!(%error, "a rule is not counted");
        }
        write_lists(kernel, &rendered)
    }
}
