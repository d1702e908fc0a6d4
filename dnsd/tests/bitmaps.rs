//! Client bitmaps of cached answers against the records: after any history, a set bit implies that the kernel has the
//! addresses for its client, and that the records have them once all observations are realized.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use egret_dnsd::enforcement::client::ClientId;
use egret_dnsd::enforcement::gate::{Gate, GateLimits};
use egret_dnsd::enforcement::records::{ClientBitmap, RecordLimits};
use egret_dnsd::limits::quota_key::QuotaKey;
use egret_kernel::links::Attachment;
use egret_shared::link::{Interest, ToDnsd, ToEnforcer};
use egret_shared::name::NamePattern;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::revision::Sequence;
use egret_shared::time::Timestamp;
use proptest::prelude::*;

const PODS: usize = 2;
const NAMES: usize = 4;
/// Of each name, as it is kept with signatures and without: both tell the same addresses.
const VARIANTS: usize = 2;
const PATTERNS: [&str; 2] = ["*.odd.test", "*.even.test"];
const LIMITS: GateLimits = GateLimits {
    deadline: Duration::from_millis(200),
    per_client: 100,
    total: 100,
    records: RecordLimits {
        per_client: 3,
        total: 7,
        grace: Duration::from_secs(2),
    },
};

#[derive(Clone, Debug)]
enum Step {
    /// A pod asks for what is kept.
    Ask {
        pod: usize,
        answer: usize,
    },
    /// Another answer takes the place of what is kept.
    Replace {
        answer: usize,
        seconds: u64,
    },
    Connect,
    Disconnect,
    /// The enforcer names which of the patterns a pod waits for.
    Interest {
        pod: usize,
        patterns: usize,
    },
    InterestComplete,
    Read,
    /// The enforcer says that all of what it read is realized, or all but the first.
    Realize {
        fails: bool,
    },
    Pass {
        millis: u64,
    },
    Sweep,
    /// Another pod has the address.
    Move {
        pod: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let pod = || 0..PODS;
    let answer = || 0..NAMES * VARIANTS;
    prop_oneof![
        24 => (pod(), answer()).prop_map(|(pod, answer)| Step::Ask { pod, answer }),
        3 => (answer(), 1..9_u64).prop_map(|(answer, seconds)| Step::Replace { answer, seconds }),
        1 => Just(Step::Connect),
        1 => Just(Step::Disconnect),
        2 => (pod(), 0..4_usize).prop_map(|(pod, patterns)| Step::Interest { pod, patterns }),
        1 => Just(Step::InterestComplete),
        6 => Just(Step::Read),
        7 => prop::bool::weighted(0.2).prop_map(|fails| Step::Realize { fails }),
        2 => (1..3_000_u64).prop_map(|millis| Step::Pass { millis }),
        1 => Just(Step::Sweep),
        1 => pod().prop_map(|pod| Step::Move { pod }),
    ]
}

struct Cacheable {
    bitmap: ClientBitmap,
    told: ObservedAddress,
}

/// A pod's address, a name, an address of it.
type Record = (IpAddr, String, IpAddr);

/// A hold, what is kept, and an enforcer with its kernel.
struct World {
    hold: Gate,
    now: Timestamp,
    kept: Vec<Cacheable>,
    attachments: [u32; PODS],
    is_connected: bool,
    wanted: [Vec<NamePattern>; PODS],
    named: HashSet<usize>,
    /// What was read and not realized yet, with what counts of it.
    read: Vec<(Sequence, Option<Observation>)>,
    /// What is realized, and counts, until when.
    kernel: HashMap<Record, Timestamp>,
    marked: usize,
}

fn address(pod: usize) -> IpAddr {
    [10, 0, 0, u8::try_from(pod).unwrap()].into()
}

fn record(observation: &Observation, told: &ObservedAddress) -> Record {
    let question = observation.question.as_str().to_owned();
    (observation.client, question, told.address)
}

fn name(answer: usize) -> String {
    let name = answer / VARIANTS;
    format!("n{name}.{}.test", ["even", "odd"][name % 2])
}

impl World {
    fn new() -> Self {
        let now = Timestamp::from_millis(10_000);
        let kept = (0..NAMES * VARIANTS).map(|answer| kept(answer, now, 5));
        Self {
            hold: Gate::new(LIMITS, now),
            now,
            kept: kept.collect(),
            attachments: [0; PODS],
            is_connected: false,
            wanted: Default::default(),
            named: HashSet::new(),
            read: Vec::new(),
            kernel: HashMap::new(),
            marked: 0,
        }
    }

