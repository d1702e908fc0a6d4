//! The matches and targets of `x_tables` that our rules have, as iptables hands them over: each with the revision that iptables 1.8
//! takes, and its private structure (`linux/netfilter/xt_*.h`), padded to 8 octets as `XT_ALIGN` does.

use super::expression::Expression;
use crate::Family;
use std::net::IpAddr;

const fn put<const N: usize, const M: usize>(mut all: [u8; N], at: usize, octets: [u8; M]) -> [u8; N] {
    let mut number = 0;
    while number < M {
        all[at + number] = octets[number];
        number += 1;
    }
    all
}

/// `struct xt_set_info_match_v4`; of each dimension, whether it is the sender's.
pub(super) fn set(index: u16, is_source: &[bool], holds: bool) -> Expression {
    let inverted = u8::from(!holds);
    let flags = (1u8..)
        .zip(is_source)
        .fold(inverted, |flags, (bit, is)| flags | (u8::from(*is) << bit));
    let dimensions = u8::try_from(is_source.len()).expect("a set has three dimensions at most");
    let info = put(put([0u8; 48], 0, index.to_ne_bytes()), 2, [dimensions, flags]);
    Expression::Match("set", 4, info.to_vec())
}

/// `struct xt_connmark_mtinfo1`.
pub(super) fn connmark(value: u32, mask: u32, holds: bool) -> Expression {
    let info = put(put([0u8; 16], 0, value.to_ne_bytes()), 4, mask.to_ne_bytes());
    Expression::Match("connmark", 1, put(info, 8, [u8::from(!holds)]).to_vec())
}

/// An address that the tuple of a flow begins with in a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowSource {
    Original(IpAddr),
    Reply(IpAddr),
}

/// `struct xt_conntrack_mtinfo3`; states as its bits, the source of a direction of the flow, and whether the packet is a reply,
/// where that is asked.
pub(super) fn conntrack(
    states: u16,
    source: Option<FlowSource>,
    is_reply: Option<bool>,
    holds: bool,
) -> Expression {
    const STATE: u16 = 1;
    const ORIGINAL_SOURCE: u16 = 1 << 2;
    const REPLY_SOURCE: u16 = 1 << 4;
    const DIRECTION: u16 = 1 << 12;
    /// The mask of one address, in either family.
    const HOST: [u8; 16] = [u8::MAX; 16];
    // Address and mask of the original direction's source and destination, then the reply's: 16 octets each.
    let (asks_source, at, address) = match source {
        None => (0, 0, None),
        Some(FlowSource::Original(address)) => (ORIGINAL_SOURCE, 0, Some(address)),
        Some(FlowSource::Reply(address)) => (REPLY_SOURCE, 64, Some(address)),
    };
    let asked = STATE | asks_source | if is_reply.is_some() { DIRECTION } else { 0 };
    let inverted = if holds { 0 } else { STATE } | if is_reply == Some(true) { DIRECTION } else { 0 };
    let info = match address {
        None => [0u8; 168],
        Some(IpAddr::V4(address)) => put(put([0u8; 168], at, address.octets()), at + 16, HOST),
        Some(IpAddr::V6(address)) => put(put([0u8; 168], at, address.octets()), at + 16, HOST),
    };
    let info = put(info, 146, asked.to_ne_bytes());
    let info = put(put(info, 148, inverted.to_ne_bytes()), 150, states.to_ne_bytes());
    Expression::Match("conntrack", 3, info.to_vec())
}

/// The bit of a state, `XT_CONNTRACK_STATE_*`.
pub(super) fn state(name: &str) -> Option<u16> {
    Some(match name {
        "INVALID" => 1,
        "ESTABLISHED" => 1 << 1,
        "RELATED" => 1 << 2,
        "NEW" => 1 << 3,
        "SNAT" => 1 << 6,
        "DNAT" => 1 << 7,
        "UNTRACKED" => 1 << 8,
        _ => return None,
    })
}

/// The bit of a type of addresses, `XT_ADDRTYPE_*`.
pub(super) fn address_type(name: &str) -> Option<u16> {
    match name {
        "UNICAST" => Some(1 << 1),
        "LOCAL" => Some(1 << 2),
        _ => None,
    }
}

/// `struct xt_addrtype_info_v1`: the sender's or the receiver's address is of this type.
pub(super) fn of_address_type(kind: u16, is_source: bool, holds: bool) -> Expression {
    let (at, inverted) = if is_source { (0, 1) } else { (2, 2) };
    let flags: u32 = if holds { 0 } else { inverted };
    let info = put(put([0u8; 8], at, kind.to_ne_bytes()), 4, flags.to_ne_bytes());
    Expression::Match("addrtype", 1, info.to_vec())
}

