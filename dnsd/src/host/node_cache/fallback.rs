//! State of the fallback that is read from the tables: its servers, and its packet counters.

use std::net::SocketAddr;

use egret_kernel::iptables::{Batch, CountedRule, Hook, Table, TableListing};
use egret_kernel::{Family, Transport};

use super::rules::{COUNTED, TRANSLATED};
use crate::config::host_setup::{Fallback, RuleSettings};
use crate::host::rule::DesiredRule;

/// The most learned servers of a family: each new connection of the node passes their rules while dnsd is alive.
const MOST_LEARNED: usize = 16;

impl RuleSettings {
    /// The settings with the fallback's servers of a family: the configured ones, else those that the enforcer names,
    /// else those in the table. So a working server is kept when the enforcer names none, and a dnsd that starts before
    /// the enforcer changes nothing.
    #[must_use]
    pub fn asking(&self, family: Family, endpoints: &[SocketAddr], nat: &TableListing) -> Self {
        let Fallback::ClusterDns { servers: configured } = &self.fallback else {
            return self.clone();
        };
        let is_of_family = |server: &SocketAddr| Family::of(server.ip()) == family;
        let is_other = |server: &SocketAddr| is_of_family(server) && !self.local_ips.contains(&server.ip());
        let configured: Vec<_> = configured.iter().copied().filter(is_of_family).collect();
        let endpoints = endpoints.iter().copied().filter(is_other);
        let learned = [
            endpoints.collect(),
            servers_in(nat).into_iter().filter(is_other).collect(),
        ];
        let learned = learned.into_iter().find(|servers: &Vec<_>| !servers.is_empty());
        let servers = if configured.is_empty() {
            learned.into_iter().flatten().take(MOST_LEARNED).collect()
        } else {
            configured
        };
        Self {
            fallback: Fallback::ClusterDns { servers },
            ..self.clone()
        }
    }
}

/// The servers of the rules in the table, each once, in order.
fn servers_in(nat: &TableListing) -> Vec<SocketAddr> {
    let texts = nat.chains.iter().flat_map(|chain| chain.texts());
    let destinations = texts.filter(|text| text.contains(TRANSLATED)).filter_map(|text| {
        text.split_once("--to-destination ")?
            .1
            .split(' ')
            .next()?
            .parse()
            .ok()
    });
    let mut servers = Vec::new();
    for server in destinations {
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    servers
}

/// The number of queries over a protocol while no dnsd was alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BypassCount {
    /// The protocol.
    pub transport: Transport,
    /// Datagrams, or connections.
    pub count: u64,
}

/// The packets that bypassed dnsd, by the counters of the raw table, and the change that resets these counters: so
/// neither a new process nor a second crash counts them twice.
#[must_use]
pub fn past(raw: &TableListing, desired: &[DesiredRule]) -> Option<(Vec<BypassCount>, Batch)> {
    let (mut counts, mut batch) = (Vec::new(), Batch::new(Table::Raw));
    let chain = raw.chain(Hook::Prerouting.name())?;
    let is_past = |rule: &&CountedRule| rule.packets > 0 && rule.text.contains(COUNTED);
    for rule in chain.rules.iter().filter(is_past) {
        let transport = if rule.text.contains("-p udp") {
            Transport::Udp
        } else {
            Transport::Tcp
        };
        counts.push(BypassCount {
            transport,
            count: rule.packets,
        });
        if let Some(same) = desired
            .iter()
            .find(|desired| desired.rule.to_string() == rule.text)
        {
            batch.delete(Hook::Prerouting, &rule.text);
            batch.insert(Hook::Prerouting, &same.rule);
        }
    }
    (!counts.is_empty()).then_some((counts, batch))
}

#[cfg(test)]
mod tests {
    use super::super::rules::tests::settings;
    use super::*;

    fn asked(settings: &RuleSettings, family: Family) -> Vec<String> {
        match &settings.fallback {
            Fallback::None => vec!["nobody, ever".to_owned()],
            Fallback::ClusterDns { servers } => {
                let of_family = servers.iter().filter(|server| Family::of(server.ip()) == family);
                of_family.map(SocketAddr::to_string).collect()
            }
        }
    }

