//! A node in a network namespace: pods, the outside, things of others, and what the kernel holds of all that.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use egret_enforcer::backend::netfilter::{Netfilter, names};
use egret_enforcer::backend::{Backend as _, SyncStatus};
use egret_kernel::conntrack::Conntrack;
use egret_kernel::ipset::{IpSets, SetListing};
use egret_kernel::iptables::{Flavour, IpTables};
use egret_kernel::{Family, Mark};
use egret_policies::rules::Batch;

use crate::node_world::{ByLastOctet, NOW, backend, run};
use crate::tun::{ACK, ACK_BACK, Content, Packet, SYN_ACK, What, Wire};

/// The interfaces of pods 1 to 3, the way out, and one that only takes up what proves that all is over.
const WIRES: [&str; 5] = ["veth-1", "veth-2", "veth-3", OUTSIDE, "back"];
const OUTSIDE: &str = "eth0";

const ADDRESSES: &str = "
link set lo up
link set veth-1 up
link set veth-2 up
link set veth-3 up
link set eth0 up
link set back up
addr add 192.0.2.1/32 dev lo
addr add 2001:db8:f::1/128 dev lo nodad
route add 10.0.0.1/32 dev veth-1
route add 10.0.0.2/32 dev veth-2
route add 10.0.0.3/32 dev veth-3
route add 198.51.100.99/32 dev back
route add default dev eth0
route add fd00::1/128 dev veth-1
route add fd00::2/128 dev veth-2
route add fd00::3/128 dev veth-3
route add ::/0 dev eth0
";

/// Rules in front of ours and behind, a chain, and a way by which clients outside are led on.
const RULES: &str = "*filter
:THEIRS - [0:0]
[3:180] -A FORWARD -s 192.0.2.200/32 -j THEIRS
[5:300] -A FORWARD -m set --match-set theirs dst -j ACCEPT
[7:420] -A INPUT -s 192.0.2.200/32 -m comment --comment \"theirs, not egret's\" -j THEIRS
[9:540] -A THEIRS -m limit --limit 5/sec -j RETURN
COMMIT
*nat
-A PREROUTING -i eth0 -d 192.0.2.1/32 -p tcp -m tcp --dport 30080 -j DNAT --to-destination 203.0.113.66:80
COMMIT
";

const RULES_V6: &str = "*filter
:THEIRS - [0:0]
[3:180] -A FORWARD -s 2001:db8::200/128 -j THEIRS
[9:540] -A INPUT -s 2001:db8::200/128 -j THEIRS
COMMIT
";

const TABLE: &str = "table inet theirs { chain forward { type filter hook forward priority 10; ip saddr 192.0.2.200 counter packets 4 bytes 240 accept; }; set s { type ipv4_addr; elements = { 192.0.2.77 }; }; }";

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) flavour: Flavour,
    wires: BTreeMap<&'static str, Wire>,
    last: Cell<u16>,
}

/// A connection that is asked for: by whom (an interface), from where, to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) through: &'static str,
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    pub(crate) what: What,
}

impl Probe {
    /// Whether this test holds the other end, too: not of what the node answers itself or leads elsewhere.
    pub(crate) fn can_be_answered(&self) -> bool {
        self.what != What::Ping && !["192.0.2.1", "2001:db8:f::1"].contains(&self.to)
    }
}

/// One that was opened.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) probe: Probe,
    number: u16,
    answered_by: &'static str,
}

/// Nothing is left to be done.
pub(crate) fn hold_settled(standing: &SyncStatus) {
    assert!(
        standing.pending.is_empty() && !standing.wants_retry(),
        "{standing:?}"
    );
}

