//! Rules by hand, and a network namespace for each test, gone when the test ends.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::io::Write as _;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::process::Command;

use egret_enforcer::backend::netfilter::bridges::BridgeNetfilter;
use egret_enforcer::backend::netfilter::denials::{Denial, DenialRegistry};
use egret_enforcer::backend::netfilter::marks::{DEFAULT_EGRESS, DEFAULT_INGRESS, Marks};
use egret_enforcer::backend::netfilter::model::settings::{DenyAction, NflogSettings};
use egret_enforcer::backend::netfilter::model::unknown_pods::UnknownPods;
use egret_enforcer::backend::netfilter::{Netfilter, Settings};
use egret_enforcer::backend::nftables::{Nftables, Settings as NftablesSettings};
use egret_enforcer::backend::unknown_pods::Stance;
use egret_enforcer::backend::{Backend, Decider, VerdictKey};
use egret_enforcer::node::{Locate, Location};
use egret_kernel::iptables::{Flavour, InterfaceName};
use egret_kernel::nflog::Listener;
use egret_policies::model::{Action, Tier};
use egret_policies::rules::{
    Audit, Batch, Breadth, DefaultAction, Direction, DirectionRules, Member, MembersChanged, NodeRules,
    Origin, PeerMatch, PodRules, PortMatch, Rule, SetId, SetKind, SetSpec, TierRules,
};
use egret_shared::net::{PortRange, Transport};
use egret_shared::pod::PodKey;
use egret_shared::revision::Revision;
use egret_shared::time::Timestamp;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};

/// Runs a test on a thread of its own in a fresh network namespace, with a `/run` of its own for the lock of legacy
/// iptables. Without the rights to make one it says so, and fails where `CI=true`.
pub(crate) fn in_fresh_namespace(test: impl FnOnce() + Send + 'static) {
    let outcome = std::thread::spawn(|| match enter() {
        Ok(()) => {
            test();
            None
        }
        Err(errno) => Some(errno),
    });
    match outcome.join() {
        Ok(None) => {}
        Ok(Some(errno)) if std::env::var("CI").is_ok_and(|ci| ci == "true") => {
            panic!("a network namespace is needed to test against the kernel: {errno}")
        }
        Ok(Some(errno)) => {
            say(&format!(
                "NOT TESTED: no network namespace ({errno}); run as root"
            ));
        }
        Err(panic) => resume_unwind(panic),
    }
}

/// Past the test harness, which would keep a macro's words to itself.
fn say(words: &str) {
    writeln!(std::io::stderr(), "{words}").expect("standard error is open");
}

fn enter() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
    let nothing = None::<&str>;
    mount(
        nothing,
        "/",
        nothing,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        nothing,
    )?;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), nothing)?;
    run("ip", &["link", "set", "lo", "up"]);
    Ok(())
}

/// Runs a program that must succeed, and returns what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What both families hold in the filter table, without counters and remarks.
pub(crate) fn filter(flavour: Flavour) -> String {
    let of = |program: &str| run(&format!("{program}-{}-save", flavour.name()), &["-t", "filter"]);
    let text = of("iptables") + &of("ip6tables");
    text.lines()
        .filter(|line| !line.starts_with(['#', ':']))
        .map(|line| line.to_owned() + "\n")
        .collect()
}

/// A backend in this namespace.
pub(crate) fn backend(flavour: Flavour, locate: impl Locate + 'static) -> Netfilter {
    backend_marking(
        Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).unwrap(),
        flavour,
        locate,
    )
}

/// The same with other marks.
pub(crate) fn backend_marking(marks: Marks, flavour: Flavour, locate: impl Locate + 'static) -> Netfilter {
    Netfilter::open(
        Settings {
            flavour,
            marks,
            deny: DenyAction::Drop,
            telling: None,
        },
        Box::new(locate),
    )
    .unwrap()
}

/// The backend `nftables` in this namespace.
pub(crate) fn nftables(telling: Option<NflogSettings>, locate: impl Locate + 'static) -> Nftables {
    let settings = NftablesSettings {
        marks: Marks::new(DEFAULT_EGRESS, DEFAULT_INGRESS).unwrap(),
        deny: DenyAction::Drop,
        telling,
        unknown: UnknownPods {
            stance: Stance::Allow,
            interfaces: Vec::new(),
        },
        accepted_marks: Vec::new(),
        bridges: BridgeNetfilter::Off,
    };
    Nftables::open(settings, Box::new(locate)).unwrap()
}

/// Every pod has the interface `veth-` and the last octet of its first address.
#[derive(Debug)]
pub(crate) struct ByLastOctet;

