//! A probe: one connection to be judged.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use egret_policies::model::api_server::Selection;
use egret_shared::name::DnsName;
use egret_shared::net::{Family, Transport};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;
use serde_json::Value;

use super::lines::{Fields, LineProblem, kind_of, parse_text};

/// A connection to be judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What its row is known by: a string or number, given back as it came.
    pub id: Value,
    /// Who connects.
    pub from: Source,
    /// Where to.
    pub to: Destination,
    /// With what.
    pub protocol: ProbeProtocol,
    /// The family to use; where it is left open, the first that both ends have.
    pub family: Option<Family>,
    /// How long after the records were learned this is asked.
    pub at: Duration,
    /// The server name that the API server asks for by TLS; without, none can be read.
    pub server_name: Option<DnsName>,
}

/// Who connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A pod by name.
    Pod(PodKey),
    /// Whoever has this address.
    Address(IpAddr),
    /// A node by name.
    Node(Arc<str>),
    /// The API server by its network proxy, for one of its egress selections.
    ApiServer(Selection),
}

/// Where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A pod by name.
    Pod(PodKey),
    /// Whoever has this address.
    Address(IpAddr),
    /// The endpoints of a Service.
    Service(PodKey),
    /// What the source was told for a name.
    Name(DnsName),
    /// A node by name.
    Node(Arc<str>),
}

/// The protocol and, where it has them, the destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeProtocol {
    /// A protocol with ports.
    Transport(Transport, NonZeroU16),
    /// ICMP or ICMPv6. A port that was written all the same means nothing; its row says so.
    Icmp {
        /// The port that was written.
        written_port: Option<u64>,
    },
}

impl Probe {
    /// Reads a probe from the fields of a line.
    ///
    /// # Errors
    /// A field that is missing or cannot be understood.
    pub fn parse(fields: &mut Fields) -> Result<Self, LineProblem> {
        let id = parse_id(fields.require("id")?)?;
        let from = parse_source(&fields.require("from")?)?;
        let protocol = fields.take("protocol").unwrap_or_else(|| Value::from("TCP"));
        Ok(Self {
            id,
            to: parse_destination(&fields.require("to")?)?,
            protocol: parse_protocol(&protocol, fields.take("port").as_ref())?,
            family: fields.take("family").as_ref().map(parse_family).transpose()?,
            at: fields
                .take("at")
                .as_ref()
                .map(parse_seconds)
                .transpose()?
                .unwrap_or_default(),
            server_name: parse_server_name(fields.take("serverName").as_ref(), &from)?,
            from,
        })
    }

    /// The moment at which it is asked; records are learned at zero.
    #[must_use]
    pub fn moment(&self) -> Timestamp {
        Timestamp::from_millis(0).after(self.at)
    }
}

fn parse_id(id: Value) -> Result<Value, LineProblem> {
    if id.is_string() || id.is_number() {
        return Ok(id);
    }
    Err(LineProblem::field(
        "id",
        format!("a string is expected, found {}", kind_of(&id)),
    ))
}

const SOURCES: &str = "\"namespace/pod\", {\"ip\": \"…\"}, {\"node\": \"…\"} or {\"apiserver\": \"controlplane\"|\"cluster\"|\"etcd\"}";
const DESTINATIONS: &str = "\"namespace/pod\", {\"ip\": \"…\"}, {\"node\": \"…\"}, {\"service\": \"namespace/name\"} or {\"name\": \"…\"}";

fn parse_source(value: &Value) -> Result<Source, LineProblem> {
    match WrittenEnd::parse("from", value, SOURCES)? {
        WrittenEnd::Pod(pod) => Ok(Source::Pod(pod)),
        WrittenEnd::Tagged("ip", value) => Ok(Source::Address(parse_address("from.ip", value)?)),
        WrittenEnd::Tagged("node", value) => Ok(Source::Node(parse_node("from.node", value)?)),
        WrittenEnd::Tagged("apiserver", value) => Ok(Source::ApiServer(parse_text("from.apiserver", value)?)),
        WrittenEnd::Tagged(tag, _) => Err(LineProblem::field(
            &format!("from.{tag}"),
            format!("a source is {SOURCES}"),
        )),
    }
}

fn parse_destination(value: &Value) -> Result<Destination, LineProblem> {
    match WrittenEnd::parse("to", value, DESTINATIONS)? {
        WrittenEnd::Pod(pod) => Ok(Destination::Pod(pod)),
        WrittenEnd::Tagged("ip", value) => Ok(Destination::Address(parse_address("to.ip", value)?)),
        WrittenEnd::Tagged("service", value) => Ok(Destination::Service(parse_text("to.service", value)?)),
        WrittenEnd::Tagged("name", value) => Ok(Destination::Name(parse_text("to.name", value)?)),
        WrittenEnd::Tagged("node", value) => Ok(Destination::Node(parse_node("to.node", value)?)),
        WrittenEnd::Tagged(tag, _) => Err(LineProblem::field(
            &format!("to.{tag}"),
            format!("a destination is {DESTINATIONS}"),
        )),
    }
}

