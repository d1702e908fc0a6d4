//! What IPVS leads on, on packets. No kernel of ours has IPVS, so what it does to a packet is done by nft at the place where
//! IPVS does it (LOCAL_IN, priority 99): the destination is rewritten, and the packet goes out by OUTPUT with its sender's
//! address, without a socket and an input interface. One thing is not as with IPVS: it has no connection.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod node_world;

use egret_enforcer::backend::netfilter::cleanup::{self, Mode};
use egret_enforcer::backend::netfilter::marks::PodMarks;
use egret_enforcer::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Generation, Marks};
use egret_enforcer::backend::netfilter::model::attachment::{PodAttachment, PodInterface};
use egret_enforcer::backend::netfilter::model::available_sets::AvailableSets;
use egret_enforcer::backend::netfilter::model::settings::DenyAction;
use egret_enforcer::backend::netfilter::model::settings::JumpPosition;
use egret_enforcer::backend::netfilter::model::unknown_pods::ClosedInterfaces;
use egret_enforcer::backend::netfilter::names::{self, PodChains};
use egret_enforcer::backend::netfilter::render::dispatch;
use egret_enforcer::backend::netfilter::render::encapsulation;
use egret_enforcer::backend::netfilter::render::ipvs::{self, IpvsPod};
use egret_enforcer::backend::netfilter::render::source_check;
use egret_enforcer::backend::netfilter::render::{self, RenderContext};
use egret_enforcer::backend::netfilter::tables::jump_position::JumpPlacement;
use egret_enforcer::backend::netfilter::tables::restore::Change as Restore;
use egret_enforcer::node::ENCAPSULATION_PORTS;
use egret_kernel::Family;
use egret_kernel::iptables::{Flavour, Hook, InterfaceName, IpTables};
use egret_policies::model::{Action, Direction, Tier};
use egret_policies::rules::{DefaultAction, PeerMatch, PodRules, PortMatch, SetKind};
use egret_shared::net::Transport;

use node_world::{filter, in_fresh_namespace, pod, range, rule, run, set, tier};

/// Of the Service, and the node's own, as kube-proxy makes it on kube-ipvs0.
const SERVICE: &str = "10.96.0.1";
/// … of the same, to which `one` sends in the name of `other`.
const BORROWED: &str = "10.96.0.2";

#[test]
fn ipvs_traffic_is_judged_by_both_pods_at_output() {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || {
            let node = Node::new(flavour);
            node.member("add", "clients", "10.0.0.1");
            assert!(
                !node.arrives("one", SERVICE),
                "the own node is open, and not what is behind it"
            );
            node.member("add", "peers", "10.0.0.2");
            assert!(node.arrives("one", SERVICE), "both ends allow it");
            assert!(
                !node.arrives("one", "10.96.0.1:81"),
                "the port is that of the endpoint"
            );
            node.member("del", "clients", "10.0.0.1");
            assert!(!node.arrives("one", SERVICE), "the endpoint lets nobody in");
            node.flush(&names::ipvs_ingress());
            assert!(node.arrives("one", SERVICE), "that alone keeps it");
            node.member("del", "peers", "10.0.0.2");
            assert!(!node.arrives("one", SERVICE), "each packet is asked anew");
            node.flush(&names::ipvs_egress());
            assert!(node.arrives("one", SERVICE), "that alone keeps it");
        });
    }
}

#[test]
fn ipvs_forwards_no_spoofed_source_and_the_node_reaches_every_pod() {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || {
            let node = Node::new(flavour);
            node.member("add", "clients", "10.0.0.3");
            assert!(node.arrives("other", SERVICE), "who may send and may come in");
            assert!(!node.arrives("one", BORROWED), "in the name of another");
            node.flush(&names::source());
            assert!(node.arrives("one", BORROWED), "that alone keeps it");
            let before = count("arrived");
            send(&[], "10.0.0.2:8080");
            assert_eq!(
                count("arrived"),
                before + 1,
                "the node is no client of the pod's rules"
            );
            cleanup::everywhere(Mode::Remove).unwrap();
            assert!(!filter(flavour).contains("EGRET"), "{}", filter(flavour));
        });
    }
}

