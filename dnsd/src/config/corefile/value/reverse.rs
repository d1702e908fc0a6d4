//! Networks as reverse zones (`10.0.0.0/24`): one zone, or several if the prefix ends inside a label (8 bits in
//! `in-addr.arpa`, 4 in `ip6.arpa`).

use std::net::IpAddr;

use egret_shared::net::IpNet;

use crate::config::model::Zone;
use crate::dns::message::WireName;

/// The network, if it is one.
pub(super) fn network(text: &str) -> Option<IpNet> {
    text.parse::<IpNet>().ok().map(|network| network.trunc())
}

/// Whether CoreDNS refuses it although it is a network: it reads the start as something else.
pub(super) fn is_refused(text: &str) -> bool {
    text.starts_with(':') || (text.starts_with('0') && text.contains(':'))
}

/// Its zones.
pub(super) fn zones(network: IpNet) -> Option<Vec<Zone>> {
    let bits: u8 = if network.addr().is_ipv4() { 8 } else { 4 };
    let whole = network.prefix_len().div_ceil(bits) * bits;
    let parts = network.subnets(whole).ok()?;
    parts.map(|part| zone(part.network(), whole / bits)).collect()
}

fn zone(address: IpAddr, labels: u8) -> Option<Zone> {
    let (labels_of, suffix): (Vec<String>, &str) = match address {
        IpAddr::V4(address) => (
            address.octets().iter().map(u8::to_string).collect(),
            "in-addr.arpa",
        ),
        IpAddr::V6(address) => (
            address
                .octets()
                .iter()
                .flat_map(|octet| [octet >> 4, octet & 15])
                .map(|nibble| format!("{nibble:x}"))
                .collect(),
            "ip6.arpa",
        ),
    };
    let mut name = String::new();
    for label in labels_of.iter().take(usize::from(labels)).rev() {
        name.push_str(label);
        name.push('.');
    }
    name.push_str(suffix);
    WireName::parse(&name).ok().map(Zone::new)
}