impl Node {
    /// In a fresh network namespace.
    pub(crate) fn new(flavour: Flavour) -> Self {
        for (name, value) in [
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            ("ipv4/ip_forward", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            // Answers of the node's own stack are counted on: no probe may be left without.
            ("ipv4/icmp_ratelimit", "0"),
            ("ipv6/icmp/ratelimit", "0"),
        ] {
            fs::write(format!("/proc/sys/net/{name}"), value).unwrap();
        }
        let wires = WIRES.map(|name| (name, Wire::new(name)));
        feed("ip", &["-batch", "-"], ADDRESSES);
        run("ipset", &["create", "theirs", "hash:ip"]);
        run("ipset", &["add", "theirs", "192.0.2.77"]);
        for (family, rules) in [(Family::V4, RULES), (Family::V6, RULES_V6)] {
            IpTables::new(flavour, family).restore(rules).unwrap();
        }
        feed("nft", &["-f", "-"], TABLE);
        Self {
            flavour,
            wires: wires.into_iter().collect(),
            last: Cell::new(20_000),
        }
    }

    /// Forgets all that was ever opened. Every flow is without a bit that nobody uses.
    pub(crate) fn forget_flows(&self) {
        let unused = NonZeroU32::new(1 << 2).unwrap();
        Conntrack::open()
            .unwrap()
            .flush_mark(Mark::new(0, unused))
            .unwrap();
    }

    /// A backend that knows nothing yet.
    pub(crate) fn backend(&self) -> Netfilter {
        backend(self.flavour, ByLastOctet)
    }

    /// A life that begins with this batch, and how it stands then.
    pub(crate) fn start(&self, batch: &Batch) -> (Netfilter, SyncStatus) {
        let mut backend = self.backend();
        backend.adopt(NOW).unwrap();
        let standing = backend.apply(batch, NOW);
        (backend, standing)
    }

    /// Which of these would be let through now.
    pub(crate) fn ask(&self, probes: &[Probe]) -> Vec<bool> {
        let numbers: Vec<u16> = probes.iter().map(|probe| self.send(probe)).collect();
        let seen = self.seen();
        let came = |number: &u16| seen.iter().any(|(_, packet)| packet.is_of(*number));
        numbers.iter().map(came).collect()
    }

    /// Opens it; none where it is refused.
    pub(crate) fn open(&self, probe: Probe) -> Option<Flow> {
        let number = self.send(&probe);
        let (answered_by, _) = *self.seen().iter().find(|(_, packet)| packet.is_of(number))?;
        let flow = Flow {
            probe,
            number,
            answered_by,
        };
        self.wires[answered_by].send(&flow.back(SYN_ACK));
        self.wires[probe.through].send(&flow.on());
        assert!(self.goes_on(&flow), "{flow:?} was opened");
        Some(flow)
    }

    /// Whether packets of a flow come through in both directions.
    pub(crate) fn goes_on(&self, flow: &Flow) -> bool {
        self.seen();
        self.wires[flow.probe.through].send(&flow.on());
        self.wires[flow.answered_by].send(&flow.back(ACK_BACK));
        let came = self.seen();
        let at = |wire: &str| {
            came.iter()
                .any(|(at, packet)| *at == wire && packet.is_of(flow.number))
        };
        at(flow.answered_by) && at(flow.probe.through)
    }

    fn send(&self, probe: &Probe) -> u16 {
        let number = self.next();
        let (from, to) = (address(probe.from), address(probe.to));
        self.wires[probe.through].send(&Packet::opening(from, to, number, probe.what));
        number
    }

    fn next(&self) -> u16 {
        let next = self.last.get() + 1;
        self.last.set(if next == 60_000 { 20_000 } else { next });
        next
    }

    /// All that came out until something that nobody judges did.
    fn seen(&self) -> Vec<(&'static str, Packet)> {
        let last = self.next();
        let (from, to) = (address("198.51.100.1"), address("198.51.100.99"));
        self.wires[OUTSIDE].send(&Packet::opening(from, to, last, What::Udp(9)));
        let began = Instant::now();
        let mut seen = Vec::new();
        loop {
            for (name, wire) in &self.wires {
                seen.extend(wire.received().into_iter().map(|packet| (*name, packet)));
            }
            if seen
                .iter()
                .any(|(at, packet)| *at == "back" && packet.is_of(last))
            {
                return seen;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "nothing comes through");
            std::thread::yield_now();
        }
    }

    /// All that the kernel holds.
    pub(crate) fn holds(&self) -> KernelDump {
        let mut held = KernelDump::default();
        for family in Family::ALL {
            let program = match family {
                Family::V4 => "iptables",
                Family::V6 => "ip6tables",
            };
            let text = run(
                &format!("{program}-{}-save", self.flavour.name()),
                &["-c", "-t", "filter"],
            );
            held.take(family, &text);
        }
        for set in IpSets::open().unwrap().list("").unwrap() {
            let line = described(&set);
            let (ours, theirs) = (&mut held.ours, &mut held.theirs);
            if names::is_own_set(&set.name) || names::is_temporary(&set.name) {
                ours
            } else {
                theirs
            }
            .push(line);
        }
        held
    }

    /// What is others' and not in the filter table.
    pub(crate) fn others(&self) -> String {
        let table = run("nft", &["-a", "list", "table", "inet", "theirs"]);
        let nat = run(&format!("iptables-{}-save", self.flavour.name()), &["-t", "nat"]);
        let rules = nat.lines().filter(|line| line.starts_with("-A"));
        rules.fold(table, |all, line| all + line + "\n")
    }
}

impl Flow {
    /// What its opener sends.
    fn on(&self) -> Packet {
        let (from, to) = (address(self.probe.from), address(self.probe.to));
        let What::Tcp(port) = self.probe.what else {
            return Packet::opening(from, to, self.number, self.probe.what);
        };
        let content = Content::Tcp {
            from: self.number,
            to: port,
            flags: ACK,
        };
        Packet {
            source: from,
            destination: to,
            content,
        }
    }

