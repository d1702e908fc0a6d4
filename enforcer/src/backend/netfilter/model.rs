//! What the backend is told: settings, pods and where they are attached, and the sets that rules may refer
//! to.

pub mod attachment;
pub mod available_sets;
pub(in crate::backend) mod pods;
mod moved_address;
pub mod unknown_pods;
pub mod settings;
pub(in crate::backend) mod egress_firewall;
pub(in crate::backend) mod ipvs;
pub(in crate::backend) mod desired_set;
pub(in crate::backend) mod set_contents;
pub(in crate::backend) mod set_members;
pub(in crate::backend) mod sorted_list;
