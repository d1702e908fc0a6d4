//! What a start may find: leftovers, incomplete state, and edits of others. Each is repaired with the least change, and
//! cleanup removes it.

use std::collections::BTreeSet;

use egret_enforcer::backend::netfilter::cleanup::{self, Mode};
use egret_enforcer::backend::netfilter::names;
use egret_kernel::Family;
use egret_kernel::fault_points::{Plan, Planned, Step, Taken};
use egret_kernel::ipset::IpSets;
use egret_kernel::iptables::{Flavour, IpTables};
use egret_policies::rules::{Batch, SetKind};

use crate::node::Node;
use crate::node_world::{NOW, in_fresh_namespace, run};
use crate::stories;

/// An edit by others, the kinds of repair that are counted, and what may be written for it.
struct Edit {
    name: &'static str,
    make: fn(&EditedNode),
    repaired: &'static [&'static str],
    written: &'static [WrittenPart],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WrittenPart {
    /// One message to a set.
    Set,
    /// A chain of IPv4 that all pods share.
    SharedChain,
    /// A chain of a pod in IPv4.
    PodChain,
    /// IPv6. Where rules of a pod differed, its connections are re-evaluated by a new generation in both families.
    Ipv6,
    /// A jump of IPv4.
    Jump,
}

const EDITS: &[Edit] = &[
    Edit {
        name: "nothing",
        make: |_| {},
        repaired: &[],
        written: &[],
    },
    Edit {
        name: "a rule in front of a shared chain",
        make: |edited| edited.iptables(&["-I", "EGRET-FORWARD", "-j", "ACCEPT"]),
        repaired: &["chain_changed"],
        written: &[WrittenPart::SharedChain],
    },
    Edit {
        name: "a rule in a pod's chain",
        make: |edited| {
            edited.iptables(&[
                "-I",
                &edited.pods_chain(),
                "-d",
                "203.0.113.99/32",
                "-j",
                "RETURN",
            ])
        },
        repaired: &["chain_changed"],
        written: &[WrittenPart::PodChain, WrittenPart::Ipv6],
    },
    Edit {
        name: "a pod's chain is empty",
        make: |edited| edited.iptables(&["-F", &edited.pods_chain()]),
        repaired: &["chain_changed"],
        written: &[WrittenPart::PodChain, WrittenPart::Ipv6],
    },
    Edit {
        name: "our jump is missing",
        make: |edited| edited.iptables(&jump("-D")),
        repaired: &["jump"],
        written: &[WrittenPart::Jump],
    },
    Edit {
        name: "our jump is there twice",
        make: |edited| edited.iptables(&jump("-A")),
        repaired: &["jump"],
        written: &[WrittenPart::Jump],
    },
    Edit {
        name: "chains of a pod that is not there",
        make: |edited| {
            edited.iptables(&["-N", "EGRET-E2-aaaaaaaaaaaaaaaa"]);
            edited.iptables(&["-A", "EGRET-E2-aaaaaaaaaaaaaaaa", "-j", "ACCEPT"]);
        },
        repaired: &["chain_extra"],
        written: &[WrittenPart::PodChain],
    },
    Edit {
        name: "a set that nobody wants",
        make: |_| drop(run("ipset", &["create", "egret-aaaaaaaaaaaaaaaa-4", "hash:ip"])),
        repaired: &[],
        written: &[WrittenPart::Set],
    },
    Edit {
        name: "a place that a life kept until its first batch",
        make: |_| drop(run("ipset", &["create", &names::preallocated(7), "hash:ip"])),
        repaired: &[],
        written: &[WrittenPart::Set],
    },
    Edit {
        name: "a member too many",
        make: |edited| drop(run("ipset", &["add", &edited.set(), "192.0.2.99"])),
        repaired: &["member_extra", "chain_changed"],
        written: &[WrittenPart::Set, WrittenPart::PodChain, WrittenPart::Ipv6],
    },
    Edit {
        name: "a member too few",
        make: |edited| drop(run("ipset", &["flush", &edited.set()])),
        repaired: &[],
        written: &[WrittenPart::Set],
    },
    Edit {
        name: "a set and the rules that name it are gone",
        make: |edited| {
            edited.destroy_set();
        },
        repaired: &["chain_changed"],
        written: &[WrittenPart::Set, WrittenPart::PodChain, WrittenPart::Ipv6],
    },
    Edit {
        name: "a set of another type",
        make: |edited| edited.remake(&["hash:net"]),
        repaired: &["chain_changed"],
        written: &[WrittenPart::Set, WrittenPart::PodChain, WrittenPart::Ipv6],
    },
    Edit {
        name: "a set of another family",
        make: |edited| edited.remake(&["hash:ip", "family", "inet6"]),
        repaired: &["chain_changed"],
        written: &[WrittenPart::Set, WrittenPart::PodChain, WrittenPart::Ipv6],
    },
    Edit {
        name: "a set with hardly any room",
        make: |edited| edited.remake(&["hash:ip", "maxelem", "1"]),
        repaired: &["chain_changed"],
        written: &[WrittenPart::Set, WrittenPart::PodChain, WrittenPart::Ipv6],
    },
    Edit {
        name: "a set with lifetimes",
        make: |edited| edited.remake(&["hash:ip", "timeout", "0"]),
        repaired: &["chain_changed"],
        written: &[WrittenPart::Set, WrittenPart::PodChain, WrittenPart::Ipv6],
    },
    Edit {
        name: "one family alone was written",
        make: |edited| {
            let rules = IpTables::new(edited.node.flavour, Family::V6);
            let listing = rules.save(egret_kernel::iptables::Table::Filter).unwrap();
            let ours = || {
                listing
                    .chains
                    .iter()
                    .filter(|chain| names::is_own_chain(&chain.name))
            };
            let mut text = String::from("*filter\n");
            text.extend(ours().map(|chain| format!(":{} - [0:0]\n", chain.name)));
            text += "-D FORWARD -j EGRET-FORWARD\n";
            text += "-D INPUT -j EGRET-INPUT\n";
            text.extend(ours().map(|chain| format!("-X {}\n", chain.name)));
            rules.restore(&(text + "COMMIT\n")).unwrap();
        },
        repaired: &["chain_changed", "chain_missing", "jump"],
        written: &[WrittenPart::PodChain, WrittenPart::Ipv6],
    },
];

