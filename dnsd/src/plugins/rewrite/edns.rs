//! EDNS options: set, appended, replaced and removed.

use std::net::IpAddr;

use super::options::{option, push, without_option};
use super::revert::{Change, Revert};
use crate::config::model::{EdnsAction, EdnsField};
use crate::dns::message::{Edns, Query};
use crate::plugins::QueryEndpoints;

/// Name server identifier (RFC 5001).
const NSID: u16 = 3;
/// Client subnet (RFC 7871).
const SUBNET: u16 = 8;
/// The UDP size for a client without EDNS, in octets.
const UDP_SIZE: u16 = 1232;
/// The variables in values of local options.
pub const VARIABLES: [&str; 7] = [
    "{qname}",
    "{qtype}",
    "{client_ip}",
    "{client_port}",
    "{protocol}",
    "{server_ip}",
    "{server_port}",
];

/// Whether a value is a known variable.
#[must_use]
pub fn is_variable(value: &str) -> bool {
    VARIABLES.contains(&value)
}

/// Applies a rule; returns whether it changed something.
pub(super) fn apply(
    field: &EdnsField,
    action: EdnsAction,
    reverts: bool,
    asked: &mut Query,
    revert: &mut Revert,
    endpoints: &QueryEndpoints,
) -> bool {
    let code = code_of(field);
    if action == EdnsAction::Unset {
        if let Some(edns) = &mut asked.edns {
            edns.options = without_option(&edns.options, code);
        }
        return true;
    }
    let Some(value) = value(field, asked, endpoints) else {
        return false;
    };
    let options = asked.edns.as_ref().map_or(&[][..], |edns| &edns.options);
    let old = option(options, code);
    let takes = match action {
        EdnsAction::Set => true,
        EdnsAction::Append => old.is_none(),
        EdnsAction::Replace => old.is_some(),
        EdnsAction::Unset => false,
    };
    if takes {
        revert.is_for_client_alone |= depends_on_client(field);
        revert.push_if(reverts, || Change::Option(code, old));
        put(asked, code, &value);
    }
    takes
}

const fn code_of(field: &EdnsField) -> u16 {
    match field {
        EdnsField::Local(code, _) => *code,
        EdnsField::Nsid => NSID,
        EdnsField::Subnet(..) => SUBNET,
    }
}

pub(super) fn depends_on_client(field: &EdnsField) -> bool {
    match field {
        EdnsField::Local(_, value) => value.starts_with("{client_"),
        EdnsField::Nsid => false,
        EdnsField::Subnet(..) => true,
    }
}

fn value(field: &EdnsField, asked: &Query, endpoints: &QueryEndpoints) -> Option<Vec<u8>> {
    match field {
        EdnsField::Local(_, value) => local_value(value, asked, endpoints),
        EdnsField::Nsid => Some(Vec::new()),
        EdnsField::Subnet(v4, v6) => Some(subnet(endpoints.client.ip(), *v4, *v6)),
    }
}

/// Hexadecimal digits after `0x`, a variable, or text.
fn local_value(value: &str, asked: &Query, endpoints: &QueryEndpoints) -> Option<Vec<u8>> {
    if let Some(digits) = value.strip_prefix("0x") {
        let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
        let octet = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        return pairs
            .iter()
            .map(octet)
            .collect::<Option<Vec<u8>>>()
            .filter(|_| rest.is_empty());
    }
    Some(match value {
        "{qname}" => asked.question.name.to_string().into_bytes(),
        "{qtype}" => asked.question.kind.to_be_bytes().to_vec(),
        "{client_ip}" => octets(endpoints.client.ip()),
        "{client_port}" => endpoints.client.port().to_be_bytes().to_vec(),
        "{protocol}" => endpoints.protocol().as_bytes().to_vec(),
        "{server_ip}" => octets(endpoints.server.ip()),
        "{server_port}" => endpoints.server.port().to_be_bytes().to_vec(),
        text => text.as_bytes().to_vec(),
    })
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address.to_canonical() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Family, prefix length, scope 0, and the octets of the prefix (RFC 7871 §6).
fn subnet(client: IpAddr, v4: u8, v6: u8) -> Vec<u8> {
    let mut address = octets(client);
    let (family, length) = if address.len() == 4 {
        (1, v4.min(32))
    } else {
        (2, v6.min(128))
    };
    address.truncate(usize::from(length).div_ceil(8));
    if let (Some(last), bits @ 1..) = (address.last_mut(), length % 8) {
        *last &= 0xff << (8 - bits);
    }
    [&[0, family, length, 0], address.as_slice()].concat()
}

fn put(asked: &mut Query, code: u16, value: &[u8]) {
    let edns = asked.edns.get_or_insert(Edns {
        udp_size: UDP_SIZE,
        dnssec: false,
        options: Vec::new(),
    });
    edns.options = without_option(&edns.options, code);
    push(&mut edns.options, code, value);
}
