//! Compiling and programming the desired state, and what follows it: the flavour of the kubelet, bridges, bypass detection.

use std::collections::BTreeSet;

use egret_kernel::iptables::Flavour;
use egret_policies::rules::{Direction, SetId};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::Netfilter;
use crate::backend::BackendError;
use crate::backend::bypass::Bypass;
use crate::backend::netfilter::bridges::{self, PreparedBridges};
use crate::backend::netfilter::cleanup;
use crate::backend::netfilter::compile;
use crate::backend::netfilter::connections::carry_over;
use crate::backend::netfilter::marks::PodMarks;
use crate::backend::netfilter::monitor::{BypassDetector, PodSnapshot};
use crate::backend::netfilter::names;
use crate::backend::netfilter::pod_netns::RuleSettings;
use crate::backend::netfilter::sets::SetsSnapshot;
use crate::backend::netfilter::tables::program::Applied;

impl Netfilter {
    /// Makes the tables hold what is desired.
    pub(super) fn program(&mut self) {
        self.compile(&BTreeSet::new());
        if self.ruleset.apply(self.pods.keys()) == Applied::PodsAlone {
            self.program_shared(&BTreeSet::new());
        }
        if let Some(reason) = self.ruleset.broken() {
            tracing::error!(reason, "the packet filter cannot be written");
        }
    }

    /// Programs what all pods share, without pods that were refused and have no chains of before, or only `outdated` ones.
    pub(super) fn program_shared(&mut self, outdated: &BTreeSet<PodKey>) {
        self.compile(&self.ruleset.unusable(outdated));
        self.ruleset.apply_shared(outdated);
    }

    /// Programs the rules, and keeps open what only an expired record would end; `before` are the marks so far.
    pub(super) fn program_and_carry_over(&mut self, before: &[(PodKey, PodMarks)]) {
        self.program();
        let (_, in_force) = self.connections_in_force();
        carry_over(in_force, before);
    }

    pub(super) fn compile(&mut self, without: &BTreeSet<PodKey>) {
        let sets = self.sets.lock().snapshot();
        self.compile_over(&sets, without);
    }

    /// Compiles over these sets. Asks for no other, so the sets may be locked meanwhile.
    fn compile_over(&mut self, sets: &SetsSnapshot, without: &BTreeSet<PodKey>) {
        let (compiler, inputs, ruleset) = self.compiler_inputs();
        compiler.update(inputs, sets, without, ruleset);
    }

