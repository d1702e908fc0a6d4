//! What the lookout is told of pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use egret_policies::rules::{Batch, SetId};

use super::bypass::{Lookout, View, Watched};
use crate::backend::netfilter::driver::Netfilter;
use crate::backend::netfilter::pod_netns::Writing;
use crate::backend::netfilter::sets::Contents;

impl Netfilter {
    /// Has somebody look for what leads past the rules.
    pub(crate) fn look_out(&mut self) {
        self.look_out_at(false);
    }

    /// The same, and what was written into pods is read again.
    pub(crate) fn look_out_anew(&mut self) {
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
    pub(crate) fn look_out_for_members(&mut self, batch: &Batch) {
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
        self.pods.firewall_sets()
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
            .filter(|(_, local)| local.locations().is_ok() && !local.has_moved());
        let watched = watched.map(|(pod, local)| {
            let watched = Watched {
                addresses: local.rules().addresses.clone(),
                interfaces: local.interfaces(),
                firewall: Arc::clone(local.firewall()),
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use egret_kernel::iptables::{Flavour, InterfaceName};
    use egret_policies::rules::{
        Action, Audit, Breadth, DirectionRules, Member, MembersChanged, Origin, Otherwise, PeerMatch,
        PodRules, PortMatch, Rule, SetKind, SetSpec, Tier, TierRules,
    };
    use egret_shared::pod::PodKey;

    use super::*;
    use crate::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Marks};
    use crate::backend::netfilter::model::settings::DenyAction;
    use crate::backend::netfilter::model::settings::Settings;
    use crate::node::{Locate, Location};

    #[derive(Debug)]
    struct ByAddress;

    impl Locate for ByAddress {
        fn locate(&mut self, addresses: &[IpAddr]) -> Result<Vec<Location>, String> {
            let name = format!("veth{}", addresses[0]).replace('.', "");
            Ok(vec![Location::own(InterfaceName::new(name).unwrap())])
        }
    }

    fn firewalled(name: &str, address: &str, set: SetId) -> PodRules {
        let origin = Origin {
            policy: "ClusterEgressFirewall/all".into(),
            rule: 0,
            name: None,
        };
        let deny = Rule {
            action: Action::Deny,
            peer: PeerMatch::In(set),
            except: None,
            port: PortMatch::Any,
            origin,
        };
        let tiers = vec![TierRules {
            tier: Tier::ClusterEgressFirewall,
            rules: vec![deny],
            otherwise: Otherwise::NextTier,
        }];
        PodRules {
            audit: Audit::default(),
            pod: PodKey::new("default", name),
            uid: None,
            addresses: vec![address.parse().unwrap()],
            egress: DirectionRules { tiers },
            ingress: DirectionRules::default(),
        }
    }

    fn member(last: u8) -> Member {
        Member::Address(IpAddr::from([203, 0, 113, last]))
    }

    /// Two pods that may not reach what is in one set.
    fn backend(set: SetId) -> Netfilter {
        let settings = Settings {
            flavour: Flavour::Nft,
            marks: Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).unwrap(),
            deny: DenyAction::Drop,
            telling: None,
        };
        let mut backend = Netfilter::open(settings, Box::new(ByAddress)).unwrap();
        let kind = SetKind::Addresses;
        let breadth = Breadth::Narrow;
        backend.sets.lock().want(&[SetSpec {
            id: set,
            kind,
            breadth,
            description: "denied".into(),
        }]);
        backend.sets.lock().note(&[added(set, 1)]);
        let rules = [("a", "10.0.0.1"), ("b", "10.0.0.2")];
        backend.replace(&rules.map(|(name, address)| firewalled(name, address, set)));
        backend
    }

    fn added(set: SetId, last: u8) -> MembersChanged {
        MembersChanged {
            set,
            added: vec![(member(last), None)],
            removed: Vec::new(),
        }
    }

    #[test]
    fn who_is_told_shares_firewalls_and_members_with_who_tells() {
        let set = SetId::of_content("denied");
        let mut backend = backend(set);
        let (one, other) = (backend.view(), backend.view());
        assert_eq!(one.pods.len(), 2);
        for (pod, local) in backend.pods.iter() {
            let told = [&one, &other].map(|view| Arc::as_ptr(&view.pods[pod].firewall));
            assert_eq!(told, [Arc::as_ptr(local.firewall()); 2], "{pod}");
        }
        let members = [&one, &other].map(|view| Arc::as_ptr(&view.contents[&set].1));
        let held = backend.sets.lock().content(set).unwrap().1;
        assert_eq!(members, [Arc::as_ptr(&held); 2]);
        // The backend, both who were told, and this test.
        assert_eq!(Arc::strong_count(&held), 4);

        // A change of rules of one pod leaves what is told of the other.
        let before = Arc::as_ptr(backend.pods.get(&PodKey::new("default", "b")).unwrap().firewall());
        backend.replace(&[firewalled("a", "10.0.0.1", set)]);
        let after = backend.view();
        assert_eq!(
            Arc::as_ptr(&after.pods[&PodKey::new("default", "b")].firewall),
            before
        );
        assert_eq!(Arc::as_ptr(&after.contents[&set].1), members[0]);
    }

    #[test]
    fn members_are_copied_for_who_was_told_of_them_and_for_nobody_else() {
        let set = SetId::of_content("denied");
        let backend = backend(set);
        let place = |backend: &Netfilter| Arc::as_ptr(&backend.sets.lock().content(set).unwrap().1);
        let before = place(&backend);
        for last in 2..100 {
            backend.sets.lock().note(&[added(set, last)]);
            assert_eq!(place(&backend), before, "nobody was told");
        }
        let told = backend.view();
        backend.sets.lock().note(&[added(set, 100)]);
        assert_ne!(place(&backend), before);
        let (_, members) = &told.contents[&set];
        assert_eq!(
            (Arc::as_ptr(members), members.len()),
            (before, 99),
            "it is as it was told"
        );
        // Once for all changes, not once for each.
        let copied = place(&backend);
        backend.sets.lock().note(&[added(set, 101)]);
        assert_eq!(place(&backend), copied);
    }

    #[test]
    fn who_reads_which_sets_are_there_copies_none_of_that() {
        let backend = backend(SetId::of_content("denied"));
        let sets = backend.sets.lock();
        let (one, other) = (sets.available(), sets.available());
        assert!(Arc::ptr_eq(&one, &other));
        // These, and the sets' own.
        assert_eq!(Arc::strong_count(&one), 3);
    }
}
