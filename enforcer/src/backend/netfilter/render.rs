//! From rules to the text of chains. Pure.

pub mod pod;
pub mod dispatch;
pub mod source_check;
pub mod encapsulation;
pub mod ipvs;
pub mod unknown_pods;
pub(crate) mod conn_state;
pub(crate) mod nflog;
pub mod deny;
pub mod chains;

pub(crate) use pod::why_unasked;
pub use pod::{Surroundings, direction, exposed, generation, pod};