impl Locate for ByLastOctet {
    fn locate(&mut self, addresses: &[IpAddr]) -> Result<Vec<Location>, String> {
        let last = match addresses[0] {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(address) => address.octets()[15],
        };
        Ok(vec![Location::own(
            InterfaceName::new(format!("veth-{last}")).unwrap(),
        )])
    }
}

/// No pod has an interface.
#[derive(Debug)]
pub(crate) struct Nowhere;

impl Locate for Nowhere {
    fn locate(&mut self, _addresses: &[IpAddr]) -> Result<Vec<Location>, String> {
        Err("there is no route".to_owned())
    }
}

/// The pod is behind `lo`, so that what this host sends itself is the pod's.
#[derive(Debug)]
pub(crate) struct ThisHost;

impl Locate for ThisHost {
    fn locate(&mut self, _addresses: &[IpAddr]) -> Result<Vec<Location>, String> {
        Ok(vec![Location::own(InterfaceName::new("lo").unwrap())])
    }
}

/// What the kernel tells next of packets that were denied, or would be.
pub(crate) fn told(listener: &mut Listener, denials: &DenialRegistry) -> Vec<Denial> {
    let mut waits = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    poll(&mut waits, PollTimeout::from(3000_u16)).unwrap();
    let packets = listener.read().unwrap().packets;
    packets
        .iter()
        .map(|packet| denials.find(&packet.prefix).unwrap())
        .collect()
}

/// Packets that the NetworkPolicy tier refused.
pub(crate) fn packets_denied(backend: &dyn Backend) -> u64 {
    let key = VerdictKey {
        decider: Decider::Tier(Tier::NetworkPolicy),
        action: Action::Deny.into(),
        direction: Direction::Egress,
    };
    let counts = backend.counters().read().unwrap();
    counts
        .iter()
        .filter(|count| count.key == key)
        .map(|count| count.packets)
        .sum()
}

pub(crate) const NOW: Timestamp = Timestamp::from_millis(1_000_000);

pub(crate) fn seconds(seconds: u64) -> Timestamp {
    Timestamp::from_millis(NOW.as_millis() + 1000 * seconds)
}

pub(crate) fn set(name: &str) -> SetId {
    SetId::of_content(name)
}

pub(crate) fn address(text: &str) -> Member {
    Member::Address(text.parse().unwrap())
}

pub(crate) fn network(text: &str) -> Member {
    Member::Network(text.parse().unwrap())
}

pub(crate) fn range(transport: Transport, first: u16, last: u16) -> PortMatch {
    PortMatch::Range(transport, PortRange::new(first, last).unwrap())
}

pub(crate) fn rule(action: Action, peer: PeerMatch, port: PortMatch) -> Rule {
    let origin = Origin {
        policy: "NetworkPolicy/default/web".into(),
        rule: 0,
        name: None,
    };
    Rule {
        action,
        peer,
        except: None,
        port,
        origin,
        attribution: None,
    }
}

pub(crate) fn tier(tier: Tier, rules: Vec<Rule>, otherwise: DefaultAction) -> TierRules {
    TierRules {
        tier,
        rules: rules.into(),
        default_action: otherwise,
    }
}

pub(crate) fn pod(
    name: &str,
    addresses: &[&str],
    egress: Vec<TierRules>,
    ingress: Vec<TierRules>,
) -> PodRules {
    PodRules {
        audit: Audit::default(),
        pod: PodKey::new("default", name),
        uid: None,
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        egress: DirectionRules::of(egress),
        ingress: DirectionRules::of(ingress),
    }
}

/// A batch, said part by part.
pub(crate) struct Change(pub(crate) Batch);

impl Change {
    pub(crate) fn new() -> Self {
        Self(Batch::empty(Revision::ZERO.next()))
    }

    pub(crate) fn set(mut self, name: &str, kind: SetKind, members: &[(Member, Option<Timestamp>)]) -> Self {
        self.0.sets_created.push(SetSpec {
            id: set(name),
            kind,
            breadth: Breadth::Narrow,
            description: name.into(),
        });
        self.members(name, members, &[])
    }

    pub(crate) fn members(
        mut self,
        name: &str,
        added: &[(Member, Option<Timestamp>)],
        removed: &[Member],
    ) -> Self {
        self.0.members_changed.push(MembersChanged {
            set: set(name),
            added: added.to_vec(),
            removed: removed.to_vec(),
        });
        self
    }

    /// Lists for clients outside.
    pub(crate) fn node_rules(mut self, tiers: Vec<TierRules>) -> Self {
        self.0.node_rules = Some(NodeRules {
            exposed: DirectionRules::of(tiers),
        });
        self
    }

    pub(crate) fn rules(mut self, rules: PodRules) -> Self {
        self.0.rules_replaced.push(rules);
        self
    }
}
