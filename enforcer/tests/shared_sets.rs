//! Sets that share a set of nftables: each has its elements alone, also when it goes, comes back, or is one of an earlier life.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod node_world;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use egret_enforcer::backend::netfilter::names;
use egret_enforcer::backend::nftables::Nftables;
use egret_enforcer::backend::{Backend, SyncStatus};
use egret_kernel::Family;
use egret_kernel::fault_points::{Plan, Planned, Step};
use egret_kernel::nftables::{
    Changes, Element, ElementKey, PartElement, TableFamily, TableName, TableReader, TableWriter,
};
use egret_policies::model::{Action, Tier};
use egret_policies::rules::{DefaultAction, Member, PeerMatch, PortMatch, Rule, SetKind};
use egret_shared::net::Transport;
use egret_shared::time::Timestamp;

use node_world::{Change, NOW, ThisHost, address, in_fresh_namespace, pod, rule, run, seconds, set, tier};

const TABLE: TableName = TableName {
    family: TableFamily::Inet,
    name: "egret",
};
const PORT: u16 = 5000;
/// For how long elements stay that no rule names, and a little longer.
const RETIREMENT: Duration = Duration::from_millis(2100);

/// A socket at each of these addresses.
struct Targets(Vec<(&'static str, UdpSocket)>);

impl Targets {
    fn at(addresses: &[&'static str]) -> Self {
        let bound = addresses.iter().map(|address| {
            let socket = UdpSocket::bind((*address, PORT)).unwrap();
            socket.set_nonblocking(true).unwrap();
            (*address, socket)
        });
        Self(bound.collect())
    }

    /// Those that a new datagram to each of them reaches.
    fn reached(&self) -> Vec<&str> {
        let reaches = |(address, socket): &&(&'static str, UdpSocket)| {
            send(address);
            socket.recv(&mut [0]).is_ok()
        };
        self.0
            .iter()
            .filter(reaches)
            .map(|(address, _)| *address)
            .collect()
    }
}

/// What is denied in the output is an error of the socket.
fn send(to: &str) {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    drop(socket.send_to(b"x", (to, PORT)));
}

fn backend() -> Nftables {
    node_world::nftables(None, ThisHost).without_merged_sets()
}

fn start(change: &Change) -> Nftables {
    let mut backend = backend();
    backend.adopt(NOW).unwrap();
    apply(&mut backend, change);
    backend
}

fn apply(backend: &mut Nftables, change: &Change) -> SyncStatus {
    settled(backend.apply(&change.0, NOW))
}

fn settled(status: SyncStatus) -> SyncStatus {
    assert_eq!((status.pending.len(), &status.broken), (0, &None));
    status
}

/// The next revision, without these sets.
fn without(change: Change, gone: &[&str]) -> Change {
    let Change(mut batch) = change;
    batch.sets_destroyed = gone.iter().map(|name| set(name)).collect();
    Change(batch)
}

/// Rules of the pod behind `lo`: each denies or allows a set.
fn rules(change: Change, egress: &[(Action, &str)]) -> Change {
    let of = |(action, name): &(Action, &str)| rule(*action, PeerMatch::In(set(name)), PortMatch::Any);
    let (denied, allowed): (Vec<_>, Vec<_>) = egress.iter().partition(|(action, _)| *action == Action::Deny);
    let of_all = |some: Vec<&(Action, &str)>| some.into_iter().map(of).collect::<Vec<Rule>>();
    let tiers = vec![
        tier(Tier::Admin, of_all(denied), DefaultAction::NextTier),
        tier(Tier::NetworkPolicy, of_all(allowed), DefaultAction::Deny),
    ];
    change.rules(pod("a", &["127.0.0.1"], tiers, Vec::new()))
}

fn addresses(change: Change, name: &str, members: &[&str]) -> Change {
    let members: Vec<_> = members.iter().map(|text| (address(text), None)).collect();
    change.set(name, SetKind::Addresses, &members)
}

/// The addresses that the kernel holds of a set in sets that several share.
fn held(name: &str) -> Vec<String> {
    let mut reader = TableReader::open().unwrap();
    let sets = reader.list(TABLE).unwrap().unwrap().sets;
    let mut held = Vec::new();
    for kernel_set in sets.keys().filter(|name| names::shared_by(name).is_some()) {
        let elements = reader.elements(TABLE, kernel_set).unwrap();
        let parts = elements
            .iter()
            .filter_map(|element| PartElement::of_key(&element.key));
        let own = parts.filter(|part| part.letters == set(name).digest().letters());
        held.extend(own.map(|part| part.address.to_string()));
    }
    held.sort();
    held
}

/// The names of the kernel's sets of addresses.
fn kernel_sets() -> BTreeSet<String> {
    let listed = TableReader::open().unwrap().list(TABLE).unwrap().unwrap();
    let is_ours = |name: &String| names::shared_by(name).is_some() || names::is_own_set(name);
    listed.sets.into_keys().filter(is_ours).collect()
}

fn kernel_set(name: &str, kind: SetKind) -> String {
    names::shared_set(kind, set(name), Family::V4).unwrap()
}

/// An element of this set.
fn element(name: &str, address: &str) -> Element {
    let letters = set(name).digest().letters();
    Element::lasting(ElementKey::PartAddress(letters, address.parse().unwrap()))
}

/// Adds or deletes an element, as somebody else does.
fn meddle(how: fn(&mut Changes, &str, &[Element]), kernel_set: &str, element: Element) {
    let mut changes = Changes::of(TABLE);
    how(&mut changes, kernel_set, &[element]);
    TableWriter::open().unwrap().commit(changes).unwrap();
}

fn add(changes: &mut Changes, set: &str, elements: &[Element]) {
    changes.add_elements(set, elements);
}

fn delete(changes: &mut Changes, set: &str, elements: &[Element]) {
    changes.delete_elements(set, elements);
}

fn nft(text: &str) {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
}

/// Names of which the digests begin alike: their elements share a set of the kernel.
fn alike(of: &str, number: usize) -> Vec<String> {
    let letter = |name: &str| set(name).digest().letters()[0];
    let names = (0..).map(|at| format!("{of} {at}"));
    let first = letter(&format!("{of} 0"));
    names.filter(|name| letter(name) == first).take(number).collect()
}

/// A name of which the digest begins otherwise.
fn far_from(name: &str) -> String {
    let letter = |name: &str| set(name).digest().letters()[0];
    let mut names = (0..).map(|at| format!("far {at}"));
    names.find(|far| letter(far) != letter(name)).unwrap()
}

#[test]
fn an_address_of_another_set_in_the_same_set_of_the_kernel_is_not_allowed() {
    in_fresh_namespace(|| {
        let targets = Targets::at(&["127.1.1.1", "127.2.2.2", "127.3.3.3", "127.4.4.4", "127.5.5.5"]);
        let [names, ports, records] = ["set", "with ports", "of records"].map(|of| alike(of, 2));
        let at = |text: &str, port| {
            Member::AddressPort(
                text.parse().unwrap(),
                Transport::Udp,
                std::num::NonZeroU16::new(port).unwrap(),
            )
        };
        let record = |text| (address(text), Some(seconds(300)));
        let change = addresses(Change::new(), &names[0], &["127.1.1.1"]);
        let change = addresses(change, &names[1], &["127.2.2.2"])
            .set(&ports[0], SetKind::AddressPorts, &[(at("127.2.2.2", 1), None)])
            .set(&ports[1], SetKind::AddressPorts, &[(at("127.3.3.3", PORT), None)])
            .set(&records[0], SetKind::Records, &[record("127.4.4.4")])
            .set(&records[1], SetKind::Records, &[record("127.5.5.5")]);
        let allowed = |own: usize| [&names, &ports, &records].map(|of| (Action::Allow, of[own].as_str()));
        let mut backend = start(&rules(change, &allowed(0)));
        assert_eq!(
            kernel_sets().len(),
            6,
            "of three kinds in two families: {:?}",
            kernel_sets()
        );
        assert_eq!(targets.reached(), ["127.1.1.1", "127.4.4.4"]);
        apply(&mut backend, &rules(Change::new(), &allowed(1)));
        assert_eq!(targets.reached(), ["127.2.2.2", "127.3.3.3", "127.5.5.5"]);
    });
}

#[test]
fn elements_of_a_set_that_no_rule_names_stay_two_seconds() {
    in_fresh_namespace(|| {
        let many: Vec<String> = (0..5000)
            .map(|at| format!("198.18.{}.{}", at >> 8, at & 255))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let change = addresses(addresses(Change::new(), "stays", &["127.1.1.1"]), "goes", &many);
        let mut backend = start(&rules(
            change,
            &[(Action::Allow, "stays"), (Action::Allow, "goes")],
        ));
        apply(
            &mut backend,
            &without(rules(Change::new(), &[(Action::Allow, "stays")]), &["goes"]),
        );
        assert_eq!(backend.poll_drift(NOW), None);
        assert_eq!(held("goes").len(), 5000);
        let status = settled(backend.reconcile(NOW));
        assert!(status.repaired.is_empty(), "{:?}", status.differences);
        assert_eq!(held("goes").len(), 5000);
        sleep(RETIREMENT);
        assert_eq!(backend.poll_drift(NOW), None);
        assert_eq!(held("goes"), Vec::<String>::new());
        assert_eq!(held("stays"), ["127.1.1.1"]);
        let status = settled(backend.reconcile(NOW));
        assert!(status.repaired.is_empty(), "{:?}", status.differences);
    });
}

#[test]
fn a_set_that_comes_back_has_none_of_its_elements_of_before() {
    in_fresh_namespace(|| {
        let targets = Targets::at(&["127.1.1.1", "127.2.2.2", "127.4.4.4", "127.5.5.5"]);
        let record = |text| (address(text), Some(seconds(300)));
        let with = |addresses_of: &[&str], records: &[(Member, _)]| {
            let change =
                addresses(Change::new(), "set", addresses_of).set("names", SetKind::Records, records);
            rules(change, &[(Action::Allow, "set"), (Action::Allow, "names")])
        };
        let gone = || without(rules(Change::new(), &[]), &["set", "names"]);
        let mut backend = start(&with(
            &["127.1.1.1", "127.2.2.2"],
            &[record("127.4.4.4"), record("127.5.5.5")],
        ));
        assert_eq!(targets.reached().len(), 4);
        apply(&mut backend, &gone());
        assert_eq!(targets.reached(), Vec::<&str>::new());
        assert_eq!(held("set"), ["127.1.1.1", "127.2.2.2"]);
        apply(&mut backend, &with(&["127.1.1.1"], &[record("127.4.4.4")]));
        assert_eq!(targets.reached(), ["127.1.1.1", "127.4.4.4"]);
        assert_eq!(held("set"), ["127.1.1.1"]);
        assert_eq!(held("names"), ["127.4.4.4"]);
        // What it has now stays.
        sleep(RETIREMENT);
        assert_eq!(backend.poll_drift(NOW), None);
        assert_eq!(targets.reached(), ["127.1.1.1", "127.4.4.4"]);
        let status = settled(backend.reconcile(NOW));
        assert!(status.repaired.is_empty(), "{:?}", status.differences);
    });
}

/// Denied by a set that another takes over in each round; a later rule allows it. Before it are many rules, so that packets are on
/// their way while rules and elements change.
const FENCED: &str = "127.9.9.9";
const ROUNDS: usize = 30;
const RULES_BEFORE: usize = 400;

fn fence(number: usize) -> Change {
    let name = format!("fence {number}");
    let names: Vec<String> = (0..RULES_BEFORE).map(|at| format!("other {at}")).collect();
    let mut change = addresses(addresses(Change::new(), &name, &[FENCED]), "exception", &[FENCED]);
    for (at, name) in names.iter().enumerate() {
        change = addresses(change, name, &[&format!("198.18.{}.{}", at >> 8, at & 255)]);
    }
    let others = names.iter().map(|name| (Action::Deny, name.as_str()));
    let fence = [(Action::Deny, name.as_str()), (Action::Allow, "exception")];
    let egress: Vec<_> = others.chain(fence).collect();
    let mut change = rules(change, &egress);
    for _ in 0..number {
        change.0.revision = change.0.revision.next();
    }
    change
}

/// Sends datagrams to the fenced address meanwhile; none arrives.
fn hold_fence(work: impl FnOnce()) {
    let fenced = UdpSocket::bind((FENCED, PORT)).unwrap();
    fenced.set_nonblocking(true).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                send(FENCED);
            }
        });
        work();
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(
        fenced.recv(&mut [0]).is_err(),
        "a packet to a denied address arrived"
    );
}

