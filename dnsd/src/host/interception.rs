//! Questions of pods to other resolvers, answered by dnsd (`intercept`): what the kernel is told to hand over.
//!
//! ```text
//!  pod ─▶ mangle PREROUTING: of a connection that dnsd has ▸ TPROXY, mark
//!         to port 53, of a caught pod, to no address of this host, while dnsd lives; of TCP what opens ▸ TPROXY, mark
//!      ─▶ routing: the mark ▸ delivered here
//!      ─▶ filter INPUT: the pod's egress rules judge the destination that it asked ▸ the socket of dnsd
//! ```
//!
//! The sockets are those on which dnsd listens anyway: an answer leaves from the address that was asked. Nothing is
//! translated, so that rules, conntrack and replies are as if the packet had gone on. A packet that is not handed over,
//! because dnsd is dead or hangs, goes where it would without dnsd.
//!
//! A connection stays with whom it began: what is in the middle of one is handed over if a socket here has it, whoever is
//! caught by now and whether dnsd gives signs of life, and goes on otherwise. Who is given the middle of a connection that
//! another one has resets it.

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

/// The remark of the rules, by which those of another day are found.
pub(crate) const REMARK: &str = "egret dnsd: intercept";

/// The sets of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterceptSet {
    /// The pods whose questions are caught.
    Pods,
    /// Destinations that are left alone: of the configuration, pods of this node, whose ingress rules only see what is
    /// forwarded to them, and Services.
    Spared,
    /// Every address, as long as dnsd lives.
    Living,
}

impl InterceptSet {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pods, Self::Spared, Self::Living];

    /// Its name.
    ///
    /// # Panics
    /// Never: the names are short words.
    #[must_use]
    pub fn name(self, family: Family) -> SetName {
        let word = match self {
            Self::Pods => "pods",
            Self::Spared => "spared",
            Self::Living => "living",
        };
        let number = match family {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        SetName::new(format!("egret-dnsd-{word}-{number}")).expect("it is a short word")
    }
}

impl Interception {
    /// The routing of a family.
    #[must_use]
    pub const fn delivery(&self, family: Family) -> LocalDelivery {
        LocalDelivery {
            family,
            mark: self.mark,
            table: INTERCEPT_TABLE,
            priority: INTERCEPT_PRIORITY,
        }
    }

    /// The rules of a family.
    #[must_use]
    pub fn desired(&self, family: Family) -> Vec<DesiredRule> {
        let Some(to) = self.address(family) else {
            return Vec::new();
        };
        let both = [Transport::Tcp, Transport::Udp];
        let each = both.into_iter().flat_map(|transport| {
            [
                self.hand_over(to, beginning(transport)),
                self.let_in(transport),
                let_out(family, transport),
            ]
        });
        std::iter::once(self.hand_over_further(to)).chain(each).collect()
    }

    /// What is in the middle of a connection that dnsd has.
    fn hand_over_further(&self, to: IpAddr) -> DesiredRule {
        let rule = Rule::to(self.tproxy(to))
            .protocol(Protocol::Segments(
                TcpSegments::Further,
                INTERCEPT_PORT..=INTERCEPT_PORT,
            ))
            .unless(Match::ToThisHost)
            .transparent_socket();
        caught(rule)
    }

    fn hand_over(&self, to: IpAddr, what: Protocol) -> DesiredRule {
        let family = Family::of(to);
        let holds = |set: InterceptSet, side| Match::Set(set.name(family), SetLookup::One(side));
        let rule = Rule::to(self.tproxy(to))
            .protocol(what)
            .when(holds(InterceptSet::Pods, Endpoint::Source))
            .unless(holds(InterceptSet::Spared, Endpoint::Destination));
        let rule = rule.when(holds(InterceptSet::Living, Endpoint::Source));
        caught(rule.unless(Match::ToThisHost))
    }

    fn tproxy(&self, to: IpAddr) -> Target {
        Target::Tproxy {
            to: SocketAddr::new(to, INTERCEPT_PORT),
            mark: self.mark,
        }
    }

    /// A firewall of the host lets in what is for the host, and this is for nobody it knows.
    fn let_in(&self, transport: Transport) -> DesiredRule {
        let rule =
            Rule::to(Target::Accept).protocol(Protocol::to_ports(transport, INTERCEPT_PORT..=INTERCEPT_PORT));
        DesiredRule {
            table: Table::Filter,
            hook: Hook::Input,
            rule: rule.when(Match::Mark(self.mark)).comment(REMARK),
        }
    }
}

/// What begins: a datagram is all there is of its question. A segment without a connection would be reset by the socket that
/// listens, and the connection of another resolver with it.
fn beginning(transport: Transport) -> Protocol {
    match transport {
        Transport::Tcp => Protocol::Segments(TcpSegments::Opening, INTERCEPT_PORT..=INTERCEPT_PORT),
        Transport::Udp | Transport::Sctp => Protocol::to_ports(transport, INTERCEPT_PORT..=INTERCEPT_PORT),
    }
}

fn caught(rule: Rule) -> DesiredRule {
    DesiredRule {
        table: Table::Mangle,
        hook: Hook::Prerouting,
        rule: rule.comment(REMARK),
    }
}

/// Answers to pods, from whatever address they asked.
fn let_out(family: Family, transport: Transport) -> DesiredRule {
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
    fn a_family_in_which_dnsd_does_not_listen_is_left_alone() {
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
        let further = format!(
            "-p tcp -m tcp --dport 53 ! {syn} -m addrtype ! --dst-type LOCAL -m socket --transparent \
             -m comment --comment \"egret dnsd: intercept\" -j TPROXY --on-port 53 --on-ip 169.254.20.10 --tproxy-mark 0x20/0x20"
        );
        let opening = rule(&format!("-p tcp -m tcp --dport 53 {syn}"));
        assert_eq!(texts, [further, opening, rule("-p udp -m udp --dport 53")]);
        assert_eq!(interception.desired(Family::V6), []);
    }
}
