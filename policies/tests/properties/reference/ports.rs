//! Ports, in each way in which they are written.

use egret_policies::simulator::Protocol;
use egret_shared::net::Transport;
use serde_json::Value;

use super::cluster::{Container, Pod, get, transport};
use super::kinds::{Dialect, only};
use super::peers::one_of;
use super::{Ask, Broken, PolicyReader};
use crate::ids::Id;

/// Ports of a protocol; of every protocol where there is none.
#[derive(Clone, Copy, Debug)]
struct Span {
    transport: Option<Transport>,
    first: u64,
    last: u64,
}

impl PolicyReader<'_> {
    /// Whether the connection's port is this one at the destination pod, where there is one. `is_any` is a rule
    /// without peers.
    pub(super) fn port(
        &self,
        item: &Value,
        dialect: Dialect,
        ask: &Ask<'_>,
        destination: Option<&Pod>,
        is_any: bool,
    ) -> Result<bool, Broken> {
        let to = To { destination, is_any };
        match dialect {
            Dialect::V1 => self.v1_port(item, false, ask, to),
            Dialect::Old => {
                only(item, &["protocol", "port"])?;
                if get(item, "protocol").is_some_and(|protocol| protocol == "SCTP") {
                    return Err(Broken);
                }
                self.v1_port(item, true, ask, to)
            }
            Dialect::Admin | Dialect::Baseline => self.admin_port(item, ask, to),
            Dialect::Cluster => self.cluster_port(item, ask, to),
            _ => self.firewall_port(item, ask),
        }
    }

    // === NetworkPolicy ===

    fn v1_port(&self, item: &Value, is_old: bool, ask: &Ask<'_>, to: To<'_>) -> Result<bool, Broken> {
        only(item, &["protocol", "port", "endPort"])?;
        let written = get(item, "protocol");
        let transport = transport(written).ok_or(Broken)?;
        let is_wild = is_old && written.is_none() && self.errs(Id::P14);
        let of = (!is_wild).then_some(transport);
        let end = get(item, "endPort");
        match get(item, "port") {
            None if end.is_none() => {
                let is_everything = self.errs(Id::C32);
                Ok(self.has(
                    Span {
                        transport: of,
                        first: 1,
                        last: 65535,
                    },
                    ask,
                ) || is_everything)
            }
            None => self.end_port_alone(transport, end, ask),
            Some(Value::Number(number)) => {
                let Some(first) = number.as_u64().filter(|number| (1..=65535).contains(number)) else {
                    return if self.errs(Id::K5) { Ok(true) } else { Err(Broken) };
                };
                let last = self.end_port(end, first, ask)?;
                let of_range = if last > first && self.errs(Id::K7) {
                    None
                } else {
                    of
                };
                let is_everything = (first, last) == (1, 65535) && self.errs(Id::K16);
                Ok(is_everything
                    || self.has(
                        Span {
                            transport: of_range,
                            first,
                            last,
                        },
                        ask,
                    ))
            }
            Some(Value::String(name)) => {
                if !is_port_name(name) || (end.is_some() && !self.errs(Id::K3)) {
                    return Err(Broken);
                }
                Ok(self.is_served(name, of, ask, to))
            }
            Some(_) => Err(Broken),
        }
    }

    fn end_port_alone(
        &self,
        transport: Transport,
        end: Option<&Value>,
        ask: &Ask<'_>,
    ) -> Result<bool, Broken> {
        if self.errs(Id::X9) {
            return Ok(self.has(
                Span {
                    transport: Some(transport),
                    first: 1,
                    last: 65535,
                },
                ask,
            ));
        }
        if self.errs(Id::K2) {
            let last = end.and_then(Value::as_u64).unwrap_or(65535);
            return Ok(self.has(
                Span {
                    transport: Some(transport),
                    first: 1,
                    last,
                },
                ask,
            ));
        }
        Err(Broken)
    }

    fn end_port(&self, end: Option<&Value>, first: u64, ask: &Ask<'_>) -> Result<u64, Broken> {
        let Some(end) = end else {
            return Ok(first);
        };
        let last = end
            .as_u64()
            .filter(|number| (1..=65535).contains(number))
            .ok_or(Broken)?;
        if last == first && self.errs(Id::K4) {
            return Err(Broken);
        }
        if last < first {
            return if self.errs(Id::K4) { Ok(first) } else { Err(Broken) };
        }
        let is_ignored = last > first && (self.errs(Id::K1) || (ask.is_egress() && self.errs(Id::K8)));
        Ok(if is_ignored { first } else { last })
    }

    /// The mistake to join the ranges of a rule.
    pub(super) fn is_in_hull(&self, list: &[Value], ask: &Ask<'_>) -> bool {
        let Protocol::Port(asked, _) = ask.protocol else {
            return false;
        };
        let of_protocol: Vec<&Value> = list
            .iter()
            .filter(|item| get(item, "port").is_some_and(Value::is_number))
            .filter(|item| transport(get(item, "protocol")) == Some(asked))
            .collect();
        let numbers = |key: &'static str| of_protocol.iter().filter_map(move |item| item[key].as_u64());
        let last = numbers("endPort").chain(numbers("port")).max();
        match (numbers("port").min(), last) {
            (Some(first), Some(last)) if of_protocol.len() > 1 => {
                self.has(
                    Span {
                        transport: Some(asked),
                        first,
                        last,
                    },
                    ask,
                ) && self.errs(Id::K13)
            }
            _ => false,
        }
    }

    // === Cluster-wide kinds ===

    fn admin_port(&self, item: &Value, ask: &Ask<'_>, to: To<'_>) -> Result<bool, Broken> {
        let (word, field) = one_of(item, &["portNumber", "portRange", "namedPort"])?;
        if word == "namedPort" {
            let name = field.as_str().ok_or(Broken)?;
            return Ok(self.is_served(name, None, ask, to));
        }
        let keys: &[&str] = if word == "portNumber" {
            &["protocol", "port"]
        } else {
            &["protocol", "start", "end"]
        };
        only(field, keys)?;
        let number = |key: &str| {
            let number = get(field, key).and_then(Value::as_u64);
            number.filter(|number| (1..=65535).contains(number)).ok_or(Broken)
        };
        let (mut first, mut last) = if word == "portNumber" {
            (number("port")?, number("port")?)
        } else {
            (number("start")?, number("end")?)
        };
        let is_text = get(field, "protocol").is_none_or(Value::is_string);
        if !is_text && first <= last {
            return Err(Broken);
        }
        if word == "portRange" && first >= last && self.errs(Id::X4) {
            if first == last {
                return Ok(false);
            }
            std::mem::swap(&mut first, &mut last);
        }
        let Some(transport) = transport(get(field, "protocol")) else {
            return Ok(false); // the schema admits any text
        };
        Ok(self.has(
            Span {
                transport: Some(transport),
                first,
                last,
            },
            ask,
        ))
    }

    fn cluster_port(&self, item: &Value, ask: &Ask<'_>, to: To<'_>) -> Result<bool, Broken> {
        let (word, field) = one_of(item, &["tcp", "udp", "sctp", "destinationNamedPort"])?;
        if word == "destinationNamedPort" {
            let name = field.as_str().ok_or(Broken)?;
            return Ok(self.is_served(name, None, ask, to) && !self.errs(Id::X5));
        }
        only(field, &["destinationPort"])?;
        let transport = named_transport(word);
        let Some(port) = get(field, "destinationPort") else {
            let all = Span {
                transport,
                first: 1,
                last: 65535,
            };
            return Ok(self.has(all, ask) && !self.errs(Id::X3));
        };
        let (first, last) = number_or_range(port)?;
        if first > last {
            return Err(Broken);
        }
        Ok(self.has(
            Span {
                transport,
                first,
                last,
            },
            ask,
        ))
    }

    pub(super) fn firewall_port(&self, item: &Value, ask: &Ask<'_>) -> Result<bool, Broken> {
        let (word, field) = one_of(item, &["tcp", "udp", "sctp", "icmp"])?;
        if word == "icmp" {
            only(field, &[])?;
            return Ok(ask.protocol == Protocol::Icmp);
        }
        only(field, &["destinationPort"])?;
        let transport = named_transport(word);
        let Some(port) = get(field, "destinationPort") else {
            return Ok(self.has(
                Span {
                    transport,
                    first: 1,
                    last: 65535,
                },
                ask,
            ));
        };
        let (first, last) = number_or_range(port)?;
        if first > last {
            let swapped = Span {
                transport,
                first: last,
                last: first,
            };
            return if self.errs(Id::E12) {
                Ok(self.has(swapped, ask))
            } else {
                Err(Broken)
            };
        }
        Ok(self.has(
            Span {
                transport,
                first,
                last,
            },
            ask,
        ))
    }

    // === The connection's port ===

    fn has(&self, span: Span, ask: &Ask<'_>) -> bool {
        let Protocol::Port(transport, number) = ask.protocol else {
            return false;
        };
        let number = self.number(number, ask);
        let is_taken_for_tcp =
            transport == Transport::Sctp && span.transport == Some(Transport::Tcp) && self.errs(Id::C28);
        let is_of = span.transport.is_none_or(|of| of == transport) || is_taken_for_tcp;
        let is_end = span.first < span.last && (number == span.first || number == span.last);
        is_of && span.first <= number && number <= span.last && !(is_end && self.errs(Id::K6))
    }

    fn number(&self, number: u16, ask: &Ask<'_>) -> u64 {
        match ask.dialled {
            Some((_, dialled)) if dialled != number && self.errs(Id::C15) => dialled.into(),
            _ => number.into(),
        }
    }

    /// Whether the destination serves a port of this name there.
    fn is_served(&self, name: &str, of: Option<Transport>, ask: &Ask<'_>, to: To<'_>) -> bool {
        let Protocol::Port(transport, number) = ask.protocol else {
            return false;
        };
        let number = self.number(number, ask);
        let destination = match to.destination {
            Some(_) if ask.is_egress() && self.errs(Id::C9) => Some(ask.subject),
            other => other,
        };
        let is_of = of.is_none_or(|of| of == transport);
        let serves = |pod: &Pod| {
            pod.ports.iter().any(|port| {
                let is_container = match port.of {
                    Container::Main => true,
                    Container::Sidecar => !self.errs(Id::C14),
                    Container::Init => self.errs(Id::C14),
                };
                let is_same = port.name == name && port.transport == transport;
                is_same && u64::from(port.number) == number && is_container
            })
        };
        let has_name = |pod: &Pod| pod.ports.iter().any(|port| port.name == name);
        let is_nobodys = destination.is_some_and(|pod| !has_name(pod));
        if is_nobodys && is_of && self.errs(Id::C12) {
            return true;
        }
        let first = self.cluster.pods.iter().find(|pod| has_name(pod));
        if destination.is_some_and(has_name) && self.errs(Id::C10) {
            return is_of && first.is_some_and(serves);
        }
        let is_served = is_of && destination.is_some_and(serves);
        is_served && !(to.is_any && self.errs(Id::C13))
    }
}

/// Where a port is looked for.
#[derive(Clone, Copy)]
struct To<'a> {
    destination: Option<&'a Pod>,
    is_any: bool,
}

fn named_transport(word: &str) -> Option<Transport> {
    transport(Some(&Value::from(word.to_ascii_uppercase())))
}

fn number_or_range(port: &Value) -> Result<(u64, u64), Broken> {
    let number = |value: Option<&Value>| {
        let number = value.and_then(Value::as_u64);
        number.filter(|number| (1..=65535).contains(number)).ok_or(Broken)
    };
    let (word, field) = one_of(port, &["number", "range"])?;
    if word == "number" {
        return number(Some(field)).map(|number| (number, number));
    }
    only(field, &["start", "end"])?;
    Ok((number(get(field, "start"))?, number(get(field, "end"))?))
}

/// Lower-case letters, digits and single hyphens inside, at least one letter, at most 15.
fn is_port_name(name: &str) -> bool {
    let is_inside = |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || octet == b'-';
    name.len() <= 15
        && name.bytes().all(is_inside)
        && name.bytes().any(|octet| octet.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}