#[test]
fn a_packet_that_began_with_the_rules_before_finds_the_elements_of_before() {
    in_fresh_namespace(|| {
        let mut backend = start(&fence(0));
        hold_fence(|| {
            for number in 1..=ROUNDS {
                let before = format!("fence {}", number - 1);
                apply(&mut backend, &without(fence(number), &[&before]));
                assert_eq!(backend.poll_drift(NOW), None);
            }
        });
    });
}

#[test]
fn a_start_with_other_sets_leaves_those_of_before_to_packets_on_their_way() {
    in_fresh_namespace(|| {
        drop(start(&fence(0)));
        hold_fence(|| {
            for number in 1..=ROUNDS {
                let mut backend = start(&fence(number));
                assert_eq!(backend.poll_drift(NOW), None);
            }
        });
        let mut last = start(&fence(ROUNDS));
        sleep(RETIREMENT);
        assert_eq!(last.poll_drift(NOW), None);
        for number in 0..ROUNDS {
            assert_eq!(held(&format!("fence {number}")), Vec::<String>::new(), "{number}");
        }
        assert_eq!(held(&format!("fence {ROUNDS}")), [FENCED]);
    });
}

#[test]
fn a_start_keeps_what_it_does_not_want_for_a_while_and_removes_sets_that_nobody_shares() {
    in_fresh_namespace(|| {
        let names = alike("set", 2);
        let far = far_from(&names[0]);
        let change = addresses(Change::new(), &names[0], &["127.1.1.1"]);
        let change = addresses(addresses(change, &names[1], &["127.2.2.2"]), &far, &["127.3.3.3"]);
        drop(start(&rules(change, &[])));
        // A record of nobody is in a kernel's set that is wanted no more.
        let change = addresses(Change::new(), &names[0], &["127.4.4.4"]);
        let mut backend = start(&rules(change, &[(Action::Allow, &names[0])]));
        assert_eq!(held(&names[0]), ["127.4.4.4"], "it is as it is desired");
        assert_eq!(held(&names[1]), ["127.2.2.2"], "it stays for a while");
        assert_eq!(kernel_sets().len(), 2, "one in each family: {:?}", kernel_sets());
        assert_eq!(backend.poll_drift(NOW), None);
        assert_eq!(held(&names[1]), ["127.2.2.2"]);
        sleep(RETIREMENT);
        assert_eq!(backend.poll_drift(NOW), None);
        assert_eq!(held(&names[1]), Vec::<String>::new());
        assert_eq!(held(&names[0]), ["127.4.4.4"]);
    });
}

