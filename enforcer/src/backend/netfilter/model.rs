//! What the backend is told: settings, pods and where they are attached, and the sets that rules may refer
//! to.

pub mod attachment;
pub mod available_sets;
pub(super) mod pods;
mod moved_address;
pub mod unknown_pods;
pub mod settings;
pub(super) mod egress_firewall;
pub(super) mod ipvs;
