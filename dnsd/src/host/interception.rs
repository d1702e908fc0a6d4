//! Interception: dnsd answers pods' queries to other resolvers (`intercept`).
//!
//! ```text
//!  pod ─▶ mangle PREROUTING: later segments of a connection of dnsd ▸ TPROXY, mark
//!         to port 53, of an intercepted pod, not to this host, while the heartbeat lives; of TCP the SYN ▸ TPROXY, mark
//!      ─▶ routing: the mark ▸ local delivery
//!      ─▶ filter INPUT: the pod's egress rules judge the original destination ▸ dnsd's socket
//! ```
//!
//! The sockets are dnsd's usual listeners: a reply has the address that was queried as its source. No address is translated,
//! so rules, conntrack and replies are those of a forwarded packet. While dnsd is dead or hangs, packets go to their
//! original destination.
//!
//! A connection stays with the server it began with: its later segments are delivered here if a transparent socket has it,
//! with or without heartbeat, and forwarded otherwise. A server that receives the middle of another server's connection
//! resets it.

mod marks;
mod pods;

use std::net::{IpAddr, SocketAddr};

use egret_kernel::iptables::{
    Endpoint, Hook, Match, Protocol, Rule, SetLookup, SetName, Table, Target, TcpSegments,
};
use egret_kernel::routing::LocalDelivery;
use egret_kernel::{Family, Transport};

use crate::config::host_setup::{INTERCEPT_PORT, INTERCEPT_PRIORITY, INTERCEPT_TABLE, Interception};
use crate::host::rule::DesiredRule;

pub use marks::{ForeignMark, foreign};
pub use pods::{PodSets, follow_pods};

/// The comment of the rules, by which an earlier process' rules are found.
pub(crate) const REMARK: &str = "egret dnsd: intercept";

/// The ipsets of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterceptSet {
    /// Pods whose queries are intercepted.
    Pods,
    /// Exempt destinations: those of the configuration, Services, and pods of this node, whose ingress rules apply only
    /// to forwarded packets.
    Exempt,
    /// The heartbeat: contains every address while dnsd is alive.
    Heartbeat,
}

impl InterceptSet {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pods, Self::Exempt, Self::Heartbeat];

    /// Its name.
    ///
    /// # Panics
    /// Never: the names are short.
    #[must_use]
    pub fn name(self, family: Family) -> SetName {
        let word = match self {
            Self::Pods => "pods",
            Self::Exempt => "spared",
            Self::Heartbeat => "living",
        };
        let number = match family {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        SetName::new(format!("egret-dnsd-{word}-{number}")).expect("it is a short word")
    }
}

impl Interception {
    /// The routing rule and table of a family.
    #[must_use]
    pub const fn delivery(&self, family: Family) -> LocalDelivery {
        LocalDelivery {
            family,
            mark: self.mark,
            table: INTERCEPT_TABLE,
            priority: INTERCEPT_PRIORITY,
        }
    }

    /// The iptables rules of a family.
    #[must_use]
    pub fn desired(&self, family: Family) -> Vec<DesiredRule> {
        let Some(to) = self.address(family) else {
            return Vec::new();
        };
        let both = [Transport::Tcp, Transport::Udp];
        let each = both.into_iter().flat_map(|transport| {
            [
                self.tproxy_first(to, first_packet(transport)),
                self.accept_queries(transport),
                accept_replies(family, transport),
            ]
        });
        std::iter::once(self.tproxy_established(to)).chain(each).collect()
    }

    /// Later segments of a connection for which a transparent socket exists.
    fn tproxy_established(&self, to: IpAddr) -> DesiredRule {
        let rule = Rule::to(self.tproxy(to))
            .protocol(Protocol::Segments(
                TcpSegments::Further,
                INTERCEPT_PORT..=INTERCEPT_PORT,
            ))
            .unless(Match::ToThisHost)
            .transparent_socket();
        prerouting(rule)
    }

