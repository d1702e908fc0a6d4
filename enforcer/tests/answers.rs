//! What answers leave alone, and what they do not, where nothing else happens for long. Time is an argument; the kernel only counts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod engine_world;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use egret_enforcer::backend::none::NoVerdicts;
use egret_enforcer::backend::{Backend, BackendError, EndedConnections, SyncStatus, VerdictCounters};
use egret_enforcer::engine::{Engine, Input, PeerId, Setup};
use egret_policies::compiler::{NodeScope, Settings};
use egret_policies::rules::Batch;
use egret_shared::link::{ToDnsd, ToEnforcer};
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::revision::Sequence;
use egret_shared::time::Timestamp;
use tokio::sync::mpsc;

use engine_world::{CLUSTER, cluster, in_sync};

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

/// How often what was asked of the kernel.
#[derive(Debug, Default)]
struct Counts {
    applied: AtomicUsize,
    opened: AtomicUsize,
    looked: AtomicUsize,
    compared: AtomicUsize,
    ended: AtomicUsize,
}

#[derive(Debug, Default)]
struct Counting {
    counts: Arc<Counts>,
    /// What is found when somebody looks.
    alarm: Arc<Mutex<Option<String>>>,
}

fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Backend for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn adopt(&mut self, _now: Timestamp) -> Result<(), BackendError> {
        Ok(())
    }

    fn apply(&mut self, _batch: &Batch, _now: Timestamp) -> SyncStatus {
        count(&self.counts.applied);
        SyncStatus::default()
    }

    fn add_records(&mut self, _batch: &Batch, _now: Timestamp) -> Option<SyncStatus> {
        count(&self.counts.opened);
        None
    }

    fn links_changed(&mut self, _now: Timestamp) -> SyncStatus {
        SyncStatus::default()
    }

    fn poll_drift(&mut self, _now: Timestamp) -> Option<String> {
        count(&self.counts.looked);
        self.alarm.lock().unwrap().take()
    }

    fn reconcile(&mut self, _now: Timestamp) -> SyncStatus {
        count(&self.counts.compared);
        SyncStatus::default()
    }

    fn end_denied_connections(&mut self) -> EndedConnections {
        count(&self.counts.ended);
        EndedConnections::default()
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

/// An engine with a dnsd that was told everything.
struct Life {
    engine: Engine,
    counts: Arc<Counts>,
    alarm: Arc<Mutex<Option<String>>>,
    told: mpsc::Receiver<Vec<ToDnsd>>,
    answers: u16,
}

impl Life {
    fn begin(resync: Duration) -> Self {
        let backend = Counting::default();
        let (counts, alarm) = (Arc::clone(&backend.counts), Arc::clone(&backend.alarm));
        let mut engine = Engine::new(Setup {
            compiler: Settings::for_scope(NodeScope::One(Arc::from("n"))),
            backend: Box::new(backend),
            resync,
            remembered: Vec::new(),
            state_writer: None,
            excluded_namespaces: BTreeSet::new(),
            interfaces: Default::default(),
        });
        engine.pass(NOW);
        let told = join(&mut engine, 1);
        engine.handle(cluster(CLUSTER), NOW);
        engine.handle(in_sync(), NOW);
        engine.pass(NOW);
        Self {
            engine,
            counts,
            alarm,
            told,
            answers: 0,
        }
    }

    /// A new address, of which nobody has heard before.
    fn answer(&mut self, now: Timestamp) {
        self.answers += 1;
        let [high, low] = self.answers.to_be_bytes();
        let observation = Observation {
            client: "10.0.0.1".parse().unwrap(),
            question: "x.example.test".parse().unwrap(),
            chain: Vec::new(),
            addresses: vec![ObservedAddress {
                address: [203, 0, high, low].into(),
                expires: now.after(Duration::from_secs(60)),
            }],
        };
        let sequence = (0..self.answers).fold(Sequence::ZERO, |sequence, _| sequence.next());
        self.engine.handle(
            Input::PeerMessage(
                PeerId(1),
                ToEnforcer::Observed {
                    sequence,
                    observation,
                },
            ),
            now,
        );
    }

    fn counted(&self) -> [usize; 5] {
        let Counts {
            applied,
            opened,
            looked,
            compared,
            ended,
        } = &*self.counts;
        [applied, opened, looked, compared, ended].map(|counter| counter.load(Ordering::Relaxed))
    }

    /// The last number that is realized.
    fn realized(&mut self) -> u64 {
        let mut realized = 0;
        while let Ok(messages) = self.told.try_recv() {
            for message in messages {
                if let ToDnsd::Realized { through, .. } = message {
                    realized = through.as_u64();
                }
            }
        }
        realized
    }
}

fn join(engine: &mut Engine, number: u64) -> mpsc::Receiver<Vec<ToDnsd>> {
    let (out, told) = mpsc::channel(2_000);
    let joined = Input::PeerJoined {
        peer: PeerId(number),
        program: "dnsd".to_owned(),
        out: Box::new(out),
    };
    engine.handle(joined, NOW);
    told
}

#[test]
fn an_answer_is_opened_and_told_and_may_open_again_what_was_forbidden() {
    let mut life = Life::begin(Duration::ZERO);
    let [applied, opened, looked, compared, ended] = life.counted();
    for number in 1..4 {
        life.answer(NOW);
        life.engine.pass(NOW);
        assert_eq!(life.realized(), number as u64);
        let then = [applied, opened + number, looked, compared, ended + number];
        assert_eq!(life.counted(), then, "whoever ends flows is asked each time");
    }
}

#[test]
fn continuous_answers_delay_no_due_work() {
    let mut life = Life::begin(Duration::from_secs(3600));
    *life.alarm.lock().unwrap() = Some("somebody was here".to_owned());
    let [_, opened, looked, compared, _] = life.counted();
    let mut now = NOW;
    for _ in 0..510 {
        now = now.after(Duration::from_millis(10));
        life.answer(now);
        life.engine.pass(now);
    }
    let [_, opened_now, looked_now, compared_now, _] = life.counted();
    assert_eq!(opened_now - opened, 510);
    assert_eq!(looked_now - looked, 2, "every two seconds");
    assert_eq!(compared_now - compared, 1, "soon after the alarm");
}

#[test]
fn a_dnsd_that_joins_among_answers_is_told_everything() {
    let mut life = Life::begin(Duration::ZERO);
    life.answer(NOW);
    let mut told = join(&mut life.engine, 2);
    life.answer(NOW);
    life.engine.pass(NOW);
    let messages: Vec<ToDnsd> = std::iter::from_fn(|| told.try_recv().ok()).flatten().collect();
    assert!(messages.contains(&ToDnsd::InterestComplete), "{messages:?}");
}

#[test]
fn what_changes_among_answers_is_applied() {
    let mut life = Life::begin(Duration::ZERO);
    let [applied, ..] = life.counted();
    life.answer(NOW);
    let label = CLUSTER.replace("app: a}}\nspec", "app: other}}\nspec");
    life.engine.handle(cluster(&label), NOW);
    life.answer(NOW);
    life.engine.pass(NOW);
    assert!(life.counted()[0] > applied);
}