/// Also while elements stay that no rule names: then what is not theirs goes one by one.
#[test]
fn what_others_change_in_a_shared_set_is_repaired() {
    for has_retired in [false, true] {
        in_fresh_namespace(move || {
            let targets = Targets::at(&["127.1.1.1", "127.2.2.2", "127.3.3.3", "127.4.4.4", "127.5.5.5"]);
            let names = alike("set", 3);
            let [own, other, unknown] = [0, 1, 2].map(|at| names[at].as_str());
            let record = |text| (address(text), Some(seconds(300)));
            let change = addresses(Change::new(), own, &["127.1.1.1", "127.3.3.3"]);
            let change = addresses(change, other, &["127.2.2.2"]);
            let change = addresses(change, unknown, &["127.2.2.2"]);
            let change = change.set("names", SetKind::Records, &[record("127.4.4.4")]);
            let egress = [
                (Action::Allow, own),
                (Action::Allow, "names"),
                (Action::Allow, unknown),
            ];
            let mut backend = start(&rules(change, &egress));
            apply(&mut backend, &rules(Change::new(), &egress[..2]));
            if has_retired {
                apply(&mut backend, &without(Change::new(), &[unknown]));
            } else {
                apply(
                    &mut backend,
                    &Change::new().members(unknown, &[], &[address("127.2.2.2")]),
                );
            }
            let expected = ["127.1.1.1", "127.3.3.3", "127.4.4.4"];
            assert_eq!(targets.reached(), expected);
            let of_addresses = kernel_set(own, SetKind::Addresses);
            let of_records = kernel_set("names", SetKind::Records);
            let elsewhere = far_from(own);
            meddle(delete, &of_addresses, element(own, "127.1.1.1"));
            meddle(delete, &of_addresses, element(other, "127.2.2.2"));
            meddle(delete, &of_records, element("names", "127.4.4.4"));
            meddle(add, &of_addresses, element(own, "127.2.2.2"));
            meddle(add, &of_addresses, element(&elsewhere, "127.2.2.2"));
            let nobodys = [b"1: not a digest.".as_slice(), &[127, 2, 2, 2]].concat();
            meddle(add, &of_addresses, Element::lasting(ElementKey::Listed(nobodys)));
            // A record that never ends, of an address and of the one that has ended.
            meddle(add, &of_records, element("names", "127.5.5.5"));
            meddle(add, &of_records, element("names", "127.4.4.4"));
            let status = settled(backend.reconcile(NOW));
            let repaired: Vec<_> = status
                .repaired
                .iter()
                .map(|(kind, number)| (*kind, *number))
                .collect();
            assert_eq!(
                repaired,
                [("member_extra", 5), ("member_missing", 3)],
                "{:?}",
                status.differences
            );
            assert_eq!(targets.reached(), expected);
            assert_eq!(held(own), ["127.1.1.1", "127.3.3.3"]);
            assert_eq!(held(other), ["127.2.2.2"]);
            assert_eq!(held("names"), ["127.4.4.4"]);
            assert_eq!(held(&elsewhere), Vec::<String>::new());
            assert_eq!(held(unknown).len(), usize::from(has_retired));
            let listed = run("nft", &["list", "set", "inet", "egret", &of_addresses]);
            assert!(!listed.contains("not a digest"), "{listed}");
            let status = settled(backend.reconcile(NOW));
            assert!(status.repaired.is_empty(), "{:?}", status.differences);
        });
    }
}

