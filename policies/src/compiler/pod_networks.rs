//! Networks of pods as the node's CNI plugin reports them: a pod has its addresses some time before its Pod object has them
//! in `status.podIPs`. Until then, what the plugin reports counts as the object's addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::Compiler;
use crate::model::cluster::{Entity, Pod, PodLife};

/// What a CNI plugin of this node reports of a pod: the result of its ADD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    /// The pod, by `K8S_POD_NAMESPACE` and `K8S_POD_NAME`.
    pub pod: PodKey,
    /// `K8S_POD_UID`; none where the runtime does not say it, and then any Pod object of the name is taken.
    pub uid: Option<Arc<str>>,
    /// The addresses of its interface.
    pub addresses: Vec<IpAddr>,
}

/// Why a pod's rules do not cover the network that was reported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkNotCovered {
    /// There is no Pod object yet.
    #[error("the source has no Pod {0}")]
    NoPod(PodKey),
    /// The Pod object is of another run.
    #[error("the source has another run of the Pod {pod}: its uid is {found}")]
    OtherRun {
        /// The pod.
        pod: PodKey,
        /// `metadata.uid` of the object.
        found: Arc<str>,
    },
    /// The Pod object names another node, or none.
    #[error("spec.nodeName of the Pod {0} is not this node")]
    OtherNode(PodKey),
    /// The Pod is done, or on the node's network.
    #[error("the Pod {0} has no network of its own: it is done, or has hostNetwork")]
    NoNetwork(PodKey),
    /// An address is not the pod's.
    #[error(
        "{address} is not an address of the Pod {pod}: its status names others, or another Pod or a Node has it"
    )]
    OtherAddresses {
        /// The pod.
        pod: PodKey,
        /// The first such address.
        address: IpAddr,
    },
}

/// The networks that were reported and that the Pod objects do not confirm yet.
#[derive(Debug, Default)]
pub(super) struct PodNetworks {
    unconfirmed: BTreeMap<PodKey, Reported>,
}

#[derive(Debug)]
struct Reported {
    network: PodNetwork,
    /// `status.podIPs` of the object, as the source has it.
    status: Vec<IpAddr>,
    /// `status.podIPs` at the time of the report: of an earlier sandbox of the same pod.
    outdated: Vec<IpAddr>,
}

impl PodNetworks {
    /// Puts reported addresses into a Pod object whose status does not have them yet. A status that names any since the report
    /// wins, and the report is over.
    pub(super) fn complete(&mut self, pod: &mut Pod) {
        let Some(reported) = self.unconfirmed.get_mut(&pod.key) else {
            return;
        };
        if !is_run_of(&reported.network, pod) {
            return;
        }
        if pod.addresses.is_empty() || pod.addresses == reported.outdated {
            let addresses = reported.network.addresses.clone();
            reported.status = std::mem::replace(&mut pod.addresses, addresses);
        } else {
            self.unconfirmed.remove(&pod.key);
        }
    }

    /// The Pod object is gone. A report of its run goes with it; one of the next run waits for its object.
    pub(super) fn forget_run(&mut self, pod: &Pod) {
        let reported = self.unconfirmed.get(&pod.key);
        if reported.is_some_and(|reported| is_run_of(&reported.network, pod)) {
            self.unconfirmed.remove(&pod.key);
        }
    }
}

/// Whether a report is about the run that the object stands for.
fn is_run_of(network: &PodNetwork, pod: &Pod) -> bool {
    match (&network.uid, &pod.uid) {
        (Some(reported), Some(found)) => reported == found,
        (None, _) | (_, None) => true,
    }
}

impl<State> Compiler<State> {
    /// Takes in a report.
    pub(super) fn add_network(&mut self, network: PodNetwork, now: Timestamp) {
        let key = network.pod.clone();
        let object = self.index.pod(&key).cloned();
        let before = self.pod_networks.unconfirmed.remove(&key);
        let object = object.filter(|pod| is_run_of(&network, pod));
        let status = |object: &Pod| match before {
            Some(before) if is_run_of(&before.network, object) => before.status,
            Some(_) | None => object.addresses.clone(),
        };
        let status = object.as_ref().map(status).unwrap_or_default();
        let reported = Reported {
            network,
            status: status.clone(),
            outdated: status.clone(),
        };
        self.pod_networks.unconfirmed.insert(key, reported);
        if let Some(object) = object {
            self.apply(
                Entity::Pod(Pod {
                    addresses: status,
                    ..object
                }),
                now,
            );
        }
    }

    /// The network is gone: its addresses are the pod's no more, unless the status of its object names them.
    pub(super) fn remove_network(&mut self, key: &PodKey, now: Timestamp) {
        let Some(reported) = self.pod_networks.unconfirmed.remove(key) else {
            return;
        };
        let object = self.index.pod(key).cloned();
        if let Some(object) = object.filter(|pod| is_run_of(&reported.network, pod)) {
            let addresses = reported.status;
            self.apply(Entity::Pod(Pod { addresses, ..object }), now);
        }
    }

    /// Whether the pod's rules of the next batch cover a network.
    ///
    /// # Errors
    /// Why they do not.
    pub fn check_network(&self, network: &PodNetwork) -> Result<(), NetworkNotCovered> {
        let key = || network.pod.clone();
        let pod = self.index.pod(&network.pod);
        let pod = pod.ok_or_else(|| NetworkNotCovered::NoPod(key()))?;
        if let Some(found) = pod.uid.as_ref().filter(|_| !is_run_of(network, pod)) {
            return Err(NetworkNotCovered::OtherRun {
                pod: key(),
                found: Arc::clone(found),
            });
        }
        if pod.host_network || pod.life == PodLife::Terminal {
            return Err(NetworkNotCovered::NoNetwork(key()));
        }
        let live = self.index.live(&network.pod);
        if live.as_ref().is_some_and(|live| !self.is_local(live)) {
            return Err(NetworkNotCovered::OtherNode(key()));
        }
        let owned = live.map_or(&[][..], |live| live.addresses);
        let missing = |address: &&IpAddr| !owned.contains(&address.to_canonical());
        match network.addresses.iter().find(missing) {
            None => Ok(()),
            Some(address) => Err(NetworkNotCovered::OtherAddresses {
                pod: key(),
                address: *address,
            }),
        }
    }
}
