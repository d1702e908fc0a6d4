//! Ports and protocols, in the three ways in which they are written.

use std::num::NonZeroU16;
use std::sync::Arc;

use egret_shared::net::{PortRange, Transport};

use crate::api::{Field, Notes, Refused};
use crate::diagnostic::Code;
use crate::model::{Port, Ports};

/// An item of `ports` in a NetworkPolicy.
pub(super) fn network_policy_port(item: &Field<'_>, notes: &mut Notes) -> Result<Vec<Port>, Refused> {
    item.only(&["protocol", "port", "endPort"], notes)?;
    let transport = match item.get("protocol") {
        None => Transport::Tcp,
        Some(field) => {
            transport(&field, notes)?.ok_or_else(|| field.refuse(Code::InvalidProtocol, TRANSPORTS, notes))?
        }
    };
    let end = item.get("endPort");
    let Some(port) = item.get("port") else {
        // Validation asks for port where there is endPort, although KEP-2079 says in prose that both
        // missing means every port.
        return match end {
            None => Ok(vec![Port::Range(transport, PortRange::ALL)]),
            Some(end) => Err(end.refuse(Code::InvalidEndPort, "endPort only together with port", notes)),
        };
    };
    if port.maybe_integer().is_some() {
        let first = number(&port, notes)?;
        let last = end.map_or(Ok(first), |end| end_port(&end, first, notes))?;
        return Ok(range(transport, first, last).into_iter().collect());
    }
    let name = port.text(notes)?;
    if !is_service_name(name) {
        return Err(port.refuse(
            Code::InvalidPortName,
            "a number from 1 to 65535, or a port name",
            notes,
        ));
    }
    match end {
        None => Ok(vec![named(name, Some(transport))]),
        Some(end) => Err(end.refuse(Code::InvalidEndPort, "endPort only where port is a number", notes)),
    }
}

/// An item of `ports` in the form of 2016: TCP or UDP, a number or a name, no range.
pub(super) fn legacy_port(item: &Field<'_>, notes: &mut Notes) -> Result<Vec<Port>, Refused> {
    item.only(&["protocol", "port"], notes)?;
    if let Some(protocol) = item.get("protocol")
        && !matches!(protocol.text(notes)?, "TCP" | "UDP")
    {
        return Err(protocol.refuse(Code::InvalidProtocol, "TCP or UDP", notes));
    }
    network_policy_port(item, notes)
}

fn end_port(field: &Field<'_>, first: NonZeroU16, notes: &mut Notes) -> Result<NonZeroU16, Refused> {
    let accepted = format!("a number from {first} to 65535");
    let last = port_number(field).filter(|last| first <= *last);
    last.ok_or_else(|| field.refuse(Code::InvalidEndPort, &accepted, notes))
}

/// An item of `ports` in an AdminNetworkPolicy or BaselineAdminNetworkPolicy.
pub(super) fn admin_port(item: &Field<'_>, notes: &mut Notes) -> Result<Vec<Port>, Refused> {
    let (word, field) = super::rule::one_of(item, &["portNumber", "portRange", "namedPort"], notes)?;
    match word {
        "portNumber" => {
            field.only(&["protocol", "port"], notes)?;
            let port = number(&field.require("port", NUMBER, notes)?, notes)?;
            let transport = admin_transport(&field, notes)?;
            Ok(transport
                .and_then(|transport| range(transport, port, port))
                .into_iter()
                .collect())
        }
        "portRange" => {
            field.only(&["protocol", "start", "end"], notes)?;
            let first = number(&field.require("start", NUMBER, notes)?, notes)?;
            let last = number(&field.require("end", NUMBER, notes)?, notes)?;
            if first > last {
                // The schema of v1alpha1 admits it: start < end is only in the text.
                let found = format!("{first} to {last}");
                field.tell(
                    Code::EmptyRange,
                    found,
                    "start not above end",
                    "it matches nothing",
                    notes,
                );
                return Ok(Vec::new());
            }
            let transport = admin_transport(&field, notes)?;
            Ok(transport
                .and_then(|transport| range(transport, first, last))
                .into_iter()
                .collect())
        }
        _ => Ok(vec![named(field.text(notes)?, None)]),
    }
}

/// The schema of v1alpha1 admits any text as a protocol: one that is none matches nothing.
fn admin_transport(field: &Field<'_>, notes: &mut Notes) -> Result<Option<Transport>, Refused> {
    let Some(field) = field.get("protocol") else {
        return Ok(Some(Transport::Tcp));
    };
    let transport = transport(&field, notes)?;
    if transport.is_none() {
        let enforced = "the port matches nothing";
        field.tell(
            Code::InvalidProtocol,
            field.describe(),
            TRANSPORTS,
            enforced,
            notes,
        );
    }
    Ok(transport)
}