fn jump(how: &'static str) -> [&'static str; 4] {
    [how, "FORWARD", "-j", "EGRET-FORWARD"]
}

/// A node that holds everything, and is edited.
struct EditedNode<'a> {
    node: &'a Node,
    batch: &'a Batch,
}

impl EditedNode<'_> {
    fn iptables(&self, arguments: &[&str]) {
        run(&format!("iptables-{}", self.node.flavour.name()), arguments);
    }

    fn pods_chain(&self) -> String {
        let rules = &self.batch.rules_replaced[0];
        let chains = names::PodChains::of(&rules.pod);
        chains
            .entry(egret_policies::model::Direction::Egress)
            .as_str()
            .to_owned()
    }

    /// A set of pods, by its name for IPv4.
    fn set(&self) -> String {
        let mut specs = self
            .batch
            .sets_created
            .iter()
            .filter(|spec| spec.kind == SetKind::Addresses);
        names::set(specs.next().unwrap().id, Family::V4)
            .as_str()
            .to_owned()
    }

    /// The set as somebody else would make it, with nothing that names it.
    fn remake(&self, arguments: &[&str]) {
        self.destroy_set();
        run("ipset", &[&["create", &self.set()], arguments].concat());
    }

    /// And empties every chain that names it.
    fn destroy_set(&self) {
        let program = format!("iptables-{}-save", self.node.flavour.name());
        let listing = run(&program, &["-t", "filter"]);
        let naming = listing.lines().filter(|line| line.contains(&self.set()));
        let chains: BTreeSet<&str> = naming.filter_map(|line| line.split(' ').nth(1)).collect();
        for chain in chains {
            self.iptables(&["-F", chain]);
        }
        run("ipset", &["destroy", &self.set()]);
    }
}

