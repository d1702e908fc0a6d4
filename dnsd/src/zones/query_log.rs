//! Lines about queries (`log`), as CoreDNS writes them.

use std::fmt::Write;
use std::time::Duration;

use crate::config::model::{LogClass, QueryLog, Zone};
use crate::dns::message::{HEADER, Message, Query, Section, kind, rcode, rcode_label};
use crate::net::Transport;

use super::PacketInfo;
use crate::zones::type_names::{class_name, kind_name};

/// CoreDNS' format where none is written.
const COMMON: &str = concat!(
    r#"{remote}:{port} - {>id} "{type} {class} {name} {proto} {size} {>do} {>bufsize}" "#,
    "{rcode} {>rflags} {rsize} {duration}"
);
/// The text of an unknown value.
const NOTHING: &str = "-";

/// The rules of a block; the first whose zones hold the name counts.
#[derive(Debug)]
pub(super) struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    zones: Vec<Zone>,
    format: Vec<Part>,
    classes: Vec<LogClass>,
}

/// A part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Placeholder(Placeholder),
}

/// A value in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placeholder {
    Type,
    Name,
    Class,
    Protocol,
    Size,
    Remote,
    Port,
    Local,
    Id,
    Opcode,
    Dnssec,
    BufferSize,
    Code,
    ReplySize,
    Duration,
    ReplyFlags,
    /// Metadata of plugins (`{/name}`), of which dnsd has none.
    Metadata,
}

/// A query that was answered.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredQuery<'a> {
    /// The query.
    pub query: &'a Query<'a>,
    /// How it came in.
    pub arrival: &'a PacketInfo,
    /// Its octets.
    pub octets: usize,
    /// The reply.
    pub reply: &'a [u8],
    /// From the query to the reply.
    pub span: Duration,
}

