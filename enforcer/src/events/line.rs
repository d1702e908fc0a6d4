//! Lines of JSON, as docs/events.md describes them.

use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

use egret_policies::compiler::Owner;
use egret_shared::escape;
use egret_shared::pod::PodKey;
use serde::Serialize;

use super::denied::DeniedPacket;
use super::packet::{Inner, protocol_word};
use super::window::Summary;
use crate::backend::netfilter::denials::{Cause, Denial, Outcome, RuleRef};
use crate::engine::Endpoints;

/// The line of a denied packet, without its end.
#[must_use]
pub fn denied(denied: &DeniedPacket, known: Option<&Endpoints>, node: &str, at: Duration) -> String {
    let (packet, ends) = (&denied.packet, &denied.ends);
    let unknown = Endpoints::default();
    let who = known.unwrap_or(&unknown);
    let (own, other, owner, port) = match who.is_receiver || is_received(&denied.denial) {
        true => (
            &ends.destination,
            &ends.source,
            &who.source,
            source_port(packet.inner),
        ),
        false => (
            &ends.source,
            &ends.destination,
            &who.destination,
            destination_port(packet.inner),
        ),
    };
    text(&Line {
        time: time(at),
        kind: match denied.denial.outcome {
            Outcome::Denied => "denied",
            Outcome::WouldBeDenied => "audit",
        },
        node,
        verdict: denied.denial.verdict(),
        why: Why::of(&denied.denial),
        pod: who.pod.as_ref().map(PodKey::name),
        namespace: who.pod.as_ref().map(PodKey::namespace),
        interface: own.interface.as_deref(),
        protocol: packet.protocol.map(protocol),
        port: destination_port(packet.inner),
        icmp: icmp(packet.inner),
        is_fragment: matches!(packet.inner, Inner::Fragment),
        process: denied.process.as_ref().map(|process| CallingProcess {
            pid: process.pid,
            command: &process.command,
        }),
        peer: Peer {
            address: other.address,
            port,
            identity: PeerIdentity::of(owner.as_ref()),
            name: who.names.first().map(|name| name.to_string()),
            names: match who.names.as_slice() {
                [_, _, ..] => who.names.iter().map(|name| name.to_string()).collect(),
                _ => Vec::new(),
            },
        },
        source: Address {
            address: packet.source,
            port: source_port(packet.inner),
        },
        destination: Address {
            address: packet.destination,
            port: destination_port(packet.inner),
        },
        is_unresolved: known.is_none(),
    })
}

/// The line of a summary, without its end. `pods` are those of its `withheld`, in the same order, as far as they are
/// known.
#[must_use]
pub fn summary(
    summary: &Summary,
    pods: &[Endpoints],
    suppressed: &[(Denial, u64)],
    node: &str,
    at: Duration,
) -> String {
    let withheld = summary
        .withheld
        .iter()
        .enumerate()
        .map(|(place, (who, packets))| {
            let pod = pods.get(place).and_then(|known| known.pod.as_ref());
            Counted {
                verdict: unusual(&who.denial),
                why: Why::of(&who.denial),
                pod: pod.map(PodKey::name),
                namespace: pod.map(PodKey::namespace),
                packets: *packets,
            }
        });
    let suppressed = suppressed.iter().map(|(denial, packets)| Counted {
        verdict: unusual(denial),
        why: Why::of(denial),
        pod: None,
        namespace: None,
        packets: *packets,
    });
    text(&SummaryLine {
        time: time(at),
        kind: "summary",
        node,
        seconds: (summary.span.as_secs_f64() * 1000.0).round() / 1000.0,
        told: summary.told,
        withheld: withheld.collect(),
        withheld_others: summary.others,
        suppressed: suppressed.collect(),
        lost: summary.lost,
    })
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(rename = "type")]
    kind: &'static str,
    node: &'a str,
    verdict: &'static str,
    #[serde(flatten)]
    why: Why<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp: Option<Icmp>,
    #[serde(rename = "fragment", skip_serializing_if = "is_not")]
    is_fragment: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<CallingProcess<'a>>,
    peer: Peer<'a>,
    source: Address,
    destination: Address,
    #[serde(rename = "unresolved", skip_serializing_if = "is_not")]
    is_unresolved: bool,
}

