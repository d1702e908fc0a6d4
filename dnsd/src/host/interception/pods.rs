//! The ipsets of intercepted pods and exempt destinations, as the enforcer names them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use egret_kernel::Family;
use egret_kernel::ipset::{Error, IpSets, Kind, Member, MemberChange, SetEntry, SetSpec};
use egret_shared::link::{ClusterDns, NodePods};
use egret_shared::net::IpNet;
use tokio::sync::watch;

use super::InterceptSet;
use crate::config::host_setup::Interception;

/// How often the sets are compared with the desired state.
const AGAIN: Duration = Duration::from_secs(5);
/// The pause before another attempt while the sets do not exist.
const SOON: Duration = Duration::from_millis(50);

/// The sets, in the network namespace of the thread that opened them.
#[derive(Debug)]
pub struct PodSets {
    sets: IpSets,
    except: Vec<IpNet>,
    families: Vec<Family>,
}

impl PodSets {
    /// For an interception.
    ///
    /// # Errors
    /// When the kernel has no ipset.
    pub fn open(interception: &Interception) -> Result<Self, Error> {
        Ok(Self {
            sets: IpSets::open()?,
            except: interception.except.clone(),
            families: interception.families().collect(),
        })
    }

    /// Creates missing sets.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn create(&mut self) -> Result<(), Error> {
        for family in self.families.clone() {
            for set in InterceptSet::ALL {
                self.sets.ensure(&spec(set, family))?;
            }
        }
        Ok(())
    }

    /// Removes the sets. No rule may refer to them any more.
    ///
    /// # Errors
    /// The first error; the other sets are removed nevertheless.
    pub fn destroy(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        for family in self.families.clone() {
            for set in InterceptSet::ALL {
                let removed = self.sets.remove(set.name(family).as_str());
                first = first.and(removed);
            }
        }
        first
    }

    /// Sets the members to these pods and Services. kube-proxy translates a Service's address after the intercepting
    /// rule: the socket of the connection would not be found.
    ///
    /// # Errors
    /// When a set does not exist, or the kernel refuses.
    pub fn hold(&mut self, pods: &NodePods, services: &[IpAddr]) -> Result<(), Error> {
        let caught: BTreeSet<Member> = pods.caught.iter().map(|pod| Member::Address(*pod)).collect();
        let services = services.iter();
        let here = pods.caught.iter().chain(&pods.spared).chain(services);
        let exempt: BTreeSet<Member> = here
            .map(|pod| Member::Net(IpNet::from(*pod)))
            .chain(self.except.iter().map(|net| Member::Net(net.trunc())))
            .collect();
        for family in self.families.clone() {
            // Exemptions take effect before pods are intercepted.
            self.agree(InterceptSet::Exempt, family, &exempt)?;
            self.agree(InterceptSet::Pods, family, &caught)?;
        }
        Ok(())
    }

    fn agree(&mut self, set: InterceptSet, family: Family, desired: &BTreeSet<Member>) -> Result<(), Error> {
        let name = set.name(family);
        let listing = self.sets.list_one(name.as_str())?;
        let held: BTreeSet<Member> = listing
            .iter()
            .flat_map(|listing| &listing.entries)
            .map(|held| held.member.canonical())
            .collect();
        let desired: BTreeSet<Member> = desired
            .iter()
            .filter(|member| member.family() == family)
            .copied()
            .collect();
        let lasting = |members: &mut dyn Iterator<Item = &Member>| {
            members.map(|member| SetEntry::lasting(*member)).collect()
        };
        let change = MemberChange {
            name: name.as_str().to_owned(),
            added: lasting(&mut desired.difference(&held)),
            deleted: lasting(&mut held.difference(&desired)),
        };
        self.sets.change_all(&[change]).into_iter().collect()
    }
}

fn spec(set: InterceptSet, family: Family) -> SetSpec {
    let (kind, timeout) = match set {
        InterceptSet::Pods => (Kind::HashIp, None),
        InterceptSet::Exempt => (Kind::HashNet, None),
        InterceptSet::Heartbeat => (Kind::HashNet, Some(1)),
    };
    SetSpec {
        timeout,
        ..SetSpec::new(set.name(family).as_str(), kind, family)
    }
}

/// Applies the latest state from the enforcer, until the channel closes.
pub async fn follow_pods(
    mut seats: PodSets,
    mut updates: watch::Receiver<Option<NodePods>>,
    mut dns: watch::Receiver<ClusterDns>,
) {
    loop {
        let pods = updates.borrow_and_update().clone();
        let services = dns.borrow_and_update().services.clone();
        let held = pods.as_ref().map_or(Ok(()), |pods| seats.hold(pods, &services));
        let pause = match held {
            Ok(()) => AGAIN,
            Err(error) => {
                tracing::debug!(%error, "the pods whose questions are caught are not in the kernel yet");
                SOON
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            changed = updates.changed() => if changed.is_err() { return },
            changed = dns.changed() => if changed.is_err() { return },
        }
    }
}
