//! The end of a denied packet: dropped, or rejected.

use crate::backend::netfilter::model::settings::DenyAction;
use egret_kernel::Family;
use egret_kernel::Transport;
use egret_kernel::iptables::{Protocol, RejectWith, Rule as Line, Target};

/// The lines that drop or reject the packet.
pub(in crate::backend::netfilter) fn deny_lines(deny: DenyAction, family: Family) -> Vec<Line> {
    let prohibited = match family {
        Family::V4 => RejectWith::IcmpProhibited,
        Family::V6 => RejectWith::IcmpV6Prohibited,
    };
    match deny {
        DenyAction::Drop => vec![Line::to(Target::Drop)],
        DenyAction::Reject => vec![
            Line::to(Target::Reject(RejectWith::TcpReset)).protocol(Protocol::any_port(Transport::Tcp)),
            Line::to(Target::Reject(prohibited)),
        ],
    }
}
