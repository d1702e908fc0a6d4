//! The rules of node-local-dns: packets to a local address bypass conntrack, and therefore kube-proxy's translation,
//! and are accepted. [`crate::host::node_cache::rule_position`] says where they are.
//!
//! node-cache's NOTRACK rules always apply; here they apply while dnsd is alive (see [`Fallback`]).

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use egret_kernel::iptables::{
    Endpoint, Hook, Match, Protocol, Rule, SetLookup, SetName, Table, Target, TcpSegments,
};
use egret_kernel::{Family, Transport};
use egret_shared::net::IpNet;

use crate::config::host_setup::{Fallback, RuleSettings};
use crate::host::rule::DesiredRule;

const SKIP: &str = "NodeLocal DNS Cache: skip conntrack";
const ALLOW: &str = "NodeLocal DNS Cache: allow DNS traffic";
pub(super) const TRANSLATED: &str = "egret dnsd: not alive, ask the cluster DNS";
pub(super) const COUNTED: &str = "egret dnsd: not alive, counted";

/// The tables with rules of dnsd, in the order in which they are written: packets are accepted before they bypass
/// conntrack or are intercepted.
pub const TABLES: [Table; 4] = [Table::Filter, Table::Nat, Table::Raw, Table::Mangle];

/// The heartbeat ipset: its entries are the addresses that dnsd serves now. They expire after a second.
#[must_use]
pub fn alive_set(family: Family) -> SetName {
    let number = match family {
        Family::V4 => 4,
        Family::V6 => 6,
    };
    SetName::new(format!("egret-dnsd-alive-{number}")).expect("it is a short word")
}

impl RuleSettings {
    /// The desired rules of a family.
    #[must_use]
    pub fn desired(&self, family: Family) -> Vec<DesiredRule> {
        let local = self
            .local_ips
            .iter()
            .filter(|address| Family::of(**address) == family);
        let caught = self.intercept.iter().flat_map(|it| it.desired(family));
        local
            .flat_map(|address| self.of(*address))
            .chain(caught)
            .collect()
    }

    /// The rules of another fallback, or of node-cache, that are to be removed.
    #[must_use]
    pub fn obsolete(&self, family: Family) -> Vec<DesiredRule> {
        let fallback = match &self.fallback {
            Fallback::None => Fallback::ClusterDns { servers: Vec::new() },
            Fallback::ClusterDns { .. } => Fallback::None,
        };
        let desired = self.desired(family);
        let other = Self {
            fallback,
            ..self.clone()
        };
        let mut obsolete = other.desired(family);
        obsolete.retain(|rule| !desired.contains(rule));
        obsolete
    }

    fn of(&self, local: IpAddr) -> Vec<DesiredRule> {
        let site = AddressRules {
            settings: self,
            local,
        };
        let mut rules = site.untracked();
        rules.extend(site.accept());
        rules.extend(site.translated());
        rules.extend(site.counted());
        rules
    }
}

/// The rules of one local address.
struct AddressRules<'a> {
    settings: &'a RuleSettings,
    local: IpAddr,
}

const BOTH: [Transport; 2] = [Transport::Tcp, Transport::Udp];