fn adds_to_the_first(words: &str) -> bool {
    words.starts_with("add members ") && words.contains(names::set(set("set 0"), Family::V4).as_str())
}

/// Its elements of before are in the kernel while the table is written without it.
#[test]
fn a_set_that_is_refused_more_elements_is_left_out_alone() {
    in_fresh_namespace(|| {
        let targets = Targets::at(&["127.1.1.1", "127.2.2.2", "127.3.3.3"]);
        let names = alike("set", 2);
        let change = addresses(Change::new(), &names[0], &["127.1.1.1"]);
        let change = addresses(change, &names[1], &["127.2.2.2"]);
        let egress = [(Action::Allow, names[0].as_str()), (Action::Allow, &names[1])];
        let mut backend = start(&rules(change, &egress));
        let planned = Planned::here(Plan::RefuseMessages(adds_to_the_first));
        let more = Change::new().members(&names[0], &[(address("127.3.3.3"), None)], &[]);
        let status = backend.apply(&more.0, NOW);
        assert_eq!((status.pending.len(), &status.broken), (1, &None));
        assert_eq!(targets.reached(), ["127.2.2.2"]);
        let status = backend.reconcile(NOW);
        assert_eq!((status.pending.len(), &status.broken), (1, &None));
        drop(planned);
        settled(backend.reconcile(NOW));
        assert_eq!(targets.reached(), ["127.1.1.1", "127.2.2.2", "127.3.3.3"]);
    });
}

