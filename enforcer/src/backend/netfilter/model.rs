//! What the backend is told: pods and where they are attached, and the sets that rules may refer to.

pub mod attachment;
pub mod available_sets;
pub(crate) mod moved_address;
pub mod unknown_pods;