    fn tproxy_first(&self, to: IpAddr, what: Protocol) -> DesiredRule {
        let family = Family::of(to);
        let holds = |set: InterceptSet, side| Match::Set(set.name(family), SetLookup::One(side));
        let rule = Rule::to(self.tproxy(to))
            .protocol(what)
            .when(holds(InterceptSet::Pods, Endpoint::Source))
            .unless(holds(InterceptSet::Exempt, Endpoint::Destination));
        let rule = rule.when(holds(InterceptSet::Heartbeat, Endpoint::Source));
        prerouting(rule.unless(Match::ToThisHost))
    }

    fn tproxy(&self, to: IpAddr) -> Target {
        Target::Tproxy {
            to: SocketAddr::new(to, INTERCEPT_PORT),
            mark: self.mark,
        }
    }

    /// The host's firewall accepts packets to the host; these have other destinations.
    fn accept_queries(&self, transport: Transport) -> DesiredRule {
        let rule =
            Rule::to(Target::Accept).protocol(Protocol::to_ports(transport, INTERCEPT_PORT..=INTERCEPT_PORT));
        DesiredRule {
            table: Table::Filter,
            hook: Hook::Input,
            rule: rule.when(Match::Mark(self.mark)).comment(REMARK),
        }
    }
}

/// A datagram, or the SYN of a connection. The listening socket would reset another segment, and with it the connection
/// of another resolver.
fn first_packet(transport: Transport) -> Protocol {
    match transport {
        Transport::Tcp => Protocol::Segments(TcpSegments::Opening, INTERCEPT_PORT..=INTERCEPT_PORT),
        Transport::Udp | Transport::Sctp => Protocol::to_ports(transport, INTERCEPT_PORT..=INTERCEPT_PORT),
    }
}

fn prerouting(rule: Rule) -> DesiredRule {
    DesiredRule {
        table: Table::Mangle,
        hook: Hook::Prerouting,
        rule: rule.comment(REMARK),
    }
}

/// Replies to pods, from any address.
fn accept_replies(family: Family, transport: Transport) -> DesiredRule {
    let pods = Match::Set(
        InterceptSet::Pods.name(family),
        SetLookup::One(Endpoint::Destination),
    );
    let rule =
        Rule::to(Target::Accept).protocol(Protocol::from_ports(transport, INTERCEPT_PORT..=INTERCEPT_PORT));
    DesiredRule {
        table: Table::Filter,
        hook: Hook::Output,
        rule: rule.when(pods).comment(REMARK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    use egret_kernel::Mark;

    #[test]
    fn a_family_without_a_listener_is_not_intercepted() {
        let interception = Interception {
            to: vec!["169.254.20.10".parse().unwrap()],
            mark: Mark::new(0x20, NonZeroU32::new(0x20).unwrap()),
            except: Vec::new(),
        };
        let texts: Vec<String> = interception
            .desired(Family::V4)
            .iter()
            .filter(|desired| desired.table == Table::Mangle)
            .map(|desired| desired.rule.to_string())
            .collect();
        let rule = |what: &str| {
            format!(
                "{what} -m set --match-set egret-dnsd-pods-4 src \
                 -m set ! --match-set egret-dnsd-spared-4 dst -m set --match-set egret-dnsd-living-4 src \
                 -m addrtype ! --dst-type LOCAL -m comment --comment \"egret dnsd: intercept\" \
                 -j TPROXY --on-port 53 --on-ip 169.254.20.10 --tproxy-mark 0x20/0x20"
            )
        };
        let syn = "--tcp-flags FIN,SYN,RST,ACK SYN";
        let established = format!(
            "-p tcp -m tcp --dport 53 ! {syn} -m addrtype ! --dst-type LOCAL -m socket --transparent \
             -m comment --comment \"egret dnsd: intercept\" -j TPROXY --on-port 53 --on-ip 169.254.20.10 --tproxy-mark 0x20/0x20"
        );
        let opening = rule(&format!("-p tcp -m tcp --dport 53 {syn}"));
        assert_eq!(texts, [established, opening, rule("-p udp -m udp --dport 53")]);
        assert_eq!(interception.desired(Family::V6), []);
    }
}