#[test]
fn a_start_repairs_each_edit_with_the_least_change_and_counts_it() {
    on_an_edited_node(|edited, edit| {
        let expected = edited.node.holds();
        (edit.make)(edited);
        let planned = Planned::here(Plan::Nothing);
        let (_backend, standing) = edited.node.start(edited.batch);
        let name = edit.name;
        assert_eq!(
            (&standing.pending.len(), &standing.broken),
            (&0, &None),
            "{name}: {standing:?}"
        );
        let repaired: BTreeSet<&str> = standing.repaired.keys().copied().collect();
        assert_eq!(repaired, edit.repaired.iter().copied().collect(), "{name}");
        let taken = planned.taken();
        let written: BTreeSet<WrittenPart> = taken.iter().flat_map(written).collect();
        assert!(
            written.iter().all(|one| edit.written.contains(one)),
            "{name}: {written:?} by {taken:#?}"
        );
        assert!(
            taken.iter().all(|taken| !taken.what.contains("flush")),
            "{name}: {taken:?}"
        );
        assert_eq!(edited.node.holds(), expected, "{name}");
    });
}

#[test]
fn cleanup_removes_everything_after_each_edit_and_its_dry_run_lists_it() {
    on_an_edited_node(|edited, edit| {
        (edit.make)(edited);
        let before = edited.node.holds();
        let told = cleanup::everywhere(Mode::Tell).unwrap();
        assert_eq!(edited.node.holds(), before, "{}", edit.name);
        assert_eq!(cleanup::everywhere(Mode::Remove).unwrap(), told, "{}", edit.name);
        let after = edited.node.holds();
        assert_eq!(
            (after.ours, after.theirs),
            (Vec::new(), before.theirs),
            "{}",
            edit.name
        );
        assert_eq!(
            cleanup::everywhere(Mode::Tell).unwrap(),
            Vec::<String>::new(),
            "{}",
            edit.name
        );
        let left = IpSets::open().unwrap().names().unwrap();
        assert_eq!(left, ["theirs"], "{}", edit.name);
    });
}

fn on_an_edited_node(test: fn(&EditedNode<'_>, &Edit)) {
    for flavour in Flavour::BOTH {
        in_fresh_namespace(move || {
            let node = Node::new(flavour);
            let others = node.others();
            let batches = stories::isolated().begin(NOW);
            for edit in EDITS {
                cleanup::remove(flavour).unwrap();
                let _begun = node.start(&batches[0]);
                let edited = EditedNode {
                    node: &node,
                    batch: &batches[0],
                };
                test(&edited, edit);
            }
            assert_eq!(node.others(), others);
        });
    }
}

fn written(taken: &Taken) -> Vec<WrittenPart> {
    let Step::Rules(family) = taken.step else {
        return vec![WrittenPart::Set];
    };
    if family == Family::V6 {
        return vec![WrittenPart::Ipv6];
    }
    let each = taken.what.lines().filter_map(|line| {
        if let Some(chain) = line.strip_prefix(':') {
            let name = chain.split(' ').next()?;
            // It only keeps numbers.
            let counts = name == names::totals().as_str();
            let kind = if names::is_shared(name) {
                WrittenPart::SharedChain
            } else {
                WrittenPart::PodChain
            };
            return (!counts).then_some(kind);
        }
        let is_jump = ["-I ", "-D ", "-A FORWARD", "-A INPUT"]
            .iter()
            .any(|start| line.starts_with(start));
        is_jump.then_some(WrittenPart::Jump)
    });
    each.collect()
}
