//! What the backend is told: settings, pods and where they are attached, and the sets that rules may refer
//! to.

pub mod attachment;
pub mod available_sets;
pub(crate) mod pods;
mod moved_address;
pub mod unknown_pods;
pub mod settings;
pub(crate) mod egress_firewall;
pub(crate) mod ipvs;

use egret_kernel::Transport as KernelTransport;
use egret_shared::net::Transport;

/// The kernel crate's word for it.
#[must_use]
pub const fn kernel_transport(transport: Transport) -> KernelTransport {
    match transport {
        Transport::Tcp => KernelTransport::Tcp,
        Transport::Udp => KernelTransport::Udp,
        Transport::Sctp => KernelTransport::Sctp,
    }
}
