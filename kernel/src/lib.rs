//! The one way into the kernel's packet filter: iptables, ipset, conntrack, links and addresses.
//!
//! This crate knows how to say and how to list; it knows no policy and no DNS, and decides nothing.
//! Everything here acts in the network namespace of the thread that opens the handle (a netlink socket
//! stays in the namespace it was born in; a child process inherits the namespace of the thread that starts it).

// Rules: which flavour of iptables this host uses, what it holds, and batches that change it.
pub mod iptables;
// What others do to the tables of nf_tables, and who.
pub mod nftables;
// Sets of addresses that rules refer to, changed one element at a time in microseconds.
pub mod ipset;
// Flows the kernel tracks: list them, mark them, forget them.
pub mod conntrack;
// Interfaces, addresses, routes, and news of their changes.
pub mod links;
// Packets that bear a mark, delivered on this host.
pub mod routing;
// Network namespaces that links lead into: what is in them, and a way in.
pub mod namespaces;
// Bridges: whether iptables sees what goes from port to port.
pub mod bridges;
// What leads packets past the hooks of the packet filter: flowtables, and programs on links.
pub mod fast_paths;
// RCU: wait for packets in flight.
pub mod rcu;
// Sockets of programs: end one.
pub mod sock_diag;
// Packets that rules hand to user space: read them.
pub mod nflog;
// Pods whose DNS queries the kernel may answer.
pub mod dns_permits;
// Programs and maps of eBPF.
pub mod bpf;
// The wire under those that speak netlink.
pub mod netlink;
// Programs that this process started: what they change is no news.
mod child_processes;
// Fault injection for tests: stop between two steps, refuse one.
pub mod fault_points;

use std::num::NonZeroU32;

pub use egret_shared::net::{Family, Transport};

/// Some bits of a mark (of a packet or of a connection). Bits of the value outside the mask are dropped:
/// the kernel would flip them when it sets a mark, and never match them when it compares one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mark {
    value: u32,
    mask: NonZeroU32,
}

impl Mark {
    pub fn new(value: u32, mask: NonZeroU32) -> Self {
        Self {
            value: value & mask.get(),
            mask,
        }
    }

    pub fn value(self) -> u32 {
        self.value
    }

    pub fn mask(self) -> NonZeroU32 {
        self.mask
    }

    /// Whether a whole mark has these bits.
    pub fn is_in(self, whole: u32) -> bool {
        whole & self.mask.get() == self.value
    }
}
