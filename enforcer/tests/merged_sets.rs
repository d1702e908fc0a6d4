//! Joint sets stand in front of a kernel made of maps: whatever policies and members do, and wherever a batch is cut off, what
//! they admit is what the sets admit for which they stand.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_enforcer::backend::netfilter::sets::merged::MergedSets;
use egret_policies::model::{Action, Direction, Tier};
use egret_policies::rules::{
    Audit, Batch, Breadth, DefaultAction, DirectionRules, Member, MembersChanged, Names, NodeRules, Origin,
    PeerMatch, PodRules, PortMatch, Rule, SEVERAL, SetId, SetKind, SetSpec, TierRules,
};
use egret_policies::simulator::{Connection, Decision, ForwardedConnection, Protocol, Simulator, Verdict};
use egret_shared::net::{PortRange, Transport};
use egret_shared::pod::PodKey;
use egret_shared::revision::Revision;
use egret_shared::time::Timestamp;
use proptest::prelude::*;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const LATER: Timestamp = Timestamp::from_millis(9_000_000);

/// The sets that policies speak of, by kind: some of each, so that there is something to join.
const KINDS: [SetKind; 25] = [
    SetKind::Addresses,
    SetKind::Addresses,
    SetKind::Addresses,
    SetKind::Networks,
    SetKind::Networks,
    SetKind::Networks,
    SetKind::AddressPorts,
    SetKind::AddressPorts,
    SetKind::Records,
    SetKind::Addresses,
    // Of these there are so many that each is named once in long lists.
    SetKind::Addresses,
    SetKind::Addresses,
    SetKind::Addresses,
    SetKind::Addresses,
    SetKind::AddressPorts,
    SetKind::AddressPorts,
    SetKind::Networks,
    SetKind::Networks,
    SetKind::Networks,
    SetKind::Networks,
    SetKind::Networks,
    SetKind::Networks,
    SetKind::Networks,
    SetKind::Networks,
    SetKind::Records,
];
/// What a pod was told for a name.
const NAME: usize = 8;
/// What it was told for all names.
const NAMES: usize = KINDS.len() - 1;

/// These may not be joined: what a pod was told, and pods of whatever namespaces.
const fn breadth(place: usize) -> Breadth {
    match place {
        8..12 | NAMES => Breadth::Wide,
        _ => Breadth::Narrow,
    }
}

fn set(place: usize) -> SetId {
    SetId::of_content(&format!("set {place}"))
}