/// An end as written: a pod, or an object with one key.
enum WrittenEnd<'a> {
    Pod(PodKey),
    Tagged(&'a str, &'a Value),
}

impl<'a> WrittenEnd<'a> {
    fn parse(field: &str, value: &'a Value, accepted: &str) -> Result<Self, LineProblem> {
        if value.is_string() {
            return Ok(Self::Pod(parse_text(field, value)?));
        }
        let mut entries = value.as_object().into_iter().flatten();
        match (entries.next(), entries.next()) {
            (Some((tag, value)), None) => Ok(Self::Tagged(tag, value)),
            (Some(_), Some(_)) => Err(LineProblem::field(
                field,
                format!("one of {accepted} is expected"),
            )),
            (None, _) => Err(LineProblem::field(
                field,
                format!("{accepted} is expected, found {}", kind_of(value)),
            )),
        }
    }
}

/// Reads an address; one that is IPv4 in the clothes of IPv6 (RFC 4291 §2.5.5.2) is IPv4 on the wire.
pub(crate) fn parse_address(field: &str, value: &Value) -> Result<IpAddr, LineProblem> {
    parse_text(field, value).map(|address: IpAddr| address.to_canonical())
}

fn parse_node(field: &str, value: &Value) -> Result<Arc<str>, LineProblem> {
    parse_text(field, value).map(|name: String| name.into())
}

fn parse_protocol(protocol: &Value, port: Option<&Value>) -> Result<ProbeProtocol, LineProblem> {
    let word: String = parse_text("protocol", protocol)?;
    let transport = match word.to_ascii_uppercase().as_str() {
        "TCP" => Transport::Tcp,
        "UDP" => Transport::Udp,
        "SCTP" => Transport::Sctp,
        "ICMP" => {
            return Ok(ProbeProtocol::Icmp {
                written_port: port.and_then(Value::as_u64),
            });
        }
        _ => {
            return Err(LineProblem::field(
                "protocol",
                format!("{word:?} is none of TCP, UDP, SCTP, ICMP"),
            ));
        }
    };
    let port = port.ok_or_else(|| {
        LineProblem::field(
            "port",
            format!("missing; a connection over {transport} has one, from 1 to 65535"),
        )
    })?;
    Ok(ProbeProtocol::Transport(transport, parse_port(port)?))
}

fn parse_port(port: &Value) -> Result<NonZeroU16, LineProblem> {
    port.as_u64()
        .and_then(|number| u16::try_from(number).ok())
        .and_then(NonZeroU16::new)
        .ok_or_else(|| {
            LineProblem::field(
                "port",
                format!("{port} is no port; a number from 1 to 65535 is expected"),
            )
        })
}

fn parse_family(value: &Value) -> Result<Family, LineProblem> {
    match value.as_str() {
        Some("IPv4") => Ok(Family::V4),
        Some("IPv6") => Ok(Family::V6),
        Some(_) | None => Err(LineProblem::field(
            "family",
            format!("{value} is neither \"IPv4\" nor \"IPv6\""),
        )),
    }
}

fn parse_server_name(value: Option<&Value>, from: &Source) -> Result<Option<DnsName>, LineProblem> {
    match (value, from) {
        (None, _) => Ok(None),
        (Some(value), Source::ApiServer(_)) => parse_text("serverName", value).map(Some),
        (Some(_), Source::Pod(_) | Source::Address(_) | Source::Node(_)) => {
            let accepted =
                "only rules about the API server ask for it: {\"apiserver\": …} is the source then";
            Err(LineProblem::field("serverName", accepted.to_owned()))
        }
    }
}

fn parse_seconds(value: &Value) -> Result<Duration, LineProblem> {
    value
        .as_f64()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| {
            LineProblem::field(
                "at",
                format!("{value} is no time; a number of seconds from 0 on is expected"),
            )
        })
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => pod.fmt(f),
            Self::Address(address) => address.fmt(f),
            Self::Node(node) => write!(f, "node {node}"),
            Self::ApiServer(selection) => write!(f, "apiserver {selection}"),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => pod.fmt(f),
            Self::Address(address) => address.fmt(f),
            Self::Service(service) => write!(f, "service {service}"),
            Self::Name(name) => name.fmt(f),
            Self::Node(node) => write!(f, "node {node}"),
        }
    }
}