#[derive(Serialize)]
struct CallingProcess<'a> {
    pid: u32,
    command: &'a str,
}

#[derive(Serialize)]
struct Why<'a> {
    reason: &'static str,
    direction: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<usize>,
}

#[derive(Serialize)]
struct Peer<'a> {
    address: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(flatten)]
    identity: PeerIdentity<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    names: Vec<String>,
}

#[derive(Default, Serialize)]
struct PeerIdentity<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
}

#[derive(Serialize)]
struct Address {
    address: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
}

#[derive(Serialize)]
struct Icmp {
    #[serde(rename = "type")]
    kind: u8,
    code: u8,
}

#[derive(Serialize)]
struct SummaryLine<'a> {
    time: String,
    #[serde(rename = "type")]
    kind: &'static str,
    node: &'a str,
    seconds: f64,
    told: u32,
    withheld: Vec<Counted<'a>>,
    withheld_others: u64,
    suppressed: Vec<Counted<'a>>,
    lost: u64,
}

#[derive(Serialize)]
struct Counted<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'static str>,
    #[serde(flatten)]
    why: Why<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<&'a str>,
    packets: u64,
}

/// The verdict, unless it is a plain denial.
fn unusual(denial: &Denial) -> Option<&'static str> {
    (denial.outcome != Outcome::Denied).then(|| denial.verdict())
}

impl<'a> Why<'a> {
    fn of(denial: &'a Denial) -> Self {
        let said = match &denial.cause {
            Cause::Rule(said) | Cause::Exposure(said) => Some(said),
            Cause::Isolation
            | Cause::Revoked
            | Cause::UnknownPod
            | Cause::SpoofedSource
            | Cause::SpoofedError
            | Cause::Encapsulation => None,
        };
        Self {
            reason: denial.cause.word(),
            direction: denial.direction.word(),
            tier: said.map(|said: &RuleRef| said.tier.word()),
            policy: said.map(|said| said.policy.as_ref()),
            rule: said.map(|said| said.rule),
        }
    }
}

impl<'a> PeerIdentity<'a> {
    fn of(owner: Option<&'a Owner>) -> Self {
        match owner {
            None => Self::default(),
            Some(Owner::Node(node)) => Self {
                node: Some(node),
                ..Self::default()
            },
            Some(Owner::Pod(pod)) => Self {
                namespace: Some(pod.namespace()),
                pod: Some(pod.name()),
                node: None,
            },
        }
    }
}

/// Whether the pod is the receiver, if the lookup does not say.
const fn is_received(denial: &Denial) -> bool {
    use egret_policies::rules::Direction;
    match (&denial.cause, denial.direction) {
        (Cause::Exposure(_), _) => true,
        (Cause::Revoked | Cause::SpoofedSource | Cause::SpoofedError | Cause::Encapsulation, _) => false,
        (Cause::Rule(_) | Cause::Isolation | Cause::UnknownPod, Direction::Ingress) => true,
        (Cause::Rule(_) | Cause::Isolation | Cause::UnknownPod, Direction::Egress) => false,
    }
}

fn protocol(number: u8) -> String {
    protocol_word(number).map_or_else(|| number.to_string(), str::to_owned)
}

const fn source_port(inner: Inner) -> Option<u16> {
    match inner {
        Inner::Ports { source, .. } => Some(source),
        Inner::Icmp { .. } | Inner::Fragment | Inner::Nothing => None,
    }
}

const fn destination_port(inner: Inner) -> Option<u16> {
    match inner {
        Inner::Ports { destination, .. } => Some(destination),
        Inner::Icmp { .. } | Inner::Fragment | Inner::Nothing => None,
    }
}

const fn icmp(inner: Inner) -> Option<Icmp> {
    match inner {
        Inner::Icmp { kind, code } => Some(Icmp { kind, code }),
        Inner::Ports { .. } | Inner::Fragment | Inner::Nothing => None,
    }
}

fn time(at: Duration) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + at).to_string()
}

fn text(line: &impl Serialize) -> String {
    let text = serde_json::to_string(line).expect("strings, numbers and lists of them are JSON");
    escape::json(&text).into_owned()
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
const fn is_not(value: &bool) -> bool {
    !*value
}