fn address(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

/// The members that a set may have; some of them overlap.
fn candidate(kind: SetKind, number: usize) -> Member {
    let last = u8::try_from(number).unwrap();
    match kind {
        SetKind::Addresses | SetKind::Records => Member::Address(address(last)),
        SetKind::AddressPorts => Member::AddressPort(address(last), Transport::Tcp, 80.try_into().unwrap()),
        SetKind::Networks if number == 3 => Member::Network("10.0.0.0/30".parse().unwrap()),
        SetKind::Networks | SetKind::NetworkPorts => Member::Network(address(last).into()),
    }
}

fn expiry(kind: SetKind) -> Option<Timestamp> {
    (kind == SetKind::Records).then_some(LATER)
}

/// A rule, in small numbers.
#[derive(Clone, Debug)]
struct Said {
    action: Action,
    /// A set, or everything.
    peer: usize,
    except: Option<usize>,
    port: usize,
    policy: usize,
}

impl Said {
    fn rule(&self) -> Rule {
        let range = |first, last| PortMatch::Range(Transport::Tcp, PortRange::new(first, last).unwrap());
        Rule {
            action: self.action,
            peer: match self.peer < KINDS.len() {
                true => PeerMatch::In(set(self.peer)),
                false => PeerMatch::Any,
            },
            except: self.except.map(set),
            port: [range(80, 80), range(443, 443), range(1, 100), PortMatch::Any][self.port],
            origin: Origin {
                policy: format!("NetworkPolicy/default/p{}", self.policy).into(),
                rule: 0,
                name: None,
            },
            attribution: None,
        }
    }
}

/// What the policies of a pod come to.
#[derive(Clone, Debug)]
struct Pod {
    admin: Vec<Said>,
    network_policy: Vec<Said>,
    audit: Vec<Said>,
}

impl Pod {
    fn rules(&self, key: &PodKey) -> PodRules {
        let list = |tier, said: &[Said], otherwise| TierRules {
            tier,
            rules: said.iter().map(Said::rule).collect(),
            default_action: otherwise,
        };
        let tiers = vec![
            list(Tier::Admin, &self.admin, DefaultAction::NextTier),
            list(Tier::NetworkPolicy, &self.network_policy, DefaultAction::Deny),
        ];
        let audited = vec![list(Tier::NetworkPolicy, &self.audit, DefaultAction::Deny)];
        PodRules {
            pod: key.clone(),
            uid: None,
            addresses: vec![address(200)],
            egress: DirectionRules {
                names: self.admin.iter().any(|said| said.peer == NAME).then(|| Names {
                    records: set(NAMES),
                    without: None,
                }),
                ..DirectionRules::of(tiers)
            },
            ingress: DirectionRules::default(),
            audit: Audit {
                egress: DirectionRules::of(audited),
                ingress: DirectionRules::default(),
            },
        }
    }
}

/// Something that happens.
#[derive(Clone, Debug)]
struct Happening {
    /// These members are in their sets if they were not, or the other way round.
    toggled: Vec<(usize, usize)>,
    pods: Vec<(usize, Option<Pod>)>,
    /// What clients outside may not reach.
    node: Option<Option<usize>>,
}

/// A set; most often one of a few of one kind, so that rules meet.
fn place() -> impl Strategy<Value = usize> {
    prop_oneof![2 => 0..3_usize, 1 => 0..NAMES]
}

fn said(actions: Vec<Action>) -> impl Strategy<Value = Said> {
    let peer = prop_oneof![9 => place(), 1 => Just(KINDS.len())];
    said_about(actions, peer, prop::option::weighted(0.1, place()))
}

/// A rule of a long list.
fn one_of_many() -> impl Strategy<Value = Said> {
    let any = vec![Action::Allow, Action::Deny, Action::Deny, Action::Pass];
    let peer = prop_oneof![2 => Just(NAME), 1 => Just(9), 20 => 10..NAMES];
    said_about(any, peer, Just(None))
}

fn said_about(
    actions: Vec<Action>,
    peer: impl Strategy<Value = usize>,
    except: impl Strategy<Value = Option<usize>>,
) -> impl Strategy<Value = Said> {
    let port = prop_oneof![2 => Just(0), 1 => 0..4_usize];
    (prop::sample::select(actions), peer, except, port, 0..3_usize).prop_map(
        |(action, peer, except, port, policy)| Said {
            action,
            peer,
            except,
            port,
            policy,
        },
    )
}

fn pod() -> impl Strategy<Value = Pod> {
    let any = vec![Action::Allow, Action::Allow, Action::Deny, Action::Pass];
    let admin = prop_oneof![
        prop::collection::vec(said(any), 0..7),
        prop::collection::vec(one_of_many(), 8..24),
    ];
    (
        admin,
        prop::collection::vec(said(vec![Action::Allow]), 0..7),
        prop::collection::vec(said(vec![Action::Allow]), 0..3),
    )
        .prop_map(|(admin, network_policy, audit)| Pod {
            admin,
            network_policy,
            audit,
        })
}

fn happening() -> impl Strategy<Value = Happening> {
    let node = prop::option::weighted(0.2, prop::option::of(place()));
    (
        prop::collection::vec((prop_oneof![place(), 10..NAMES], 1..4_usize), 0..8),
        prop::collection::vec((0..2_usize, prop::option::weighted(0.9, pod())), 0..2),
        node,
    )
        .prop_map(|(toggled, pods, node)| Happening { toggled, pods, node })
}

/// What is wanted, as policies and the cluster say it.
#[derive(Clone, Debug, Default)]
struct World {
    members: BTreeMap<usize, BTreeSet<Member>>,
    pods: BTreeMap<PodKey, PodRules>,
    node: Option<NodeRules>,
}

impl World {
    fn named(&self) -> BTreeSet<usize> {
        let of_pod = |rules: &PodRules| {
            let sets = rules.egress.sets().chain(rules.audit.sets());
            sets.collect::<Vec<_>>()
        };
        let of_pods = self.pods.values().flat_map(of_pod);
        let all: BTreeSet<SetId> = of_pods
            .chain(self.node.iter().flat_map(NodeRules::sets))
            .collect();
        (0..KINDS.len())
            .filter(|place| all.contains(&set(*place)))
            .collect()
    }

    fn members(&self, place: usize) -> BTreeSet<Member> {
        let place = if place == NAMES { NAME } else { place };
        self.members.get(&place).cloned().unwrap_or_default()
    }

    /// Lets something happen; returns the batch that makes a kernel follow.
    fn follow(&mut self, happening: &Happening) -> Batch {
        let mut batch = Batch::empty(Revision::ZERO.next());
        let had = self.named();
        // Networks that policies write out never change.
        let changes =
            |(place, _): &&(usize, usize)| KINDS[*place] != SetKind::Networks || !had.contains(place);
        for (place, number) in happening.toggled.iter().filter(changes) {
            let changed = self.toggle(*place, candidate(KINDS[*place], *number));
            let told = MembersChanged {
                set: set(NAMES),
                ..changed.clone()
            };
            let told = (*place == NAME && had.contains(&NAMES)).then_some(told);
            let (before, behind) = match changed.removed.is_empty() {
                true => (told, None),
                false => (None, told),
            };
            let own = had.contains(place).then_some(changed);
            batch
                .members_changed
                .extend(before.into_iter().chain(own).chain(behind));
        }
        for (number, pod) in &happening.pods {
            let key = PodKey::new("default", &format!("pod-{number}"));
            match pod.as_ref().map(|pod| pod.rules(&key)) {
                Some(rules) => {
                    batch.rules_replaced.push(rules.clone());
                    self.pods.insert(key, rules);
                }
                None => batch.pods_removed.extend(self.pods.remove(&key).map(|_| key)),
            }
        }
        if let Some(node) = happening.node {
            let rules = node_rules(node);
            self.node = Some(rules.clone());
            batch.node_rules = Some(rules);
        }
        let has = self.named();
        for place in has.difference(&had) {
            self.make(*place, &mut batch);
        }
        batch.sets_destroyed = had.difference(&has).map(|place| set(*place)).collect();
        batch
    }

    fn toggle(&mut self, place: usize, member: Member) -> MembersChanged {
        let members = self.members.entry(place).or_default();
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        if members.remove(&member) {
            removed.push(member);
        } else {
            members.insert(member);
            added.push((member, expiry(KINDS[place])));
        }
        MembersChanged {
            set: set(place),
            added,
            removed,
        }
    }

    fn make(&self, place: usize, batch: &mut Batch) {
        batch.sets_created.push(SetSpec {
            id: set(place),
            kind: KINDS[place],
            breadth: breadth(place),
            description: format!("set {place}").into(),
        });
        let members = self.members(place).into_iter();
        let added: Vec<_> = members.map(|member| (member, expiry(KINDS[place]))).collect();
        batch.members_changed.push(MembersChanged {
            set: set(place),
            added,
            removed: Vec::new(),
        });
    }

    /// The batch that makes an empty kernel hold all of it.
    fn whole(&self) -> Batch {
        let mut batch = Batch::empty(Revision::ZERO.next());
        for place in self.named() {
            self.make(place, &mut batch);
        }
        batch.rules_replaced = self.pods.values().cloned().collect();
        batch.node_rules = self.node.clone();
        batch
    }
}

fn node_rules(denied: Option<usize>) -> NodeRules {
    let said = denied.map(|peer| Said {
        action: Action::Deny,
        peer,
        except: None,
        port: 3,
        policy: 0,
    });
    let tier = said.map(|said| TierRules {
        tier: Tier::ClusterEgressFirewall,
        rules: [said.rule()].into(),
        default_action: DefaultAction::NextTier,
    });
    NodeRules {
        exposed: DirectionRules::of(tier.into_iter().collect()),
    }
}

/// The batch as single steps, in order.
fn steps(batch: &Batch) -> Vec<Batch> {
    let mut all = Vec::new();
    let mut step = |fill: &dyn Fn(&mut Batch)| {
        let mut one = Batch::empty(batch.revision);
        fill(&mut one);
        all.push(one);
    };
    for spec in &batch.sets_created {
        step(&|one| one.sets_created.push(spec.clone()));
    }
    for changed in &batch.members_changed {
        let part = |added: &[_], removed: &[_]| MembersChanged {
            set: changed.set,
            added: added.to_vec(),
            removed: removed.to_vec(),
        };
        for member in &changed.removed {
            step(&|one| one.members_changed.push(part(&[], &[*member])));
        }
        for member in &changed.added {
            step(&|one| one.members_changed.push(part(&[*member], &[])));
        }
    }
    for rules in &batch.rules_replaced {
        step(&|one| one.rules_replaced.push(rules.clone()));
    }
    step(&|one| one.node_rules.clone_from(&batch.node_rules));
    for pod in &batch.pods_removed {
        step(&|one| one.pods_removed.push(pod.clone()));
    }
    for id in &batch.sets_destroyed {
        step(&|one| one.sets_destroyed.push(*id));
    }
    all
}

/// The verdict and the tier, and of what is denied also the rule.
type Answer = (Verdict, &'static str, Option<Origin>);

/// What a kernel says of everything that may be asked.
fn verdicts(memory: &Simulator) -> Vec<Answer> {
    let said = |decision: Decision| {
        let origin = decision.origin.filter(|_| decision.verdict == Verdict::Deny);
        (decision.verdict, decision.tier, origin)
    };
    let mut all = Vec::new();
    for (peer, protocol) in asked() {
        for number in 0..2 {
            all.push(said(memory.decide(&connection(number, peer, protocol), NOW)));
        }
        let entering = ForwardedConnection {
            destination: peer,
            destination_is_own_node: false,
            protocol,
        };
        all.push(said(memory.decide_entering(entering, NOW)));
    }
    all
}

fn asked() -> impl Iterator<Item = (IpAddr, Protocol)> {
    let ports = [80, 443, 8080].map(|port| Protocol::Port(Transport::Tcp, port));
    (0..4).flat_map(move |last| ports.map(|protocol| (address(last), protocol)))
}

fn connection(number: usize, peer: IpAddr, protocol: Protocol) -> Connection {
    Connection {
        pod: PodKey::new("default", &format!("pod-{number}")),
        direction: Direction::Egress,
        peer,
        peer_is_own_node: false,
        protocol,
    }
}

/// What would be denied by policies in audit.
fn audited(memory: &Simulator) -> Vec<Option<Decision>> {
    let each = asked().flat_map(|(peer, protocol)| [0, 1].map(|number| connection(number, peer, protocol)));
    each.map(|connection| memory.would_deny(&connection, NOW))
        .collect()
}

/// Goes through a batch step by step; returns what was said in between, from before the first step on.
fn walk(memory: &mut Simulator, batch: &Batch) -> Vec<Vec<Answer>> {
    let mut said = vec![verdicts(memory)];
    for step in steps(batch) {
        memory.apply(&step, NOW).unwrap();
        said.push(verdicts(memory));
    }
    said
}

/// What becomes of a packet from step to step. What is allowed may be so for a moment by another of two tiers that both allow it:
/// one has the address already, and the other has not.
fn course(said: &[Vec<Answer>], packet: usize) -> Vec<Answer> {
    let each = said.iter().map(|said| said[packet].clone());
    let by_any_tier = each.map(|(verdict, tier, origin)| match verdict {
        Verdict::Allow => (verdict, "", origin),
        Verdict::Deny => (verdict, tier, origin),
    });
    by_any_tier.collect()
}

/// Whether something that changes goes through no other states than it should, in the same order.
fn follows<T: PartialEq>(seen: &[T], wanted: &[T]) -> bool {
    let mut wanted = wanted.iter();
    let mut now = wanted.next();
    seen.iter().all(|seen| {
        while now.is_some_and(|now| now != seen) {
            now = wanted.next();
        }
        now.is_some()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn at_every_step_of_a_batch_merged_sets_admit_what_their_parts_admit(story in prop::collection::vec(happening(), 1..6)) {
        let mut world = World::default();
        let (mut apart, mut merged) = (Simulator::new(), Simulator::new());
        let mut merged_sets = MergedSets::default();
        for happening in &story {
            let batch = world.follow(happening);
            let joined = merged_sets.merge(&batch);
            let (wanted, seen) = (walk(&mut apart, &batch), walk(&mut merged, &joined));
            prop_assert_eq!(seen.last(), wanted.last());
            prop_assert_eq!(audited(&merged), audited(&apart));
            for packet in 0..wanted[0].len() {
                let (seen, wanted) = (course(&seen, packet), course(&wanted, packet));
                prop_assert!(follows(&seen, &wanted), "packet {}: {:?} instead of {:?}", packet, seen, wanted);
            }
        }
        let mut fresh = Simulator::new();
        fresh.apply(&MergedSets::default().merge(&world.whole()), NOW).unwrap();
        prop_assert_eq!(&merged, &fresh, "a restart has other rules or sets");
        let of_pods = merged.pods().flat_map(|rules| rules.egress.sets().chain(rules.audit.sets()));
        let named: BTreeSet<SetId> = of_pods.chain(merged.node().into_iter().flat_map(NodeRules::sets)).collect();
        let there: BTreeSet<SetId> = merged.sets().map(|spec| spec.id).collect();
        prop_assert_eq!(there, named, "there are sets that no rule needs");
    }
}

/// A pod that six policies of a namespace allow to reach somebody each, at one port.
fn six_policies() -> (World, Batch) {
    let said = |number: usize| Said {
        action: Action::Allow,
        peer: [0, 1, 2, 3, 8, 9][number],
        except: None,
        port: 0,
        policy: number,
    };
    let pod = Pod {
        admin: Vec::new(),
        network_policy: (0..6).map(said).collect(),
        audit: Vec::new(),
    };
    let mut world = World::default();
    let batch = world.follow(&Happening {
        toggled: vec![(0, 1), (1, 1), (1, 2)],
        pods: vec![(0, Some(pod))],
        node: None,
    });
    (world, batch)
}

#[test]
fn allow_rules_of_several_policies_at_a_port_become_one_rule_for_each_kind_of_set() {
    let (_, batch) = six_policies();
    let joined = MergedSets::default().merge(&batch);
    let rules = &joined.rules_replaced[0].egress.tiers[1].rules;
    let policies: Vec<&str> = rules.iter().map(|rule| &*rule.origin.policy).collect();
    // Three of addresses are one; networks, what was told and wide sets stay alone, and networks are asked last.
    let alone = [4, 5, 3].map(|number| format!("NetworkPolicy/default/p{number}"));
    assert_eq!(policies, [SEVERAL, &alone[0], &alone[1], &alone[2]]);
    assert_eq!(joined.sets_created.len(), 4);
}

#[test]
fn rules_before_a_deny_are_not_merged_with_rules_after_it() {
    let said = |action, peer| Said {
        action,
        peer,
        except: None,
        port: 0,
        policy: peer,
    };
    let pod = Pod {
        admin: vec![
            said(Action::Allow, 0),
            said(Action::Deny, 3),
            said(Action::Allow, 1),
            said(Action::Allow, 2),
        ],
        network_policy: Vec::new(),
        audit: Vec::new(),
    };
    let batch = World::default().follow(&Happening {
        toggled: Vec::new(),
        pods: vec![(0, Some(pod))],
        node: None,
    });
    let joined = MergedSets::default().merge(&batch);
    let rules = joined.rules_replaced[0].egress.tiers[0].rules.iter();
    let seen: Vec<_> = rules.map(|rule| (rule.action, &*rule.origin.policy)).collect();
    let alone = ["NetworkPolicy/default/p0", "NetworkPolicy/default/p3"];
    assert_eq!(
        seen,
        [
            (Action::Allow, alone[0]),
            (Action::Deny, alone[1]),
            (Action::Allow, SEVERAL)
        ]
    );
}

#[test]
fn a_member_leaves_a_merged_set_with_the_last_part_that_has_it() {
    let (mut world, batch) = six_policies();
    let mut merged_sets = MergedSets::default();
    let first = merged_sets.merge(&batch);
    let PeerMatch::In(all) = first.rules_replaced[0].egress.tiers[1].rules[0].peer else {
        unreachable!("it is a rule over a set");
    };
    let mut toggle = |place, number| {
        let toggled = vec![(place, number)];
        let batch = world.follow(&Happening {
            toggled,
            pods: Vec::new(),
            node: None,
        });
        merged_sets.merge(&batch).into_owned().members_changed
    };
    assert_eq!(toggle(0, 1), [], "the second policy has it as well");
    let gone = MembersChanged {
        set: all,
        added: Vec::new(),
        removed: vec![Member::Address(address(1))],
    };
    assert_eq!(toggle(1, 1), [gone]);
    assert_eq!(toggle(2, 2), [], "it is there already");
    assert_eq!(toggle(2, 1).len(), 1);
}

#[test]
fn sets_of_records_are_not_merged() {
    let (mut world, batch) = six_policies();
    let mut merged_sets = MergedSets::default();
    merged_sets.merge(&batch);
    let told = world.follow(&Happening {
        toggled: vec![(NAME, 1)],
        pods: Vec::new(),
        node: None,
    });
    assert!(matches!(merged_sets.merge(&told), std::borrow::Cow::Borrowed(_)));
}

/// Ten rules of an administrator: deny some pods, allow others, and allow eight networks.
fn ten_ordered_rules() -> Pod {
    let said = |action, peer| Said {
        action,
        peer,
        except: None,
        port: 3,
        policy: peer,
    };
    let pods = [said(Action::Deny, 10), said(Action::Allow, 12)];
    let networks = (16..24).map(|peer| said(Action::Allow, peer));
    Pod {
        admin: pods.into_iter().chain(networks).collect(),
        network_policy: Vec::new(),
        audit: Vec::new(),
    }
}

#[test]
fn an_address_that_changes_its_verdict_in_a_table_is_never_without_one() {
    let (mut world, mut merged_sets) = (World::default(), MergedSets::default());
    let (mut apart, mut merged) = (Simulator::new(), Simulator::new());
    let first = Happening {
        toggled: vec![(12, 1)],
        pods: vec![(0, Some(ten_ordered_rules()))],
        node: None,
    };
    // The pod is allowed, then denied as well, then only allowed again.
    let toggled = || Happening {
        toggled: vec![(10, 1)],
        pods: Vec::new(),
        node: None,
    };
    for (place, happening) in [first, toggled(), toggled()].iter().enumerate() {
        let batch = world.follow(happening);
        let joined = merged_sets.merge(&batch).into_owned();
        let (wanted, seen) = (walk(&mut apart, &batch), walk(&mut merged, &joined));
        if place > 0 {
            // The one set that denies is in the table alone.
            assert_eq!(joined.members_changed.len(), 2, "a key comes, and one goes");
        }
        for packet in 0..wanted[0].len() {
            let (seen, wanted) = (course(&seen, packet), course(&wanted, packet));
            assert!(
                follows(&seen, &wanted),
                "packet {packet}: {seen:?} instead of {wanted:?}"
            );
        }
    }
    assert_eq!(merged_sets.ordered().looked_up, 10);
}

/// Ten rules in which a name is denied between two others.
fn a_name_between_ordered_rules() -> Pod {
    let mut pod = ten_ordered_rules();
    let denied = Said {
        action: Action::Deny,
        peer: NAME,
        except: None,
        port: 3,
        policy: NAME,
    };
    pod.admin.insert(5, denied);
    pod
}

#[test]
fn a_packet_to_no_record_of_a_name_passes_the_lookups_of_one_table() {
    let mut merged_sets = MergedSets::default();
    let batch = World::default().follow(&Happening {
        toggled: vec![(12, 1), (NAME, 2)],
        pods: vec![(0, Some(a_name_between_ordered_rules()))],
        node: None,
    });
    let joined = merged_sets.merge(&batch);
    let egress = &joined.rules_replaced[0].egress;
    let lookups = |is_in| {
        let tiers = egress.tiers_for(|records| {
            assert_eq!(records, set(NAMES));
            is_in
        });
        tiers[0].rules.len()
    };
    // The denied pods and the allowed ones, as the networks are nobody's. Else these five are walked, three of them as one, the name,
    // and those behind it as one.
    assert_eq!((lookups(false), lookups(true)), (2, 5));
    assert_eq!(merged_sets.ordered().looked_up, 10);
}