/// An item of `protocols` in a ClusterNetworkPolicy.
pub(super) fn protocol(item: &Field<'_>, notes: &mut Notes) -> Result<Vec<Port>, Refused> {
    let words = ["tcp", "udp", "sctp", "destinationNamedPort"];
    let (word, field) = super::rule::one_of(item, &words, notes)?;
    let transport = match word {
        "tcp" => Transport::Tcp,
        "udp" => Transport::Udp,
        "sctp" => Transport::Sctp,
        _ => return Ok(vec![named(field.text(notes)?, None)]),
    };
    field.only(&["destinationPort"], notes)?;
    let Some(port) = field.get("destinationPort") else {
        // The type's comment says that it may be left out, the schema (minProperties) that it may not.
        let found = field.describe();
        field.tell(
            Code::AllPortsOfProtocol,
            found,
            "destinationPort",
            "every port",
            notes,
        );
        return Ok(vec![Port::Range(transport, PortRange::ALL)]);
    };
    let (word, port) = super::rule::one_of(&port, &["number", "range"], notes)?;
    let (first, last) = match word {
        "number" => number(&port, notes).map(|number| (number, number))?,
        _ => destination_range(&port, notes)?,
    };
    Ok(range(transport, first, last).into_iter().collect())
}

/// An item of `protocols` in a ClusterEgressFirewall; without ports it is all of the protocol.
pub(super) fn firewall_protocol(item: &Field<'_>, notes: &mut Notes) -> Result<Vec<Port>, Refused> {
    let (word, field) = super::rule::one_of(item, &["tcp", "udp", "sctp", "icmp"], notes)?;
    let transport = match word {
        "tcp" => Transport::Tcp,
        "udp" => Transport::Udp,
        "sctp" => Transport::Sctp,
        _ => return field.only(&[], notes).map(|()| vec![Port::Icmp]),
    };
    field.only(&["destinationPort"], notes)?;
    let Some(port) = field.get("destinationPort") else {
        return Ok(vec![Port::Range(transport, PortRange::ALL)]);
    };
    let (word, port) = super::rule::one_of(&port, &["number", "range"], notes)?;
    if word == "number" {
        let number = number(&port, notes)?;
        return Ok(range(transport, number, number).into_iter().collect());
    }
    port.only(&["start", "end"], notes)?;
    let first = number(&port.require("start", NUMBER, notes)?, notes)?;
    let last = number(&port.require("end", NUMBER, notes)?, notes)?;
    if first > last {
        return Err(port.refuse(Code::InvalidPort, "start not above end", notes));
    }
    Ok(range(transport, first, last).into_iter().collect())
}

fn destination_range(field: &Field<'_>, notes: &mut Notes) -> Result<(NonZeroU16, NonZeroU16), Refused> {
    field.only(&["start", "end"], notes)?;
    let first = number(&field.require("start", NUMBER, notes)?, notes)?;
    let last = number(&field.require("end", NUMBER, notes)?, notes)?;
    if first > last {
        // Here the schema does ask for start < end: no API server has such an object.
        return Err(field.refuse(Code::InvalidPort, "start below end", notes));
    }
    if first == last {
        let found = format!("{first} to {last}");
        field.tell(Code::SinglePortRange, found, "number", "that port", notes);
    }
    Ok((first, last))
}

/// Ports of a rule: `Any` where the field is absent.
pub(super) fn all(
    items: Option<Vec<Field<'_>>>,
    read: fn(&Field<'_>, &mut Notes) -> Result<Vec<Port>, Refused>,
    notes: &mut Notes,
) -> Result<Ports, Refused> {
    let Some(items) = items else {
        return Ok(Ports::Any);
    };
    // All of them are read, so that all that is wrong is said at once.
    let ports: Vec<_> = items.iter().map(|item| read(item, notes)).collect();
    let ports: Vec<Vec<Port>> = ports.into_iter().collect::<Result<_, _>>()?;
    Ok(Ports::OneOf(ports.into_iter().flatten().collect()))
}

/// A protocol by its name, in capitals as the API writes it.
pub(super) fn transport(field: &Field<'_>, notes: &mut Notes) -> Result<Option<Transport>, Refused> {
    Ok(match field.text(notes)? {
        "TCP" => Some(Transport::Tcp),
        "UDP" => Some(Transport::Udp),
        "SCTP" => Some(Transport::Sctp),
        _ => None,
    })
}

/// A port, if it is one.
pub(super) fn port_number(field: &Field<'_>) -> Option<NonZeroU16> {
    let number = u16::try_from(field.maybe_integer()?).ok()?;
    NonZeroU16::new(number)
}

fn number(field: &Field<'_>, notes: &mut Notes) -> Result<NonZeroU16, Refused> {
    port_number(field).ok_or_else(|| field.refuse(Code::InvalidPort, NUMBER, notes))
}

fn range(transport: Transport, first: NonZeroU16, last: NonZeroU16) -> Option<Port> {
    PortRange::new(first.get(), last.get()).map(|range| Port::Range(transport, range))
}

fn named(name: &str, transport: Option<Transport>) -> Port {
    let name: Arc<str> = name.into();
    Port::Named { name, transport }
}

const NUMBER: &str = "a number from 1 to 65535";
pub(super) const TRANSPORTS: &str = "TCP, UDP or SCTP";

/// `IsValidPortName` of k8s.io/apimachinery/pkg/util/validation (RFC 6335 §5.1, lower case).
fn is_service_name(name: &str) -> bool {
    let edge = |octet: Option<&u8>| octet.is_some_and(|octet| *octet != b'-');
    name.len() <= 15
        && name
            .bytes()
            .all(|octet| octet.is_ascii_lowercase() || octet.is_ascii_digit() || octet == b'-')
        && name.bytes().any(|octet| octet.is_ascii_lowercase())
        && !name.contains("--")
        && edge(name.as_bytes().first())
        && edge(name.as_bytes().last())
}