struct Node {
    flavour: Flavour,
}

impl Node {
    fn new(flavour: Flavour) -> Self {
        for name in ["default", "all"] {
            run("sysctl", &["-qw", &format!("net.ipv4.conf.{name}.rp_filter=0")]);
        }
        for (number, name) in [(1, "one"), (2, "two"), (3, "other")] {
            cable(number, name);
        }
        for address in [SERVICE, BORROWED] {
            ip(&format!("address add {address}/32 dev lo"));
        }
        ip("-n one address add 10.0.0.3/32 dev eth0");
        ip(&format!(
            "-n one route add {BORROWED} via 169.254.1.1 src 10.0.0.3"
        ));
        run("nft", &[IMITATED_IPVS]);
        let node = Self { flavour };
        for family in Family::ALL {
            node.restore(family);
        }
        node
    }

    fn restore(&self, family: Family) {
        let known: AvailableSets = ["peers", "clients"]
            .map(|name| (set(name), SetKind::Addresses.into()))
            .into();
        for id in known.keys() {
            let kind = match family {
                Family::V4 => "inet",
                Family::V6 => "inet6",
            };
            let name = names::set(*id, family);
            run("ipset", &["create", name.as_str(), "hash:ip", "family", kind]);
        }
        let pods = pods();
        let attached: Vec<PodAttachment> = (1..)
            .zip(&pods)
            .map(|(number, rules)| attached(number, rules))
            .collect();
        let ipvs_pods: Vec<IpvsPod> = attached
            .iter()
            .zip(&pods)
            .map(|(at, rules)| IpvsPod::of(at, rules))
            .collect();
        let masks = Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).unwrap();
        let mark = |direction| masks.mark(direction, Generation::new(5).unwrap());
        let marks = PodMarks {
            egress: mark(Direction::Egress),
            ingress: mark(Direction::Ingress),
        };
        let around = RenderContext {
            family,
            sets: &known,
            interfaces: &[],
            tells: false,
        };
        let closed = ClosedInterfaces::default();
        let mut rewrite = dispatch::shared(&attached, &closed, None, masks, DenyAction::Drop, family);
        ipvs::add(&mut rewrite, &ipvs_pods, family);
        rewrite.extend(source_check::chains(&attached, &closed, None, family));
        let encapsulated = encapsulation::chain(&ENCAPSULATION_PORTS.into(), family);
        rewrite.insert(names::encapsulation().as_str().to_owned(), encapsulated);
        rewrite.extend(pods.iter().flat_map(|rules| render::pod(rules, marks, around)));
        let put = JumpPlacement {
            copies: 0,
            place: JumpPosition::Insert,
        };
        let jumps = [Hook::Prerouting, Hook::Forward, Hook::Input, Hook::Output].map(|hook| (hook, put));
        let restore = Restore {
            rewrite,
            jumps: jumps.into(),
            ..Restore::default()
        };
        IpTables::new(self.flavour, family)
            .restore(&restore.render())
            .unwrap();
    }

    fn member(&self, what: &str, name: &str, address: &str) {
        run(
            "ipset",
            &[what, names::set(set(name), Family::V4).as_str(), address],
        );
    }

    fn flush(&self, chain: &egret_kernel::iptables::ChainName) {
        run(
            &format!("iptables-{}", self.flavour.name()),
            &["-t", names::table(chain.as_str()).name(), "-F", chain.as_str()],
        );
    }

    /// Whether what a pod sends to the Service is sent on to the endpoint. From where it comes in to where it goes out is
    /// one step of the kernel.
    fn arrives(&self, from: &str, to: &str) -> bool {
        let to = if to.contains(':') {
            to.to_owned()
        } else {
            format!("{to}:80")
        };
        let before = [count("came"), count("arrived")];
        send(&["ip", "netns", "exec", from], &to);
        while count("came") == before[0] {
            std::thread::yield_now();
        }
        count("arrived") > before[1]
    }
}

