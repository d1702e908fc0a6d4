//! A fault after each step, of all changes, in both flavours: these take turns over the steps, and share the first and the last
//! (`EGRET_EVERY_STEP` has each flavour take all).

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::time::Duration;

use egret_enforcer::backend::Backend;
use egret_enforcer::backend::netfilter::Netfilter;
use egret_enforcer::backend::netfilter::cleanup;
use egret_kernel::Family;
use egret_kernel::fault_points::{Plan, Planned, Step, Taken};
use egret_kernel::iptables::Flavour;
use egret_policies::rules::Batch;
use egret_shared::time::Timestamp;

use crate::node::{Flow, KernelDump, Node, Probe};
use crate::node_world::{NOW, in_fresh_namespace};
use crate::stories::{self, Story};

/// So many lives end. Who changes how the kernel is written changes the number, and says why.
const LIVES: usize = 719;

/// `EGRET_STORY` chooses stories by a part of their names.
#[test]
fn a_crash_after_any_step_opens_nothing_and_the_next_start_repairs_all() {
    let only = std::env::var("EGRET_STORY").unwrap_or_default();
    let stories = stories::all()
        .into_iter()
        .filter(|story| story.name.contains(&only));
    let mut lives = 0;
    for story in stories {
        let [legacy, nft] = in_both_flavours(&story);
        for ((change, legacy), nft) in Change::ALL.into_iter().zip(legacy).zip(nft) {
            let name = format!("{} {change:?}", story.name);
            assert_eq!(
                legacy.cuts, nft.cuts,
                "{name}: one flavour takes a turn where the other has none"
            );
            let taken = legacy.taken.union(&nft.taken).cloned().collect();
            assert_eq!(
                nft.cuts.into_iter().collect::<BTreeSet<Cut>>(),
                taken,
                "{name}: nobody stops there"
            );
            lives += legacy.taken.len() + nft.taken.len();
        }
    }
    // Nothing where there are no rights to make a namespace.
    if lives > 0 && only.is_empty() && !takes_all() {
        assert_eq!(lives, LIVES, "lives that ended before their time");
    }
}