impl AddressRules<'_> {
    fn untracked(&self) -> Vec<DesiredRule> {
        let (dns, health) = (self.settings.dns_port, self.settings.health_port);
        let to_dns = |hook| BOTH.map(|transport| self.untrack(hook, Endpoint::Destination, transport, dns));
        let from_dns = BOTH.map(|transport| self.untrack(Hook::Output, Endpoint::Source, transport, dns));
        let probes = [Endpoint::Destination, Endpoint::Source].map(|side| {
            raw(
                Hook::Output,
                self.rule(Target::NoTrack, side, Transport::Tcp, health, None),
            )
        });
        let rules = [to_dns(Hook::Prerouting), from_dns, to_dns(Hook::Output), probes];
        rules.into_iter().flatten().collect()
    }

    /// Queries to dnsd while it is alive, and its replies.
    fn untrack(&self, hook: Hook, side: Endpoint, transport: Transport, port: u16) -> DesiredRule {
        let alive = match self.settings.fallback {
            Fallback::None => None,
            Fallback::ClusterDns { .. } => Some(self.alive(side)),
        };
        raw(hook, self.rule(Target::NoTrack, side, transport, port, alive))
    }

    fn accept(&self) -> Vec<DesiredRule> {
        let port = self.settings.dns_port;
        [
            (Hook::Input, Endpoint::Destination),
            (Hook::Output, Endpoint::Source),
        ]
        .into_iter()
        .flat_map(|(hook, side)| BOTH.map(|transport| (hook, side, transport)))
        .map(|(hook, side, transport)| DesiredRule {
            table: Table::Filter,
            hook,
            rule: self.between(Target::Accept, side, transport, port).comment(ALLOW),
        })
        .collect()
    }

    /// DNAT to the servers of the fallback with equal shares: the first of three takes a third, the second half of the
    /// rest.
    fn translated(&self) -> Vec<DesiredRule> {
        let Fallback::ClusterDns { servers } = &self.settings.fallback else {
            return Vec::new();
        };
        let family = Family::of(self.local);
        let servers: Vec<_> = servers
            .iter()
            .filter(|server| Family::of(server.ip()) == family)
            .collect();
        let hooks = [Hook::Prerouting, Hook::Output];
        let places = hooks
            .into_iter()
            .flat_map(|hook| BOTH.map(|transport| (hook, transport)));
        let each = places.flat_map(|place| {
            servers
                .iter()
                .zip((1..=servers.len()).rev())
                .map(move |it| (place, it))
        });
        each.map(|((hook, transport), (server, left))| self.translate(hook, transport, **server, left))
            .collect()
    }

    /// Counts what arrives while dnsd is not alive: each datagram, each connection. It precedes conntrack, so that
    /// packets which kube-proxy translates are counted too.
    fn counted(&self) -> Vec<DesiredRule> {
        if self.settings.fallback == Fallback::None {
            return Vec::new();
        }
        let port = self.settings.dns_port..=self.settings.dns_port;
        let first = [
            Protocol::Segments(TcpSegments::Opening, port.clone()),
            Protocol::to_ports(Transport::Udp, port),
        ];
        let count = |protocol| {
            let rule = Rule::count()
                .destination(IpNet::from(self.local))
                .protocol(protocol);
            let rule = rule.unless(self.alive(Endpoint::Destination)).comment(COUNTED);
            raw(Hook::Prerouting, rule)
        };
        first.map(count).to_vec()
    }

    fn translate(&self, hook: Hook, transport: Transport, server: SocketAddr, left: usize) -> DesiredRule {
        let rule = self
            .between(
                Target::Dnat(server),
                Endpoint::Destination,
                transport,
                self.settings.dns_port,
            )
            .unless(self.alive(Endpoint::Destination));
        let left = u32::try_from(left).expect("there are fewer servers than addresses");
        let rule = match NonZeroU32::new(left).filter(|left| left.get() > 1) {
            Some(left) => rule.one_of(left),
            None => rule,
        };
        DesiredRule {
            table: Table::Nat,
            hook,
            rule: rule.comment(TRANSLATED),
        }
    }

    fn alive(&self, side: Endpoint) -> Match {
        Match::Set(alive_set(Family::of(self.local)), SetLookup::One(side))
    }

    fn rule(
        &self,
        target: Target,
        side: Endpoint,
        transport: Transport,
        port: u16,
        alive: Option<Match>,
    ) -> Rule {
        let rule = self.between(target, side, transport, port);
        let rule = match alive {
            Some(alive) => rule.when(alive),
            None => rule,
        };
        rule.comment(SKIP)
    }

    /// A rule for packets to or from the local address and port.
    fn between(&self, target: Target, side: Endpoint, transport: Transport, port: u16) -> Rule {
        let net = IpNet::from(self.local);
        let (rule, protocol) = match side {
            Endpoint::Source => (
                Rule::to(target).source(net),
                Protocol::from_ports(transport, port..=port),
            ),
            Endpoint::Destination => (
                Rule::to(target).destination(net),
                Protocol::to_ports(transport, port..=port),
            ),
        };
        rule.protocol(protocol)
    }
}

