//! How the backend is configured.

use egret_kernel::iptables::Flavour;
use serde::{Deserialize, Serialize};

use crate::backend::netfilter::marks::Marks;

/// How the backend is to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Which iptables.
    pub flavour: Flavour,
    /// Which bits of the connection mark are ours.
    pub marks: Marks,
    /// What a sender is told.
    pub deny: DenyAction,
    /// How the kernel tells of what is denied; none where it does not.
    pub telling: Option<NflogSettings>,
}

/// How it lives with others in the packet filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coexistence {
    /// Where our jumps stand among the rules of others.
    pub jump: JumpPosition,
    /// Whether the rules go to the other flavour of iptables when the kubelet does.
    pub follows_flavour: bool,
    /// Rules of others that write our bits of the connection mark, and are known and accepted.
    pub accepted_marks: Vec<String>,
}

/// What a sender is told when its packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DenyAction {
    /// Nothing.
    Drop,
    /// A reset for TCP, "administratively prohibited" for the rest.
    Reject,
}

/// How the kernel tells.
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