fn makes_the_set_of_the_first(words: &str) -> bool {
    words == format!("make a set {}", kernel_set("set 0", SetKind::Addresses))
}

#[test]
fn a_set_of_the_kernel_that_is_refused_closes_the_rules_of_those_who_share_it() {
    in_fresh_namespace(|| {
        let targets = Targets::at(&["127.1.1.1", "127.2.2.2", "127.3.3.3"]);
        let names = alike("set", 2);
        let far = far_from(&names[0]);
        let change = addresses(Change::new(), &names[0], &["127.1.1.1"]);
        let change = addresses(addresses(change, &names[1], &["127.2.2.2"]), &far, &["127.3.3.3"]);
        let egress = [&names[0], &names[1], &far].map(|name| (Action::Allow, name.as_str()));
        let mut backend = backend();
        backend.adopt(NOW).unwrap();
        let planned = Planned::here(Plan::RefuseMessages(makes_the_set_of_the_first));
        let status = backend.apply(&rules(change, &egress).0, NOW);
        assert_eq!((status.pending.len(), &status.broken), (1, &None));
        assert_eq!(targets.reached(), ["127.3.3.3"]);
        drop(planned);
        settled(backend.reconcile(NOW));
        assert_eq!(targets.reached(), ["127.1.1.1", "127.2.2.2", "127.3.3.3"]);
    });
}

/// What is said in transactions of removed members while an answer is taken at this moment.
fn removed_for(backend: &mut Nftables, addresses: &[&str], end: Timestamp, at: Timestamp) -> usize {
    let members: Vec<_> = addresses.iter().map(|text| (address(text), Some(end))).collect();
    let planned = Planned::here(Plan::Nothing);
    settled(backend.apply(&Change::new().members("names", &members, &[]).0, at));
    let said: Vec<String> = planned.taken().into_iter().map(|taken| taken.what).collect();
    let removed = |said: &String| {
        said.lines()
            .filter(|line| line.starts_with("remove members"))
            .count()
    };
    said.iter().map(removed).sum()
}

