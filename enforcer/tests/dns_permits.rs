//! Permits for answers of the kernel: whose rules certainly let them ask, and never while the rules change.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod node_world;

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use egret_enforcer::backend::dns_permits::DnsPermits;
use egret_enforcer::backend::none::NoVerdicts;
use egret_enforcer::backend::{Backend, BackendError, Pending, SyncStatus, VerdictCounters};
use egret_kernel::dns_permits::Permits;
use egret_policies::model::{Action, Tier};
use egret_policies::rules::{
    Audit, Batch, DefaultAction, DirectionRules, OWN_NODE, Origin, PeerMatch, PodRules, PortMatch, Rule,
    TierRules,
};
use egret_shared::net::Transport;
use egret_shared::pod::PodKey;
use egret_shared::revision::Revision;
use egret_shared::time::Timestamp;

use node_world::{NOW, pod, range, rule, set, tier};

const POD: &str = "10.0.0.1";

/// The directory of a test, in the BPF file system.
struct Directory(PathBuf);

impl Directory {
    /// None without root or a BPF file system, loudly.
    fn new() -> Option<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("/sys/fs/bpf/eg-permits-{}-{number}", std::process::id()));
        match Permits::create(&path) {
            Ok(_) => Some(Self(path)),
            Err(error) => {
                assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{error}");
                // Past the harness, which would swallow it.
                let word = format!("SKIPPED: no permits here: {error}\n");
                std::io::stderr().write_all(word.as_bytes()).unwrap();
                None
            }
        }
    }

    fn permits(&self) -> usize {
        let permits = Permits::open(&self.0).unwrap().unwrap();
        permits.of_pods().keys().unwrap().len()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        Permits::remove(&self.0).unwrap();
    }
}

/// A filter that looks at the permits while it changes rules.
#[derive(Debug, Default)]
struct Filter {
    directory: PathBuf,
    /// Permits during each change.
    seen: Arc<Mutex<Vec<usize>>>,
    is_pending: Arc<Mutex<bool>>,
}

impl Filter {
    fn status(&self) -> SyncStatus {
        let mut status = SyncStatus::default();
        if *self.is_pending.lock().unwrap() {
            let why = Pending::Refused("there is no memory".to_owned());
            status.pending.insert(PodKey::new("default", "a"), why);
        }
        status
    }
}

