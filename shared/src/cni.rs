//! What the CNI plugin `egret-cni` says to the enforcer, and what it keeps for enforcers that start later.
//!
//! A connection carries one [`Request`] and one [`Reply`], each a line of JSON. Unknown fields are ignored, so that plugin and
//! enforcer may be of different versions. A request of an unknown kind is answered by `NotReady`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::pod::PodKey;

/// Where the enforcer listens, unless an option says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/egret/cni.sock";

/// The longest line in octets, its end included. A request has a few hundred.
pub const MAX_LINE: usize = 16 * 1024;

/// The network of a pod, from the parameters of ADD and the result of the plugins before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// The name of the network configuration.
    pub network: String,
    /// `CNI_CONTAINERID`: the sandbox.
    pub container: String,
    /// `CNI_IFNAME`: the interface inside.
    pub interface: String,
    /// `K8S_POD_NAMESPACE` and `K8S_POD_NAME`.
    pub pod: PodKey,
    /// `K8S_POD_UID`, where the runtime says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Arc<str>>,
    /// The node's end of the pod's link; none where the link has no end on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_interface: Option<HostInterface>,
    /// The addresses of the interface inside.
    pub addresses: Vec<IpAddr>,
}

/// An interface in the node's network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInterface {
    /// Its name.
    pub name: String,
    /// Its index, which no other interface of the namespace has at the same time.
    pub index: u32,
}

/// What the plugin asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Request {
    /// A pod has its network. The reply comes when the kernel holds the pod's rules, at the latest after the wait.
    Add {
        /// The network.
        network: Network,
        /// How long the plugin waits, in milliseconds.
        wait_millis: u64,
    },
    /// Whether the kernel holds the pod's rules.
    Check {
        /// The network.
        network: Network,
    },
    /// The network is gone. It may be unknown.
    Del {
        /// `CNI_CONTAINERID`.
        container: String,
        /// `CNI_IFNAME`.
        interface: String,
    },
    /// Whether pods can be added.
    Status,
}

/// What the enforcer answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "camelCase")]
pub enum Reply {
    /// It is done: after `Add`, the kernel holds the pod's rules, and those of others that name the pod.
    Ready,
    /// It is not done, or not yet.
    NotReady {
        /// Why, for people.
        reason: String,
    },
}

/// The folder in which the plugin keeps each network while it exists, a file for each: what an enforcer that starts reads. It
/// lies beside the socket and ends with the boot as networks do.
#[must_use]
pub fn network_folder(socket: &Path) -> PathBuf {
    socket.with_extension("d")
}

/// The name of a network's file. `@` is in no container id (CNI spec, "Parameters": letters, digits, `_`, `.` and `-`).
#[must_use]
pub fn network_file(container: &str, interface: &str) -> String {
    format!("{container}@{interface}.json")
}