#[test]
fn only_a_record_that_the_kernel_may_have_is_removed_before_it_is_written() {
    in_fresh_namespace(|| {
        let change = Change::new().set("names", SetKind::Records, &[]);
        let mut backend = start(&rules(change, &[(Action::Allow, "names")]));
        let both = ["127.4.4.4", "127.5.5.5"];
        assert_eq!(removed_for(&mut backend, &both, seconds(300), NOW), 0);
        assert_eq!(removed_for(&mut backend, &both[..1], seconds(310), NOW), 1);
        // Over by our clock, and not by the kernel's, whose life it would keep.
        let later = seconds(320);
        let status = settled(backend.reconcile(later));
        assert!(status.repaired.is_empty(), "{:?}", status.differences);
        assert_eq!(held("names"), both);
        assert_eq!(removed_for(&mut backend, &both, seconds(920), later), 1);
        let mut reader = TableReader::open().unwrap();
        let listed = reader
            .elements(TABLE, &kernel_set("names", SetKind::Records))
            .unwrap();
        let lives: Vec<u64> = listed.iter().map(|one| one.left.unwrap().as_secs()).collect();
        assert!(
            lives.len() == 2 && lives.iter().all(|left| *left > 500),
            "{lives:?}"
        );
    });
}

fn adds_a_record_to_the_first(words: &str) -> bool {
    let own = names::set(set("names 0"), Family::V4);
    [own.as_str(), &kernel_set("names 0", SetKind::Records)]
        .contains(&words.trim_start_matches("add members "))
}

/// A node with answers for sets of which two share one of the kernel; what is said in the transactions that take them.
fn answered(plan: Plan) -> (Nftables, Option<SyncStatus>, Vec<String>) {
    let names = alike("names", 2);
    let far = far_from(&names[0]);
    let all = [&names[0], &names[1], &far].map(String::as_str);
    let change = all.into_iter().fold(Change::new(), |change, name| {
        change.set(name, SetKind::Records, &[])
    });
    let mut backend = start(&rules(change, &all.map(|name| (Action::Allow, name))));
    let answers = all.into_iter().zip(["127.1.1.1", "127.2.2.2", "127.3.3.3"]);
    let answers = answers.fold(Change::new(), |change, (name, text)| {
        change.members(name, &[(address(text), Some(seconds(300)))], &[])
    });
    let planned = Planned::here(plan);
    let status = backend.add_records(&answers.0, NOW);
    let said = planned.taken().into_iter().map(|taken| taken.what).collect();
    (backend, status, said)
}

#[test]
fn records_of_sets_that_share_one_of_the_kernel_come_in_one_message() {
    in_fresh_namespace(|| {
        let targets = Targets::at(&["127.1.1.1", "127.2.2.2", "127.3.3.3"]);
        let (_backend, status, said) = answered(Plan::Nothing);
        assert!(status.is_none(), "{status:?}");
        let added = said.iter().flat_map(|said| said.lines());
        let added = added.filter(|line| line.starts_with("add members"));
        assert_eq!((said.len(), added.count()), (1, 2), "{said:?}");
        assert_eq!(targets.reached(), ["127.1.1.1", "127.2.2.2", "127.3.3.3"]);
    });
}

#[test]
fn a_record_that_is_refused_leaves_out_its_set_alone() {
    in_fresh_namespace(|| {
        let targets = Targets::at(&["127.1.1.1", "127.2.2.2", "127.3.3.3"]);
        let (_backend, status, _) = answered(Plan::RefuseMessages(adds_a_record_to_the_first));
        let status = status.unwrap();
        assert_eq!((status.pending.len(), &status.broken), (1, &None));
        assert_eq!(targets.reached(), ["127.2.2.2", "127.3.3.3"]);
    });
}

/// The kernel looks for a set from the first one on, for each message about elements.
#[test]
fn a_first_sync_makes_the_sets_of_records_first() {
    in_fresh_namespace(|| {
        let planned = Planned::here(Plan::Nothing);
        start(&many_addresses().set("names", SetKind::Records, &[]));
        let said: Vec<String> = planned.taken().into_iter().map(|taken| taken.what).collect();
        let made = said.iter().flat_map(|said| said.lines());
        let made = made.filter_map(|line| line.strip_prefix("make a set "));
        let made: Vec<bool> = made.map(|name| name.contains("records")).collect();
        let records = made.iter().filter(|is_of_records| **is_of_records).count();
        assert_eq!(
            (records, made.is_sorted_by(|one, other| one >= other)),
            (2, true),
            "{said:?}"
        );
    });
}

/// Two sets, which take several transactions.
fn many_addresses() -> Change {
    let texts = |network: u32| (0..5000).map(move |at| format!("198.{network}.{}.{}", at >> 8, at & 255));
    let of = |network| {
        texts(network)
            .map(|text| (address(&text), None))
            .collect::<Vec<_>>()
    };
    let change = Change::new().set("set", SetKind::Addresses, &of(18));
    let change = change.set(&far_from("set"), SetKind::Addresses, &of(19));
    let network = Member::Network("198.20.0.0/16".parse().unwrap());
    let change = change.set("network", SetKind::Networks, &[(network, None)]);
    rules(change, &[(Action::Allow, "set"), (Action::Allow, "network")])
}

