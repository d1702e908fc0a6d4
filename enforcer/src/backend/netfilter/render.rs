//! Renders rules to the text of iptables chains. Pure: the goldens in `tests/golden` are what a person
//! approves.

pub mod pod;
pub mod dispatch;
pub mod source_check;
pub mod encapsulation;
pub mod ipvs;
pub mod unknown_pods;
pub(super) mod conn_state;
pub(super) mod nflog;
pub mod deny;
pub mod chains;

use egret_kernel::iptables::{InterfacePattern, Rule as Line};
use egret_policies::rules::Direction;

pub(in crate::backend) use pod::shadowed_rules;
pub(super) use pod::why_not_audited;
pub use pod::{RenderContext, direction, exposed, generation, pod};

/// Matches the interface of a pod: the input interface for egress, the output interface for ingress.
pub(super) fn through(line: Line, direction: Direction, interface: impl Into<InterfacePattern>) -> Line {
    match direction {
        Direction::Egress => line.input(interface),
        Direction::Ingress => line.output(interface),
    }
}