    fn client_id(&self, pod: usize) -> ClientId {
        ClientId {
            address: address(pod),
            attachment: Some(Attachment::to(&self.attachments[pod])),
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Ask { pod, answer } => self.ask(pod, answer),
            Step::Replace { answer, seconds } => self.kept[answer] = kept(answer, self.now, seconds),
            Step::Connect => {
                self.is_connected = true;
                self.read.clear();
                self.kernel.clear();
                self.named.clear();
                self.hold.connected(self.now);
            }
            Step::Disconnect => {
                self.is_connected = false;
                self.read.clear();
                self.hold.disconnected();
            }
            Step::Interest { pod, patterns } if self.is_connected => self.interest(pod, patterns),
            Step::InterestComplete if self.is_connected => {
                for pod in (0..PODS).filter(|pod| !self.named.contains(pod)) {
                    self.wanted[pod].clear();
                }
                self.hold.receive(ToDnsd::InterestComplete, self.now);
            }
            Step::Read => self.read(),
            Step::Realize { fails } if self.is_connected => self.realize(fails),
            Step::Pass { millis } => {
                self.now = self.now.after(Duration::from_millis(millis));
                self.hold.handle_timeout(self.now);
            }
            Step::Sweep => drop(self.hold.sweep(self.now)),
            Step::Move { pod } => {
                // What it told of the one before is not of this one.
                self.read();
                self.attachments[pod] += 1;
                self.discount(pod);
            }
            Step::Interest { .. } | Step::InterestComplete | Step::Realize { .. } => {}
        }
        while self.hold.poll_ended().is_some() {}
    }

    /// As a resolver does with what is fresh.
    fn ask(&mut self, pod: usize, answer: usize) {
        let (client_id, question, told) = (self.client_id(pod), name(answer), self.kept[answer].told);
        if told.expires <= self.now {
            return;
        }
        let is_settled = self.hold.is_settled(client_id, &question, [told].into_iter());
        if self.hold.is_marked(client_id, &self.kept[answer].bitmap) {
            self.marked += 1;
            self.check(pod, &question, told, is_settled);
        } else if is_settled {
            self.hold.mark(client_id, &self.kept[answer].bitmap);
        } else {
            let observation = Observation {
                client: client_id.address,
                question: question.parse().unwrap(),
                chain: Vec::new(),
                addresses: vec![told],
            };
            self.hold.answer(
                observation,
                client_id.attachment,
                client_id.address.into(),
                self.now,
            );
        }
    }

    fn check(&self, pod: usize, question: &str, told: ObservedAddress, is_settled: bool) {
        if self.hold.is_caught_up() {
            assert!(
                is_settled,
                "the ledger does not know that {pod} was told {question}"
            );
        }
        let name = question.parse().unwrap();
        if self.wanted[pod].iter().any(|pattern| pattern.matches(&name)) {
            let record = (address(pod), question.to_owned(), told.address);
            let until = self.kernel.get(&record);
            assert!(
                until.is_some_and(|until| *until >= told.expires),
                "the kernel has {record:?} until {until:?}, not until {:?}",
                told.expires
            );
        }
    }

    fn interest(&mut self, pod: usize, patterns: usize) {
        let patterns: Vec<NamePattern> = PATTERNS
            .iter()
            .enumerate()
            .filter(|(place, _)| patterns >> place & 1 == 1)
            .map(|(_, pattern)| pattern.parse().unwrap())
            .collect();
        let before = &self.wanted[pod];
        if patterns.iter().any(|pattern| !before.contains(pattern)) {
            // What was told before need not be there for what comes now.
            self.read();
            self.discount(pod);
        }
        self.wanted[pod].clone_from(&patterns);
        self.named.insert(pod);
        let pod = address(pod);
        self.hold
            .receive(ToDnsd::Interest(Interest { pod, patterns }), self.now);
    }

    /// Nothing that a pod was told so far counts.
    fn discount(&mut self, pod: usize) {
        let client = address(pod);
        self.kernel.retain(|(of, _, _), _| *of != client);
        for (_, observation) in &mut self.read {
            observation.take_if(|observation| observation.client == client);
        }
    }

    fn read(&mut self) {
        let attachments = self.attachments;
        let who_has = |of| ClientId {
            address: of,
            attachment: (0..PODS)
                .find(|pod| address(*pod) == of)
                .map(|pod| Attachment::to(&attachments[pod])),
        };
        while self.is_connected
            && let Some(message) = self.hold.poll_transmit(self.now, who_has)
        {
            if let ToEnforcer::Observed {
                sequence,
                observation,
            } = message
            {
                self.read.push((sequence, Some(observation)));
            }
        }
    }