/// The kernel makes a message for each element of a transaction where anybody listens, and keeps them until its end.
#[test]
fn a_first_sync_adds_elements_in_parts_before_the_first_rule() {
    in_fresh_namespace(|| {
        let mut backend = backend();
        backend.adopt(NOW).unwrap();
        let planned = Planned::here(Plan::Nothing);
        apply(&mut backend, &many_addresses());
        let all: Vec<String> = planned.taken().into_iter().map(|taken| taken.what).collect();
        let count = |said: &String, words: &str| said.lines().filter(|line| line.starts_with(words)).count();
        let messages: Vec<usize> = all.iter().map(|said| count(said, "add members ")).collect();
        // 512 elements a message; the last transaction is that of the rules.
        assert!(messages.iter().all(|messages| *messages <= 5), "{messages:?}");
        let with_rules: Vec<bool> = all.iter().map(|said| count(said, "add a rule") > 0).collect();
        assert_eq!(with_rules.iter().filter(|has_rules| **has_rules).count(), 1);
        assert_eq!(with_rules.last(), Some(&true));
        // First in the kernel's list, which it walks for each message, are sets that many share.
        let made = all.iter().flat_map(|said| said.lines());
        let made = made.filter_map(|line| line.strip_prefix("make a set "));
        let made: Vec<_> = made.map(|name| names::shared_by(name).is_some()).collect();
        assert!(made.starts_with(&[true, true, false]), "{made:?}");
        assert_eq!([held("set").len(), held(&far_from("set")).len()], [5000, 5000]);
        let status = settled(backend.reconcile(NOW));
        assert!(status.repaired.is_empty(), "{:?}", status.differences);
    });
}

/// What is said about the members of `many_addresses` in the transactions of a start that finds a table.
fn said_at_a_start(change: &Change) -> Vec<String> {
    let mut next = backend();
    next.adopt(NOW).unwrap();
    let planned = Planned::here(Plan::Nothing);
    apply(&mut next, change);
    let all: Vec<String> = planned.taken().into_iter().map(|taken| taken.what).collect();
    let of = ["set", &far_from("set")].map(|name| names::set(set(name), Family::V4));
    let is_of_these = |line: &&str| of.iter().any(|name| line.contains(name.as_str()));
    let lines = all.iter().flat_map(|said| said.lines().filter(is_of_these));
    lines.map(str::to_owned).collect()
}

/// There may be half a million, and the kernel makes a message for each that is removed and for each that is added.
#[test]
fn a_start_writes_of_addresses_in_shared_sets_what_differs() {
    in_fresh_namespace(|| {
        let [gone, come] = ["198.18.0.7", "198.21.0.1"];
        let changed = many_addresses().members("set", &[(address(come), None)], &[address(gone)]);
        drop(start(&many_addresses()));
        assert_eq!(said_at_a_start(&many_addresses()), Vec::<String>::new());
        let said = said_at_a_start(&changed);
        let name = names::set(set("set"), Family::V4);
        let expected = ["remove", "add"].map(|what| format!("{what} members {}", name.as_str()));
        assert_eq!(said, expected);
        let members = held("set");
        assert!(members.contains(&come.to_owned()) && !members.contains(&gone.to_owned()));
        assert_eq!([members.len(), held(&far_from("set")).len()], [5000, 5000]);
    });
}

#[test]
fn a_start_leaves_no_address_of_another_family_and_renews_records() {
    in_fresh_namespace(|| {
        let names = alike("set", 2);
        let life = |of: &str, end| {
            let records = [(address("127.4.4.4"), Some(seconds(end)))];
            let change = addresses(Change::new(), &names[0], &[of]);
            let change = addresses(change, &names[1], &["127.2.2.2"]);
            let change = change.set("names", SetKind::Records, &records);
            rules(change, &[(Action::Allow, &names[0]), (Action::Allow, "names")])
        };
        drop(start(&life("127.1.1.1", 300)));
        let mut backend = start(&life("fd00::1", 900));
        assert_eq!(held(&names[0]), ["fd00::1"]);
        assert_eq!(held(&names[1]), ["127.2.2.2"]);
        let of_records = kernel_set("names", SetKind::Records);
        let listed = TableReader::open().unwrap().elements(TABLE, &of_records).unwrap();
        let lives: Vec<u64> = listed.iter().map(|one| one.left.unwrap().as_secs()).collect();
        assert!(lives.len() == 1 && lives[0] > 500, "{lives:?}");
        let status = settled(backend.reconcile(NOW));
        assert!(status.repaired.is_empty(), "{:?}", status.differences);
    });
}