fn raw(hook: Hook, rule: Rule) -> DesiredRule {
    DesiredRule {
        table: Table::Raw,
        hook,
        rule,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::host::node_cache) fn settings(local: &[&str], fallback: Fallback) -> RuleSettings {
        RuleSettings {
            local_ips: local.iter().map(|text| text.parse().unwrap()).collect(),
            dns_port: 53,
            health_port: 8080,
            fallback,
            intercept: None,
        }
    }

    fn texts(rules: &[DesiredRule]) -> Vec<String> {
        let text =
            |desired: &DesiredRule| format!("{} {} {}", desired.table, desired.hook.name(), desired.rule);
        rules.iter().map(text).collect()
    }

    #[test]
    fn without_a_fallback_there_are_the_twelve_rules_of_node_cache() {
        let skip = "-m comment --comment \"NodeLocal DNS Cache: skip conntrack\" -j NOTRACK";
        let allow = "-m comment --comment \"NodeLocal DNS Cache: allow DNS traffic\" -j ACCEPT";
        let (to, from) = ("-d 169.254.20.10/32", "-s 169.254.20.10/32");
        let desired = settings(&["169.254.20.10"], Fallback::None).desired(Family::V4);
        assert_eq!(
            texts(&desired),
            [
                format!("raw PREROUTING {to} -p tcp -m tcp --dport 53 {skip}"),
                format!("raw PREROUTING {to} -p udp -m udp --dport 53 {skip}"),
                format!("raw OUTPUT {from} -p tcp -m tcp --sport 53 {skip}"),
                format!("raw OUTPUT {from} -p udp -m udp --sport 53 {skip}"),
                format!("raw OUTPUT {to} -p tcp -m tcp --dport 53 {skip}"),
                format!("raw OUTPUT {to} -p udp -m udp --dport 53 {skip}"),
                format!("raw OUTPUT {to} -p tcp -m tcp --dport 8080 {skip}"),
                format!("raw OUTPUT {from} -p tcp -m tcp --sport 8080 {skip}"),
                format!("filter INPUT {to} -p tcp -m tcp --dport 53 {allow}"),
                format!("filter INPUT {to} -p udp -m udp --dport 53 {allow}"),
                format!("filter OUTPUT {from} -p tcp -m tcp --sport 53 {allow}"),
                format!("filter OUTPUT {from} -p udp -m udp --sport 53 {allow}"),
            ]
        );
    }

    #[test]
    fn each_family_has_its_own_addresses() {
        let both = settings(&["169.254.20.10", "fd00::a", "10.96.0.10"], Fallback::None);
        assert_eq!(
            (both.desired(Family::V4).len(), both.desired(Family::V6).len()),
            (24, 12)
        );
    }

    #[test]
    fn with_a_fallback_only_live_addresses_are_untracked_and_others_translated_in_equal_shares() {
        let servers = ["10.0.0.1:53", "10.0.0.2:53", "[fd00::1]:53", "10.0.0.3:53"];
        let servers = servers.map(|text| text.parse().unwrap()).to_vec();
        let desired =
            texts(&settings(&["169.254.20.10"], Fallback::ClusterDns { servers }).desired(Family::V4));
        let dns = desired
            .iter()
            .filter(|text| text.starts_with("raw") && text.contains("port 53"));
        assert!(
            dns.clone()
                .all(|text| text.contains("--match-set egret-dnsd-alive-4 ")),
            "{desired:#?}"
        );
        assert_eq!(dns.count(), 8);
        let past = "-m set ! --match-set egret-dnsd-alive-4 dst -m comment --comment \"egret dnsd: not alive, counted\"";
        let to = "raw PREROUTING -d 169.254.20.10/32";
        for counted in [
            format!("{to} -p tcp -m tcp --dport 53 --tcp-flags FIN,SYN,RST,ACK SYN {past}"),
            format!("{to} -p udp -m udp --dport 53 {past}"),
        ] {
            assert!(desired.contains(&counted), "{counted}: {desired:#?}");
        }
        let shares: Vec<&String> = desired
            .iter()
            .filter(|text| text.starts_with("nat PREROUTING") && text.contains("-p udp"))
            .collect();
        assert_eq!(shares.len(), 3);
        for (text, parts) in shares.iter().zip([
            [
                "! --match-set egret-dnsd-alive-4 dst",
                "--probability 0.33333333349",
                "--to-destination 10.0.0.1:53",
            ],
            [
                "! --match-set egret-dnsd-alive-4 dst",
                "--probability 0.50000000000",
                "--to-destination 10.0.0.2:53",
            ],
            [
                "! --match-set egret-dnsd-alive-4 dst",
                "-p udp",
                "--to-destination 10.0.0.3:53",
            ],
        ]) {
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
        assert!(
            !shares[2].contains("statistic"),
            "the last takes what is left: {}",
            shares[2]
        );
    }
}