    fn realize(&mut self, fails: bool) {
        let read = std::mem::take(&mut self.read);
        let Some((through, _)) = read.last() else {
            return;
        };
        let (through, mut failed) = (*through, Vec::new());
        for (place, (sequence, observation)) in read.into_iter().enumerate() {
            if fails && place == 0 {
                failed.push(sequence);
                // Whether it is still there is not known.
                if let Some(observation) = observation {
                    self.kernel.retain(|(of, question, _), _| {
                        (*of, question.as_str()) != (observation.client, observation.question.as_str())
                    });
                }
                continue;
            }
            if let Some(observation) = &observation {
                for told in &observation.addresses {
                    let until = self
                        .kernel
                        .entry(record(observation, told))
                        .or_insert(told.expires);
                    *until = told.expires.max(*until);
                }
            }
        }
        self.hold.receive(ToDnsd::Realized { through, failed }, self.now);
    }
}

fn kept(answer: usize, now: Timestamp, seconds: u64) -> Cacheable {
    Cacheable {
        bitmap: ClientBitmap::default(),
        told: ObservedAddress {
            address: [192, 0, 2, u8::try_from(answer / VARIANTS).unwrap()].into(),
            expires: now.after(Duration::from_secs(seconds)),
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_set_bit_implies_realized_records_after_any_history(steps in prop::collection::vec(step(), 1..200)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
    }
}

/// A pod that waits for a name, and an answer that it was told and that is marked.
fn marked() -> World {
    let mut world = World::new();
    for step in [
        Step::Connect,
        Step::Interest { pod: 0, patterns: 3 },
        Step::InterestComplete,
        Step::Read,
        Step::Ask { pod: 0, answer: 0 },
        Step::Read,
        Step::Realize { fails: false },
        Step::Ask { pod: 0, answer: 0 },
        Step::Ask { pod: 0, answer: 0 },
    ] {
        world.take(&step);
    }
    assert_eq!(
        world.marked, 1,
        "the first one waits, the second one marks, the third one is marked"
    );
    world
}

fn is_marked(world: &World, pod: usize, answer: usize) -> bool {
    world
        .hold
        .is_marked(world.client_id(pod), &world.kept[answer].bitmap)
}

#[test]
fn a_bit_is_of_one_client_and_one_answer() {
    let world = marked();
    assert!(is_marked(&world, 0, 0));
    assert!(!is_marked(&world, 1, 0) && !is_marked(&world, 0, 1));
}

#[test]
fn an_answer_that_may_expire_has_no_bit() {
    let replace = |answer| Step::Replace { answer, seconds: 5 };
    for (step, stays) in [
        (Step::Connect, false),
        (Step::Interest { pod: 0, patterns: 1 }, false),
        (Step::Move { pod: 0 }, false),
        (replace(0), false),
        (Step::Disconnect, true),
        (Step::Sweep, true),
        (Step::Interest { pod: 1, patterns: 1 }, true),
        (Step::Move { pod: 1 }, true),
        (replace(2), true),
    ] {
        let mut world = marked();
        world.take(&step);
        assert_eq!(is_marked(&world, 0, 0), stays, "{step:?}");
    }
}

#[test]
fn a_failed_longer_lifetime_clears_the_bits_of_the_shorter_one() {
    let mut world = marked();
    for step in [
        Step::Replace {
            answer: 1,
            seconds: 9,
        },
        Step::Ask { pod: 0, answer: 1 },
        Step::Read,
    ] {
        world.take(&step);
        assert!(
            is_marked(&world, 0, 0),
            "what was told before is in force: {step:?}"
        );
    }
    world.take(&Step::Realize { fails: true });
    assert!(!is_marked(&world, 0, 0));
}

#[test]
fn a_reused_index_has_no_bits_of_its_earlier_client() {
    let mut world = marked();
    let tell = |world: &mut World, pod, answer| {
        for step in [
            Step::Ask { pod, answer },
            Step::Read,
            Step::Realize { fails: false },
            Step::Ask { pod, answer },
        ] {
            world.take(&step);
        }
        assert!(is_marked(world, pod, answer));
    };
    tell(&mut world, 1, 0);
    world.take(&Step::Connect);
    world.take(&Step::InterestComplete);
    // The seats are given the other way round now.
    tell(&mut world, 1, 0);
    tell(&mut world, 0, 2);
    assert!(!is_marked(&world, 0, 0));
}

#[test]
fn a_client_that_lost_its_index_gets_one_after_a_sweep() {
    let mut world = marked();
    // Three names fit; the first one goes when the fourth is told.
    for answer in [2, 4, 6] {
        world.take(&Step::Ask { pod: 0, answer });
        world.take(&Step::Read);
        world.take(&Step::Realize { fails: false });
    }
    let ask = Step::Ask { pod: 0, answer: 6 };
    world.take(&ask);
    assert!(!is_marked(&world, 0, 6));
    world.take(&Step::Sweep);
    world.take(&ask);
    assert!(is_marked(&world, 0, 6));
}

#[test]
fn clients_without_an_index_are_looked_up_in_the_records() {
    let mut world = World::new();
    let bitmap = ClientBitmap::default();
    let told = kept(0, world.now, 5).told;
    let client_id = |number: u8| ClientId {
        address: [10, 0, 1, number].into(),
        attachment: None,
    };
    world.take(&Step::Connect);
    for number in 0..=255 {
        let observation = Observation {
            client: client_id(number).address,
            question: name(0).parse().unwrap(),
            chain: Vec::new(),
            addresses: vec![told],
        };
        let mut limits = LIMITS;
        (limits.records.total, limits.total) = (1_000, 1_000);
        world.hold.set_limits(limits);
        world.hold.answer(observation, None, QuotaKey::OWN, world.now);
        world.hold.mark(client_id(number), &bitmap);
    }
    let marked = (0..=255).filter(|number| world.hold.is_marked(client_id(*number), &bitmap));
    assert!(marked.eq(0..128), "each of the first has a seat of its own");
}