#[test]
fn a_life_that_ended_before_its_first_rule_left_nothing_in_force() {
    in_fresh_namespace(|| {
        let mut first = backend();
        first.adopt(NOW).unwrap();
        let planned = Planned::here(Plan::EndAfter(BTreeMap::from([(Step::Rules(Family::V4), 2)])));
        let status = first.apply(&many_addresses().0, NOW);
        assert!(status.broken.is_some());
        drop((first, planned));
        assert!(!kernel_sets().is_empty());
        let mut next = backend();
        next.adopt(NOW).unwrap();
        assert!(!next.is_in_force());
        apply(&mut next, &many_addresses());
        assert!(next.is_in_force());
        assert_eq!([held("set").len(), held(&far_from("set")).len()], [5000, 5000]);
        let status = settled(next.reconcile(NOW));
        assert!(status.repaired.is_empty(), "{:?}", status.differences);
    });
}

/// Somebody made it with a limit. The set behind is larger than what is left.
#[test]
fn a_full_set_of_the_kernel_closes_the_rules_of_a_set_that_has_no_room() {
    in_fresh_namespace(|| {
        let targets = Targets::at(&["127.1.1.1", "127.2.2.2", "127.3.3.3", "127.4.4.4"]);
        let mut names = alike("set", 2);
        names.sort_by_key(|name| set(name));
        let kernel_set = kernel_set(&names[0], SetKind::Addresses);
        nft(&format!(
            "add table inet egret\nadd set inet egret {kernel_set} {{ type ifname . ipv4_addr; size 3; }}\n"
        ));
        let change = addresses(Change::new(), &names[0], &["127.1.1.1"]);
        let change = addresses(change, &names[1], &["127.2.2.2"]);
        let egress = [(Action::Allow, names[0].as_str()), (Action::Allow, &names[1])];
        let mut backend = start(&rules(change, &egress));
        assert_eq!(targets.reached(), ["127.1.1.1", "127.2.2.2"]);
        let more = ["127.3.3.3", "127.4.4.4"].map(|text| (address(text), None));
        let status = backend.apply(&Change::new().members(&names[1], &more, &[]).0, NOW);
        assert_eq!(status.broken, None);
        let said = format!("{:?}", status.pending);
        let name = names::set(set(&names[1]), Family::V4);
        assert!(said.contains(name.as_str()) && said.contains("ENFILE"), "{said}");
        assert!(status.wants_retry());
        assert_eq!(targets.reached(), ["127.1.1.1"]);
        let less = Change::new().members(&names[1], &[], &[address("127.4.4.4")]);
        backend.apply(&less.0, NOW);
        settled(backend.reconcile(NOW));
        assert_eq!(targets.reached(), ["127.1.1.1", "127.2.2.2", "127.3.3.3"]);
    });
}

/// What an enforcer wrote that gave each set one of the kernel.
#[test]
fn the_sets_of_the_version_before_are_taken_over_and_removed() {
    in_fresh_namespace(|| {
        let targets = Targets::at(&["127.1.1.1", "127.2.2.2", "127.4.4.4", "127.5.5.5"]);
        nft(include_str!("golden/before-shared-sets.nft"));
        assert_eq!(targets.reached(), ["127.1.1.1", "127.4.4.4"]);
        let mut backend = None;
        hold_fence(|| {
            // The record of 127.4.4.4 is not told again.
            backend = Some(start(&before_shared_sets()));
        });
        assert_eq!(targets.reached(), ["127.1.1.1", "127.4.4.4"]);
        assert_eq!(held("names"), ["127.4.4.4"]);
        assert_eq!(held("fence"), [FENCED]);
        let left = kernel_sets();
        assert!(!left.iter().any(|name| names::is_own_set(name)), "{left:?}");
        let status = settled(backend.unwrap().reconcile(NOW));
        assert!(status.repaired.is_empty(), "{:?}", status.differences);
    });
}

/// The rules of that file: `nft list table inet egret` of an enforcer that got them with a record of 127.4.4.4, and with the names of
/// headers in the place of their offsets.
fn before_shared_sets() -> Change {
    let change = addresses(Change::new(), "fence", &[FENCED]);
    let change = addresses(change, "exception", &[FENCED, "127.1.1.1"]);
    let change = change.set("names", SetKind::Records, &[]);
    rules(
        change,
        &[
            (Action::Deny, "fence"),
            (Action::Allow, "exception"),
            (Action::Allow, "names"),
        ],
    )
}
