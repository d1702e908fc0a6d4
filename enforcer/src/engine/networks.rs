//! Networks of pods, as the CNI plugin reports them: they go to the compiler, and the plugin is answered when the kernel
//! holds what follows.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use egret_policies::compiler::{Event, PodNetwork};
use egret_shared::cni::Network;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;
use tokio::sync::oneshot;

use super::{Engine, Phase};
use crate::node::ReportedInterfaces;

/// A request of the CNI plugin.
#[derive(Debug)]
pub enum NetworkRequest {
    /// All networks that there are: others are gone. Nobody waits.
    Known(Vec<Network>),
    /// A network was added.
    Add {
        /// The network.
        network: Network,
        /// When the plugin waits no longer.
        deadline: Timestamp,
        /// Receives the reply.
        reply: NetworkReply,
    },
    /// Whether a network is in force.
    Check {
        /// The network.
        network: Network,
        /// Receives the reply.
        reply: NetworkReply,
    },
    /// A network was removed.
    Remove {
        /// `CNI_CONTAINERID`.
        container: String,
        /// `CNI_IFNAME`.
        interface: String,
        /// Receives the reply.
        reply: NetworkReply,
    },
    /// Whether networks can be added.
    Status {
        /// Receives the reply.
        reply: NetworkReply,
    },
}

/// Receives whether something is in force, or why it is not.
pub type NetworkReply = oneshot::Sender<Result<(), String>>;

/// The networks that exist, and the requests that wait for the kernel.
#[derive(Debug)]
pub(super) struct Networks {
    /// By pod: of a sandbox that is made anew, the network may come before the earlier one is removed.
    networks: BTreeMap<PodKey, Network>,
    interfaces: ReportedInterfaces,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    goal: Goal,
    /// Whether the work of the backend includes the network.
    is_collected: bool,
    deadline: Timestamp,
    reply: NetworkReply,
}

/// What the kernel has to hold.
#[derive(Debug)]
enum Goal {
    /// The rules of a pod with this network.
    InForce(PodNetwork),
    /// Nothing of a network that is gone.
    Removed,
}

/// A pod of this node as the last batch has it.
#[derive(Debug)]
pub(super) struct AppliedPod {
    pub(super) uid: Option<Arc<str>>,
    pub(super) addresses: Vec<IpAddr>,
}

impl AppliedPod {
    fn covers(&self, network: &PodNetwork) -> bool {
        let is_same_run = match (&self.uid, &network.uid) {
            (Some(applied), Some(reported)) => applied == reported,
            (None, _) | (_, None) => true,
        };
        let mut addresses = network.addresses.iter().map(IpAddr::to_canonical);
        is_same_run && addresses.all(|address| self.addresses.contains(&address))
    }
}

impl Networks {
    pub(super) const fn new(interfaces: ReportedInterfaces) -> Self {
        Self {
            networks: BTreeMap::new(),
            interfaces,
            waiting: Vec::new(),
        }
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.waiting.iter().map(|waiting| waiting.deadline).min()
    }

    fn put(&mut self, network: Network) {
        if let Some(before) = self.networks.insert(network.pod.clone(), network.clone()) {
            self.forget_interface(&before);
        }
        if let Some(interface) = &network.host_interface {
            self.interfaces.add(&network.addresses, interface);
        }
    }

    fn forget_interface(&self, network: &Network) {
        if let Some(interface) = &network.host_interface {
            self.interfaces.remove(&network.addresses, interface);
        }
    }

    /// All that was reported is in the batches and the work that the backend gets now.
    pub(super) fn set_collected(&mut self) {
        for waiting in &mut self.waiting {
            waiting.is_collected = true;
        }
    }
}

impl Engine {
    pub(super) fn handle_network(&mut self, request: NetworkRequest, now: Timestamp) {
        match request {
            NetworkRequest::Known(networks) => self.replace_networks(networks, now),
            NetworkRequest::Add {
                network,
                deadline,
                reply,
            } => {
                self.networks.waiting.push(Waiting {
                    goal: Goal::InForce(pod_network(&network)),
                    is_collected: false,
                    deadline,
                    reply,
                });
                self.add_network(network, now);
            }
            NetworkRequest::Check { network, reply } => {
                let is_known = self.networks.networks.get(&network.pod) == Some(&network);
                let checked = if is_known {
                    self.check_network(&pod_network(&network))
                } else {
                    Err(format!("the network of {} was not added", network.pod))
                };
                respond(reply, checked);
            }
            NetworkRequest::Remove {
                container,
                interface,
                reply,
            } => {
                self.remove_networks(now, |network| {
                    network.container == container && network.interface == interface
                });
                self.networks.waiting.push(Waiting {
                    goal: Goal::Removed,
                    is_collected: false,
                    deadline: now.after(REMOVED_WITHIN),
                    reply,
                });
            }
            NetworkRequest::Status { reply } => {
                let is_running = matches!(self.compiler, Phase::Running(_));
                respond(
                    reply,
                    if is_running {
                        Ok(())
                    } else {
                        Err(STARTING.to_owned())
                    },
                );
            }
        }
    }