const IMITATED_IPVS: &str = "table ip imitated {
    counter came { }
    counter arrived { }
    chain in {
        type filter hook prerouting priority -400;
        ip daddr 10.96.0.0/16 ip protocol udp counter name came
    }
    chain ipvs {
        type filter hook input priority 99;
        ip daddr 10.96.0.0/16 udp dport 80 ip daddr set 10.0.0.2 udp dport set 8080 dup to 10.0.0.2 drop
        ip daddr 10.96.0.0/16 udp dport 81 ip daddr set 10.0.0.2 udp dport set 8081 dup to 10.0.0.2 drop
    }
    chain out {
        type filter hook postrouting priority 200;
        oifname \"veth-2\" ip protocol udp counter name arrived
    }
}";

/// One whose egress is isolated, one whose ingress is, and one about which nothing is said.
fn pods() -> Vec<PodRules> {
    let isolated = |rules| vec![tier(Tier::NetworkPolicy, rules, DefaultAction::Deny)];
    let port = range(Transport::Udp, 8080, 8080);
    let peers = rule(Action::Allow, PeerMatch::In(set("peers")), port);
    let own_node = rule(Action::Allow, PeerMatch::OwnNode, PortMatch::Any);
    let clients = rule(Action::Allow, PeerMatch::In(set("clients")), PortMatch::Any);
    vec![
        pod(
            "one",
            &["10.0.0.1", "fd00::1"],
            isolated(vec![peers, own_node]),
            Vec::new(),
        ),
        pod(
            "two",
            &["10.0.0.2", "fd00::2"],
            Vec::new(),
            isolated(vec![clients]),
        ),
        pod("other", &["10.0.0.3", "fd00::3"], Vec::new(), Vec::new()),
    ]
}

fn attached(number: u8, rules: &PodRules) -> PodAttachment {
    let interface = InterfaceName::new(format!("veth-{number}")).unwrap();
    PodAttachment {
        chains: PodChains::of(&rules.pod),
        interfaces: vec![PodInterface::Own(interface)],
        addresses: rules.addresses.clone(),
    }
}

fn cable(number: u8, name: &str) {
    ip(&format!("netns add {name}"));
    ip(&format!(
        "link add veth-{number} type veth peer name eth0 netns {name}"
    ));
    ip(&format!("address add 169.254.1.1/32 dev veth-{number}"));
    ip(&format!("link set veth-{number} up"));
    ip(&format!("route add 10.0.0.{number} dev veth-{number}"));
    ip(&format!("-n {name} address add 10.0.0.{number}/32 dev eth0"));
    ip(&format!("-n {name} link set eth0 up"));
    ip(&format!("-n {name} route add 169.254.1.1 dev eth0"));
    ip(&format!(
        "-n {name} route add default via 169.254.1.1 src 10.0.0.{number}"
    ));
    // Nobody waits for an answer to who has an address.
    let of = |namespace: &[&str], interface: &str| {
        let words = [namespace, &["link", "show", interface]].concat();
        let shown = run("ip", &words);
        let (_, rest) = shown.split_once("link/ether ").unwrap();
        rest.split_whitespace().next().unwrap().to_owned()
    };
    let (node, pod) = (of(&[], &format!("veth-{number}")), of(&["-n", name], "eth0"));
    ip(&format!(
        "neighbour replace 10.0.0.{number} lladdr {pod} dev veth-{number}"
    ));
    ip(&format!(
        "-n {name} neighbour replace 169.254.1.1 lladdr {node} dev eth0"
    ));
}

fn count(counter: &str) -> u64 {
    let listed = run("nft", &["list", "counter", "ip", "imitated", counter]);
    let (_, rest) = listed.split_once("packets ").unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

fn ip(words: &str) {
    run("ip", &words.split(' ').collect::<Vec<_>>());
}

fn send(within: &[&str], to: &str) {
    let (address, port) = to.split_once(':').unwrap();
    let script = format!("echo hello > /dev/udp/{address}/{port}");
    let words = [within, &["bash", "-c", &script]].concat();
    run(words[0], &words[1..]);
}