impl fmt::Display for ProbeProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport(transport, port) => write!(f, "{transport}/{port}"),
            Self::Icmp { .. } => f.write_str("ICMP"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    fn parse(text: &str) -> Result<Probe, String> {
        lines::parse_line(text, Probe::parse).map_err(|problem| problem.to_string())
    }

    #[test]
    fn nodes_and_moments_are_read() {
        let probe = parse(
            r#"{"id":"1","from":{"node":"n1"},"to":{"node":"n2"},"protocol":"UDP","port":53,"at":1.5}"#,
        )
        .unwrap();
        assert_eq!(probe.from, Source::Node("n1".into()));
        let of_api_server = r#"{"id":"1","from":{"apiserver":"etcd"},"to":"c/d","protocol":"TCP","port":80}"#;
        assert_eq!(
            parse(of_api_server).unwrap().from,
            Source::ApiServer(Selection::Etcd)
        );
        let named = of_api_server.replace("\"port\"", "\"serverName\":\"Hook.shop.svc\",\"port\"");
        let name = parse(&named).unwrap().server_name;
        assert_eq!(name, Some("hook.shop.svc".parse().unwrap()));
        let problem = parse(&named.replace(r#"{"apiserver":"etcd"}"#, r#""a/b""#)).unwrap_err();
        assert!(problem.starts_with("field \"serverName\": "), "{problem}");
        let problem = parse(&of_api_server.replace("etcd", "nodes")).unwrap_err();
        assert!(problem.starts_with("field \"from.apiserver\": "), "{problem}");
        assert_eq!(probe.to, Destination::Node("n2".into()));
        assert_eq!(probe.moment(), Timestamp::from_millis(1500));
        for at in ["-1", "\"1\"", "1e300"] {
            let problem = parse(&format!(
                r#"{{"id":"1","from":"a/b","to":"c/d","protocol":"TCP","port":80,"at":{at}}}"#
            ))
            .unwrap_err();
            assert!(problem.starts_with("field \"at\": "), "{problem}");
        }
    }

    #[test]
    fn every_form_of_a_probe_is_read() {
        let probe = parse(r#"{"id":"1","from":"a/b","to":"c/d","protocol":"TCP","port":80}"#).unwrap();
        assert_eq!(probe.from, Source::Pod(PodKey::new("a", "b")));
        assert_eq!(probe.to, Destination::Pod(PodKey::new("c", "d")));
        let port = NonZeroU16::new(80).unwrap();
        assert_eq!(probe.protocol, ProbeProtocol::Transport(Transport::Tcp, port));
        let default = parse(r#"{"id":"1","from":"a/b","to":"c/d","port":80}"#).unwrap();
        assert_eq!(default, probe, "as on the command line");
        let probe = parse(
            r#"{"id":2,"from":{"ip":"::ffff:10.0.0.1"},"to":{"name":"API.Example.com."},"protocol":"icmp","family":"IPv6"}"#,
        )
        .unwrap();
        assert_eq!(probe.id, Value::from(2));
        assert_eq!(probe.from, Source::Address("10.0.0.1".parse().unwrap()));
        assert_eq!(probe.to, Destination::Name("api.example.com".parse().unwrap()));
        assert_eq!(probe.protocol, ProbeProtocol::Icmp { written_port: None });
        assert_eq!(probe.family, Some(Family::V6));
    }

    #[test]
    fn a_field_that_is_wrong_is_named() {
        for (text, field) in [
            (r#"{"from":"a/b","to":"c/d","protocol":"TCP","port":80}"#, "id"),
            (
                r#"{"id":"1","from":"b","to":"c/d","protocol":"TCP","port":80}"#,
                "from",
            ),
            (
                r#"{"id":"1","from":{"name":"x.y"},"to":"c/d","protocol":"TCP","port":80}"#,
                "from.name",
            ),
            (
                r#"{"id":"1","from":{},"to":"c/d","protocol":"TCP","port":80}"#,
                "from",
            ),
            (
                r#"{"id":"1","from":"a/b","to":{"ip":"10.0.0"},"protocol":"TCP","port":80}"#,
                "to.ip",
            ),
            (
                r#"{"id":"1","from":"a/b","to":{"service":"x"},"protocol":"TCP","port":80}"#,
                "to.service",
            ),
            (
                r#"{"id":"1","from":"a/b","to":{"ip":"10.0.0.1","name":"x.y"},"protocol":"TCP","port":80}"#,
                "to",
            ),
            (
                r#"{"id":"1","from":"a/b","to":"c/d","protocol":"GRE","port":80}"#,
                "protocol",
            ),
            (r#"{"id":"1","from":"a/b","to":"c/d","protocol":"TCP"}"#, "port"),
            (r#"{"id":"1","from":"a/b","to":"c/d"}"#, "port"),
            (
                r#"{"id":"1","from":"a/b","to":"c/d","protocol":"UDP","port":0}"#,
                "port",
            ),
            (
                r#"{"id":"1","from":"a/b","to":"c/d","protocol":"UDP","port":"80"}"#,
                "port",
            ),
            (
                r#"{"id":"1","from":"a/b","to":"c/d","protocol":"UDP","port":65536}"#,
                "port",
            ),
            (
                r#"{"id":"1","from":"a/b","to":"c/d","protocol":"UDP","port":53,"family":"v4"}"#,
                "family",
            ),
            (
                r#"{"id":"1","from":"a/b","to":"c/d","protocol":"UDP","prot":53,"port":53}"#,
                "prot",
            ),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(
                problem.starts_with(&format!("field {field:?}: ")),
                "{text}: {problem}"
            );
        }
    }
}