    fn replace_networks(&mut self, networks: Vec<Network>, now: Timestamp) {
        self.remove_networks(now, |known| !networks.contains(known));
        for network in networks {
            if self.networks.networks.get(&network.pod) != Some(&network) {
                self.add_network(network, now);
            }
        }
    }

    fn add_network(&mut self, network: Network, now: Timestamp) {
        tracing::debug!(pod = %network.pod, addresses = ?network.addresses, "a pod has its network");
        let event = Event::NetworkAdded(pod_network(&network));
        self.networks.put(network);
        // The link may be older than the last look at the node's links.
        self.links_changed = true;
        self.compiler.handle(event, now);
    }

    fn remove_networks(&mut self, now: Timestamp, is_gone: impl Fn(&Network) -> bool) {
        let gone = self
            .networks
            .networks
            .extract_if(.., |_, network| is_gone(network));
        for (pod, network) in gone.collect::<Vec<_>>() {
            self.networks.forget_interface(&network);
            self.links_changed = true;
            self.compiler.handle(Event::NetworkRemoved(pod), now);
        }
    }

    /// Answers those whose pods' rules are in the kernel. Nobody is answered while the backend works.
    pub(super) fn release_networks(&mut self) {
        if self.worker.backend().is_none() {
            return;
        }
        let (in_force, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.networks.waiting)
            .into_iter()
            .partition(|waiting| waiting.is_collected && self.is_reached(&waiting.goal));
        self.networks.waiting = waiting;
        for waiting in in_force {
            respond(waiting.reply, Ok(()));
        }
    }

    /// Answers those who wait no longer.
    pub(super) fn expire_networks(&mut self, now: Timestamp) {
        let is_over = |waiting: &Waiting| waiting.deadline <= now || waiting.reply.is_closed();
        let over: Vec<Waiting> = self
            .networks
            .waiting
            .extract_if(.., |waiting| is_over(waiting))
            .collect();
        for waiting in over {
            let reached = match &waiting.goal {
                Goal::InForce(network) => {
                    let reason = self.check_network(network).err();
                    let reason = reason.unwrap_or_else(|| NOT_YET.to_owned());
                    tracing::warn!(pod = %network.pod, reason, "a pod was not ready when its CNI plugin stopped waiting");
                    Err(reason)
                }
                // It is forgotten, and the kernel will follow.
                Goal::Removed => Ok(()),
            };
            respond(waiting.reply, reached);
        }
    }

    fn is_reached(&self, goal: &Goal) -> bool {
        match goal {
            Goal::InForce(network) => self.is_in_force(network),
            Goal::Removed => true,
        }
    }

    /// Whether the kernel holds the rules of the pod with these addresses, while the backend rests.
    fn is_in_force(&self, network: &PodNetwork) -> bool {
        let applied = self.local.get(&network.pod);
        self.status.broken.is_none()
            && !self.status.pending.contains_key(&network.pod)
            && applied.is_some_and(|applied| applied.covers(network))
    }

    fn check_network(&self, network: &PodNetwork) -> Result<(), String> {
        let Phase::Running(compiler) = &self.compiler else {
            return Err(STARTING.to_owned());
        };
        compiler
            .check_network(network)
            .map_err(|reason| reason.to_string())?;
        if self.worker.backend().is_some() && self.is_in_force(network) {
            return Ok(());
        }
        let pending = self.status.pending.get(&network.pod).map(ToString::to_string);
        let reason = self.status.broken.clone().or(pending);
        Err(reason.unwrap_or_else(|| NOT_YET.to_owned()))
    }
}

/// How long the plugin waits for the kernel to forget a network.
const REMOVED_WITHIN: Duration = Duration::from_millis(400);
const NOT_YET: &str = "the kernel does not hold the rules yet";
const STARTING: &str = "the enforcer does not know all objects yet";

fn pod_network(network: &Network) -> PodNetwork {
    PodNetwork {
        pod: network.pod.clone(),
        uid: network.uid.clone(),
        addresses: network.addresses.clone(),
    }
}

fn respond(reply: NetworkReply, result: Result<(), String>) {
    // The plugin may be gone.
    drop(reply.send(result));
}
