//! What the lookout is told of pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use egret_policies::rules::{Batch, SetId};

use super::Netfilter;
use super::inside::{Contents, Writing};
use super::lookout::{Lookout, View, Watched};

impl Netfilter {
    /// Has somebody look for what leads past the rules.
    pub(super) fn look_out(&mut self) {
        self.look_out_at(false);
    }

    /// The same, and what was written into pods is read again.
    pub(super) fn look_out_anew(&mut self) {
        self.look_out_at(true);
    }

    fn look_out_at(&mut self, is_whole: bool) {
        let bridges = self.see_to_bridges();
        let view = View {
            bridges,
            is_whole,
            ..self.view()
        };
        match &self.lookout {
            Some(lookout) => lookout.look(view),
            None => self.start_to_look(view),
        }
    }

    /// The same, if sets changed that the pods' own namespaces may hold.
    pub(super) fn look_out_for_members(&mut self, batch: &Batch) {
        let changed = batch.members_changed.iter().map(|change| change.set);
        let changed: BTreeSet<SetId> = changed.filter(|set| self.sets.lock().has_content(*set)).collect();
        // Most often only records changed, and somebody waits for them.
        if changed.is_empty() {
            return;
        }
        if self.inside_named().any(|set| changed.contains(&set)) {
            self.look_out();
        }
    }

    fn start_to_look(&mut self, view: View) {
        let writing = Writing {
            flavour: self.settings.flavour,
            deny: self.settings.deny,
        };
        match Lookout::start(writing) {
            Ok(lookout) => {
                lookout.look(view);
                self.lookout = Some(lookout);
            }
            Err(error) => tracing::error!(%error, "ways past the rules cannot be looked for"),
        }
    }

    /// The sets that are named by what is enforced inside pods.
    fn inside_named(&self) -> impl Iterator<Item = SetId> {
        self.pods.values().flat_map(|local| local.firewall.sets())
    }

    fn view(&self) -> View {
        let contents: Contents = self
            .inside_named()
            .collect::<BTreeSet<SetId>>()
            .into_iter()
            .filter_map(|set| Some((set, self.sets.lock().content(set)?)))
            .collect();
        let watched = self
            .pods
            .iter()
            .filter(|(_, local)| local.place.is_ok() && !local.home.is_elsewhere());
        let watched = watched.map(|(pod, local)| {
            let watched = Watched {
                addresses: local.rules.addresses.clone(),
                interfaces: local.interfaces(),
                firewall: Arc::clone(&local.firewall),
            };
            (pod.clone(), watched)
        });
        View {
            pods: watched.collect(),
            contents,
            is_whole: false,
            bridges: Vec::new(),
        }
    }
}