    #[test]
    fn fallback_servers_are_the_configured_else_the_named_else_those_in_the_table() {
        let servers =
            |texts: &[&str]| -> Vec<SocketAddr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let of = |texts| {
            settings(
                &["10.0.0.1", "fd00::a"],
                Fallback::ClusterDns {
                    servers: servers(texts),
                },
            )
        };
        let before = of(&["10.0.0.7:53", "10.0.0.8:53", "[fd00::7]:53"]);
        let standing = |family| {
            let rules = before.desired(family);
            let rules = rules
                .iter()
                .filter(|rule| (rule.table, rule.hook) == (Table::Nat, Hook::Prerouting));
            let appended: String = rules
                .map(|rule| format!("-A PREROUTING {}\n", rule.rule))
                .collect();
            let text = format!("*nat\n:PREROUTING ACCEPT\n{appended}COMMIT\n");
            egret_kernel::iptables::parse(&text).remove(0)
        };
        let endpoints = servers(&["10.0.0.9:5353", "[fd00::9]:53", "10.0.0.1:53"]);
        type Texts = &'static [&'static str];
        let cases: [(Texts, &[SocketAddr], [Texts; 2]); 5] = [
            (
                &["10.0.0.3:53"][..],
                &endpoints[..],
                [&["10.0.0.3:53"][..], &["[fd00::9]:53"]],
            ),
            (&[], &endpoints, [&["10.0.0.9:5353"], &["[fd00::9]:53"]]),
            (&[], &endpoints[..1], [&["10.0.0.9:5353"], &["[fd00::7]:53"]]),
            (&[], &[], [&["10.0.0.7:53", "10.0.0.8:53"], &["[fd00::7]:53"]]),
            (
                &[],
                &endpoints[2..],
                [&["10.0.0.7:53", "10.0.0.8:53"], &["[fd00::7]:53"]],
            ),
        ];
        for (configured, endpoints, expected) in cases {
            for (family, expected) in Family::ALL.into_iter().zip(expected) {
                let now = of(configured).asking(family, endpoints, &standing(family));
                assert_eq!(asked(&now, family), expected, "{configured:?}, {endpoints:?}");
            }
        }
        let none = settings(&["10.0.0.1"], Fallback::None);
        assert_eq!(none.asking(Family::V4, &endpoints, &standing(Family::V4)), none);
        let nobody = of(&[]).asking(Family::V4, &[], &TableListing::empty("nat"));
        assert_eq!(asked(&nobody, Family::V4), [""; 0]);
    }

    #[test]
    fn the_number_of_learned_servers_is_limited() {
        let endpoints: Vec<SocketAddr> = (1..=100).map(|last| ([10, 0, 1, last], 53).into()).collect();
        let fallback = Fallback::ClusterDns { servers: Vec::new() };
        let now =
            settings(&["10.0.0.1"], fallback).asking(Family::V4, &endpoints, &TableListing::empty("nat"));
        assert_eq!(asked(&now, Family::V4).len(), MOST_LEARNED);
    }

    #[test]
    fn bypass_counters_are_read_and_reset() {
        let fallback = Fallback::ClusterDns { servers: Vec::new() };
        let desired = settings(&["10.0.0.1"], fallback).desired(Family::V4);
        let ours = desired.iter().map(|rule| rule.rule.to_string());
        let [tcp, udp]: [String; 2] = ours
            .filter(|rule| rule.contains(COUNTED))
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        let read = |counts: [u64; 3]| {
            let [other, of_tcp, of_udp] = counts;
            let text = format!(
                "*raw\n:PREROUTING ACCEPT\n[{other}:1] -A PREROUTING -j NOTRACK\n[{of_tcp}:1] -A PREROUTING {tcp}\n\
                 [{of_udp}:1] -A PREROUTING {udp}\nCOMMIT\n"
            );
            past(&egret_kernel::iptables::parse(&text)[0], &desired)
                .map(|(counts, batch)| (counts, batch.render()))
        };
        assert_eq!(read([9, 0, 0]), None);
        let (counts, batch) = read([9, 2, 7]).unwrap();
        let of = |transport, count| BypassCount { transport, count };
        assert_eq!(counts, [of(Transport::Tcp, 2), of(Transport::Udp, 7)]);
        for rule in [&tcp, &udp] {
            let again = format!("-D PREROUTING {rule}\n-I PREROUTING {rule}\n");
            assert!(batch.contains(&again), "{batch}");
        }
        let (counts, batch) = read([9, 0, 7]).unwrap();
        assert_eq!(counts, [of(Transport::Udp, 7)]);
        assert_eq!(batch.matches("-D ").count(), 1, "{batch}");
    }
}
