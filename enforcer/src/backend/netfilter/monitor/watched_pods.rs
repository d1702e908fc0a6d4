//! What the bypass detector gets of pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use egret_policies::rules::{Batch, SetId};

use super::bypass::{PodSnapshot, WatchedPod};
use crate::backend::bypass::Bypass;
use crate::backend::netfilter::model::pods::Pods;
use crate::backend::netfilter::model::set_contents::{Contents, SetContents};

impl PodSnapshot {
    /// The pods that have their place, and what the sets of their egress firewalls hold.
    pub(in crate::backend) fn of(
        pods: &Pods,
        sets: &dyn SetContents,
        bridges: Vec<Bypass>,
        is_whole: bool,
    ) -> Self {
        let named: BTreeSet<SetId> = pods.firewall_sets().collect();
        let contents: Contents = named
            .into_iter()
            .filter_map(|set| Some((set, sets.content(set)?)))
            .collect();
        let watched = pods
            .iter()
            .filter(|(_, local)| local.locations().is_ok() && !local.has_moved());
        let watched = watched.map(|(pod, local)| {
            let watched = WatchedPod {
                addresses: local.rules().addresses.clone(),
                interfaces: local.interfaces(),
                firewall: Arc::clone(local.firewall()),
            };
            (pod.clone(), watched)
        });
        Self {
            pods: watched.collect(),
            contents,
            is_whole,
            bridges,
        }
    }
}

/// Whether a batch changes sets that the pods' own namespaces may hold.
pub(in crate::backend) fn concerns_pod_netns(batch: &Batch, pods: &Pods, sets: &dyn SetContents) -> bool {
    let changed = batch.members_changed.iter().map(|change| change.set);
    let changed: BTreeSet<SetId> = changed.filter(|set| sets.content(*set).is_some()).collect();
    // Most often only records changed, and somebody waits for them.
    !changed.is_empty() && pods.firewall_sets().any(|set| changed.contains(&set))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use egret_kernel::iptables::InterfaceName;
    use egret_policies::rules::{
        Action, Audit, Breadth, DefaultAction, DirectionRules, Member, MembersChanged, Origin, PeerMatch,
        PodRules, PortMatch, Rule, SetKind, SetSpec, Tier, TierRules,
    };
    use egret_shared::pod::PodKey;

    use super::*;
    use crate::backend::netfilter::sets::concurrent::SharedSets;
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
            attribution: None,
        };
        let tiers = vec![TierRules {
            tier: Tier::ClusterEgressFirewall,
            rules: [deny].into(),
            default_action: DefaultAction::NextTier,
        }];
        PodRules {
            audit: Audit::default(),
            pod: PodKey::new("default", name),
            uid: None,
            addresses: vec![address.parse().unwrap()],
            egress: DirectionRules::of(tiers),
            ingress: DirectionRules::default(),
        }
    }

    fn member(last: u8) -> Member {
        Member::Address(IpAddr::from([203, 0, 113, last]))
    }

    /// Two pods that may not reach what is in one set.
    fn world(set: SetId) -> (Pods, SharedSets) {
        let sets = SharedSets::open().unwrap();
        let kind = SetKind::Addresses;
        let breadth = Breadth::Narrow;
        sets.lock().add_desired(&[SetSpec {
            id: set,
            kind,
            breadth,
            description: "denied".into(),
        }]);
        sets.lock().note_members(&[added(set, 1)]);
        let mut pods = Pods::new(Box::new(ByAddress));
        let rules = [("a", "10.0.0.1"), ("b", "10.0.0.2")];
        pods.replace(&rules.map(|(name, address)| firewalled(name, address, set)));
        (pods, sets)
    }

    fn view(pods: &Pods, sets: &SharedSets) -> PodSnapshot {
        PodSnapshot::of(pods, sets, Vec::new(), false)
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
        let (mut pods, sets) = world(set);
        let (one, other) = (view(&pods, &sets), view(&pods, &sets));
        assert_eq!(one.pods.len(), 2);
        for (pod, local) in pods.iter() {
            let told = [&one, &other].map(|view| Arc::as_ptr(&view.pods[pod].firewall));
            assert_eq!(told, [Arc::as_ptr(local.firewall()); 2], "{pod}");
        }
        let members = [&one, &other].map(|view| Arc::as_ptr(&view.contents[&set].1));
        let held = sets.lock().content(set).unwrap().1;
        assert_eq!(members, [Arc::as_ptr(&held); 2]);
        // The backend, both who were told, and this test.
        assert_eq!(Arc::strong_count(&held), 4);

        // A change of rules of one pod leaves what is told of the other.
        let before = Arc::as_ptr(pods.get(&PodKey::new("default", "b")).unwrap().firewall());
        pods.replace(&[firewalled("a", "10.0.0.1", set)]);
        let after = view(&pods, &sets);
        assert_eq!(
            Arc::as_ptr(&after.pods[&PodKey::new("default", "b")].firewall),
            before
        );
        assert_eq!(Arc::as_ptr(&after.contents[&set].1), members[0]);
    }

    #[test]
    fn members_are_copied_for_who_was_told_of_them_and_for_nobody_else() {
        let set = SetId::of_content("denied");
        let (pods, sets) = world(set);
        let place = |sets: &SharedSets| Arc::as_ptr(&sets.lock().content(set).unwrap().1);
        let before = place(&sets);
        for last in 2..100 {
            sets.lock().note_members(&[added(set, last)]);
            assert_eq!(place(&sets), before, "nobody was told");
        }
        let told = view(&pods, &sets);
        sets.lock().note_members(&[added(set, 100)]);
        assert_ne!(place(&sets), before);
        let (_, members) = &told.contents[&set];
        assert_eq!(
            (Arc::as_ptr(members), members.len()),
            (before, 99),
            "it is as it was told"
        );
        // Once for all changes, not once for each.
        let copied = place(&sets);
        sets.lock().note_members(&[added(set, 101)]);
        assert_eq!(place(&sets), copied);
    }

    #[test]
    fn who_reads_which_sets_are_there_copies_none_of_that() {
        let (_, sets) = world(SetId::of_content("denied"));
        let sets = sets.lock();
        let (one, other) = (sets.available(), sets.available());
        assert!(Arc::ptr_eq(&one, &other));
        // These, and the sets' own.
        assert_eq!(Arc::strong_count(&one), 3);
    }
}