    /// Creates the sets of a first batch, in this order, and has them hold what they should; returns those from which members
    /// went.
    ///
    /// A first sync creates thousands of sets, and for each 64th the kernel waits until nobody uses its list of sets any more
    /// (`ip_set_create` of net/netfilter/ipset/ip_set_core.c). Chains are rendered meanwhile, as if all sets came to be. That is
    /// compared before anything is written; where a set is missing, all pods are rendered again.
    pub(super) fn create_sets(&mut self, order: Vec<SetId>, now: Timestamp) -> BTreeSet<SetId> {
        let (sets, preallocation) = (self.sets.clone(), self.preallocation.end());
        let create = || {
            drop(preallocation);
            sets.lock().create_in_order(&order);
            sets.lock().sync(now)
        };
        // What an earlier life left is compared with what would be rendered: that decides which marks are rendered.
        if !self.generations.is_empty() {
            return create();
        }
        let expected = self.sets.lock().desired_snapshot();
        let shrunk = std::thread::scope(|scope| {
            let creating = scope.spawn(create);
            self.renew_generations(&BTreeSet::new());
            self.compile_over(&expected, &BTreeSet::new());
            creating
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        self.sets.lock().check_snapshot(&expected);
        shrunk
    }

    /// [`Generations::renew`](crate::backend::netfilter::marks::generations::Generations::renew) of all pods of this node.
    pub(super) fn renew_generations(
        &mut self,
        asked: &BTreeSet<(PodKey, Direction)>,
    ) -> Vec<(PodKey, PodMarks)> {
        let serial = &mut self.ruleset.counters().lock().serial;
        self.generations.renew(self.pods.rules(), asked, serial)
    }

    /// Has rules do without sets that the kernel did not take in whole, where what they lack would pass: they close then. Says
    /// whether rules are to be written for that.
    pub(super) fn withhold_sets(&self) -> bool {
        let mut sets = self.sets.lock();
        !sets.failed().is_empty() && sets.withhold(&self.pods.sets_needed_whole())
    }

    pub(super) fn destroy_unused_sets(&mut self) {
        if self.sets.lock().has_undesired() {
            self.ruleset.release_sets();
        }
        for reason in self.sets.lock().destroy_undesired() {
            tracing::warn!(reason, "a set that no rule needs stays for now");
        }
    }

    /// Takes it back that connections are to be looked for, once they were.
    pub(super) fn clear_inquiry_marker(&self) {
        if self.connections.has_no_member_search() && self.ruleset.is_whole() {
            self.sets.lock().clear_inquiry_marker();
        }
    }

    /// Closes unknown pods before the first batch; says whether they are closed now.
    pub(super) fn close_before_first_batch(&mut self) -> Result<bool, BackendError> {
        self.pods.read_surroundings();
        if !compile::close_unknown_pods(&self.settings, &self.pods, &mut self.ruleset) {
            return Ok(false);
        }
        self.ruleset
            .write_pending()
            .map_err(|error| BackendError::new("cannot close pods that are not known", error))?;
        let closing = names::unknown(Direction::Egress);
        Ok(self.ruleset.holds_chain(closing.as_str()))
    }

    /// The flavour that the kubelet went to, where it is followed.
    pub(super) fn moved_flavour(&self) -> Option<Flavour> {
        if !self.coexistence.follows_flavour || self.stranded.is_some() {
            return None;
        }
        // Who cannot be asked has gone nowhere.
        let hinted = Flavour::hinted().ok().flatten();
        hinted.filter(|flavour| *flavour != self.ruleset.flavour())
    }

    /// Follows the kubelet to the other flavour. What fails is tried again.
    pub(super) fn follow_flavour(&mut self, now: Timestamp) {
        self.stranded = None;
        let moved = self
            .moved_flavour()
            .map_or(Ok(()), |flavour| self.switch_flavour(flavour, now));
        self.stranded = moved.err();
    }

    fn switch_flavour(&mut self, flavour: Flavour, now: Timestamp) -> Result<(), String> {
        let failed = |why: String| {
            format!(
                "the kubelet uses iptables-{} now, where our rules cannot be written: {why}",
                flavour.name()
            )
        };
        let previous = self.ruleset.switch_to(flavour, self.coexistence.jump, now);
        let previous = previous.map_err(|error| failed(error.to_string()))?;
        self.program();
        if let Some(why) = self.ruleset.first_failure() {
            self.ruleset.switch_back(previous);
            return Err(failed(why));
        }
        tracing::warn!(
            from = previous.flavour().name(),
            to = flavour.name(),
            "the kubelet uses the other iptables now, and so do we"
        );
        Ok(())
    }

    /// Removes what is ours from the other flavour, once it is written here.
    pub(super) fn leave_other_flavour(&mut self) {
        let Some(other) = self.ruleset.left_in_other() else {
            return;
        };
        let kept = self.ruleset.keep_counts_of(other);
        if let Err(error) = kept.and_then(|()| cleanup::remove_rules_of(other)) {
            let flavour = other.name();
            self.stranded = Some(format!("rules of ours are still in iptables-{flavour}: {error}"));
        } else {
            tracing::info!(
                flavour = other.name(),
                "the rules that were in the other flavour are gone"
            );
        }
    }

    /// Looks, in the background, for what leads packets past the rules; `is_whole` reads again what was written into pods.
    pub(super) fn detect_bypasses(&mut self, is_whole: bool) {
        let bridges = self.update_bridges();
        let view = PodSnapshot::of(&self.pods, &self.sets, bridges, is_whole);
        if let Some(bypass) = &self.bypass {
            bypass.look(view);
            return;
        }
        let writing = RuleSettings::Iptables(self.ruleset.flavour(), self.settings.deny);
        match BypassDetector::start(writing) {
            Ok(bypass) => {
                bypass.look(view);
                self.bypass = Some(bypass);
            }
            Err(error) => tracing::error!(%error, "ways past the rules cannot be looked for"),
        }
    }

    /// Turns bridges of pods on as wished, and off again what is wished for no more. Returns what stays unseen.
    fn update_bridges(&mut self) -> Vec<Bypass> {
        match self.set_bridges() {
            Ok(true) => {
                self.pods.relocate();
                self.program();
            }
            Ok(false) => {}
            Err(reason) => tracing::error!(reason, "a bridge cannot be set"),
        }
        self.bridges.gaps(&self.pods.bridges())
    }

    /// Says whether any was set.
    fn set_bridges(&mut self) -> Result<bool, String> {
        let off = match self.bridges.prepare(&self.pods.bridges())? {
            PreparedBridges::Done { is_changed } => return Ok(is_changed),
            PreparedBridges::ToTurnOn(off) => off,
        };
        self.program();
        bridges::turn_on(&off, self.ruleset.broken())?;
        Ok(true)
    }
}