    /// What the other end sends.
    fn back(&self, flags: u8) -> Packet {
        let content = match self.probe.what {
            What::Tcp(port) => Content::Tcp {
                from: port,
                to: self.number,
                flags,
            },
            What::Udp(port) => Content::Udp {
                from: port,
                to: self.number,
            },
            What::Ping => Content::Echo { number: self.number },
        };
        Packet {
            source: address(self.probe.to),
            destination: address(self.probe.from),
            content,
        }
    }
}

/// What the kernel holds, in lines: ours without counters, lifetimes and generations; that of others as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelDump {
    pub(crate) ours: Vec<String>,
    pub(crate) theirs: Vec<String>,
}

impl KernelDump {
    fn take(&mut self, family: Family, listing: &str) {
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for line in listing.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                [name, ..] if name.starts_with(':') => {
                    let chain = name.trim_start_matches(':');
                    let (ours, theirs) = (&mut self.ours, &mut self.theirs);
                    let list = if names::is_own_chain(chain) { ours } else { theirs };
                    list.push(format!("{family:?} chain {chain}"));
                }
                // Counters, of rules that were.
                [_counters, "-A", chain, ..] if *chain == names::totals().as_str() => {}
                [_counters, "-A", chain, rule @ ..] if names::is_own_chain(chain) => {
                    let is_shared = names::is_shared(chain);
                    let rule = if is_shared {
                        rule.join(" ")
                    } else {
                        without_marks(rule)
                    };
                    self.ours.push(format!("{family:?} {chain} {rule}"));
                }
                [_counters, "-A", hook, rule @ ..] => {
                    let place = places.entry(hook).or_default();
                    if rule.iter().any(|word| names::is_own_chain(word)) {
                        self.ours
                            .push(format!("{family:?} {hook} at {place} {}", rule.join(" ")));
                    } else {
                        self.theirs.push(format!("{family:?} {line}"));
                    }
                    *place += 1;
                }
                _ => {}
            }
        }
    }
}

fn without_marks(rule: &[&str]) -> String {
    let word = |word: &&str| match word.split_once('/') {
        Some((value, mask)) if value.starts_with("0x") => format!("GENERATION/{mask}"),
        Some(_) | None => (*word).to_owned(),
    };
    rule.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn described(set: &SetListing) -> String {
    let mut members: Vec<String> = set.entries.iter().map(|entry| entry.member.to_string()).collect();
    members.sort();
    format!(
        "set {} {} {:?} {:?} {} {members:?}",
        set.name, set.type_name, set.family, set.timeout, set.maxelem
    )
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn feed(program: &str, arguments: &[&str], input: &str) {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{program} {input}");
}