/// `struct xt_ct_target_info_v1` as the target NOTRACK fills it.
pub(super) fn no_track() -> Expression {
    /// `XT_CT_NOTRACK` and `XT_CT_NOTRACK_ALIAS`.
    const FLAGS: u16 = 3;
    Expression::Target("CT", 2, put([0u8; 72], 0, FLAGS.to_ne_bytes()).to_vec())
}

/// `struct xt_rpfilter_info` without flags.
pub(super) fn reverse_path() -> Expression {
    Expression::Match("rpfilter", 0, vec![0; 8])
}

/// `struct xt_owner_match_info`, asking for a socket alone.
pub(super) fn of_socket(holds: bool) -> Expression {
    const SOCKET: u8 = 1 << 2;
    let inverted = if holds { 0 } else { SOCKET };
    Expression::Match("owner", 1, put([0u8; 24], 16, [SOCKET, inverted]).to_vec())
}

/// `struct xt_physdev_info`; the name is at most 15 octets.
pub(super) fn bridge_port(name: &str, is_input: bool, holds: bool) -> Expression {
    let (at, bit) = if is_input { (0, 1) } else { (32, 2) };
    let mut info = [0u8; 72];
    info[at..at + name.len()].copy_from_slice(name.as_bytes());
    info[at + 16..=at + 16 + name.len()].fill(u8::MAX);
    let inverted = if holds { 0 } else { bit };
    Expression::Match("physdev", 0, put(info, 64, [inverted, bit]).to_vec())
}

/// `struct xt_comment_info`; at most 255 octets.
pub(super) fn comment(text: &str) -> Expression {
    let mut info = vec![0; 256];
    info[..text.len()].copy_from_slice(text.as_bytes());
    Expression::Match("comment", 0, info)
}

/// `struct xt_sctp_info`; ports of either side where they are asked.
pub(super) fn sctp(source: Option<[u16; 2]>, destination: Option<[u16; 2]>) -> Expression {
    let mut info = [0u8; 296];
    for (at, [first, last]) in [(0, destination), (4, source)]
        .into_iter()
        .filter_map(|(at, range)| Some((at, range?)))
    {
        info = put(put(info, at, first.to_ne_bytes()), at + 2, last.to_ne_bytes());
    }
    // Four flags of chunks of which none is asked: their type is -1.
    for number in 0..4 {
        info[268 + 3 * number] = u8::MAX;
    }
    let flags = u32::from(source.is_some()) | (u32::from(destination.is_some()) << 1);
    Expression::Match("sctp", 0, put(info, 284, flags.to_ne_bytes()).to_vec())
}

/// `struct ip6t_icmp`: a type with whatever code.
pub(super) fn icmp_v6(kind: u8) -> Expression {
    Expression::Match("icmp6", 0, put([0u8; 8], 0, [kind, 0, u8::MAX, 0]).to_vec())
}

/// `struct xt_connmark_tginfo2`, setting.
pub(super) fn set_connmark(value: u32, mask: u32) -> Expression {
    let info = put(put([0u8; 16], 0, value.to_ne_bytes()), 4, mask.to_ne_bytes());
    Expression::Target("CONNMARK", 2, put(info, 8, u32::MAX.to_ne_bytes()).to_vec())
}

/// `struct xt_mark_tginfo2`.
pub(super) fn set_mark(value: u32, mask: u32) -> Expression {
    let info = put(put([0u8; 8], 0, value.to_ne_bytes()), 4, mask.to_ne_bytes());
    Expression::Target("MARK", 2, info.to_vec())
}

/// `struct ipt_reject_info`, `struct ip6t_reject_info`: the kind of refusal by its name.
pub(super) fn reject(family: Family, with: &str) -> Option<Expression> {
    let kind: u32 = match (family, with) {
        (Family::V4, "tcp-reset") => 7,
        (Family::V4, "icmp-admin-prohibited") => 8,
        (Family::V6, "icmp6-adm-prohibited") => 1,
        (Family::V6, "tcp-reset") => 6,
        (Family::V4 | Family::V6, _) => return None,
    };
    let info = put([0u8; 8], 0, kind.to_ne_bytes());
    Some(Expression::Target("REJECT", 0, info.to_vec()))
}
