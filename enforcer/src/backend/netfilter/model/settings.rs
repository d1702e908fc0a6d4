//! How the backend is configured.

use egret_kernel::iptables::Flavour;
use serde::{Deserialize, Serialize};

use crate::backend::netfilter::marks::Marks;

/// What the rules look like, whatever else is in the packet filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Which iptables.
    pub flavour: Flavour,
    /// The bits of the connection mark that hold generations.
    pub marks: Marks,
    /// What happens to denied packets.
    pub deny: DenyAction,
    /// How denied packets are logged; none where they are not.
    pub telling: Option<NflogSettings>,
}

/// How the backend coexists with other rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coexistence {
    /// Where our jumps stand among the rules of others.
    pub jump: JumpPosition,
    /// Whether the rules go to the other flavour of iptables when the kubelet does.
    pub follows_flavour: bool,
    /// Rules of others that write our bits of the connection mark, and are known and accepted.
    pub accepted_marks: Vec<String>,
}

/// What happens to a denied packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DenyAction {
    /// It is dropped.
    Drop,
    /// It is answered: by a reset for TCP, by "administratively prohibited" for the rest.
    Reject,
}

/// How denied packets are handed to NFLOG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NflogSettings {
    /// The NFLOG group.
    pub group: u16,
    /// How many packets a second for each reason.
    pub per_second: u32,
}

/// Where a jump is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum JumpPosition {
    /// At the head: what others accept was judged before.
    Insert,
    /// Behind what others have: what they accept there is never judged.
    Append,
}
