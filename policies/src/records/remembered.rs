//! Records as they are kept outside of the compiler, for a compiler that comes after it.

use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::name::DnsName;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

/// All that one run of a pod was told and may still use, new connections or open ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// The pod.
    pub pod: PodKey,
    /// Which run of it; another run under the same name was told nothing.
    pub uid: Option<Arc<str>>,
    /// Its addresses; a run that has lost one was told nothing.
    pub addresses: Vec<IpAddr>,
    /// What it was told, first what is over, then the oldest answer first; empty where nothing is left.
    pub records: Vec<RememberedRecord>,
}

/// One address of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RememberedRecord {
    /// The name as the pod asked.
    pub name: Arc<DnsName>,
    /// An address that it was told.
    pub address: IpAddr,
    /// Until when new connections may use it, grace included: it is not given again. What is over counts for the
    /// connections that are open.
    pub expires: Timestamp,
}