impl Backend for Filter {
    fn name(&self) -> &'static str {
        "filter"
    }

    fn adopt(&mut self, _now: Timestamp) -> Result<(), BackendError> {
        Ok(())
    }

    fn apply(&mut self, _batch: &Batch, _now: Timestamp) -> SyncStatus {
        let permits = Permits::open(&self.directory).unwrap().unwrap();
        let there = permits.of_pods().keys().unwrap().len();
        self.seen.lock().unwrap().push(there);
        self.status()
    }

    fn links_changed(&mut self, _now: Timestamp) -> SyncStatus {
        self.status()
    }

    fn reconcile(&mut self, _now: Timestamp) -> SyncStatus {
        self.status()
    }

    fn counters(&self) -> Arc<dyn VerdictCounters> {
        Arc::new(NoVerdicts)
    }

    fn dump(&self) -> String {
        String::new()
    }

    fn remove_everything(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

fn replaced(rules: PodRules) -> Batch {
    Batch {
        rules_replaced: vec![rules],
        ..Batch::empty(Revision::ZERO.next())
    }
}

#[test]
fn a_permit_is_gone_while_the_rules_of_its_pod_change() {
    let Some(directory) = Directory::new() else {
        return;
    };
    let filter = || Filter {
        directory: directory.0.clone(),
        ..Filter::default()
    };
    let first = filter();
    let (seen, is_pending) = (Arc::clone(&first.seen), Arc::clone(&first.is_pending));
    let mut backend = DnsPermits::new(Box::new(first), directory.0.clone(), false);
    backend.adopt(NOW).unwrap();
    let free = || replaced(pod("a", &[POD], vec![], vec![]));
    for _ in 0..2 {
        backend.apply(&free(), NOW);
        assert_eq!(directory.permits(), 1);
    }
    let other = replaced(pod("b", &["10.0.0.2"], vec![], vec![]));
    backend.apply(&other, NOW);
    assert_eq!(directory.permits(), 2);
    assert_eq!(*seen.lock().unwrap(), [0, 0, 1], "that of another pod stays");
    *is_pending.lock().unwrap() = true;
    backend.links_changed(NOW);
    assert_eq!(directory.permits(), 1, "its rules are not in force");
    *is_pending.lock().unwrap() = false;
    backend.reconcile(NOW);
    assert_eq!(directory.permits(), 2);
    drop(backend);
    assert_eq!(directory.permits(), 2, "they stay as the rules do");
    let mut next = DnsPermits::new(Box::new(filter()), directory.0.clone(), false);
    next.adopt(NOW).unwrap();
    assert_eq!(directory.permits(), 0, "the next one begins anew");
    next.apply(&free(), NOW);
    let gone = Batch {
        pods_removed: vec![PodKey::new("default", "a")],
        ..Batch::empty(Revision::ZERO.next())
    };
    next.apply(&gone, NOW);
    assert_eq!(directory.permits(), 0);
}

#[test]
fn only_a_pod_whose_rules_certainly_let_it_ask_has_a_permit() {
    let Some(directory) = Directory::new() else {
        return;
    };
    let dns = || range(Transport::Udp, 53, 53);
    let web = || range(Transport::Tcp, 443, 443);
    let some = || PeerMatch::In(set("some"));
    let own_node = |port| Rule {
        origin: Origin {
            policy: OWN_NODE.into(),
            rule: 0,
            name: None,
        },
        ..rule(Action::Allow, PeerMatch::OwnNode, port)
    };
    let isolated = |rules| vec![tier(Tier::NetworkPolicy, rules, DefaultAction::Deny)];
    let admin = |rules| vec![tier(Tier::Admin, rules, DefaultAction::NextTier)];
    let allow = |peer, port| rule(Action::Allow, peer, port);
    let excepted = Rule {
        except: Some(set("some")),
        ..allow(PeerMatch::Any, dns())
    };
    let cases: Vec<(&str, Vec<TierRules>, [bool; 2])> = vec![
        ("no policy", vec![], [true; 2]),
        ("isolated", isolated(vec![]), [false; 2]),
        (
            "isolated, but for its node",
            isolated(vec![own_node(PortMatch::Any)]),
            [true; 2],
        ),
        (
            "isolated, but for DNS of its node",
            isolated(vec![own_node(dns())]),
            [true; 2],
        ),
        (
            "isolated, but for something else",
            isolated(vec![own_node(web())]),
            [false; 2],
        ),
        (
            "names at another port, and its node",
            isolated(vec![allow(some(), web()), own_node(PortMatch::Any)]),
            [true; 2],
        ),
        (
            "names at any port, and its node",
            isolated(vec![allow(some(), PortMatch::Any), own_node(PortMatch::Any)]),
            [true, false],
        ),
        ("names alone", isolated(vec![allow(some(), dns())]), [false; 2]),
        (
            "DNS everywhere",
            isolated(vec![allow(PeerMatch::Any, dns())]),
            [true, false],
        ),
        ("DNS with an exception", isolated(vec![excepted]), [false; 2]),
        (
            "denied by a set",
            admin(vec![rule(Action::Deny, some(), PortMatch::Any)]),
            [false; 2],
        ),
        (
            "something else denied",
            admin(vec![rule(Action::Deny, some(), web())]),
            [true; 2],
        ),
        (
            "passed",
            admin(vec![rule(Action::Pass, PeerMatch::Any, dns())]),
            [false; 2],
        ),
        (
            "perhaps accepted, else by default",
            admin(vec![allow(some(), dns())]),
            [false; 2],
        ),
        (
            "denied",
            admin(vec![rule(Action::Deny, PeerMatch::Any, dns())]),
            [false; 2],
        ),
    ];
    for (what, egress, expected) in cases {
        for (is_each_alone, expected) in [false, true].into_iter().zip(expected) {
            let filter = Filter {
                directory: directory.0.clone(),
                ..Filter::default()
            };
            let mut backend = DnsPermits::new(Box::new(filter), directory.0.clone(), is_each_alone);
            backend.adopt(NOW).unwrap();
            let rules = pod("a", &[POD], egress.clone(), vec![]);
            backend.apply(&replaced(rules.clone()), NOW);
            assert_eq!(
                directory.permits() == 1,
                expected,
                "{what}; each alone: {is_each_alone}"
            );
            let audit = Audit {
                egress: DirectionRules::of(isolated(vec![])),
                ..Audit::default()
            };
            backend.apply(&replaced(PodRules { audit, ..rules }), NOW);
            assert_eq!(directory.permits(), 0, "{what}, with a policy in audit");
        }
    }
}