impl Rules {
    pub(super) fn new(plans: &[QueryLog]) -> Self {
        let rule = |plan: &QueryLog| Rule {
            zones: plan.zones.clone(),
            format: parse(&plan.format.0),
            classes: plan.classes.clone(),
        };
        Self(plans.iter().map(rule).collect())
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The line about a query; none where the rules leave it out.
    pub(super) fn line(&self, event: &AnsweredQuery<'_>) -> Option<String> {
        let name = &event.query.question.name;
        let rule = self
            .0
            .iter()
            .find(|rule| rule.zones.is_empty() || rule.zones.iter().any(|zone| zone.holds(name)))?;
        let wanted = |class: &LogClass| *class == LogClass::All || *class == class_of(event.reply);
        rule.classes.iter().any(wanted).then(|| {
            let mut line = String::with_capacity(160);
            for part in &rule.format {
                match part {
                    Part::Text(text) => line.push_str(text),
                    Part::Placeholder(placeholder) => fill(*placeholder, event, &mut line),
                }
            }
            line
        })
    }
}

/// Parses a format. Unknown placeholders stay as they are, as in CoreDNS.
fn parse(format: &str) -> Vec<Part> {
    let format = format
        .replace("{common}", COMMON)
        .replace("{combined}", &format!("{COMMON} \"{{>opcode}}\""));
    let mut parts = Vec::new();
    let mut rest = format.as_str();
    while let Some(end) = rest.find('}') {
        let (before, after) = rest.split_at(end + 1);
        let placeholder = before
            .rfind('{')
            .and_then(|start| Some((start, placeholder(&before[start + 1..end])?)));
        match placeholder {
            Some((start, placeholder)) => {
                push_text(&mut parts, &before[..start]);
                parts.push(Part::Placeholder(placeholder));
            }
            None => push_text(&mut parts, before),
        }
        rest = after;
    }
    push_text(&mut parts, rest);
    parts
}

fn push_text(parts: &mut Vec<Part>, text: &str) {
    match parts.last_mut() {
        Some(Part::Text(before)) => before.push_str(text),
        _ if text.is_empty() => {}
        Some(Part::Placeholder(_)) | None => parts.push(Part::Text(text.to_owned())),
    }
}

fn placeholder(word: &str) -> Option<Placeholder> {
    Some(match word {
        "type" => Placeholder::Type,
        "name" => Placeholder::Name,
        "class" => Placeholder::Class,
        "proto" => Placeholder::Protocol,
        "size" => Placeholder::Size,
        "remote" => Placeholder::Remote,
        "port" => Placeholder::Port,
        "local" => Placeholder::Local,
        ">id" => Placeholder::Id,
        ">opcode" => Placeholder::Opcode,
        ">do" => Placeholder::Dnssec,
        ">bufsize" => Placeholder::BufferSize,
        "rcode" => Placeholder::Code,
        "rsize" => Placeholder::ReplySize,
        "duration" => Placeholder::Duration,
        ">rflags" => Placeholder::ReplyFlags,
        other if other.starts_with('/') => Placeholder::Metadata,
        _other => return None,
    })
}

fn fill(placeholder: Placeholder, event: &AnsweredQuery<'_>, line: &mut String) {
    let (query, arrival) = (event.query, event.arrival);
    let edns = query.edns.as_ref();
    let written = match placeholder {
        Placeholder::Type => write!(line, "{}", kind_name(query.question.kind)),
        Placeholder::Name => write!(line, "{}", query.question.name),
        Placeholder::Class => write!(line, "{}", class_name(query.question.class)),
        Placeholder::Protocol => write!(line, "{}", arrival.transport.label()),
        Placeholder::Size => write!(line, "{}", event.octets),
        Placeholder::Remote => address(Some(arrival.source.ip()), line),
        Placeholder::Port => write!(line, "{}", arrival.source.port()),
        Placeholder::Local => address(arrival.asked, line),
        Placeholder::Id => write!(line, "{}", query.id),
        Placeholder::Opcode => write!(line, "{}", query.flags >> 11 & 0xf),
        Placeholder::Dnssec => write!(line, "{}", edns.is_some_and(|edns| edns.dnssec)),
        Placeholder::BufferSize => write!(line, "{}", buffer_size(query, arrival.transport)),
        Placeholder::Code => write!(line, "{}", rcode_label(flags(event.reply).to_be_bytes()[1] & 0xf)),
        Placeholder::ReplySize => write!(line, "{}", event.reply.len()),
        Placeholder::Duration => write!(line, "{}s", event.span.as_secs_f64()),
        Placeholder::ReplyFlags => write!(line, "{}", reply_flags(flags(event.reply))),
        Placeholder::Metadata => write!(line, "{NOTHING}"),
    };
    written.expect("a String takes everything");
}

/// As RFC 3986 §3.2.2 writes hosts.
fn address(address: Option<std::net::IpAddr>, line: &mut String) -> std::fmt::Result {
    match address {
        Some(std::net::IpAddr::V6(address)) => write!(line, "[{address}]"),
        Some(address) => write!(line, "{address}"),
        None => write!(line, "{NOTHING}"),
    }
}

/// The largest reply that the client accepts.
fn buffer_size(query: &Query, transport: Transport) -> usize {
    match transport {
        Transport::Udp => query.datagram_limit(u16::MAX),
        Transport::Tcp | Transport::Quic => usize::from(u16::MAX),
    }
}

fn flags(reply: &[u8]) -> u16 {
    reply
        .get(2..4)
        .map_or(0, |pair| u16::from_be_bytes([pair[0], pair[1]]))
}

fn reply_flags(flags: u16) -> String {
    const NAMES: [(u16, &str); 8] = [
        (1 << 15, "qr"),
        (1 << 10, "aa"),
        (1 << 9, "tc"),
        (1 << 8, "rd"),
        (1 << 7, "ra"),
        (1 << 6, "z"),
        (1 << 5, "ad"),
        (1 << 4, "cd"),
    ];
    let set = NAMES.iter().filter(|(bit, _)| flags & bit != 0);
    let names: Vec<&str> = set.map(|(_, name)| *name).collect();
    names.join(",")
}

/// The class of a reply, as in CoreDNS: NXDOMAIN without a SOA is an error.
fn class_of(reply: &[u8]) -> LogClass {
    let Ok(message) = Message::read(reply) else {
        return LogClass::Error;
    };
    let answers = u16::from_be_bytes([message.octets()[6], message.octets()[7]]);
    let has_soa = || {
        let mut records = message.records().flatten();
        records.any(|record| record.section == Section::Authority && record.kind == kind::SOA)
    };
    debug_assert!(reply.len() >= HEADER, "it was read");
    match message.rcode() {
        rcode::NOERROR if answers > 0 => LogClass::Success,
        rcode::NOERROR | rcode::NXDOMAIN if has_soa() => LogClass::Denial,
        rcode::NOERROR => LogClass::Success,
        _other => LogClass::Error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_has_known_placeholders_and_other_text_stays() {
        for (format, shown) in [
            ("{type} {name}", "A example.org."),
            ("{ {name} }", "{ example.org. }"),
            ("{nonsense} {name", "{nonsense} {name"),
            ("a } {class}", "a } IN"),
            ("{/forward/upstream}", "-"),
            ("{remote}:{port} {local}", "192.0.2.1:5353 [::1]"),
            ("{>id} {>opcode} {>do} {>bufsize}", "7 0 false 512"),
            (
                "{common}",
                r#"192.0.2.1:5353 - 7 "A IN example.org. udp 29 false 512" NOERROR qr,rd,ra 29 0.0015s"#,
            ),
            (
                "{combined}",
                r#"192.0.2.1:5353 - 7 "A IN example.org. udp 29 false 512" NOERROR qr,rd,ra 29 0.0015s "0""#,
            ),
        ] {
            let plan = QueryLog {
                zones: Vec::new(),
                format: crate::config::model::LogFormat(format.to_owned()),
                classes: vec![LogClass::All],
            };
            let octets =
                b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\x00\x01\x00\x01";
            let query = Query::read(octets).unwrap();
            let mut reply = octets.to_vec();
            reply[2..4].copy_from_slice(&[0x81, 0x80]);
            let event = AnsweredQuery {
                query: &query,
                arrival: &PacketInfo {
                    source: "192.0.2.1:5353".parse().unwrap(),
                    asked: Some("::1".parse().unwrap()),
                    interface: None,
                    transport: Transport::Udp,
                },
                octets: octets.len(),
                reply: &reply,
                span: Duration::from_micros(1500),
            };
            assert_eq!(Rules::new(&[plan]).line(&event).unwrap(), shown, "{format}");
        }
    }

    /// The name is its client's: it must not end the quotes around it, the line, or what a terminal shows.
    #[test]
    fn a_name_cannot_forge_log_fields() {
        let labels: [(&[u8], &str); 6] = [
            (b"a\" NOERROR\nx", "a\\034\\032noerror\\010x"),
            (b"a\\\"b", "a\\\\\\034b"),
            (b"\x1b[31mred\r\0\x7f", "\\027[31mred\\013\\000\\127"),
            (
                "\u{202e}\u{2028}\u{85}".as_bytes(),
                "\\226\\128\\174\\226\\128\\168\\194\\133",
            ),
            (b"x;(y)", "x\\059\\040y\\041"),
            // What is common stays as it is.
            (b"_https-1*{name}%s", "_https-1*{name}%s"),
        ];
        for (label, shown) in labels {
            let mut octets = b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00".to_vec();
            octets.push(u8::try_from(label.len()).unwrap());
            octets.extend_from_slice(label);
            octets.extend_from_slice(b"\x00\x00\x01\x00\x01");
            let query = Query::read(&octets).unwrap();
            let plan = QueryLog {
                zones: Vec::new(),
                format: crate::config::model::LogFormat("\"{name}\"".to_owned()),
                classes: vec![LogClass::All],
            };
            let event = AnsweredQuery {
                query: &query,
                arrival: &PacketInfo {
                    source: "192.0.2.1:5353".parse().unwrap(),
                    asked: None,
                    interface: None,
                    transport: Transport::Udp,
                },
                octets: octets.len(),
                reply: &octets,
                span: Duration::ZERO,
            };
            let line = Rules::new(&[plan]).line(&event).unwrap();
            assert_eq!(line, format!("\"{shown}.\""));
            let name = crate::dns::message::WireName::parse(line.trim_matches('"')).unwrap();
            assert_eq!(name, query.question.name, "and it can be read again");
        }
    }
}
