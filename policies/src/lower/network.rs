//! Networks: CIDR texts, old notations among them, and exceptions.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use egret_shared::net::Family;

use crate::api::{Field, Notes, Refused};
use crate::diagnostic::Code;
use crate::model::subtract;

/// A network. Objects stored before the API became strict may hold texts that it refuses today; they are
/// read as the API reads them (`IsValidCIDRForLegacyField`, `ParseCIDRSloppy` of k8s.io/utils/net).
pub(super) fn cidr(field: &Field<'_>, notes: &mut Notes) -> Result<IpNet, Refused> {
    match parse(field.text(notes)?) {
        Some(ParsedNetwork::Canonical(net)) => Ok(net),
        Some(ParsedNetwork::Legacy(net)) => {
            let canonical = format!("{net}");
            field.tell(Code::LegacyCidr, field.describe(), &canonical, &canonical, notes);
            Ok(net)
        }
        None => Err(field.refuse(
            Code::InvalidCidr,
            "a network such as 10.0.0.0/8 or fd00::/8",
            notes,
        )),
    }
}

enum ParsedNetwork {
    Canonical(IpNet),
    Legacy(IpNet),
}

fn parse(text: &str) -> Option<ParsedNetwork> {
    let (address, length) = text.split_once('/')?;
    let prefix = decimal(length, 128)?;
    let (net, legacy) = if address.contains(':') {
        network6(address.parse().ok()?, prefix)?
    } else {
        let (address, padded) = address4(address)?;
        (network4(address, prefix)?, padded)
    };
    let padded_length = length.len() > 1 && length.starts_with('0');
    let canonical = net.trunc();
    Some(if legacy || padded_length || canonical != net {
        ParsedNetwork::Legacy(canonical)
    } else {
        ParsedNetwork::Canonical(canonical)
    })
}

fn network4(address: Ipv4Addr, prefix: u16) -> Option<IpNet> {
    let prefix = u8::try_from(prefix).ok()?;
    Ipv4Net::new(address, prefix).ok().map(IpNet::V4)
}

/// An IPv4-mapped network is the IPv4 network; one that holds more than IPv4 is none: read as IPv6 it
/// would match no packet, read as IPv4 it would be another network.
fn network6(address: Ipv6Addr, prefix: u16) -> Option<(IpNet, bool)> {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return network4(mapped, prefix.checked_sub(96)?).map(|net| (net, true));
    }
    let prefix = u8::try_from(prefix).ok()?;
    Ipv6Net::new(address, prefix)
        .ok()
        .map(|net| (IpNet::V6(net), false))
}

/// Four decimal numbers; leading zeros do not make them octal. The second value is whether there are any.
fn address4(text: &str) -> Option<(Ipv4Addr, bool)> {
    let parts: Vec<&str> = text.split('.').collect();
    let mut octets = [0; 4];
    if parts.len() != octets.len() {
        return None;
    }
    for (octet, part) in octets.iter_mut().zip(&parts) {
        *octet = u8::try_from(decimal(part, 255)?).ok()?;
    }
    let padded = parts.iter().any(|part| part.len() > 1 && part.starts_with('0'));
    Some((Ipv4Addr::from(octets), padded))
}

fn decimal(text: &str, most: u16) -> Option<u16> {
    let digits = (1..=8).contains(&text.len()) && text.bytes().all(|octet| octet.is_ascii_digit());
    let number: u32 = if digits { text.parse().ok()? } else { return None };
    u16::try_from(number).ok().filter(|&number| number <= most)
}

/// An address of a pod, node or endpoint.
pub(super) fn address(field: &Field<'_>, notes: &mut Notes) -> Result<IpAddr, Refused> {
    let text = field.text(notes)?;
    let address = match text.parse::<IpAddr>() {
        Ok(address) => Some(address.to_canonical()),
        Err(_) => address4(text).map(|(address, _)| IpAddr::V4(address)),
    };
    address.ok_or_else(|| field.refuse(Code::InvalidAddress, "an IPv4 or IPv6 address", notes))
}

/// The addresses that can be read, each once; the others are noted.
pub(super) fn addresses<'a>(fields: impl IntoIterator<Item = Field<'a>>, notes: &mut Notes) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for field in fields {
        if let Ok(address) = address(&field, notes)
            && !addresses.contains(&address)
        {
            addresses.push(address);
        }
    }
    addresses
}

/// The networks of an ipBlock: its cidr without its exceptions.
pub(super) fn ip_block(field: &Field<'_>, notes: &mut Notes) -> Result<Vec<IpNet>, Refused> {
    field.only(&["cidr", "except"], notes)?;
    let whole = cidr(
        &field.require("cidr", "a network such as 10.0.0.0/8", notes)?,
        notes,
    )?;
    let Some(except) = field.get("except") else {
        return Ok(vec![whole]);
    };
    let exceptions = except
        .items(notes)?
        .iter()
        .map(|item| exception(item, &whole, notes))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(subtract(whole, &exceptions))
}

fn exception(field: &Field<'_>, whole: &IpNet, notes: &mut Notes) -> Result<IpNet, Refused> {
    let net = cidr(field, notes)?;
    let inside = Family::of_net(&net) == Family::of_net(whole)
        && whole.contains(&net)
        && net.prefix_len() > whole.prefix_len();
    if inside {
        return Ok(net);
    }
    Err(field.refuse(
        Code::InvalidExcept,
        &format!("a network inside {whole} and smaller"),
        notes,
    ))
}