/// Each in a world of its own, at once.
fn in_both_flavours(story: &Story) -> [Vec<Turns>; 2] {
    let stop_everywhere = |flavour| {
        let (story, (say, heard)) = (story.clone(), mpsc::channel());
        in_fresh_namespace(move || {
            let stage = Stage::of(flavour, story);
            for change in Change::ALL {
                say.send(stage.stop_everywhere(change))
                    .expect("the test waits for it");
            }
        });
        heard.into_iter().collect()
    };
    std::thread::scope(|scope| {
        Flavour::BOTH
            .map(|flavour| scope.spawn(move || stop_everywhere(flavour)))
            .map(|world| world.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// How the new policy comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// To a life that goes on.
    Batches,
    /// While nobody is there: the first batch of the next life is a change like others.
    Start,
}

impl Change {
    const ALL: [Self; 2] = [Self::Batches, Self::Start];
}

/// Whether a flavour takes its turn: over one change the odd ones, over the next the even ones.
fn takes(flavour: Flavour, change: Change, at: usize, of: usize) -> bool {
    let is_even = at.is_multiple_of(2);
    let is_turn = is_even == ((flavour == Flavour::Nft) == (change == Change::Batches));
    is_turn || at == 0 || at + 1 == of || takes_all()
}

fn takes_all() -> bool {
    std::env::var_os("EGRET_EVERY_STEP").is_some()
}

struct Stage {
    node: Node,
    story: Story,
    now: Timestamp,
    probes: Vec<Probe>,
    old: Fresh,
    new: Fresh,
    between: Vec<Batch>,
    back: Vec<Batch>,
}

/// A policy on a node that held nothing of ours.
struct Fresh {
    batches: Vec<Batch>,
    held: KernelDump,
    verdicts: Vec<bool>,
}

/// What is open when the change begins.
struct Open {
    /// What the new policy allows too, or is to keep.
    to_stay: Vec<Flow>,
    /// What it forbids.
    to_end: Vec<Flow>,
}

/// How many steps of each kind are taken.
type Cut = BTreeMap<Step, usize>;

/// Where a change may stop, and where a flavour had it stop.
#[derive(Debug)]
struct Turns {
    cuts: Vec<Cut>,
    taken: BTreeSet<Cut>,
}

impl Stage {
    fn of(flavour: Flavour, story: Story) -> Self {
        let node = Node::new(flavour);
        let now = NOW.after(Duration::from_secs(story.after));
        let probes = stories::probes();
        let fresh = |cluster: &crate::cluster::Cluster, now| {
            let batches = cluster.begin(now);
            begin(&node, &batches, now);
            let (held, verdicts) = (node.holds(), node.ask(&probes));
            cleanup::remove(flavour).unwrap();
            Fresh {
                batches,
                held,
                verdicts,
            }
        };
        let (old, new) = (fresh(&story.old, NOW), fresh(&story.new, now));
        let between = story.old.turn_into(&story.new, now);
        let back = story.new.turn_into(&story.old, now);
        Self {
            node,
            now,
            probes,
            old,
            new,
            between,
            back,
            story,
        }
    }

    /// At all steps where it is this flavour's turn.
    fn stop_everywhere(&self, change: Change) -> Turns {
        let others = self.node.others();
        self.clear();
        let (whole, _) = self.play(None, change, Plan::Nothing);
        assert!(!whole.is_empty(), "{}: nothing happens", self.story.name);
        let cuts = cuts(&whole);
        let turns = cuts
            .iter()
            .enumerate()
            .filter(|(at, _)| takes(self.node.flavour, change, *at, cuts.len()));
        let (mut taken, mut life) = (BTreeSet::new(), None);
        for (_, cut) in turns {
            life = Some(self.stop_after(cut, change, life.take(), &whole));
            taken.insert(cut.clone());
        }
        assert_eq!(self.node.others(), others, "{}", self.story.name);
        Turns { cuts, taken }
    }

    /// Stops after so many steps, and returns the life that comes next.
    fn stop_after(&self, cut: &Cut, change: Change, before: Option<Netfilter>, whole: &[Taken]) -> Netfilter {
        let name = format!(
            "{} {:?} {change:?} after {cut:?}",
            self.story.name, self.node.flavour
        );
        let (taken, open) = self.play(before, change, Plan::EndAfter(cut.clone()));
        let next = self.judge(&name, &open);
        assert!(
            taken.len() < whole.len() || *cut == counts(whole),
            "{name}: {taken:?}"
        );
        next
    }

    fn clear(&self) {
        cleanup::remove(self.node.flavour).unwrap();
    }

    /// From the old policy towards the new one, until the plan ends it. Returns what was done, and what is open.
    fn play(&self, before: Option<Netfilter>, change: Change, plan: Plan) -> (Vec<Taken>, Open) {
        self.node.forget_flows();
        let mut backend = self.become_old(before);
        let open = self.open();
        if change == Change::Start {
            backend = self.node.backend();
            backend.adopt(self.now).unwrap();
        }
        let planned = Planned::here(plan);
        let batches = match change {
            Change::Batches => &self.between,
            Change::Start => &self.new.batches,
        };
        apply(&mut backend, batches, self.now, &planned);
        let taken = planned.taken();
        drop((backend, planned));
        (taken, open)
    }

    /// A life in which the old policy is in force: one of the new policy goes back to it, which is quicker than another start. But
    /// a record that lapsed does not return.
    fn become_old(&self, before: Option<Netfilter>) -> Netfilter {
        match before.filter(|_| !self.story.has_records()) {
            Some(mut life) => {
                for batch in &self.back {
                    life.apply(batch, self.now);
                }
                life.search_and_end();
                life
            }
            None => {
                self.clear();
                begin(&self.node, &self.old.batches, NOW)
            }
        }
    }

    /// Connections that the old policy opens.
    fn open(&self) -> Open {
        let open = |is_allowed, every| -> Vec<Flow> {
            let some = self.probes_open_before(is_allowed).step_by(every);
            some.filter_map(|probe| self.node.open(probe)).collect()
        };
        let (mut to_stay, to_end) = (open(true, 3), open(false, 1));
        to_stay.extend(self.story.outlasting.map(|probe| self.node.open(probe).unwrap()));
        Open { to_stay, to_end }
    }

    /// What the old policy allows, and the new one allows or does not.
    fn probes_open_before(&self, is_allowed: bool) -> impl Iterator<Item = Probe> {
        let gone = self.story.gone;
        let stays = |probe: &Probe| !gone.contains(&probe.from) && !gone.contains(&probe.to);
        let outlasts = |probe: &Probe| self.story.outlasting.as_ref() == Some(probe);
        let verdicts = self.old.verdicts.iter().zip(&self.new.verdicts);
        let probes = self.probes.iter().zip(verdicts);
        let probes = probes.filter(move |(_, verdicts)| *verdicts == (&true, &is_allowed));
        let probes = probes.map(|(probe, _)| *probe).filter(Probe::can_be_answered);
        probes
            .filter(stays)
            .filter(move |probe| is_allowed || !outlasts(probe))
    }

    /// The gap, and the next life, which is returned.
    fn judge(&self, name: &str, open: &Open) -> Netfilter {
        let found = self.node.ask(&self.probes);
        for (((probe, found), old), new) in self
            .probes
            .iter()
            .zip(&found)
            .zip(&self.old.verdicts)
            .zip(&self.new.verdicts)
        {
            assert!(
                found == old || found == new,
                "{name}: {probe:?} is {found}, was {old}, will be {new}\n{:#?}",
                self.node.holds().ours
            );
        }
        self.hold_open(&format!("{name}, in the gap"), &open.to_stay);
        let mut next = begin(&self.node, &self.new.batches, self.now);
        next.search_and_end();
        self.hold_open(&format!("{name}, in the next life"), &open.to_stay);
        for flow in &open.to_end {
            assert!(
                !self.node.goes_on(flow),
                "{name}: {flow:?} goes on in the next life"
            );
        }
        let held = self.node.holds();
        hold_same(name, &held.ours, &self.new.held.ours);
        hold_same(
            &format!("{name}: what is others'"),
            &held.theirs,
            &self.new.held.theirs,
        );
        assert_eq!(self.node.ask(&self.probes), self.new.verdicts, "{name}");
        let planned = Planned::here(Plan::Nothing);
        let standing = next.reconcile(self.now);
        assert_eq!(standing, egret_enforcer::backend::SyncStatus::default(), "{name}");
        let taken = planned.taken();
        // What is left of a record's time is known to a second, so it may be said once more.
        let is_nothing = taken
            .iter()
            .all(|taken| taken.step == Step::Sets && self.story.has_records());
        assert!(is_nothing, "{name}: {taken:?}");
        next
    }

    fn hold_open(&self, name: &str, flows: &[Flow]) {
        for flow in flows {
            assert!(
                self.node.goes_on(flow),
                "{name}: {flow:?} does not go on\n{:#?}",
                self.node.holds().ours
            );
        }
    }
}

fn hold_same(name: &str, found: &[String], expected: &[String]) {
    let without = |one: &[String], other: &[String]| -> Vec<String> {
        one.iter().filter(|line| !other.contains(line)).cloned().collect()
    };
    assert!(
        found == expected,
        "{name}:\nthere is {:#?}\nthere should be {:#?}",
        without(found, expected),
        without(expected, found)
    );
}

/// A life that begins with this; nothing is open yet.
fn begin(node: &Node, batches: &[Batch], now: Timestamp) -> Netfilter {
    let mut backend = node.backend();
    backend.adopt(now).unwrap();
    for batch in batches {
        backend.apply(batch, now);
    }
    backend
}

/// As far as the life goes.
fn apply(backend: &mut Netfilter, batches: &[Batch], now: Timestamp, planned: &Planned) {
    for batch in batches {
        backend.apply(batch, now);
        if planned.has_ended() {
            return;
        }
    }
    backend.search_and_end();
}

/// Every number of steps at which a life may end. Both families are written side by side: either may be first.
fn cuts(taken: &[Taken]) -> Vec<Cut> {
    let mut all: BTreeSet<Cut> = (0..=taken.len()).map(|length| counts(&taken[..length])).collect();
    for (at, pair) in taken.windows(2).enumerate() {
        if let (Step::Rules(one), Step::Rules(other)) = (pair[0].step, pair[1].step)
            && one != other
        {
            let mut swapped = counts(&taken[..at]);
            *swapped.entry(Step::Rules(other)).or_default() += 1;
            all.insert(swapped);
        }
    }
    let mut all: Vec<Cut> = all.into_iter().collect();
    all.sort_by_key(|cut| (cut.values().sum::<usize>(), cut.clone()));
    all
}

fn counts(taken: &[Taken]) -> Cut {
    let families = Family::ALL.map(Step::Rules);
    let mut counts: Cut = [Step::Sets, families[0], families[1], Step::Flow, Step::Socket]
        .map(|step| (step, 0))
        .into();
    for one in taken {
        *counts.entry(one.step).or_default() += 1;
    }
    counts
}
